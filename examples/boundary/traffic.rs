//! The traffic of the example `boundary`, and how much of it each algorithm admits. Tests include this file to
//! verify the chart.

use std::collections::BTreeSet;
use std::time::Duration;

use tollgate::store::TestClock;
use tollgate::{Algorithm, MemoryStore, Quota, RateLimiter};

pub(crate) const LIMIT: u32 = 50;

/// Times are milliseconds since the start, which is the edge of an aligned window.
pub(crate) const WINDOW: u32 = 10_000;
pub(crate) const END: u32 = 62_000;

/// More requests than the limit, all at once.
pub(crate) const BURST: u32 = 60;
pub(crate) const BETWEEN_BURSTS: u32 = 100;

/// The periods with bursts: from just before a window edge to just after the next one. The whole limit is
/// requested on both sides of an edge. Between the periods there is no traffic, so that every algorithm can
/// admit a full burst again.
pub(crate) const SPELLS: [(u32, u32); 2] = [(9_900, 20_200), (39_100, 50_200)];

pub(crate) const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::SlidingLog,
    Algorithm::SortedSetLog,
    Algorithm::SlidingBuckets(10),
    Algorithm::SlidingCounter,
    Algorithm::Gcra,
    Algorithm::FixedWindow,
];

/// The requests that an algorithm admitted.
pub(crate) struct Admitted {
    pub(crate) algorithm: Algorithm,
    /// The time of each burst, and how many of its requests were admitted.
    bursts: Vec<(u32, u32)>,
}

impl Admitted {
    /// Sends the traffic to a new limiter.
    pub(crate) async fn by(algorithm: Algorithm) -> Result<Self, tollgate::Error> {
        let clock = TestClock::new();
        let window = Duration::from_millis(WINDOW.into());
        let quota = Quota::new(LIMIT, window).with_algorithm(algorithm);
        let limiter = RateLimiter::new(MemoryStore::with_clock(clock.clone()), quota);

        let mut bursts = Vec::new();
        for time in (0..END).step_by(BETWEEN_BURSTS as usize) {
            if is_tried(time) {
                let requests = burst(&limiter).await?;
                bursts.push((time, requests));
            }
            clock.advance(Duration::from_millis(BETWEEN_BURSTS.into()));
        }
        Ok(Self { algorithm, bursts })
    }

    /// The requests admitted in the window that ends at `time`. A request admitted at *t* counts in
    /// [*t*, *t* + window), like its unit.
    fn trailing_at(&self, time: u32) -> u32 {
        let counts = |at: u32| at <= time && time < at + WINDOW;
        let counting = self.bursts.iter().filter(|(at, _)| counts(*at));
        counting.map(|(_, requests)| requests).sum()
    }

    /// The requests in the trailing window, at each time at which that number can change.
    pub(crate) fn trailing(&self) -> Vec<(u32, u32)> {
        let changes = self.bursts.iter().flat_map(|(at, _)| [*at, at + WINDOW]);
        let shown = changes.filter(|time| *time < END);
        let moments: BTreeSet<u32> = shown.chain([0, END]).collect();
        moments
            .into_iter()
            .map(|time| (time, self.trailing_at(time)))
            .collect()
    }

    /// The most requests that were in a trailing window at any time.
    pub(crate) fn most(&self) -> u32 {
        let counts = self.trailing().into_iter().map(|(_, requests)| requests);
        counts.max().unwrap_or(0)
    }

    /// Returns the caption in the chart.
    pub(crate) fn caption(&self) -> String {
        format!("{:?}: at most {}", self.algorithm, self.most())
    }
}

fn is_tried(time: u32) -> bool {
    SPELLS.iter().any(|(from, to)| (*from..*to).contains(&time))
}

/// How many requests of a burst are admitted.
async fn burst(limiter: &RateLimiter) -> Result<u32, tollgate::Error> {
    let mut admitted = 0;
    for _ in 0..BURST {
        admitted += u32::from(limiter.check("ada").await?.is_allowed());
    }
    Ok(admitted)
}
