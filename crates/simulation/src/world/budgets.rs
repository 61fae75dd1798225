//! The limiters whose processes reserve units, and what the server has of a key of theirs.

use std::collections::BTreeMap;
use std::time::Duration;

use tollgate::{Algorithm, FailurePolicy, Quota, Quotas, RateLimiter, RedisStore};

use super::holders::HolderEntry;
use super::limits::SLOT_LEASE;
use super::stored::stored_units;
use crate::random::Random;
use crate::server::Keyspace;

/// The limit of each budget.
pub(crate) const BUDGET: u32 = 60;

/// The lease of what is reserved, in milliseconds. That of slots is as short as can be, too.
pub(crate) const RESERVE_LEASE: u64 = SLOT_LEASE;

/// The budgets, by their counts.
pub(crate) const BUDGETS: [&str; 8] = [
    "budget-total",
    "budget-month",
    "budget-buckets",
    "budget-log",
    "budget-window",
    "budget-counter",
    "budget-gcra",
    "budget-both",
];

/// Returns the quotas of a budget. Nothing that a world charges leaves its window.
fn quotas(name: &str) -> Quotas {
    let day = Quota::per_day(BUDGET);
    let total = Quota::total(BUDGET, Duration::from_secs(7 * 86_400));
    match name {
        "budget-month" => Quota::per_calendar_month(BUDGET, "UTC")
            .expect("a time zone")
            .into(),
        "budget-buckets" => day.with_algorithm(Algorithm::SlidingBuckets(10)).into(),
        "budget-log" => day.into(),
        "budget-window" => day.with_algorithm(Algorithm::FixedWindow).into(),
        "budget-counter" => day.with_algorithm(Algorithm::SlidingCounter).into(),
        // Less than a unit drains, also while the clock steps by hours.
        "budget-gcra" => Quota::new(BUDGET, Duration::from_secs(366 * 86_400))
            .with_algorithm(Algorithm::Gcra)
            .into(),
        "budget-both" => [day.with_algorithm(Algorithm::SlidingBuckets(10)), total].into(),
        _ => total.into(),
    }
}

/// Creates the budgets of a process.
pub(super) fn budgets(seed: u64, store: &RedisStore) -> Vec<(&'static str, RateLimiter)> {
    let mut random = Random::new(seed, 5);
    let policy = random.pick(&[
        FailurePolicy::closed(),
        FailurePolicy::closed(),
        FailurePolicy::fall_back(),
        FailurePolicy::open(),
    ]);
    let limiters = BUDGETS.map(|name| {
        let limiter = RateLimiter::new(store.clone(), quotas(name))
            .name(name)
            .max_wait(Duration::from_secs(3))
            .reserve_lease(Duration::from_millis(RESERVE_LEASE))
            .on_failure(policy);
        (name, limiter)
    });
    limiters.into()
}

/// The holders and the counts that the server has of a key of a budget.
#[derive(Debug, Default)]
pub(super) struct StoredBudget {
    pub(super) entries: Vec<HolderEntry>,
    /// By the name of the value, and the number of the count in it.
    counts: BTreeMap<(Vec<u8>, usize), u32>,
}

/// The same of each key of a budget that a command is about, by limiter and key.
pub(super) type StoredBudgets = BTreeMap<String, StoredBudget>;

/// Reads what the server has of the keys that a command is about.
pub(super) fn stored_budgets(command: &[Vec<u8>], keys: &Keyspace) -> StoredBudgets {
    let mut budgets = StoredBudgets::new();
    for (prefix, name) in command.iter().filter_map(|arg| budget_of(arg)) {
        budgets
            .entry(name)
            .or_insert_with(|| StoredBudget::read(prefix, keys));
    }
    budgets
}

/// Returns what all names of a key begin with, and its limiter and key.
pub(super) fn limiter_and_key(name: &[u8]) -> Option<(&[u8], String)> {
    let rest = name.strip_prefix(b"tollgate:v3:{")?;
    let end = rest.iter().position(|byte| *byte == b'}')?;
    let text = String::from_utf8_lossy(rest.get(..end)?).into_owned();
    let prefix = name.get(..name.len() - rest.len() + end + 1)?;
    Some((prefix, text))
}

/// The same, if it is a budget.
pub(super) fn budget_of(name: &[u8]) -> Option<(&[u8], String)> {
    limiter_and_key(name).filter(|(_, text)| text.starts_with("budget-"))
}

impl StoredBudget {
    fn read(prefix: &[u8], keys: &Keyspace) -> Self {
        let mut stored_budget = Self::default();
        for stored in keys.keys_with(prefix) {
            if stored.name.ends_with(b":held") {
                stored_budget.entries = HolderEntry::read_all(&stored);
            } else {
                let units = stored_units(&stored).into_iter().enumerate();
                let name = stored.name.to_vec();
                let units = units.map(|(number, units)| ((name.clone(), number), units));
                stored_budget.counts.extend(units);
            }
        }
        stored_budget
    }

    /// Returns the units that are used.
    pub(super) fn used(&self) -> i64 {
        self.counts.values().copied().max().unwrap_or(0).into()
    }

    /// Returns the units that each count has more than before. All are charged the same, but a refund may find units in a log that
    /// an operator has credited to a total, which this had forgotten.
    pub(super) fn charged_since(&self, before: &Self) -> Result<i64, Vec<i64>> {
        let charged = self.counts.iter().map(|(count, units)| {
            let before = before.counts.get(count).copied().unwrap_or(0);
            i64::from(*units) - i64::from(before)
        });
        let charged: Vec<i64> = charged.collect();
        let most = charged.iter().copied().max();
        match most {
            None => Ok(-before.used()),
            Some(most @ ..=0) => Ok(most),
            Some(most) if charged.iter().all(|units| *units == most) => Ok(most),
            Some(_) => Err(charged),
        }
    }

    pub(super) fn entry(&self, holder: [u8; 16]) -> Option<&HolderEntry> {
        self.entries.iter().find(|entry| entry.holder == holder)
    }
}
