//! The table of attacked limiters.

use crate::markdown::{Document, table};

/// The limiters of the guide, which has room for ten. `crates/torture/RESULTS.md` has all of them.
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

/// Returns which attacks each limiter withstood. An attack that does not apply has no result, and is not listed.
pub(super) fn attacks() -> String {
    let results = Document::read("crates/torture/RESULTS.md");
    let short = results.section("## In short").table();
    let all = results.section("## All results").table();
    let kinds = results.section("## Attacks").table().rows().len();
    let rows = SHOWN.iter().map(|limiter| {
        let versions = short.rows().iter().map(|row| &row[0]);
        let mut named = versions.filter(|name| name.split(' ').next() == Some(*limiter));
        let name = named.next().unwrap_or_else(|| panic!("no {limiter}"));
        let results = all.rows().iter().filter(|row| row[0] == *limiter);
        let mut columns = [const { Vec::new() }; 3];
        for result in results {
            let attack = result[1].clone();
            match &*result[2] {
                "held" => columns[0].push(attack),
                "not promised" => columns[2].push(attack),
                broken => {
                    let excess = broken.trim_matches('*').trim_start_matches("broken by ");
                    columns[1].push(format!("{attack} ({excess} too many)"));
                }
            }
        }
        let cells = columns.map(|attacks| match attacks.len() {
            0 => "none".to_owned(),
            count if count == kinds => format!("all {kinds}"),
            _ => attacks.join(", "),
        });
        let name = name.replace(" this-commit", "");
        std::iter::once(name).chain(cells).collect()
    });
    let heads = [
        "limiter",
        "kept its promise under",
        "broke it under",
        "promises nothing under",
    ];
    table(&heads, 0, rows)
}
