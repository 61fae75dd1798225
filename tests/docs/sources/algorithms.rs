//! The promises of the algorithms, from the docs of `Algorithm`. Their figures are from the traffic of the
//! example `boundary`, which runs again.

use std::path::Path;

use tollgate::Algorithm;

use crate::markdown::{Block, Document, Table, table};
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
    ];
    let rows = rows().map(|(name, promise, most)| {
        let name_cell = format!("[`{name}`]");
        let written = block.rows().iter().find(|row| row[0] == name_cell);
        let purpose = written.and_then(|row| row.get(1)).cloned();
        vec![name_cell, purpose.unwrap_or_default(), promise, most]
    });
    table(&heads, 1, rows)
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

/// Checks commands against the bench, and that the scripts call them.
pub(super) fn commands_of_a_check(block: &Block) -> Result<(), String> {
    let bench = memory_and_commands();
    let lua = files("lua", &["lua"]).into_iter();
    let lua: String = lua
        .map(|path| std::fs::read_to_string(path).expect("text"))
        .collect();
    for row in block.rows() {
        for command in row[1].split('`').skip(1).step_by(2) {
            if !lua.contains(&format!("'{command}'")) {
                return Err(format!("no script calls {command}"));
            }
        }
        let name = row[0].split('`').nth(1).ok_or("a row without a name")?;
        let name = &*name.replace("(n)", "(60)");
        let admitted = commands(&row[1]);
        let refused = match row[2].strip_prefix("all but ") {
            Some(missing) => admitted - commands(missing),
            None => commands(&row[2]),
        };
        for (written, column) in [(admitted, "admitted"), (refused, "refused")] {
            let printed = bench.cell(name, column);
            if written.to_string() != printed {
                return Err(format!("{name}: {written} commands, not {printed}"));
            }
        }
    }
    Ok(())
}

/// Returns the number of commands that a cell lists.
fn commands(cell: &str) -> usize {
    cell.matches('`').count() / 2 + cell.matches("` twice").count()
}
