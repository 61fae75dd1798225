//! The code of a directory without its tests, for the programs of this folder.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the files of a directory, without those of tests.
pub fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().expect("a name").to_string_lossy();
        if name == "tests" || name.starts_with("test_") {
            continue;
        }
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// Leaves out modules of tests within a file.
pub fn without_tests(text: &str) -> String {
    let mut code = String::new();
    let mut lines = text.lines();
    let mut is_test = false;
    while let Some(line) = lines.next() {
        let trimmed = line.trim();
        if trimmed.starts_with("#[cfg(") && trimmed.contains("test") && !trimmed.contains("not(") {
            is_test = true;
            continue;
        }
        if is_test && trimmed.starts_with("#[") {
            continue;
        }
        if is_test && trimmed.starts_with("mod ") && trimmed.ends_with('{') {
            let indent = &line[..line.len() - line.trim_start().len()];
            let end = format!("{indent}}}");
            lines.by_ref().find(|line| *line == end);
            is_test = false;
            continue;
        }
        is_test = false;
        code.push_str(line);
        code.push('\n');
    }
    code
}
