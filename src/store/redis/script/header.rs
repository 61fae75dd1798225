//! Reads the headers of the files in `lua/`, for tests.

use std::collections::BTreeMap;

/// The lines `field   text` of a file's header, by field.
pub(crate) fn header(file: &str) -> BTreeMap<&str, Vec<&str>> {
    let (header, _) = file
        .strip_prefix("--[[\n")
        .unwrap()
        .split_once("]]\n")
        .unwrap();
    let mut fields = BTreeMap::<_, Vec<_>>::new();
    for line in header.lines() {
        if let Some((field, text)) = line.split_once("  ") {
            fields.entry(field).or_default().push(text.trim());
        }
    }
    fields
}
