//! The Python environment that `tests/run peers` creates, and the scripts in this directory.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use tokio::process::Command;
use tokio::time::timeout;

/// Several times what a script takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn python() -> PathBuf {
    let python = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../peers-venv/bin/python");
    let hint = "is not there: `tests/run peers` makes it";
    assert!(python.exists(), "{} {hint}", python.display());
    python
}

/// Runs a script with these arguments, and returns the JSON that it prints.
pub(crate) async fn run(script: &str, arguments: &[&str]) -> Value {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut python = Command::new(python());
    let python = python.arg(directory.join(script)).args(arguments);
    let output = timeout(PATIENCE, python.kill_on_drop(true).output()).await;
    let output = output.expect("it ends in time").expect("Python runs");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}
