//! The measured limiters: in memory, with known keys.

use std::future::Future;
use std::num::NonZeroU32;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use tollgate::{Algorithm, Key, MemoryStore, Quota, RateLimiter};

pub(crate) const KEYS: usize = 10_000;

/// Returns each algorithm with its name. In memory, a sorted set log is a sliding log.
pub(crate) fn algorithms() -> impl Iterator<Item = (&'static str, Algorithm)> {
    let algorithms = Algorithm::ALL.iter().copied();
    let algorithms = algorithms.filter(|algorithm| *algorithm != Algorithm::SortedSetLog);
    algorithms.map(|algorithm| (&*format!("{algorithm:?}").leak(), algorithm))
}

/// What comes of the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// A limit that no round reaches.
    Admitted,
    /// One unit an hour, which is taken before the clock runs.
    Refused,
}

impl Outcome {
    pub(crate) const ALL: [Self; 2] = [Self::Admitted, Self::Refused];

    pub(crate) fn quota(self) -> Quota {
        match self {
            Self::Admitted => Quota::per_minute(1_000_000),
            Self::Refused => Quota::per_hour(1),
        }
    }
}

/// The texts of the keys, in an order in which no two neighbours were made one after the other.
pub(crate) fn texts() -> Vec<String> {
    let shuffled = (0..KEYS).map(|index| index * 7_919 % KEYS);
    shuffled.map(|index| format!("user:{index:05}")).collect()
}

/// governor's keyed limiter as it comes: a `DashMap` and its default clock.
pub(crate) fn governor(outcome: Outcome) -> impl Fn(usize) -> bool + Sync {
    let one = NonZeroU32::MIN;
    let quota = match outcome {
        Outcome::Admitted => governor::Quota::per_minute(one.saturating_add(999_999)),
        Outcome::Refused => governor::Quota::per_hour(one),
    };
    let limiter = governor::RateLimiter::keyed(quota);
    let keys = texts();
    known(move |index| limiter.check_key(&keys[index]).is_ok())
}

/// Ours, asked with keys that were made before.
pub(crate) fn with_keys(quota: Quota) -> impl Fn(usize) -> bool + Sync {
    with_limiter(RateLimiter::new(MemoryStore::new(), quota))
}

/// This one of ours, asked so.
pub(crate) fn with_limiter(limiter: RateLimiter) -> impl Fn(usize) -> bool + Sync {
    let keys: Vec<Key> = texts().into_iter().map(Key::from).collect();
    known(move |index| is_allowed(limiter.check(&keys[index])))
}

/// Ours, asked with texts, of which each check makes a key.
pub(crate) fn with_texts(quota: Quota) -> impl Fn(usize) -> bool + Sync {
    let limiter = RateLimiter::new(MemoryStore::new(), quota);
    let keys = texts();
    known(move |index| is_allowed(limiter.check(keys[index].as_str())))
}

/// Asks once about each key, so that none is new afterwards.
fn known<F: Fn(usize) -> bool + Sync>(check: F) -> F {
    assert!((0..KEYS).all(&check), "a first unit is admitted");
    check
}

fn is_allowed(check: impl Future<Output = Result<tollgate::Decision, tollgate::Error>>) -> bool {
    at_once(check).expect("an answer").is_allowed()
}

/// What a future comes to that never waits.
pub(crate) fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("a store in memory answers at once"),
    }
}
