//! How many cases a property has.

use std::env;

use proptest::test_runner::Config;

/// A property with an eighth of its cases, which every change waits for. `TOLLGATE_CASES=all`: with all of them.
pub(crate) fn cases(all: u32) -> Config {
    Config {
        cases: some_or_all(all.div_ceil(8), all),
        failure_persistence: None,
        ..Config::default()
    }
}

/// Returns the cases of a test: some, for which every change waits, or all.
pub(crate) fn some_or_all<T>(some: T, all: T) -> T {
    if is_all() { all } else { some }
}

/// Whether a test is to have all of its cases.
pub(crate) fn is_all() -> bool {
    env::var_os("TOLLGATE_CASES").is_some_and(|cases| cases == "all")
}
