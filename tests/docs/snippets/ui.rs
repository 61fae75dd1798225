//! Snippets that cannot compile, with an error that says what to write.

/// The files in `ui/` have the errors as Rust 1.95 words them. Another version may word the lines around our texts
/// differently; then look at the difference, and write the files again by `TRYBUILD=overwrite`.
#[test]
fn what_does_not_compile_says_what_to_write() {
    trybuild::TestCases::new().compile_fail("tests/docs/snippets/ui/*.rs");
}
