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

/// The name of a load in the guide, the start and end of its heading in the results, and its row there. In the loads
/// with live units, one unit expires for each unit that is charged; in the other loads, none expires.
const LOADS: [(&str, [&str; 2], &str); 6] = [
    ("10 live units, 512 at a time", TEN_LIVE[2], "SlidingLog"),
    (
        "10 live units, 64 at a time, without batches",
        TEN_LIVE[1],
        "SlidingLog, each check a call",
    ),
    (
        "1 000 live units, 64 at a time",
        ["About 1 000 live units", "; 64"],
        "SlidingLog",
    ),
    (
        "10 000 live units, 64 at a time",
        ["About 10 000 live units", "; 64"],
        "SlidingLog",
    ),
    (
        "one hot key, 512 at a time",
        ["one hot key, all admitted", "; 512"],
        "SlidingLog",
    ),
    (
        "one key refused, 64 at a time",
        ["one key, all refused", "; 64"],
        "SlidingLog",
    ),
];

/// With 1, 64 and 512 tasks.
const TEN_LIVE: [[&str; 2]; 3] = [
    ["About 10 live units", "; 1"],
    ["About 10 live units", "; 64"],
    ["About 10 live units", "; 512"],
];

/// The cost of a decision in Redis. The block has the heads, and its first argument chooses the rows:
///
/// - none: the default algorithm under each of [`LOADS`]: CPU, its ratio to the script of tutorials, decisions per
///   second, p50, p99.
/// - `steady LIVE TASKS`: each algorithm: CPU, its ratio to the script, decisions per second, p50.
/// - `alone`: the same of one check at a time, beside the script and the native module.
/// - `charges`: each algorithm: the ratios of four quotas, of 100 units and of 10 000 units to one unit of one quota.
pub(super) fn redis_cost(block: &Block) -> String {
    let results = results().section("## What a decision costs in Redis");
    let arguments: Vec<_> = block.arguments.iter().map(String::as_str).collect();
    let rows = match *arguments {
        [] => of_loads(&results),
        ["steady", ref live @ .., tasks] => {
            let start = format!("About {} live units", live.join(" "));
            let measured = under(&results, [&start, &format!("; {tasks}")]);
            of_algorithms(&measured, &STEADY)
        }
        ["charges"] => of_charges(&results),
        ["alone"] => of_lone_checks(&results),
        _ => panic!("redis-cost has no {arguments:?}"),
    };
    let heads = heads(block);
    table(&heads, heads.len() - 1, rows)
}

/// A column of the results, and how many columns to the right of it the figure is.
type Column = (&'static str, usize);

const STEADY: [Column; 4] = [
    ("Redis CPU µs", 0),
    ("Redis CPU µs", 1),
    ("decisions/s", 0),
    ("p50 µs", 0),
];

fn of_loads(results: &Document) -> Vec<Vec<String>> {
    let rows = LOADS.iter().map(|(name, heading, row)| {
        let measured = under(results, *heading);
        let figures = STEADY.iter().chain(&[("p99", 0)]);
        let figures = figures.map(|(column, after)| measured.cell_after(row, column, *after));
        let row = [*name].into_iter().chain(figures);
        row.map(str::to_owned).collect()
    });
    rows.collect()
}

fn of_algorithms(measured: &Table, columns: &[Column]) -> Vec<Vec<String>> {
    let rows = Algorithm::ALL.iter().map(|algorithm| {
        let name = format!("{algorithm:?}");
        let figures = columns.iter();
        let figures = figures.map(|(column, after)| measured.cell_after(&name, column, *after));
        let figures: Vec<_> = figures.map(str::to_owned).collect();
        [vec![format!("`{name}`")], figures].concat()
    });
    rows.collect()
}

fn of_charges(results: &Document) -> Vec<Vec<String>> {
    let many = under(results, ["Quotas and costs", "; 64"]);
    // A check of 10 000 units is slow with some algorithms, so fewer of them run.
    let most = under(results, ["Quotas and costs", "; 8"]);
    let rows = of_algorithms(&many, &[("one unit, four quotas", 1), ("100 units", 1)]).into_iter();
    let most = of_algorithms(&most, &[("10 000 units", 1)]);
    let rows = rows.zip(most);
    rows.map(|(row, most)| [&row, &most[1..]].concat())
        .collect()
}

/// Returns what one check at a time costs, beside the script and the native module.
fn of_lone_checks(results: &Document) -> Vec<Vec<String>> {
    let measured = under(results, TEN_LIVE[0]);
    let rows = [
        ("`SlidingLog`", "SlidingLog"),
        ("`Gcra`", "Gcra"),
        ("the script", "textbook sorted set"),
        ("redis-cell, a native module", "redis-cell, a native module"),
    ]
    .map(|(name, row)| {
        let figures = STEADY.map(|(column, after)| measured.cell_after(row, column, after));
        let figures = figures.map(str::to_owned).into_iter();
        std::iter::once(name.to_owned()).chain(figures).collect()
    });
    rows.into()
}

/// Returns the table under a line in bold that starts and ends like this.
fn under(results: &Document, [start, end]: [&str; 2]) -> Table {
    let (start, end) = (format!("**{start}"), format!("{end} at a time**"));
    let mut lines = results.text.lines();
    let heading = lines.find(|line| line.starts_with(&start) && line.ends_with(&end));
    let heading = heading.unwrap_or_else(|| panic!("no results {start} … {end}"));
    results.section(heading).table()
}

/// The example of the guide: a quota, its algorithm, the number of keys, and the column with the bytes of a key.
const EXAMPLE: [(&str, &str, u32, &str); 4] = [
    (
        "100 per minute, all full",
        "SlidingLog",
        50_000,
        "limit 100",
    ),
    (
        "10 000 per day, all full",
        "SlidingLog",
        1_000_000,
        "limit 10 000",
    ),
    (
        "10 000 per day",
        "SlidingBuckets(60)",
        1_000_000,
        "limit 10 000",
    ),
    (
        "10 000 per day",
        "SlidingCounter",
        1_000_000,
        "limit 10 000",
    ),
];

/// The memory of keys in Redis. The block has the heads, and its argument chooses the rows:
///
/// - `full`: the bytes of a full key, by algorithm and limit.
/// - `example`: the memory of a number of keys.
pub(super) fn redis_memory(block: &Block) -> String {
    let results = results().section("## Memory and commands");
    let full = results.table();
    let heads = heads(block);
    let (right, rows) = match &*block.arguments.join(" ") {
        "full" => (4, of_full(&full)),
        "example" => (2, of_example(&full)),
        other => panic!("redis-memory has no {other:?}"),
    };
    table(&heads, right, rows)
}

const LIMITS: [Column; 4] = [
    ("limit 10", 0),
    ("limit 100", 0),
    ("limit 1 000", 0),
    ("limit 10 000", 0),
];

fn of_full(full: &Table) -> Vec<Vec<String>> {
    let mut rows = of_algorithms(full, &LIMITS);
    let spread = LIMITS.map(|(limit, _)| full.cell("the same, no bucket empty", limit).to_owned());
    let spread = [vec!["60 buckets, none empty".to_owned()], spread.into()].concat();
    let buckets = rows.iter().position(|row| row[0] == "`SlidingBuckets(60)`");
    rows.insert(buckets.expect("a row of buckets") + 1, spread);
    rows
}

fn of_example(full: &Table) -> Vec<Vec<String>> {
    let rows = EXAMPLE.iter().map(|(quota, algorithm, keys, limit)| {
        // Buckets take most when none is empty.
        let row = match *algorithm {
            "SlidingBuckets(60)" => "the same, no bucket empty",
            other => other,
        };
        let bytes = full.cell(row, limit);
        let total = f64::from(*keys) * full.number(row, limit);
        vec![
            format!("{quota}, `{algorithm}`"),
            format!("{} × {bytes}", grouped(*keys)),
            match total {
                1e9.. => format!("{:.1} GB", total / 1e9),
                _ => format!("{:.0} MB", total / 1e6),
            },
        ]
    });
    rows.collect()
}

/// The digits in groups of three.
fn grouped(number: u32) -> String {
    match number {
        0..1_000 => number.to_string(),
        _ => format!("{} {:03}", grouped(number / 1_000), number % 1_000),
    }
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

/// The rows of the guide about leases: what is measured, its heading in the results, the column, and its unit.
const LEASES: [(&str, &str, &str, &str); 4] = [
    (
        "one hot key: decisions per second",
        "**Without HTTP, one hot key; ",
        "a second",
        "",
    ),
    (
        "one hot key behind axum: requests per second",
        "**Behind axum, one hot key; ",
        "a second",
        "",
    ),
    (
        "10 000 keys by Zipf's law behind axum: requests per second",
        "**Behind axum, 10 000 keys, Zipf",
        "a second",
        "",
    ),
    (
        "one hot key, Redis stalls for 20 ms each second: p99.9",
        "**Without HTTP, one hot key, 10 000 checks",
        "p99.9",
        " µs",
    ),
];

/// Decisions in memory, through Redis, and with a lease, of [`LEASES`].
pub(super) fn leases(block: &Block) -> String {
    let results = results().section("## Leases");
    let rows = LEASES.map(|(name, heading, column, unit)| {
        let measured = results.section(heading).table();
        let ways = ["in memory", "Redis", "Redis with a lease"];
        let figures = ways.map(|way| format!("{}{unit}", measured.cell(way, column)));
        [vec![name.to_owned()], figures.into()].concat()
    });
    table(&heads(block), 3, rows)
}
