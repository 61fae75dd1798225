//! Figures from the results of the benches.

use std::path::Path;

use crate::markdown::{Document, table};

fn results(section: &str) -> Document {
    Document::read(Path::new("benches/RESULTS.md")).section(section)
}

fn redis_results(section: &str) -> Document {
    results("## What a decision costs in Redis").section(&format!("**{section}**"))
}

/// The name of a workload here, and its heading in the results.
const LOADS: [(&str, &str); 5] = [
    (
        "10 000 keys, 64 at a time",
        "10 000 keys, all admitted; 64 at a time",
    ),
    (
        "10 000 keys, 512 at a time",
        "10 000 keys, all admitted; 512 at a time",
    ),
    (
        "one hot key, 64 at a time",
        "one hot key, all admitted; 64 at a time",
    ),
    (
        "one hot key, 512 at a time",
        "one hot key, all admitted; 512 at a time",
    ),
    (
        "one key refused, 64 at a time",
        "one key, all refused; 64 at a time",
    ),
];

/// README: the default algorithm in Redis beside the script of tutorials.
pub(super) fn redis_cost() -> String {
    let heads = [
        "decisions",
        "Redis CPU, µs each",
        "× the script",
        "× the script, a connection a task",
        "decisions a second, × the script",
    ];
    let rows = LOADS.map(|(name, heading)| {
        let measured = redis_results(heading).table();
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
    table(&heads, 4, rows)
}

/// The name of a contestant here, and in the results.
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

/// README: requests a second behind each limiter, relative to a server without one.
pub(super) fn beside_peers() -> String {
    let results = results("## Beside other limiters");
    let loads = [
        ("10 000 keys", "**10 000 keys, all admitted"),
        ("one hot key", "**one hot key, all admitted"),
        ("far over the limit", "**one key far over its limit"),
    ];
    let tables = loads.map(|(_, heading)| results.section(heading).table());
    let rows = CONTESTANTS.map(|(name, in_results)| {
        let cells = tables.iter().map(|table| table.cell(in_results, "× bare"));
        [name].into_iter().chain(cells).map(str::to_owned).collect()
    });
    let heads = [""].into_iter().chain(loads.map(|(name, _)| name));
    table(&heads.collect::<Vec<_>>(), 3, rows)
}

/// README: a check in memory by what listens, relative to one that nothing listens to.
pub(super) fn observed() -> String {
    let measured = results("## Metrics and tracing").table();
    let rows = measured.rows().iter().skip(1).map(|row| {
        let [listening, _, admitted, _, refused] = row.as_slice() else {
            panic!("{row:?}");
        };
        [listening, admitted, refused].map(Clone::clone).to_vec()
    });
    table(&["listening", "admitted", "refused"], 2, rows)
}

/// Picks columns of the results: for each row its name here, its heading and its name there.
fn picked<'a>(
    heads: &[&str],
    columns: &[&str],
    rows: impl IntoIterator<Item = (&'a str, &'a str, &'a str)>,
) -> String {
    let rows = rows.into_iter().map(|(name, heading, in_results)| {
        let measured = redis_results(heading).table();
        let cells = columns
            .iter()
            .map(|column| measured.cell(in_results, column));
        [name].into_iter().chain(cells).map(str::to_owned).collect()
    });
    table(heads, columns.len(), rows)
}

/// Guide: a check of each algorithm in memory.
pub(super) fn in_memory() -> String {
    // The first row of an algorithm is the one on one thread.
    let measured = results("## In process").table();
    let names = [
        "SlidingLog",
        "SlidingBuckets(60)",
        "SlidingCounter",
        "Gcra",
        "FixedWindow",
    ];
    let rows = names.map(|name| {
        let took = |column| measured.cell(name, column).to_owned();
        vec![
            format!("`{name}`"),
            took("admitted, ns"),
            took("refused, ns"),
        ]
    });
    table(&["a check of", "admitted, ns", "refused, ns"], 2, rows)
}

/// Guide: the price of a check by the number of tasks that share calls.
pub(super) fn batches() -> String {
    let heads = [
        "10 000 keys, admitted by `SlidingLog`",
        "calls a decision",
        "Redis CPU, µs",
        "bytes in",
        "decisions a second",
        "p50, µs",
        "p99, µs",
    ];
    let columns = [
        "calls",
        "Redis CPU µs",
        "bytes in",
        "decisions/s",
        "p50 µs",
        "p99",
    ];
    let [one, many, most] = [
        "10 000 keys, all admitted; 1 at a time",
        "10 000 keys, all admitted; 64 at a time",
        "10 000 keys, all admitted; 512 at a time",
    ];
    let rows = [
        ("1 at a time", one, "SlidingLog"),
        ("64 at a time", many, "SlidingLog"),
        ("512 at a time", most, "SlidingLog"),
        (
            "64 at a time, each check a call",
            many,
            "SlidingLog, each check a call",
        ),
        (
            "64 at a time, the textbook's script",
            many,
            "textbook sorted set",
        ),
        (
            "64 at a time, the script, a connection a task",
            many,
            "textbook, a connection a task",
        ),
    ];
    picked(&heads, &columns, rows)
}

/// Guide: many keys beside one.
pub(super) fn hot_key() -> String {
    let heads = [
        "admitted by `SlidingLog`, 512 at a time",
        "Redis CPU, µs",
        "decisions a second",
    ];
    let rows = [
        (
            "10 000 keys",
            "10 000 keys, all admitted; 512 at a time",
            "SlidingLog",
        ),
        (
            "one hot key",
            "one hot key, all admitted; 512 at a time",
            "SlidingLog",
        ),
    ];
    picked(&heads, &["Redis CPU µs", "decisions/s"], rows)
}

/// Guide: one key that is over its limit.
pub(super) fn refused() -> String {
    let heads = [
        "one key refused, 64 at a time",
        "calls a decision",
        "Redis CPU, µs",
        "p50, µs",
    ];
    let load = "one key, all refused; 64 at a time";
    let rows = [
        ("`SlidingLog`", load, "SlidingLog"),
        ("the textbook's script", load, "textbook sorted set"),
    ];
    picked(&heads, &["calls", "Redis CPU µs", "p50 µs"], rows)
}

/// Guide: the algorithms beside each other.
pub(super) fn by_algorithm() -> String {
    let heads = [
        "10 000 keys, 64 at a time",
        "Redis CPU, µs",
        "decisions a second",
        "p50, µs",
    ];
    let names = [
        ("`SlidingLog`", "SlidingLog"),
        ("`FixedWindow`", "FixedWindow"),
        ("`SlidingCounter`", "SlidingCounter"),
        ("`SlidingBuckets(60)`", "SlidingBuckets(60)"),
        ("`Gcra`", "Gcra"),
        ("`SortedSetLog`", "SortedSetLog"),
    ];
    let load = "10 000 keys, all admitted; 64 at a time";
    let rows = names.map(|(name, in_results)| (name, load, in_results));
    picked(&heads, &["Redis CPU µs", "decisions/s", "p50 µs"], rows)
}
