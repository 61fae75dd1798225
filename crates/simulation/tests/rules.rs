//! The rules of the worlds, which make them deterministic.

use std::fs;
use std::path::{Path, PathBuf};

/// The words that no file of a world may name: real clocks and sleeps, threads, the environment, and maps in a random order.
const FORBIDDEN: [&str; 6] = [
    "std::time::Instant",
    "SystemTime",
    "std::thread",
    "std::env",
    "HashMap",
    "HashSet",
];

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.push(path);
        }
    }
    found
}

#[test]
fn worlds_have_no_clock_thread_or_random_order() {
    let world = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/world");
    let files = files(&world);
    assert!(files.len() > 10, "{files:?}");
    for path in files {
        let text = fs::read_to_string(&path).expect("text");
        for word in FORBIDDEN {
            assert!(!text.contains(word), "{path:?} names {word}");
        }
    }
}

#[test]
fn unsafe_code_is_in_the_file_of_the_clocks_only() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for path in files(&source) {
        let text = fs::read_to_string(&path).expect("text");
        let has_unsafe = text.contains("unsafe {") || text.contains("unsafe extern");
        assert_eq!(has_unsafe, path.ends_with("clocks.rs"), "{path:?}");
    }
}
