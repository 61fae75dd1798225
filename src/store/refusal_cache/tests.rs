use super::*;
use crate::clock::TestClock;
use crate::decision::{QuotaAnswer, Source};
use crate::key::Key;
use crate::quota::Quota;

const SECOND: Duration = Duration::from_secs(1);

/// The limiter, the key and the quotas of checks.
struct CachedKey {
    limiter: Key,
    key: Key,
    quotas: Quotas,
}

impl CachedKey {
    fn new(key: &str, quotas: impl Into<Quotas>) -> Self {
        Self {
            limiter: Key::from("l"),
            key: Key::from(key),
            quotas: quotas.into(),
        }
    }

    fn check(&self, cost: u32) -> Check<'_> {
        let subject = Subject::new(&self.limiter, &self.key, &self.quotas);
        subject.check(cost)
    }
}

fn cache() -> (RefusalCache, TestClock) {
    let clock = TestClock::new();
    let cache = RefusalCache::new().name("test").with_clock(clock.clone());
    (cache, clock)
}

/// Records the answer to a check that takes no time.
fn record(cache: &RefusalCache, check: Check<'_>, answer: &Answer) {
    cache.record(check, cache.before_send(check), answer, Duration::MAX);
}

fn refused(wait: Option<Duration>) -> Answer {
    let quota = QuotaAnswer::refused(5, wait, 2 * SECOND);
    Answer::new(Source::Redis, [quota])
}

#[test]
fn a_refusal_is_remembered_for_four_fifths_of_its_wait_from_when_it_was_sent() {
    let (cache, clock) = cache();
    let ada = CachedKey::new("ada", Quota::per_minute(5));
    let wait = Duration::from_millis(500);
    let mark = cache.before_send(ada.check(1));
    clock.advance(Duration::from_millis(100));
    cache.record(ada.check(1), mark, &refused(Some(wait)), Duration::MAX);
    assert!(cache.get(ada.check(1)).is_some());
    clock.advance(Duration::from_micros(299_999));
    let last = cache.get(ada.check(1)).unwrap();
    assert_eq!(last.source(), Source::RefusalCache);
    let left = Wait::Micros(200_001);
    assert_eq!(last.quotas()[0].wait(), left);
    clock.advance(Duration::from_micros(1));
    assert!(cache.get(ada.check(1)).is_none());
}

#[test]
fn a_refusal_without_an_end_is_remembered_for_the_maximum_age() {
    let (cache, clock) = cache();
    let ada = CachedKey::new("ada", Quota::per_minute(5));
    record(&cache, ada.check(9), &refused(None));
    clock.advance(SECOND - Duration::from_micros(1));
    let last = cache.get(ada.check(9)).unwrap();
    assert_eq!(last.quotas()[0].wait(), Wait::Never);
    clock.advance(Duration::from_micros(1));
    assert!(cache.get(ada.check(9)).is_none());
}

#[test]
fn a_refusal_in_flight_while_units_are_returned_is_not_remembered() {
    let (cache, _) = cache();
    let ada = CachedKey::new("ada", Quota::per_minute(5));
    // One check is sent before Redis returns the units, and one meanwhile.
    let before = cache.before_send(ada.check(1));
    let invalidation = cache.invalidate(ada.check(1).subject);
    let meanwhile = cache.before_send(ada.check(1));
    drop(invalidation);
    for mark in [before, meanwhile] {
        cache.record(ada.check(1), mark, &refused(Some(SECOND)), Duration::MAX);
        assert!(cache.get(ada.check(1)).is_none());
    }
    record(&cache, ada.check(1), &refused(Some(SECOND)));
    assert!(cache.get(ada.check(1)).is_some());
}

#[test]
fn a_removed_refusal_is_not_inserted_again_by_another_thread() {
    const ROUNDS: usize = 2_000;
    let (cache, _) = cache();
    let ada = CachedKey::new("ada", Quota::per_minute(5));
    let refusal = refused(Some(SECOND));
    let is_done = std::sync::atomic::AtomicBool::new(false);
    let mut inserted_again = 0;
    std::thread::scope(|scope| {
        for cost in 2..4 {
            let check = ada.check(cost);
            let cache = &cache;
            let refusal = &refusal;
            let is_done = &is_done;
            scope.spawn(move || {
                while !is_done.load(Ordering::Relaxed) {
                    record(cache, check, refusal);
                }
            });
        }
        for _ in 0..ROUNDS {
            let invalidation = cache.invalidate(ada.check(1).subject);
            record(&cache, ada.check(1), &refusal);
            drop(invalidation);
            // The other threads keep recording.
            std::thread::yield_now();
            inserted_again += usize::from(cache.get(ada.check(1)).is_some());
        }
        is_done.store(true, Ordering::Relaxed);
    });
    assert_eq!(inserted_again, 0, "of {ROUNDS}");
}

#[test]
fn a_refusal_expires_before_redis_admits_even_if_both_clocks_are_slewed() {
    // The maximum rate at which chrony slews a clock, in millionths. The clock of Redis is fast, and the clock
    // of this process is slow.
    const SLEW: u64 = 83_334;
    let (cache, clock) = cache();
    let ada = CachedKey::new("ada", Quota::per_minute(5));
    for wait in [1, 1_000, 500_000, 999_999, 1_250_000] {
        let mark = cache.before_send(ada.check(1));
        let answer = refused(Some(Duration::from_micros(wait)));
        cache.record(ada.check(1), mark, &answer, Duration::MAX);
        // The time until Redis admits the check, and the same time by the clock of this process.
        let until_admitted = wait * 1_000_000 / (1_000_000 + SLEW);
        let here = until_admitted * (1_000_000 - SLEW) / 1_000_000;
        clock.advance(Duration::from_micros(here));
        assert!(cache.get(ada.check(1)).is_none(), "a wait of {wait} µs");
        clock.advance(SECOND);
    }
}

#[test]
fn an_admission_removes_the_refusals_of_its_key() {
    let (cache, _) = cache();
    let [ada, bob] = ["ada", "bob"].map(|key| CachedKey::new(key, Quota::per_minute(5)));
    for owner in [&ada, &bob] {
        record(&cache, owner.check(4), &refused(Some(SECOND)));
    }
    let admitted = Answer::new(Source::Redis, [QuotaAnswer::admitted(2, SECOND)]);
    record(&cache, ada.check(1), &admitted);
    assert!(cache.get(ada.check(4)).is_none());
    assert!(cache.get(bob.check(4)).is_some());
}

#[cfg(feature = "metrics")]
#[test]
fn the_gauge_counts_remembered_refusals() {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let gauge = || {
        let text = handle.render();
        let line = text.lines().find(|line| line.starts_with("tollgate_keys{"));
        line.and_then(|line| line.rsplit(' ').next())
            .map(str::to_owned)
    };
    metrics::with_local_recorder(&recorder, || {
        let (cache, _) = cache();
        let ada = CachedKey::new("ada", Quota::per_minute(5));
        let refusal = refused(Some(SECOND));
        record(&cache, ada.check(1), &refusal);
        assert_eq!(gauge().as_deref(), Some("1"));
        let admitted = Answer::new(Source::Redis, [QuotaAnswer::admitted(2, SECOND)]);
        record(&cache, ada.check(1), &admitted);
        assert_eq!(gauge().as_deref(), Some("0"));
        record(&cache, ada.check(1), &refusal);
        assert_eq!(gauge().as_deref(), Some("1"));
        drop(cache.invalidate(ada.check(1).subject));
        assert_eq!(gauge().as_deref(), Some("0"));
    });
}

#[test]
fn the_number_of_remembered_refusals_is_limited() {
    let (cache, _) = cache();
    let ada = CachedKey::new("ada", Quota::per_minute(5));
    for cost in 1..=100 {
        record(&cache, ada.check(cost), &refused(Some(SECOND)));
    }
    let remembered = (1..=100).filter(|cost| cache.get(ada.check(*cost)).is_some());
    assert_eq!(
        remembered.collect::<Vec<_>>(),
        (93..=100).collect::<Vec<_>>()
    );
    for key in 0..5 * MAX_KEYS {
        let owner = CachedKey::new(&key.to_string(), Quota::per_minute(5));
        record(&cache, owner.check(1), &refused(Some(SECOND)));
    }
    assert!(cache.inner.refusals.len() <= MAX_KEYS);
}
