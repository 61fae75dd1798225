//! All texts of the crate that people read, in one list: `tests/docs/texts/list.txt`.
//!
//! Errors, log lines, panics, findings of the doctor and descriptions of metrics are written all over the
//! sources. An operator reads them next to each other. The list is there so that they are reviewed next to
//! each other, too: for the same words, the same form, and a remedy in each.
//!
//! The test fails when a text in `src` or `lua` is not the one in the list. To write the list anew, run
//! `TOLLGATE_REGENERATE=1 cargo test --all-features --test docs texts`, and review the difference.

mod rules;
mod sources;

use std::collections::BTreeSet;
use std::path::Path;
use std::{env, fs};

use sources::Text;

const LIST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/docs/texts/list.txt");

fn texts() -> BTreeSet<Text> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let texts: BTreeSet<_> = sources::texts(root).into_iter().collect();
    assert!(texts.len() > 100, "only {} texts were found", texts.len());
    texts
}

#[test]
fn the_list_has_every_text() {
    let expected: String = texts().iter().map(|text| format!("{text}\n")).collect();
    if env::var_os("TOLLGATE_REGENERATE").is_some() {
        fs::write(LIST, &expected).expect("the list can be written");
    }
    let list = fs::read_to_string(LIST).unwrap_or_default();
    let differing = |of: &str, from: &str| {
        let known: BTreeSet<_> = from.lines().collect();
        let lines = of.lines().filter(|line| !known.contains(line));
        lines.map(ToOwned::to_owned).collect::<Vec<_>>()
    };
    let (new, gone) = (differing(&expected, &list), differing(&list, &expected));
    assert!(
        list == expected,
        "{LIST} is stale, see the top of this test\nnot in the list: {new:#?}\nonly in the list: {gone:#?}"
    );
}

#[test]
fn errors_and_log_lines_begin_in_lower_case_and_end_without_a_full_stop() {
    let broken: Vec<_> = texts()
        .into_iter()
        .filter_map(|text| rules::broken(&text).map(|rule| format!("{rule}: {text}")))
        .collect();
    assert!(broken.is_empty(), "{broken:#?}");
}
