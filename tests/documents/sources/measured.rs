//! Figures from the results of the benches.

use std::path::Path;

use tollgate::Algorithm;

use crate::markdown::{Block, Document, Kind, Table, table};

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

/// The name of a load in the guide, and the start and end of its heading in the results. In the steady state, one
/// unit expires for each unit that is charged; in the other loads, none expires.
const LOADS: [(&str, [&str; 2]); 11] = [
    (
        "5 live units per key, 64 at a time",
        ["About 5 live units", "; 64"],
    ),
    (
        "5 live units per key, 512 at a time",
        ["About 5 live units", "; 512"],
    ),
    (
        "50 live units per key, 64 at a time",
        ["About 50 live units", "; 64"],
    ),
    (
        "50 live units per key, 512 at a time",
        ["About 50 live units", "; 512"],
    ),
    (
        "1 000 live units per key, 64 at a time",
        ["About 1 000 live units", "; 64"],
    ),
    (
        "1 000 live units per key, 512 at a time",
        ["About 1 000 live units", "; 512"],
    ),
    (
        "10 000 keys, 64 at a time",
        ["10 000 keys, all admitted", "; 64"],
    ),
    (
        "10 000 keys, 512 at a time",
        ["10 000 keys, all admitted", "; 512"],
    ),
    (
        "one hot key, 64 at a time",
        ["one hot key, all admitted", "; 64"],
    ),
    (
        "one hot key, 512 at a time",
        ["one hot key, all admitted", "; 512"],
    ),
    (
        "one key refused, 64 at a time",
        ["one key, all refused", "; 64"],
    ),
];

/// Compares tollgate in Redis with the script of tutorials. The block has the heads.
///
/// `redis-cost` has a row for each load of [`LOADS`], for the default algorithm: CPU, its ratios to the script on one
/// connection and on a connection per task, and the ratio of decisions per second. `redis-cost steady 50 64` has a row
/// for each algorithm at about 50 live units and 64 tasks: CPU, decisions per second and p50, with the ratios of the
/// first two to the script.
pub(super) fn redis_cost(block: &Block) -> String {
    let results = results().section("## What a decision costs in Redis");
    let heads = heads(block);
    let arguments: Vec<_> = block.arguments.iter().map(String::as_str).collect();
    match *arguments {
        [] => table(&heads, 4, of_loads(&results)),
        ["steady", ref live @ .., tasks] => {
            let start = format!("About {} live units", live.join(" "));
            let heading = [&*start, &*format!("; {tasks}")];
            let measured = under(&results, heading).expect("a load of the steady state");
            table(&heads, 5, of_algorithms(&measured))
        }
        _ => panic!("redis-cost has no {arguments:?}"),
    }
}

/// Leaves out loads that the results lack: before a bench has run, they are those of an older one.
fn of_loads(results: &Document) -> Vec<Vec<String>> {
    let rows = LOADS.iter().filter_map(|(name, heading)| {
        let measured = under(results, *heading)?;
        let log = |column, after| measured.cell_after("SlidingLog", column, after).to_owned();
        let pooled = measured.number("textbook, a connection a task", "Redis CPU µs");
        let cpu = measured.number("SlidingLog", "Redis CPU µs");
        Some(vec![
            (*name).to_owned(),
            log("Redis CPU µs", 0),
            log("Redis CPU µs", 1),
            format!("{:.2}", cpu / pooled),
            log("decisions/s", 1),
        ])
    });
    rows.collect()
}

fn of_algorithms(measured: &Table) -> Vec<Vec<String>> {
    let rows = Algorithm::ALL.iter().map(|facts| {
        let name = format!("{:?}", facts.algorithm);
        let cell = |column, after| measured.cell_after(&name, column, after).to_owned();
        vec![
            format!("`{name}`"),
            cell("Redis CPU µs", 0),
            cell("Redis CPU µs", 1),
            cell("decisions/s", 0),
            cell("decisions/s", 1),
            cell("p50 µs", 0),
        ]
    });
    rows.collect()
}

/// Returns the table under a line in bold that starts and ends like this.
fn under(results: &Document, [start, end]: [&str; 2]) -> Option<Table> {
    let (start, end) = (format!("**{start}"), format!("{end} at a time**"));
    let mut lines = results.text.lines();
    let heading = lines.find(|line| line.starts_with(&start) && line.ends_with(&end))?;
    Some(results.section(heading).table())
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
