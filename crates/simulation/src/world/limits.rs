//! The limiters of a service, and the bound that each promises.

use std::collections::BTreeMap;
use std::time::Duration;

use tollgate::{
    Algorithm, BlockRule, FailurePolicy, Quota, Quotas, RateLimiter, RedisStore, Share,
};

use super::budgets::budgets;
use super::plan::{Cast, Plan};
use crate::random::Random;

/// The lease of slots, in milliseconds.
pub(crate) const SLOT_LEASE: u64 = 5_000;

/// How long an operator blocks a key, in milliseconds.
pub(crate) const BLOCK: u64 = 3_000;

/// The quota of limiters that count all that is charged to them: none is refused, and nothing expires.
const ALL: u32 = 1_000_000;

/// The units that are admitted at most in a span of a window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    pub(crate) limiter: &'static str,
    pub(crate) units: u32,
    /// In milliseconds.
    pub(crate) window: u64,
    /// How long a unit is counted, with its lease.
    pub(crate) counted: u64,
    pub(crate) spans: Spans,
}

/// The spans of a bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spans {
    All,
    /// Those that begin at a multiple of the window by the server's clock.
    Aligned,
}

/// The limit of the busy key.
const LEASED: u32 = 500;

/// The slots that are held at most at a time.
pub(crate) const SLOTS: [(&str, u32); 4] = [("slots", 3), ("jobs", 2), ("lanes", 3), ("solo", 1)];

/// Limiters that a plain check of any key may ask.
pub(crate) const CHECKED: [&str; 9] = [
    "log", "pair", "set", "buckets", "counter", "window", "gcra", "soft", "long",
];

impl Bound {
    const fn new(limiter: &'static str, units: u32, window: u64) -> Self {
        Self {
            limiter,
            units,
            window,
            counted: window,
            spans: Spans::All,
        }
    }

    const fn aligned(limiter: &'static str, units: u32, window: u64) -> Self {
        Self {
            spans: Spans::Aligned,
            ..Self::new(limiter, units, window)
        }
    }
}

/// The settings that differ between worlds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) seed: u64,
    leased: Algorithm,
    /// The window and the lease of units, in milliseconds.
    window: u64,
    pub(crate) lease: u64,
    /// The deadline of a call, in milliseconds.
    pub(crate) deadline: u64,
    /// For how long a busy key is checked, and for how long it then is not, in milliseconds.
    pub(crate) burst: u64,
    pub(crate) pause: u64,
    /// Whether units of the busy key are given back: then a window has fewer uses than charges.
    pub(crate) gives_back: bool,
    /// Whether there are no faults.
    pub(crate) is_calm: bool,
}

impl Limits {
    pub(crate) fn draw(plan: &Plan) -> Self {
        let algorithms = [
            Algorithm::SlidingLog,
            Algorithm::SlidingLog,
            Algorithm::SortedSetLog,
            Algorithm::SlidingBuckets(10),
            Algorithm::SlidingCounter,
            Algorithm::FixedWindow,
            Algorithm::FixedWindow,
            Algorithm::Gcra,
        ];
        let mut random = Random::new(plan.seed, 2);
        let leased = random.pick(&algorithms);
        let (window, lease) =
            random.pick(&[(1_000, 100), (300, 1_000), (1_000, 1_000), (300, 100)]);
        let deadlines = match plan.cast() {
            Cast::SlotsAlone | Cast::ReservationsAlone => [100, 2_000],
            Cast::All | Cast::LeasesAlone => [100, 400],
        };
        Self {
            seed: plan.seed,
            leased,
            window,
            lease,
            deadline: random.pick(&deadlines),
            burst: random.pick(&[40, 150, 600]),
            is_calm: plan.faults.is_empty(),
            gives_back: random.one_in(3),
            pause: lease * random.pick(&[4, 8, 12, 14, 16, 24]) / 10,
        }
    }

    /// Returns what each limiter promises. The inexact algorithms admit less than twice the limit in a window.
    pub(crate) fn bounds(self) -> Vec<Bound> {
        let leased = match self.leased {
            Algorithm::SlidingLog | Algorithm::SortedSetLog | Algorithm::SlidingBuckets(_) => {
                LEASED
            }
            _ => 2 * LEASED,
        };
        let of_seconds = [
            ("log", 8),
            ("pair", 4),
            ("set", 6),
            ("buckets", 6),
            ("counter", 12),
            ("window", 12),
            ("gcra", 12),
            ("soft", 10),
            ("shared", 8),
            ("user", 5),
            ("tenant", 7),
            ("jobs", 9),
            ("fallback", 6),
        ];
        let bounds = of_seconds.map(|(limiter, units)| Bound::new(limiter, units, 1_000));
        let mut bounds = Vec::from(bounds);
        let leased = Bound {
            counted: self.window + self.lease,
            ..Bound::new("leased", leased, self.window)
        };
        bounds.extend([
            leased,
            Bound::new("pair", 20, 8_000),
            Bound::aligned("window", 6, 1_000),
        ]);
        if self.leased == Algorithm::FixedWindow {
            bounds.push(Bound::aligned("leased", LEASED, self.window));
        }
        bounds
    }

    /// Creates the limiters of a process.
    pub(crate) fn limiters(self, store: RedisStore) -> Limiters {
        let by = |limit, algorithm| Quota::per_second(limit).with_algorithm(algorithm);
        let slot_lease = Duration::from_millis(SLOT_LEASE);
        let slots = |slots| Quota::in_flight(slots).slot_lease(slot_lease);
        let shares = [
            Share::of("critical").reserve(2),
            Share::of("batch").at_most(3),
        ];
        let long_shares = [
            Share::of("critical").reserve(100),
            Share::of("batch").at_most(200),
        ];
        let lanes = [
            Share::of("critical").reserve(1),
            Share::of("batch").at_most(2),
        ];
        let hour = Quota::per_hour(ALL);
        let leased = Quota::new(LEASED, Duration::from_millis(self.window));
        let store = store.deadline(Duration::from_millis(self.deadline));
        let lists: [(&'static str, Quotas); 25] = [
            ("log", Quota::per_second(8).into()),
            (
                "pair",
                [Quota::per_second(4), Quota::new(20, Duration::from_secs(8))].into(),
            ),
            ("set", by(6, Algorithm::SortedSetLog).into()),
            ("buckets", by(6, Algorithm::SlidingBuckets(10)).into()),
            ("counter", by(6, Algorithm::SlidingCounter).into()),
            ("window", by(6, Algorithm::FixedWindow).into()),
            ("gcra", by(6, Algorithm::Gcra).into()),
            (
                "soft",
                [Quota::per_second(4).soft(), Quota::per_second(10)].into(),
            ),
            ("long", Quota::new(5_000, Duration::from_secs(2)).into()),
            ("shared", Quota::per_second(8).shares(shares).into()),
            (
                "long-shared",
                Quota::new(5_000, Duration::from_secs(2))
                    .shares(long_shares)
                    .into(),
            ),
            ("user", Quota::per_second(5).into()),
            ("tenant", Quota::per_second(7).into()),
            ("leased", leased.with_algorithm(self.leased).into()),
            ("slots", slots(3).into()),
            ("jobs", [slots(2), Quota::per_second(9)].into()),
            ("lanes", slots(3).shares(lanes).into()),
            ("solo", slots(1).into()),
            (
                "row",
                Quota::per_hour(ALL).with_algorithm(Algorithm::Gcra).into(),
            ),
            ("closed", by(0, Algorithm::SortedSetLog).into()),
            ("sums", hour.clone().into()),
            (
                "window-sums",
                hour.with_algorithm(Algorithm::FixedWindow).into(),
            ),
            ("blocked", Quota::per_second(1_000).into()),
            ("ruled", Quota::per_second(3).into()),
            ("fallback", Quota::per_second(6).into()),
        ];
        let limiters = lists.map(|(name, quotas)| {
            let limiter = RateLimiter::new(store.clone(), quotas).name(name);
            (name, self.configured(name, limiter))
        });
        let budgets = budgets(self.seed, &store);
        Limiters(limiters.into_iter().chain(budgets).collect())
    }

    fn configured(self, name: &str, limiter: RateLimiter) -> RateLimiter {
        let rule = BlockRule::refusals(6)
            .within(Duration::from_secs(10))
            .block_for(Duration::from_millis(BLOCK));
        match name {
            "leased" => limiter.lease(Duration::from_millis(self.lease)),
            "slots" | "jobs" | "lanes" | "solo" => limiter.max_wait(Duration::from_secs(3)),
            "ruled" => limiter.block_after(rule),
            "fallback" => limiter.on_failure(FailurePolicy::fall_back().replicas(2)),
            "long" => limiter.on_failure(FailurePolicy::open()),
            _ => limiter,
        }
    }
}

/// The limiters of a process, by name.
#[derive(Clone, Debug)]
pub(crate) struct Limiters(BTreeMap<&'static str, RateLimiter>);

impl Limiters {
    pub(crate) fn get(&self, name: &str) -> &RateLimiter {
        &self.0[name]
    }
}
