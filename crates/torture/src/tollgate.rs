//! tollgate itself: in memory, on Redis, and on Redis with a lease.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate::{Acquired, Decision, MemoryStore, Permit, Quota, RateLimiter, RedisStore};

use crate::contestant::{Bound, Contestant, Description, Failure, Offer, Reply, Setup, Verdict};
use crate::entry::Entry;
use crate::lock::lock;

/// All attacks that need no lost data. The bound of a lease holds only while the server keeps its counts.
const WITH_DATA: [&str; 10] = [
    "threads",
    "processes",
    "edges",
    "costs",
    "cancelled",
    "paused",
    "full",
    "clock",
    "skew",
    "slots",
];

fn describe(name: &str, offers: &[Offer], promises: &[&str]) -> Description {
    Description::new(name, "this-commit", Bound::Sliding)
        .offers(offers)
        .promises(promises)
}

/// tollgate on its three ways to count: in memory, on Redis, and on Redis with a lease.
#[must_use]
pub fn contestants() -> Vec<Entry> {
    let offers = [
        Offer::Costs,
        Offer::Refunds,
        Offer::Slots,
        Offer::Waits,
        Offer::ExactWaits,
    ];
    // In memory, a check waits for nothing, so there is nothing to cancel.
    let on_redis = [&offers[..], &[Offer::Cancel, Offer::Redis]].concat();
    let memory = ["threads", "edges", "costs", "slots", "waits"];
    let redis = [&WITH_DATA[..], &["cut", "killed", "emptied", "waits"]].concat();
    // The units that a lease holds may return earlier than it said, and slots are not leased.
    let leased = [
        Offer::Cancel,
        Offer::Costs,
        Offer::Refunds,
        Offer::Waits,
        Offer::Redis,
    ];
    let lease = describe("tollgate-lease", &leased, &WITH_DATA[..9]);
    vec![
        Entry::new(
            describe("tollgate-memory", &offers, &memory),
            |setup| async move {
                let store = MemoryStore::new();
                let rate = RateLimiter::new(store.clone(), quota(&setup));
                let slots = RateLimiter::new(store, Quota::in_flight(setup.limit));
                Ok(Tollgate::new(rate, slots))
            },
        ),
        Entry::new(
            describe("tollgate-redis", &on_redis, &redis),
            |setup| async move {
                let store = RedisStore::open(&setup.redis)?;
                let slots = Quota::in_flight(setup.limit).slot_lease(Duration::from_secs(5));
                let rate = RateLimiter::new(store.clone(), quota(&setup));
                Ok(Tollgate::new(rate, RateLimiter::new(store, slots)))
            },
        ),
        Entry::new(
            lease.shortest_window(Duration::from_millis(500)),
            |setup| async move {
                let store = RedisStore::open(&setup.redis)?;
                // At most a tenth of the window.
                let lease = (setup.window / 10).min(Duration::from_millis(100));
                let rate = RateLimiter::new(store, quota(&setup)).lease(lease);
                Ok(Tollgate::new(rate.clone(), rate))
            },
        ),
    ]
}

fn quota(setup: &Setup) -> Quota {
    Quota::new(setup.limit, setup.window)
}

struct Tollgate {
    rate: RateLimiter,
    slots: RateLimiter,
    last_number: AtomicU64,
    /// The latest admissions, which may be refunded.
    decisions: Mutex<HashMap<u64, Decision>>,
    permits: Mutex<HashMap<u64, Permit>>,
}

impl Tollgate {
    fn new(rate: RateLimiter, slots: RateLimiter) -> Self {
        Self {
            rate: rate.name("rate"),
            slots: slots.name("slots"),
            last_number: AtomicU64::new(0),
            decisions: Mutex::default(),
            permits: Mutex::default(),
        }
    }

    fn number(&self) -> u64 {
        self.last_number.fetch_add(1, Ordering::Relaxed)
    }
}

impl Contestant for Tollgate {
    fn check<'a>(&'a self, key: &'a str, cost: u32) -> Reply<'a, Verdict> {
        Box::pin(async move {
            let decision = self.rate.check_n(key, cost).await?;
            if !decision.is_allowed() {
                return Ok(Verdict::refused(decision.retry_after()));
            }
            let receipt = self.number();
            let mut decisions = lock(&self.decisions);
            decisions.remove(&receipt.wrapping_sub(1_000));
            decisions.insert(receipt, decision);
            Ok(Verdict::admitted().with_receipt(receipt))
        })
    }

    fn refund<'a>(&'a self, _: &'a str, receipt: u64, units: u32) -> Reply<'a, ()> {
        Box::pin(async move {
            let decision = lock(&self.decisions).remove(&receipt);
            let mut decision = decision.ok_or_else(|| Failure::new("not admitted, or long ago"))?;
            Ok(decision.refund(units).await?)
        })
    }

    fn acquire<'a>(&'a self, key: &'a str) -> Reply<'a, Option<u64>> {
        Box::pin(async move {
            match self.slots.try_acquire(key).await? {
                Acquired::Refused(_) => Ok(None),
                Acquired::Permit(permit) => {
                    let number = self.number();
                    lock(&self.permits).insert(number, permit);
                    Ok(Some(number))
                }
            }
        })
    }

    fn release<'a>(&'a self, _: &'a str, slot: u64) -> Reply<'a, ()> {
        Box::pin(async move {
            let permit = lock(&self.permits).remove(&slot);
            // As services do it: the permit is dropped, and the store learns it soon.
            permit.map(drop).ok_or_else(|| Failure::new("not held"))
        })
    }
}
