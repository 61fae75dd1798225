//! Fails if a page names a file, a directory or an item that does not exist.
//!
//! Text between backticks is a path if it has a `/`, or ends as a file does. A path may begin in any directory, and a
//! placeholder such as `<name>` stands for any file. A word in CamelCase is an item, which the code has to name. `.ci/lint`
//! compiles and runs it, so it needs nothing but Rust:
//!
//!     rustc --edition 2024 -o target/paths .ci/paths.rs && target/paths CONTRIBUTING.md

use std::path::Path;
use std::process::{Command, ExitCode};
use std::{env, fs};

/// A file that will be written for the next major version of axum.
const FUTURE: &str = "axum_09.rs";

const EXTENSIONS: [&str; 7] = [".lua", ".md", ".rs", ".sh", ".svg", ".toml", ".yml"];

fn main() -> ExitCode {
    let files = files();
    let code: String = files
        .iter()
        .filter(|file| file.ends_with(".rs") && file.split('/').any(|name| name == "src"))
        .map(|file| fs::read_to_string(file).expect("text"))
        .collect();
    let mut exit_code = ExitCode::SUCCESS;
    let mut spans = 0;
    for page in env::args().skip(1) {
        let text = fs::read_to_string(&page).expect("text");
        for (line, span) in spans_of(&text) {
            let is_known = if is_path(span) {
                files.iter().any(|file| names(span, file))
            } else if is_item(span) {
                span.split("::").all(|name| has_word(&code, name))
            } else {
                continue;
            };
            spans += 1;
            if !is_known && !span.ends_with(FUTURE) {
                eprintln!("{page}:{line}: nothing is called `{span}`");
                exit_code = ExitCode::FAILURE;
            }
        }
    }
    println!("{spans} names of files, directories and items");
    if spans == 0 {
        return ExitCode::FAILURE;
    }
    exit_code
}

/// Returns the files of the repository, and new ones that git does not ignore.
fn files() -> Vec<String> {
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .output()
        .expect("git");
    String::from_utf8(output.stdout)
        .expect("text")
        .lines()
        .filter(|file| Path::new(file).exists())
        .map(str::to_owned)
        .collect()
}

/// Returns what stands between backticks outside of blocks, with its line.
fn spans_of(text: &str) -> Vec<(usize, &str)> {
    let mut spans = Vec::new();
    let mut is_block = false;
    for (index, line) in text.lines().enumerate() {
        if line.starts_with("```") {
            is_block = !is_block;
        } else if !is_block {
            let inside = line.split('`').skip(1).step_by(2);
            spans.extend(inside.map(|span| (index + 1, span)));
        }
    }
    spans
}

fn is_path(span: &str) -> bool {
    let is_file = EXTENSIONS.iter().any(|extension| span.ends_with(extension));
    let is_plain = span
        .chars()
        .all(|letter| letter.is_alphanumeric() || "/._-<>".contains(letter));
    is_plain && (is_file || span.contains('/'))
}

/// Returns whether a path, which may begin in any directory, is that of the file or of a directory around it.
fn names(path: &str, file: &str) -> bool {
    let named: Vec<_> = path.trim_end_matches('/').split('/').collect();
    let parts: Vec<_> = file.split('/').collect();
    parts.windows(named.len()).any(|window| {
        window
            .iter()
            .zip(&named)
            .all(|(part, name)| matches(part, name))
    })
}

fn matches(part: &str, name: &str) -> bool {
    match name.split_once('<') {
        Some((start, end)) => {
            let end = end.split_once('>').map_or("", |(_, end)| end);
            part.starts_with(start) && part.ends_with(end)
        }
        None => part == name,
    }
}

/// Returns whether a span is the path of an item, such as `Algorithm::ALL`.
fn is_item(span: &str) -> bool {
    let is_name = |name: &str| {
        !name.is_empty()
            && name
                .chars()
                .all(|letter| letter.is_alphanumeric() || letter == '_')
    };
    let starts_large = span.starts_with(|letter: char| letter.is_ascii_uppercase());
    starts_large && span.contains(char::is_lowercase) && span.split("::").all(is_name)
}

fn has_word(code: &str, word: &str) -> bool {
    let is_letter = |letter: char| letter.is_alphanumeric() || letter == '_';
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + word.len()..].chars().next();
        !before.is_some_and(is_letter) && !after.is_some_and(is_letter)
    })
}
