//! Tables that are written by hand: what they name is there.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use crate::markdown::Block;
use crate::project::{files, text_of};

/// What stands between backticks in these cells.
fn code_spans<'a>(cells: impl Iterator<Item = &'a String>) -> Vec<&'a str> {
    cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .collect()
}

/// Each identifier in the code spans of the table is one of the code. A number outside of them wants to be
/// made; but one of three digits or more may be that of a status or a standard, if the code has it too.
pub(super) fn items(block: &Block) -> Result<(), String> {
    static WORDS: LazyLock<BTreeSet<String>> = LazyLock::new(|| {
        let mut files: Vec<_> = ["src", "lua", "examples", "benches", "tests"]
            .into_iter()
            .flat_map(|directory| files(directory, &["rs", "lua", "toml"]))
            .filter(|path| !path.starts_with(crate::root().join("tests/documents")))
            .collect();
        files.push(crate::root().join("Cargo.toml"));
        words(&text_of(files)).map(str::to_owned).collect()
    });
    for cell in block.rows().iter().flatten() {
        for (at, part) in without_targets(cell).split('`').enumerate() {
            let is_code = at % 2 == 1;
            // What stands between quotes is a value.
            let part = if is_code {
                part.split('"').step_by(2).collect()
            } else {
                part.to_owned()
            };
            for word in words(&part) {
                let is_number = word.starts_with(|each: char| each.is_ascii_digit());
                if !is_code && is_number && word.len() < 3 {
                    return Err(format!(
                        "{part:?} has a number: give the table a maker of its own"
                    ));
                }
                if (is_code != is_number) && !WORDS.contains(word) {
                    return Err(format!("{word} of {cell:?} is nowhere in the code"));
                }
            }
        }
    }
    Ok(())
}

/// Without where links lead, which rustdoc or another test looks for.
fn without_targets(cell: &str) -> String {
    let mut parts = cell.split("](");
    let first = parts.next().unwrap_or_default().to_owned();
    // A target may itself have parentheses, in pairs.
    let rest = parts.map(|part| {
        part.trim_start_matches(|each| each != ')')
            .trim_start_matches(')')
    });
    first + &rest.collect::<Vec<_>>().join("]")
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|each: char| !(each.is_ascii_alphanumeric() || each == '_'));
    words.filter(|word| !word.is_empty())
}

/// A unit test of the page looks through it, by this very comment.
pub(super) fn guide_tests(_: &Block) -> Result<(), String> {
    let tests = text_of(files("src/guide", &["rs"]));
    let looks = tests.contains("<!-- from: guide-tests -->");
    looks
        .then_some(())
        .ok_or_else(|| "no test in src/guide looks for it".to_owned())
}

/// The tests of what is told of limits look through it, by this very comment.
pub(super) fn metrics(block: &Block) -> Result<(), String> {
    let looks = crate::project::read("tests/metrics/main.rs");
    let head = block.text.trim_start_matches(['|', ' ']);
    let head = head.split(' ').next().unwrap_or_default();
    let looks =
        looks.contains("<!-- from: metrics -->") && looks.contains(&format!("rows(\"{head}\")"));
    looks
        .then_some(())
        .ok_or_else(|| format!("no test in tests/metrics looks for a table of {head}"))
}

/// What the first column names is a file or directory of the repository.
pub(super) fn paths(block: &Block) -> Result<(), String> {
    for path in code_spans(block.rows().iter().map(|cells| &cells[0])) {
        if !crate::root().join(path).exists() {
            return Err(format!("there is no {path}"));
        }
    }
    Ok(())
}

/// What the first column names is a contestant of benches/peers, and all of those are there.
pub(super) fn contestants(block: &Block) -> Result<(), String> {
    let source = crate::project::read("benches/peers/src/contestants/mod.rs");
    let (_, all) = source.split_once("const ALL").expect("a list");
    let (all, _) = all.split_once("];").expect("its end");
    // Each is made by a function of its kind: `on_redis("textbook"),`.
    let names = all
        .lines()
        .filter(|line| line.contains("(\"") && !line.contains('#'));
    let there: BTreeSet<&str> = names.filter_map(|line| line.split('"').nth(1)).collect();
    let here = code_spans(block.rows().iter().map(|cells| &cells[0]))
        .into_iter()
        .collect();
    if there != here {
        return Err(format!(
            "the contestants are {there:?}, the table has {here:?}"
        ));
    }
    Ok(())
}

/// Each client that is said to be run is installed for tests/peers, in the version that is named; and each
/// that is installed is in one of the tables.
pub(super) fn clients(block: &Block) -> Result<(), String> {
    let installed = installed_clients();
    let page = crate::project::read("src/guide/grpc_and_clients.md");
    if let Some(client) = installed.iter().find(|client| !page.contains(*client)) {
        return Err(format!("{client} is installed, and in no table"));
    }
    for row in block.rows() {
        let [client, known_by, cells @ ..] = &row[..] else {
            return Err(format!("{row:?} is no client"));
        };
        let is_installed = installed.iter().any(|name| client.starts_with(name));
        // The tests of tonic are in Rust.
        let is_run = known_by == "run" && !client.starts_with("`tonic`");
        if is_run != is_installed {
            return Err(format!(
                "{client} is {known_by}, and installed: {is_installed}"
            ));
        }
        if let Some(cell) = cells
            .iter()
            .find(|cell| !TAKES.contains(&cell.trim_matches('*')))
        {
            return Err(format!("{client}: {cell:?} is none of {TAKES:?}"));
        }
    }
    Ok(())
}

/// How a client takes a form of headers.
const TAKES: [&str; 7] = [
    "waits",
    "too early",
    "no wait",
    "no retry",
    "reads",
    "fails",
    "not read",
];

/// "`got` 14.6.6": the clients for tests/peers, without those that these need.
fn installed_clients() -> Vec<String> {
    let npm = crate::project::read("tests/peers/npm/package.json");
    let npm: serde_json::Value = serde_json::from_str(&npm).expect("JSON");
    let npm = npm["dependencies"].as_object().expect("packages");
    let npm = npm
        .iter()
        // What the plugins and `axios-retry` are plugged into.
        .filter(|(name, _)| !["@octokit/core", "axios"].contains(&name.as_str()))
        .map(|(name, version)| format!("`{name}` {}", version.as_str().expect("text")));
    let pypi = crate::project::read("tests/peers/requirements.txt");
    let pypi = pypi
        .lines()
        .filter_map(|line| line.trim_end_matches(" \\").split_once("=="))
        .filter(|(name, _)| *name != "typing-extensions")
        .map(|(name, version)| format!("`{name}` {version}"));
    npm.chain(pypi).collect()
}
