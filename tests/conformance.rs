//! The conformance kit on the stores of this crate, and on stores that break a rule.

use tollgate::MemoryStore;
use tollgate::store::{Conformance, Outcome, TestClock};

#[tokio::test]
async fn the_memory_store_conforms() {
    let clock = TestClock::new();
    let store = MemoryStore::with_clock(clock.clone());
    let kit = Conformance::new(store).clock(move |step| clock.advance(step));
    let report = kit.run().await;
    println!("{report}");
    report.assert_complete();
}

#[tokio::test]
async fn the_memory_store_conforms_by_a_clock_that_runs() {
    let report = Conformance::new(MemoryStore::new()).run().await;
    println!("{report}");
    report.assert_complete();
    let _ = Outcome::Passed;
}
