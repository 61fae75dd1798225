//! Builds and runs the examples as separate programs.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Once;

use super::files;
use super::process::Process;

/// A running example, which ends with its test.
pub(crate) struct Example {
    pub(crate) process: Process,
}

impl Example {
    pub(crate) fn start(name: &str, store: &str) -> Self {
        Self::start_with(name, store, &[])
    }

    pub(crate) fn start_with(name: &str, store: &str, arguments: &[&str]) -> Self {
        let process = Process::start(
            Command::new(built(name))
                .args(arguments)
                .env("TOLLGATE_STORE", store)
                .env("TOLLGATE_ADDR", "127.0.0.1:0")
                .env("TOLLGATE_ADMIN_ADDR", "127.0.0.1:0")
                .env("TOLLGATE_METRICS_ADDR", "127.0.0.1:0")
                .stdout(Stdio::piped())
                .stderr(Stdio::null()),
        );
        Self { process }
    }

    pub(crate) fn line(&mut self) -> String {
        self.process.line()
    }

    /// Returns the address in the first lines of output.
    pub(crate) fn address(&mut self) -> String {
        let listening = self.line();
        let address = listening.strip_prefix("Listening on ").expect(&listening);
        let (address, _) = address.split_once(". Try").expect(&listening);
        assert!(self.line().contains(address) && self.line().contains(address));
        address.to_owned()
    }
}

/// Returns cargo as it runs outside of a test.
pub(crate) fn cargo() -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(files::root());
    // Build scripts of dependencies watch these variables of the test's package. With them, cargo would rebuild ring and
    // everything that depends on it.
    for (name, _) in std::env::vars() {
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// Builds the examples and the doctor, and returns the program of one. `cargo test` builds the examples, but not if only
/// some tests are selected.
pub(crate) fn built(name: &str) -> PathBuf {
    static BUILD: Once = Once::new();
    let tests = std::env::current_exe().expect("this program");
    // The directory of examples is in the directory of the profile, like that of the tests.
    let profile = tests.ancestors().nth(2).expect("a build directory");
    BUILD.call_once(|| {
        let mut build = cargo();
        // The packages whose features `cargo test` or `tests/run peers` unites, so that nothing is built again, and the
        // doctor, which asks for no others.
        build.args(["build", "--quiet", "--all-features", "--workspace"]);
        build.args(["--exclude", "own_store", "--exclude", "tollgate-postgres"]);
        build.args(["--exclude", "tollgate-models"]);
        if env!("CARGO_PKG_NAME") == "tollgate" {
            build.args(["--exclude", "tollgate-test-peers"]);
            build.args(["--exclude", "tollgate-torture"]);
        }
        build.arg("--examples");
        build.args(["--bin", "tollgate-doctor"]);
        if profile.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().expect("cargo runs").success());
    });
    if name == "tollgate-doctor" {
        profile.join(name)
    } else {
        profile.join("examples").join(name)
    }
}
