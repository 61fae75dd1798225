//! What cannot compile: the error says what to write.

/// The files in `ui/` have the errors of Rust 1.95. Another compiler may word the parts around our texts differently, so
/// compare with `TRYBUILD=overwrite cargo test --all-features --test snippets ui` after an update.
#[test]
fn what_does_not_compile_says_what_to_write() {
    trybuild::TestCases::new().compile_fail("tests/snippets/ui/*.rs");
}
