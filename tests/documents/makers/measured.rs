//! What the README picks out of the results of benches.

use std::path::Path;

use crate::markdown::{Document, table};

fn results(part: &str) -> Document {
    Document::read(Path::new("benches/RESULTS.md")).section(part)
}

/// By workload: its name here, and its heading there.
const LOADS: [(&str, &str); 5] = [
    (
        "10 000 keys, 64 at a time",
        "**10 000 keys, all admitted; 64 at a time**",
    ),
    (
        "10 000 keys, 512 at a time",
        "**10 000 keys, all admitted; 512 at a time**",
    ),
    (
        "one hot key, 64 at a time",
        "**one hot key, all admitted; 64 at a time**",
    ),
    (
        "one hot key, 512 at a time",
        "**one hot key, all admitted; 512 at a time**",
    ),
    (
        "one key refused, 64 at a time",
        "**one key, all refused; 64 at a time**",
    ),
];

/// A decision of the default algorithm in Redis, beside the script of tutorials.
pub(super) fn redis_cost() -> String {
    let results = results("## What a decision costs in Redis");
    let heads = [
        "decisions",
        "Redis CPU, µs each",
        "× the script",
        "× the script, a connection a task",
        "decisions a second, × the script",
    ];
    let rows = LOADS.map(|(name, heading)| {
        let measured = results.section(heading).table();
        let log = |column, after| measured.cell("SlidingLog", column, after).to_owned();
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

/// Who is shown: the name here, and there.
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

/// Requests a second behind each limiter, as a part of those without one.
pub(super) fn beside_peers() -> String {
    let results = results("## Beside other limiters");
    let loads = [
        ("10 000 keys", "**10 000 keys, all admitted"),
        ("one hot key", "**one hot key, all admitted"),
        ("far over the limit", "**one key far over its limit"),
    ];
    let tables = loads.map(|(_, heading)| results.section(heading).table());
    let rows = CONTESTANTS.map(|(name, there)| {
        let mut row = vec![name.to_owned()];
        row.extend(
            tables
                .iter()
                .map(|table| table.cell(there, "× bare", 0).to_owned()),
        );
        row
    });
    let heads = [""].into_iter().chain(loads.map(|(name, _)| name));
    table(&heads.collect::<Vec<_>>(), 3, rows)
}

/// What a check in memory takes by who listens, as parts of what it takes when nobody can.
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
