//! Figures from the results of the chaos tests.

use std::path::Path;

use crate::markdown::{Block, Document, numbers};

/// Returns the rows of the results: number, fault, figure and bound.
fn results() -> Vec<Vec<String>> {
    let results = Document::read(Path::new("tests/chaos/RESULTS.md"));
    let blocks = results.blocks.iter();
    blocks.flat_map(|block| block.rows().to_vec()).collect()
}

/// Succeeds if the results have each number of the block. A row that names a fault of the results has numbers of
/// that fault only.
pub(super) fn figures(block: &Block) -> Result<(), String> {
    let results = results();
    for row in block.rows() {
        let named: Vec<_> = results.iter().filter(|cells| cells[1] == row[0]).collect();
        let rows = if named.is_empty() {
            results.iter().collect()
        } else {
            named
        };
        all_in(row, rows.into_iter().flatten())?;
    }
    Ok(())
}

/// Succeeds if each number of the block is in a bound that the chaos tests hold.
pub(super) fn bounds(block: &Block) -> Result<(), String> {
    let results = results();
    let mut rows = block.rows().iter();
    rows.try_for_each(|row| all_in(row, results.iter().map(|cells| &cells[3])))
}

fn all_in<'a>(row: &[String], cells: impl Iterator<Item = &'a String>) -> Result<(), String> {
    let printed: Vec<_> = cells.flat_map(|cell| numbers(cell)).collect();
    let mut written = row.iter().flat_map(|cell| numbers(cell));
    match written.find(|number| !printed.contains(number)) {
        Some(number) => Err(format!(
            "{number} of {row:?} is not in tests/chaos/RESULTS.md"
        )),
        None => Ok(()),
    }
}
