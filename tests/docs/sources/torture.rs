//! The table of attacked limiters.

use crate::markdown::Document;

/// The contestants of the README, which has room for ten. `crates/torture/RESULTS.md` has all of them.
const SHOWN: [&str; 10] = [
    "tollgate-redis",
    "tollgate-memory",
    "governor",
    "limitador",
    "tower-rate-limiter-redis",
    "trypema-redis",
    "redis-cell",
    "textbook",
    "rate-limiter-flexible",
    "limits",
];

/// Returns the lines of the short table for these contestants.
pub(super) fn table() -> String {
    let results = Document::read("crates/torture/RESULTS.md");
    let section = results.section("## In short");
    let mut lines = section.text.lines().filter(|line| line.starts_with('|'));
    let mut table: Vec<_> = lines.by_ref().take(2).collect();
    let rows: Vec<_> = lines.collect();
    for name in SHOWN {
        let start = format!("| {name} ");
        let row = rows.iter().find(|row| row.starts_with(&start));
        table.push(row.unwrap_or_else(|| panic!("RESULTS.md has no {name}")));
    }
    table.join("\n") + "\n"
}
