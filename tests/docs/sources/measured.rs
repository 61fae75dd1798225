//! Tables of figures from the results of the benches. A block has the heads of its table.

use tollgate::Algorithm;

use crate::markdown::{Block, Document, table};

fn results() -> Document {
    Document::read("benches/RESULTS.md")
}

/// Succeeds if the figures of each row are in one row of the results, in the same order. If the first cell is code,
/// as is the name of an algorithm, that row has the same name.
pub(super) fn printed(block: &Block) -> Result<(), String> {
    let results = results();
    let printed: Vec<_> = results.blocks.iter().flat_map(Block::rows).collect();
    for row in block.rows() {
        let name = row[0]
            .strip_prefix('`')
            .and_then(|name| name.strip_suffix('`'));
        let found = printed.iter().any(|cells| {
            let mut rest = cells.iter();
            let mut figures = row[1..].iter();
            figures.all(|figure| rest.any(|cell| cell == figure))
                && name.is_none_or(|name| cells[0] == name)
        });
        if !found {
            return Err(format!(
                "no row of benches/RESULTS.md has the figures of {row:?}"
            ));
        }
    }
    Ok(())
}

/// A column of the results, and how many columns to the right of it the figure is.
type Column = (&'static str, usize);

/// The columns of a load: CPU, its ratio to the script of tutorials, decisions a second, and two percentiles.
const COSTS: [Column; 5] = [
    ("Redis CPU µs", 0),
    ("Redis CPU µs", 1),
    ("decisions/s", 0),
    ("p50 µs", 0),
    ("p99", 0),
];

/// The name of a contestant of one check at a time in the guide, and in the results.
const ALONE: [(&str, &str); 4] = [
    ("`SlidingLog`", "SlidingLog"),
    ("`Gcra`", "Gcra"),
    ("the script", "textbook sorted set"),
    ("redis-cell, a native module", "redis-cell, a native module"),
];

/// The cost of a decision in Redis: of the default algorithm under each load that the block names, of each algorithm
/// under one load, of one check at a time, and of each algorithm by what it charges, relative to one unit of one quota.
pub(super) fn redis_cost(block: &Block) -> String {
    let results = results().section("## What a decision costs in Redis");
    let rows = match &*block.arguments {
        "" => {
            let names = block.rows().iter().map(|row| &*row[0]);
            let rows = names.map(|name| line(name, &under(&results, name), "SlidingLog", &COSTS));
            rows.collect()
        }
        "steady" => {
            let measured = under(&results, "10 live units, 64 at a time");
            of_algorithms(&measured, &COSTS[..4])
        }
        "alone" => {
            let measured = under(&results, "10 live units, 1 at a time");
            let rows = ALONE.iter();
            let rows = rows.map(|(name, row)| line(name, &measured, row, &COSTS[..4]));
            rows.collect()
        }
        "charges" => {
            let many = under(&results, "Quotas and costs, 64 at a time");
            let many = of_algorithms(&many, &[("one unit, four quotas", 1), ("100 units", 1)]);
            // A check of 10 000 units is slow with some algorithms, so fewer of them run.
            let most = under(&results, "Quotas and costs, 8 at a time");
            let most = of_algorithms(&most, &[("10 000 units", 1)]);
            let rows = many.iter().zip(&most);
            rows.map(|(many, most)| [many, &most[1..]].concat())
                .collect()
        }
        other => panic!("redis-cost has no {other:?}"),
    };
    of_figures(block, rows)
}

/// Returns the table under the line in bold of a load, which is written like `10 live units, 64 at a time`.
fn under(results: &Document, load: &str) -> Block {
    let parts = load.split(" at a time").next().unwrap_or_default();
    let (load, tasks) = parts.rsplit_once(", ").unwrap_or((parts, ""));
    let end = format!("; {tasks} at a time**");
    let mut headings = results.text.lines().filter(|line| line.ends_with(&end));
    let starts = [format!("**{load}"), format!("**About {load}")];
    let heading = headings.find(|line| starts.iter().any(|start| line.starts_with(start)));
    let heading = heading.unwrap_or_else(|| panic!("no results of {load}, {tasks} at a time"));
    results.section(heading).table()
}

/// Writes a table whose columns but the first are figures.
fn of_figures(block: &Block, rows: Vec<Vec<String>>) -> String {
    let heads = block.heads();
    table(&heads, heads.len() - 1, rows)
}

/// Returns a line of a table: the name, and the figures of a row of the results.
fn line(name: &str, measured: &Block, row: &str, columns: &[Column]) -> Vec<String> {
    let figures = columns.iter();
    let figures = figures.map(|(column, after)| measured.cell_after(row, column, *after));
    let line = std::iter::once(name).chain(figures);
    line.map(str::to_owned).collect()
}

fn of_algorithms(measured: &Block, columns: &[Column]) -> Vec<Vec<String>> {
    let names = Algorithm::ALL
        .iter()
        .map(|algorithm| format!("{algorithm:?}"));
    let lines = names.map(|name| line(&format!("`{name}`"), measured, &name, columns));
    lines.collect()
}

const LIMITS: [Column; 4] = [
    ("limit 10", 0),
    ("limit 100", 0),
    ("limit 1 000", 0),
    ("limit 10 000", 0),
];

/// Buckets take most when none is empty.
const FULL_BUCKETS: &str = "the same, no bucket empty";

/// The memory of keys in Redis: the bytes of a full key by algorithm and limit, or the memory of a number of keys.
pub(super) fn redis_memory(block: &Block) -> String {
    let full = results().section("## Memory and commands").table();
    let rows = match &*block.arguments {
        "full" => {
            let mut rows = of_algorithms(&full, &LIMITS);
            let buckets = rows.iter().position(|row| row[0] == "`SlidingBuckets(60)`");
            let spread = line("60 buckets, none empty", &full, FULL_BUCKETS, &LIMITS);
            rows.insert(buckets.expect("a row of buckets") + 1, spread);
            rows
        }
        "example" => block.rows().iter().map(|row| example(row, &full)).collect(),
        other => panic!("redis-memory has no {other:?}"),
    };
    of_figures(block, rows)
}

/// Calculates the memory of some keys. Their quota and number are written by hand: `10 000 per day, … | 50 000 × …`.
fn example(written: &[String], full: &Block) -> Vec<String> {
    let quota = &written[0];
    let limit = quota.split(" per ").next().unwrap_or_default();
    let row = match quota.split('`').nth(1) {
        Some("SlidingBuckets(60)") => FULL_BUCKETS,
        algorithm => algorithm.unwrap_or_default(),
    };
    let bytes = full.cell(row, &format!("limit {limit}"));
    let keys = written[1].split(" × ").next().unwrap_or_default();
    let number = |text: &str| text.replace(' ', "").parse::<u64>().expect(text);
    let memory = match number(keys) * number(bytes) {
        total @ 1_000_000_000.. => {
            let tenths = (total + 50_000_000) / 100_000_000;
            format!("{}.{} GB", tenths / 10, tenths % 10)
        }
        total => format!("{} MB", (total + 500_000) / 1_000_000),
    };
    vec![quota.clone(), format!("{keys} × {bytes}"), memory]
}

/// The name of a contestant in the guide, and in the results.
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
    ("`tower_governor`, memory", "tower_governor"),
];

/// Compares limiters by requests a second, relative to a server without one.
pub(super) fn beside_peers(block: &Block) -> String {
    let results = results().section("## Beside other limiters");
    let headings = [
        "**10 000 keys, all admitted",
        "**one hot key, all admitted",
        "**one key far over its limit",
    ];
    let tables = headings.map(|heading| results.section(heading).table());
    let rows = CONTESTANTS.iter().map(|(name, row)| {
        let cells = tables.iter().map(|table| table.cell(row, "× bare"));
        let line = std::iter::once(*name).chain(cells);
        line.map(str::to_owned).collect()
    });
    of_figures(block, rows.collect())
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

/// Decisions in memory, through Redis, and with a lease.
pub(super) fn leases(block: &Block) -> String {
    let results = results().section("## Leases");
    let rows = LEASES.iter().map(|(name, heading, column, unit)| {
        let measured = results.section(heading).table();
        let ways = ["in memory", "Redis", "Redis with a lease"];
        let figures = ways.map(|way| format!("{}{unit}", measured.cell(way, column)));
        [vec![(*name).to_owned()], figures.into()].concat()
    });
    of_figures(block, rows.collect())
}
