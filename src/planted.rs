//! Rules that a simulation leaves out, to see that a promise breaks: see `crates/simulation`.

use std::sync::OnceLock;

static PLANTED: OnceLock<&str> = OnceLock::new();

/// Leaves the rule of this name out from now on. Only the first call of a process does.
pub fn plant(rule: &'static str) {
    PLANTED.get_or_init(|| rule);
}

pub(crate) fn is_planted(rule: &str) -> bool {
    PLANTED.get() == Some(&rule)
}
