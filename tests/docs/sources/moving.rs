//! Code that the guide shows: of the package `examples/migrating`, and of snippets. The page on migrating.

use http::StatusCode;

use super::defaults::default_of;
use super::requests::{refusing, send, without_address, without_key};
use crate::markdown::{Block, numbers};
use crate::project::{files, read};

/// The package with the page's code.
const SOURCES: &str = "examples/migrating/src";

/// Returns the lines of a region of a file of the package, or a file that is not Rust.
pub(super) fn code(block: &Block) -> Result<String, String> {
    let [file, region @ ..] = &block.arguments[..] else {
        return Err("name a file, and a region of it".to_owned());
    };
    let path = format!("{SOURCES}/{file}");
    if !crate::root().join(&path).is_file() {
        return Err(format!("there is no file {path}"));
    }
    if !is_compiled(file) {
        return Err(format!("{path} is not a part of the package"));
    }
    let text = read(&path);
    match region {
        [] if !file.ends_with(".rs") => Ok(text),
        [region] => {
            region_of(&text, region).ok_or_else(|| format!("{path} has no `// page: {region}`"))
        }
        _ => Err(format!("name one region of {path}")),
    }
}

/// The snippets whose code the guide shows.
const SNIPPETS: &str = "tests/docs/snippets/shown";

/// Returns the lines of a snippet that the guide shows.
pub(super) fn snippet(block: &Block) -> Result<String, String> {
    let [file] = &block.arguments[..] else {
        return Err("name a file".to_owned());
    };
    let path = format!("{SNIPPETS}/{file}");
    if !snippets().contains(file) {
        return Err(format!("there is no file {path}"));
    }
    region_of(&read(&path), "shown").ok_or_else(|| format!("{path} has no `// page: shown`"))
}

/// Returns the file of each snippet. A module that is not declared does not run.
pub(crate) fn snippets() -> Vec<String> {
    let modules = read(&format!("{SNIPPETS}/mod.rs"));
    let names = modules.lines().filter_map(|line| line.strip_prefix("mod "));
    names
        .map(|name| format!("{}.rs", name.trim_end_matches(';')))
        .collect()
}

/// Whether the package declares the module, or includes the file.
fn is_compiled(file: &str) -> bool {
    if let Some(module) = file.strip_suffix(".rs") {
        return read(&format!("{SOURCES}/lib.rs")).contains(&format!("\npub mod {module};\n"));
    }
    let included = format!("include_str!(\"{file}\")");
    let mut texts = files(SOURCES, &["rs"]).into_iter();
    texts.any(|path| {
        let text = std::fs::read_to_string(path).expect("text");
        text.contains(&included)
    })
}

/// The comment before a region. Another one of this form ends it.
const MARKER: &str = "// page: ";

/// Returns the lines of a region, without the indentation of its marker.
fn region_of(text: &str, name: &str) -> Option<String> {
    let start = |line: &&str| line.trim_start().strip_prefix(MARKER) == Some(name);
    let mut lines = text.lines().skip_while(|line| !start(line));
    let marker = lines.next()?;
    let indentation = &marker[..marker.len() - marker.trim_start().len()];
    let lines = lines.take_while(|line| !line.trim_start().starts_with(MARKER));
    let lines = lines.map(|line| line.strip_prefix(indentation).unwrap_or(line).to_owned() + "\n");
    Some(lines.collect())
}

/// Returns the arguments that stand for each region of the package.
pub(crate) fn regions() -> Vec<[String; 2]> {
    let mut regions = Vec::new();
    for path in files(SOURCES, &["rs"]) {
        let file = path
            .file_name()
            .expect("a name")
            .to_string_lossy()
            .into_owned();
        let text = std::fs::read_to_string(&path).expect("text");
        let markers = text
            .lines()
            .filter_map(|line| line.trim_start().strip_prefix(MARKER));
        let names = markers.filter(|name| *name != "end");
        regions.extend(names.map(|name| [file.clone(), name.to_owned()]));
    }
    regions
}

/// Checks that the window is the burst times the interval.
pub(super) fn quotas(block: &Block) -> Result<(), String> {
    for row in block.rows() {
        let [_, interval, burst, quota] = &row[..] else {
            return Err(format!("{row:?} has other columns"));
        };
        let arguments = numbers(&quota.replace('_', ""));
        let [limit, window] = &arguments[..] else {
            return Err(format!("{quota} is not a limit and a window"));
        };
        let unit = if quota.contains("from_millis") {
            "ms"
        } else {
            "s"
        };
        let expected =
            millis(interval) * burst.parse::<u64>().map_err(|error| error.to_string())?;
        if limit != burst || millis(&format!("{window} {unit}")) != expected {
            return Err(format!("{quota} is not {burst} in {expected} ms"));
        }
    }
    Ok(())
}

/// Reads "4 s" or "500 ms".
fn millis(text: &str) -> u64 {
    let number: u64 = numbers(text).concat().parse().expect("a number");
    if text.ends_with("ms") {
        number
    } else {
        1_000 * number
    }
}

/// Checks the column of this crate against a refused request.
pub(super) fn headers(block: &Block) -> Result<(), String> {
    let refused = send(&refusing());
    for row in block.rows() {
        let [what, _, here] = &row[..] else {
            return Err(format!("{row:?} has other columns"));
        };
        let matches = if what.starts_with("body") {
            default_of("RateLimitLayer::responder").is_some_and(|(body, _)| body == here)
        } else if what.starts_with("status") {
            let statuses = [without_key(), without_address()];
            numbers(here) == statuses.map(|status: StatusCode| status.as_u16().to_string())
        } else {
            let mut names = what.split('`').skip(1).step_by(2);
            names.all(|name| refused.headers().contains_key(name) != here.starts_with("not sent"))
        };
        if !matches {
            return Err(format!("{what} is not {here:?}"));
        }
    }
    Ok(())
}
