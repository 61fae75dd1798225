//! What the algorithms promise: from the docs of `Algorithm`, from hostile traffic sent anew, and from what
//! a bench has printed.

use std::path::Path;

use tollgate::Algorithm;

use crate::markdown::{Block, Document, Table, table};
use crate::project::read;
use crate::traffic::{ALGORITHMS, Admitted, LIMIT};

/// Returns the names as the README orders them: what is given up grows from row to row.
fn names() -> Vec<String> {
    let names = Algorithm::ALL
        .iter()
        .map(|facts| format!("{:?}", facts.algorithm));
    names.map(|name| name.replace("(60)", "(n)")).collect()
}

/// Name, promise, most seen, and bytes of a key.
pub(super) fn readme(_: &Block) -> String {
    let docs = documented();
    let results = Document::read(Path::new("benches/RESULTS.md"));
    let bytes = results.section("## Memory and commands").table();
    let heads = [
        "algorithm",
        "in any span as long as the window",
        &format!("most seen at a limit of {LIMIT}"),
        "bytes of a full key, limit 100",
        "bytes, limit 10 000",
    ];
    let default = format!("{:?}", Algorithm::default());
    let rows = names().into_iter().map(|name| {
        let name = name.as_str();
        // Buckets that are empty are not stored: shown is the most that they take.
        let measured = if name.contains("(n)") {
            "the same, no bucket empty"
        } else {
            name
        };
        let default = if name == default { ", the default" } else { "" };
        vec![
            format!("`{name}`{default}"),
            promise(&docs, name).to_owned(),
            most_seen(name).to_string(),
            bytes.cell(measured, "limit 100", 0).to_owned(),
            bytes.cell(measured, "limit 10 000", 0).to_owned(),
        ]
    });
    table(&heads, 3, rows)
}

/// The table in the docs of `Algorithm`.
fn documented() -> Table {
    let source = read("src/quota/algorithm.rs");
    let docs = source.lines().filter_map(|line| line.strip_prefix("/// "));
    let table: Vec<&str> = docs.filter(|line| line.starts_with('|')).collect();
    Document::parse(Path::new("src/quota/algorithm.rs"), table.join("\n")).table()
}

fn promise<'a>(docs: &'a Table, name: &str) -> &'a str {
    let plain = format!("[`{name}`]");
    let mut rows = docs.rows().iter();
    let row = rows.find(|cells| cells[0].starts_with(&plain));
    &row.unwrap_or_else(|| panic!("the docs of Algorithm promise nothing of {name}"))[1]
}

/// The most requests of the example `boundary` in any span as long as the window.
fn most_seen(name: &str) -> u32 {
    let name = name.split('(').next().expect("a name");
    let mut algorithms = ALGORITHMS.into_iter();
    let algorithm = algorithms.find(|each| format!("{each:?}").split('(').next() == Some(name));
    let algorithm = algorithm.unwrap_or_else(|| panic!("the example boundary has no {name}"));
    super::block_on(Admitted::by(algorithm))
        .expect("a decision")
        .most()
}
