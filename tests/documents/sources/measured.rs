//! Figures from the results of the benches.

use std::path::Path;

use crate::markdown::{Block, Document, Kind, table};

fn results() -> Document {
    Document::read(Path::new("benches/RESULTS.md"))
}

/// Succeeds if the figures of each row are in one row of the results, in the same order. If the first cell is code,
/// as is the name of an algorithm, that row has the same name.
pub(super) fn printed(block: &Block) -> Result<(), String> {
    let results = results();
    let printed = results.blocks.iter().flat_map(Block::rows);
    let printed: Vec<_> = printed.collect();
    for row in block.rows() {
        let name = row[0]
            .strip_prefix('`')
            .and_then(|name| name.strip_suffix('`'));
        let found = printed.iter().any(|cells| {
            let mut rest = cells.iter();
            let in_order = row[1..]
                .iter()
                .all(|figure| rest.any(|cell| cell == figure));
            in_order && name.is_none_or(|name| cells[0] == name)
        });
        if !found {
            return Err(format!(
                "no row of benches/RESULTS.md has the figures of {row:?}"
            ));
        }
    }
    Ok(())
}

/// The name of a workload in the README, and the end of its heading in the results.
const LOADS: [(&str, &str); 5] = [
    ("10 000 keys, 64 at a time", "10 000 keys, all admitted; 64"),
    (
        "10 000 keys, 512 at a time",
        "10 000 keys, all admitted; 512",
    ),
    ("one hot key, 64 at a time", "one hot key, all admitted; 64"),
    (
        "one hot key, 512 at a time",
        "one hot key, all admitted; 512",
    ),
    ("one key refused, 64 at a time", "one key, all refused; 64"),
];

/// Compares the default algorithm in Redis with the script of tutorials. The block has the heads.
pub(super) fn redis_cost(block: &Block) -> String {
    let results = results().section("## What a decision costs in Redis");
    let rows = LOADS.map(|(name, heading)| {
        let measured = results.section(&format!("**{heading} at a time**")).table();
        let log = |column, after| measured.cell_after("SlidingLog", column, after).to_owned();
        let pooled = measured.number("textbook, a connection a task", "Redis CPU µs");
        let cpu = measured.number("SlidingLog", "Redis CPU µs");
        vec![
            name.to_owned(),
            log("Redis CPU µs", 0),
            log("Redis CPU µs", 1),
            format!("{:.2}", cpu / pooled),
            log("decisions/s", 1),
        ]
    });
    table(&heads(block), 4, rows)
}

/// The name of a contestant in the README, and in the results.
const CONTESTANTS: [(&str, &str); 7] = [
    ("**tollgate, Redis**", "tollgate-redis"),
    ("the script in `from_fn`, Redis", "textbook"),
    (
        "tower-rate-limiter, GCRA on Redis",
        "tower-rate-limiter-gcra",
    ),
    ("trypema, Redis", "trypema-redis"),
    ("trypema, hybrid, not exact", "trypema-hybrid"),
    ("**tollgate, memory**", "tollgate-memory"),
    ("tower_governor, memory", "tower_governor"),
];

/// Compares limiters by requests a second, relative to a server without one. The block has the heads.
pub(super) fn beside_peers(block: &Block) -> String {
    let results = results().section("## Beside other limiters");
    let headings = [
        "**10 000 keys, all admitted",
        "**one hot key, all admitted",
        "**one key far over its limit",
    ];
    let tables = headings.map(|heading| results.section(heading).table());
    let rows = CONTESTANTS.map(|(name, in_results)| {
        let cells = tables.iter().map(|table| table.cell(in_results, "× bare"));
        [name].into_iter().chain(cells).map(str::to_owned).collect()
    });
    table(&heads(block), 3, rows)
}

fn heads(block: &Block) -> Vec<&str> {
    match &block.kind {
        Kind::Table(rows) => rows[0].iter().map(String::as_str).collect(),
        Kind::Code(_) => Vec::new(),
    }
}
