//! The files of the repository.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the root of the repository. The manifest of a test is there, or in a package below it.
pub(crate) fn root() -> PathBuf {
    let mut above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let root = above.find(|directory| directory.join("deny.toml").exists());
    root.expect("the root of the repository").to_owned()
}

/// Returns the files below a directory that have one of the extensions, sorted, except for build output.
pub(crate) fn files(directory: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten() {
            let path = entry.expect("an entry").path();
            if path.is_dir() && !path.ends_with("target") {
                directories.push(path);
            } else if path
                .extension()
                .is_some_and(|end| extensions.iter().any(|one| end == *one))
            {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}
