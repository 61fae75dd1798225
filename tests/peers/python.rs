//! The Python that has the packages of tests/peers/requirements.txt.

use std::path::{Path, PathBuf};

pub(crate) fn with_packages() -> PathBuf {
    let python = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../peers-venv/bin/python");
    let hint = "is not there: `tests/run peers` makes it";
    assert!(python.exists(), "{} {hint}", python.display());
    python
}
