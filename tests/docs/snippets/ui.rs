//! Snippets that cannot compile, with an error that says what to write.
//!
//! Each file in `ui/` begins with texts of its error. Their words around ours are those of Rust 1.95.

use std::collections::BTreeMap;
use std::env;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

use crate::project::files;
use crate::root;
use crate::support::example::cargo;

/// Returns the libraries that this program is linked with, by name.
fn libraries() -> BTreeMap<String, PathBuf> {
    let program = env::current_exe().expect("this program");
    // target/debug/deps/docs
    let target = program.ancestors().nth(3).expect("a directory");
    let mut cargo = cargo();
    // All of them are fresh.
    cargo.args(["test", "--all-features", "--test", "docs", "--no-run"]);
    cargo.args(["--quiet", "--message-format=json", "--target-dir"]);
    cargo.arg(target);
    let output = cargo.output().expect("cargo runs");
    let text = String::from_utf8(output.stdout).expect("text");
    let messages = text.lines();
    let messages = messages.map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let libraries = messages.filter_map(|message| {
        let files = message["filenames"].as_array()?.iter();
        let file = files.filter_map(Value::as_str);
        let file = file.into_iter().find(|file| file.ends_with(".rlib"))?;
        let name = message["target"]["name"].as_str()?;
        Some((name.replace('-', "_"), file.into()))
    });
    libraries.collect()
}

fn compile(file: &PathBuf, libraries: &BTreeMap<String, PathBuf>) -> Output {
    let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc.current_dir(root()).arg(file);
    rustc.args(["--edition=2024", "--emit=metadata", "-o", "/dev/null"]);
    for name in ["axum", "http", "tollgate", "tower", "uuid"] {
        let library = libraries[name].display();
        rustc.arg(format!("--extern={name}={library}"));
    }
    let directory = libraries["tollgate"].parent().expect("a directory");
    rustc.arg("-L").arg(directory.join("deps"));
    rustc.arg("-L").arg(directory);
    rustc.output().expect("rustc runs")
}

#[test]
fn what_does_not_compile_says_what_to_write() {
    let libraries = libraries();
    let snippets = files("tests/docs/snippets/ui", &["rs"]);
    assert!(snippets.len() > 10, "{snippets:?}");
    for file in snippets {
        let output = compile(&file, &libraries);
        let error = String::from_utf8(output.stderr).expect("text");
        let snippet = std::fs::read_to_string(&file).expect("text");
        let texts: Vec<_> = snippet
            .lines()
            .map_while(|line| line.strip_prefix("//~ "))
            .collect();
        assert!(!texts.is_empty(), "{file:?} names no text of its error");
        for text in texts {
            assert!(error.contains(text), "{file:?} lacks {text:?}:\n{error}");
        }
        assert!(!output.status.success(), "{file:?} compiles");
    }
}
