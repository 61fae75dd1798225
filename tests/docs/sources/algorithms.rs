//! The promises of the algorithms, from the docs of `Algorithm`. Their figures are from the traffic of the
//! example `boundary`, which runs again.

use std::path::Path;

use tollgate::Algorithm;

use crate::markdown::{Block, Document, table};
use crate::project::read;
use crate::traffic::{Admitted, LIMIT};

/// Keeps the second column of the block, which is written by hand.
pub(super) fn promises(block: &Block) -> String {
    let rows = rows().into_iter().map(|[name, promise, most]| {
        let link = format!("[`{name}`]");
        let written = block.rows().iter().find(|row| row[0] == link);
        let purpose = written.map_or_else(String::new, |row| row[1].clone());
        vec![link, purpose, promise, most]
    });
    let most = format!("most seen at a limit of {LIMIT}");
    let promise = "in any span as long as the window";
    table(&["algorithm", "take it for", promise, &most], 1, rows)
}

/// Returns the name, the promise and the most units seen of each algorithm, in the order of `Algorithm::ALL`.
fn rows() -> Vec<[String; 3]> {
    let path = "src/quota/algorithm.rs";
    let source = read(path);
    let docs = source.lines().filter_map(|line| line.strip_prefix("/// "));
    let docs: Vec<&str> = docs.filter(|line| line.starts_with('|')).collect();
    let documented = Document::parse(Path::new(path), docs.join("\n")).table();
    let rows = Algorithm::ALL.iter().map(|algorithm| {
        let debug = format!("{algorithm:?}");
        let start = format!("[`{}", debug.split('(').next().unwrap_or_default());
        let mut rows = documented.rows().iter();
        let row = rows.find(|row| row[0].starts_with(&start));
        let row = row.unwrap_or_else(|| panic!("the docs of Algorithm lack {debug}"));
        let name = row[0].split('`').nth(1).expect("a name");
        let with_ten_buckets = match algorithm {
            Algorithm::SlidingBuckets(_) => Algorithm::SlidingBuckets(10),
            algorithm => *algorithm,
        };
        let admitted = super::block_on(Admitted::by(with_ten_buckets));
        let most = admitted.expect("a decision").most();
        [name.to_owned(), row[1].clone(), most.to_string()]
    });
    rows.collect()
}
