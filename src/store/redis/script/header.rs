//! Reads the headers of the files in `lua/`, for tests.

use std::collections::BTreeMap;

/// The text of a file in `lua/`.
pub(crate) fn source(name: &str) -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/lua");
    std::fs::read_to_string(format!("{path}/{name}.lua")).unwrap()
}

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
