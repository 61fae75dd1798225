//! The cost of a check in memory, next to governor's keyed check: time by algorithm, and memory per key.
//! Prints tables; benches/README.md says how to read them.

#![expect(
    clippy::float_arithmetic,
    clippy::cast_precision_loss,
    reason = "what is measured is not what is counted"
)]

mod contestants;
mod memory;
mod paths;
mod rounds;

/// Whether this only runs to see that it does: `cargo bench` says `--bench` to what it runs, which the
/// harness goes by, too.
fn is_tried() -> bool {
    !std::env::args().any(|argument| argument == "--bench")
}

fn main() {
    rounds::print();
    memory::print();
    divan::main();
}
