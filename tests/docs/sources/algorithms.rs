//! The promises of the algorithms, from the docs of `Algorithm`. Their figures are from the traffic of the
//! example `boundary`, which runs again, and from the bench `memory`.

use std::path::Path;

use tollgate::Algorithm;

use crate::markdown::{Block, Document, Table, numbers, table};
use crate::project::{files, read};
use crate::support::algorithms::promised;
use crate::traffic::{Admitted, LIMIT};

pub(super) fn readme(_: &Block) -> String {
    let heads = [
        "algorithm",
        "in any span as long as the window",
        &format!("most seen at a limit of {LIMIT}"),
    ];
    let rows = rows().map(|(name, promise, most)| {
        let shown = if name == format!("{:?}", Algorithm::default()) {
            format!("`{name}`, the default")
        } else {
            format!("`{name}`")
        };
        vec![shown, promise, most]
    });
    table(&heads, 1, rows)
}

/// Keeps the second column of the block, which is written by hand.
pub(super) fn promises(block: &Block) -> String {
    let heads = [
        "algorithm",
        "take it for",
        "in any span as long as the window",
        &format!("most seen at a limit of {LIMIT}"),
        "bytes of a full key, limit 100",
        "limit 10 000",
    ];
    let bytes = memory_and_commands();
    let rows = rows().map(|(name, promise, most)| {
        let name_cell = format!("[`{name}`]");
        let written = block.rows().iter().find(|row| row[0] == name_cell);
        let purpose = written.and_then(|row| row.get(1)).cloned();
        let [small, large] = bytes_of(&bytes, &name);
        vec![
            name_cell,
            purpose.unwrap_or_default(),
            promise,
            most,
            small,
            large,
        ]
    });
    table(&heads, 3, rows)
}

/// Returns the bytes of a full key in Redis, at limits of 100 and of 10 000.
fn bytes_of(bytes: &Table, name: &str) -> [String; 2] {
    // Redis stores no empty buckets: the largest key has none.
    let row = if name.contains("(n)") {
        "the same, no bucket empty"
    } else {
        name
    };
    ["limit 100", "limit 10 000"].map(|limit| bytes.cell(row, limit).to_owned())
}

/// Returns the name, the promise and the most units seen of each algorithm, in the order of `Algorithm::ALL`.
fn rows() -> impl Iterator<Item = (String, String, String)> {
    let documented = documented();
    assert_eq!(documented.rows().len(), Algorithm::ALL.len());
    Algorithm::ALL.iter().map(move |algorithm| {
        let debug = format!("{algorithm:?}");
        let name = debug.split('(').next().expect("a name");
        let mut rows = documented.rows().iter();
        let row = rows.find(|row| row[0].starts_with(&format!("[`{name}")));
        let row = row.unwrap_or_else(|| panic!("the docs of Algorithm lack {name}"));
        let name = row[0].split('`').nth(1).expect("a name");
        let with_ten_buckets = match algorithm {
            Algorithm::SlidingBuckets(_) => Algorithm::SlidingBuckets(10),
            algorithm => *algorithm,
        };
        let admitted = super::block_on(Admitted::by(with_ten_buckets));
        let most = admitted.expect("a decision").most();
        assert!(
            u64::from(most) <= promised(*algorithm, LIMIT),
            "{name}: {most}"
        );
        (name.to_owned(), row[1].clone(), most.to_string())
    })
}

/// The table in the docs of `Algorithm`.
fn documented() -> Table {
    let path = Path::new("src/quota/algorithm.rs");
    let source = read("src/quota/algorithm.rs");
    let docs = source.lines().filter_map(|line| line.strip_prefix("/// "));
    let table: Vec<&str> = docs.filter(|line| line.starts_with('|')).collect();
    Document::parse(path, table.join("\n")).table()
}

fn memory_and_commands() -> Table {
    let results = Document::read(Path::new("benches/RESULTS.md"));
    results.section("## Memory and commands").table()
}

/// Checks bytes and commands against the bench, and that the scripts call these commands. Bytes are rounded, to an
/// eighth at most.
pub(super) fn stored(block: &Block) -> Result<(), String> {
    let bench = memory_and_commands();
    let number = |row: &str, column: &str| bench.number(row, column);
    let lua = files("lua", &["lua"]).into_iter();
    let lua: String = lua
        .map(|path| std::fs::read_to_string(path).expect("text"))
        .collect();
    for row in block.rows() {
        for command in row[2].split('`').skip(1).step_by(2) {
            if !lua.contains(&format!("'{command}'")) {
                return Err(format!("no script calls {command}"));
            }
        }
        let name = row[0].split('`').nth(1).ok_or("a row without a name")?;
        let name = &*name.replace("(n)", "(60)");
        let admitted = commands(&row[2]);
        let refused = match row[3].strip_prefix("all but ") {
            Some(missing) => admitted - commands(missing),
            None => commands(&row[3]),
        };
        for (written, column) in [(admitted, "admitted"), (refused, "refused")] {
            let printed = bench.cell(name, column);
            if written.to_string() != printed {
                return Err(format!("{name}: {written} commands, not {printed}"));
            }
        }
        let written = numbers(&row[1]).into_iter();
        let written = written.map(|number| number.parse().expect("a number"));
        let written: Vec<f64> = written.collect();
        let (bytes, printed) = match name {
            "SlidingLog" => (written[0], number(name, "a unit of 10 000")),
            // Small sets are packed, and have two numbers of their own.
            "SortedSetLog" => (written[3], number(name, "a unit of 10 000")),
            // "about 300 bytes for 10, 1 000 for 60".
            "SlidingBuckets(60)" => (
                written[written.len() - 2],
                number("the same, no bucket empty", "limit 10 000"),
            ),
            _ => (written[0], number(name, "limit 10 000")),
        };
        if (bytes - printed).abs() > printed / 8.0 {
            return Err(format!(
                "{name}: about {bytes} bytes, but {printed} printed"
            ));
        }
    }
    Ok(())
}

/// Returns the number of commands that a cell lists.
fn commands(cell: &str) -> usize {
    cell.matches('`').count() / 2 + cell.matches("` twice").count()
}
