//! Refusals that are remembered for as long as they must hold: a client that hammers on costs Redis
//! nothing.
//!
//! What Redis refused with a wait, it refuses until that wait has passed, whatever else is charged
//! in between. So this process answers the same check itself, for 0.8 of the wait, measured from before
//! the call was sent. That is sooner than Redis would admit it, even where chrony slews the clock of
//! Redis and that of this process as fast as it does, by 8.3 % in opposite directions. Only what gives
//! units back lets Redis admit it earlier: a reset, a refund, a gift, a raised limit, a jump of the
//! server's clock. What of it happens in this process is followed at once by the store that does it;
//! elsewhere, and where Redis does it later than its deadline, it is seen when the refusal is too old.
//!
//! A client that asks each millisecond reaches Redis six times in a wait of a second: when it is
//! admitted, and 1, 801, 961, 993 and 999 ms later.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quick_cache::sync::Cache;

use super::requests::{Check, Subject};
use crate::clock::Clock;
use crate::decision::{Answer, Wait};
use crate::key::Fingerprint;
use crate::quota::Quotas;
use crate::telemetry::StoreMeter;

/// How old a refusal may become unless told otherwise: so soon is seen what other processes reset,
/// gave back or raised.
pub(super) const DEFAULT_MAX_AGE: Duration = Duration::from_secs(1);

/// Of how many keys refusals are remembered: the busiest stay. About 200 bytes each, mostly one a key.
const MAX_KEYS: usize = 10_000;

/// How many refusals of one key are remembered: they differ in cost or quotas.
const MAX_OF_KEY: usize = 8;

/// Into how many parts keys are divided, so that what is given back to one key seldom concerns another.
const PARTS: usize = 256;

/// The refusals that this process remembers.
pub(crate) struct RefusalCache {
    meter: StoreMeter,
    /// Read without a lock, and changed under that of the key's part.
    of_keys: Cache<Fingerprint, Arc<[CachedRefusal]>>,
    parts: [Part; PARTS],
    clock: Clock,
    max_age: u64,
}

/// What is known of the keys of one part.
struct Part {
    /// How often something was forgotten of them: a refusal of theirs that was on its way meanwhile is not
    /// remembered.
    forgotten: AtomicU64,
    /// Held while the refusals of one of them are replaced: else a thread that has read them before
    /// they were forgotten would put them back.
    changes: Mutex<()>,
}

#[derive(Clone)]
struct CachedRefusal {
    quotas: Quotas,
    cost: u32,
    answer: Answer,
    /// When the answer was there, in microseconds of the clock of this process.
    answered_at: u64,
    until: u64,
}

/// When a call was sent, as far as its refusals are concerned.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    at: u64,
    forgotten: u64,
}

impl RefusalCache {
    pub(super) fn new(clock: Clock, max_age: Duration, meter: StoreMeter) -> Self {
        Self {
            meter,
            of_keys: Cache::new(MAX_KEYS),
            parts: [const { Part::new() }; PARTS],
            clock,
            max_age: u64::try_from(max_age.as_micros()).unwrap_or(u64::MAX),
        }
    }

    /// The refusal of a check that Redis would refuse as well.
    pub(super) fn find(&self, check: Check<'_>) -> Option<Answer> {
        if self.max_age == 0 || check.cost() == 0 {
            return None;
        }
        let denials = self.of_keys.get(&check.subject.fingerprint())?;
        let now = self.clock.now();
        denials
            .iter()
            .find(|denial| denial.is_of(check) && denial.holds(now))
            .map(|denial| denial.answer.repeated_after(now - denial.answered_at))
    }

    /// To be called before a check is sent.
    pub(super) fn sending(&self, check: Check<'_>) -> Sent {
        Sent {
            at: self.clock.now(),
            forgotten: self.part(check.subject.fingerprint()).forgotten(),
        }
    }

    fn part(&self, whose: Fingerprint) -> &Part {
        let [first, ..] = &self.parts;
        let [_, bits] = whose.halves();
        let part = usize::try_from(bits >> 56).unwrap_or(0);
        self.parts.get(part).unwrap_or(first)
    }

    /// Follows what came of a check: a refusal is remembered. An admission makes the waits of other
    /// costs longer than they are remembered.
    pub(super) fn note(&self, check: Check<'_>, answer: &Answer, sent: Sent) {
        if self.max_age == 0 || check.cost() == 0 {
            return;
        }
        let whose = check.subject.fingerprint();
        let part = self.part(whose);
        let Some(wait) = wait_of(answer) else {
            self.remove(whose, part.change());
            return;
        };
        let answered_at = self.clock.now();
        let until = sent.at.saturating_add(held_for(wait).min(self.max_age));
        let denial = CachedRefusal {
            quotas: check.quotas().clone(),
            cost: check.cost(),
            answer: answer.clone(),
            answered_at,
            until,
        };
        let change = part.change();
        if part.forgotten() != sent.forgotten {
            return;
        }
        let kept = self.of_keys.get(&whose);
        let kept = kept.iter().flat_map(|denials| denials.iter());
        let kept = kept.filter(|other| !other.is_of(check) && other.holds(answered_at));
        let denials = [denial].into_iter().chain(kept.cloned()).take(MAX_OF_KEY);
        self.of_keys.insert(whose, denials.collect());
        drop(change);
        self.meter.record_refusals(|| self.of_keys.len());
    }

    fn remove(&self, whose: Fingerprint, change: MutexGuard<'_, ()>) {
        let removed = self.of_keys.remove(&whose);
        drop(change);
        if removed.is_some() {
            self.meter.record_refusals(|| self.of_keys.len());
        }
    }

    /// Forgets the refusals of a key to which something is given back: now, and once more when that
    /// has been done, which is when this is dropped.
    pub(super) fn forgetting(self: &Arc<Self>, subject: Subject<'_>) -> Forgetting {
        let forgetting = Forgetting {
            denials: Arc::clone(self),
            whose: subject.fingerprint(),
        };
        forgetting.forget();
        forgetting
    }
}

/// Something is being given back.
pub(super) struct Forgetting {
    denials: Arc<RefusalCache>,
    whose: Fingerprint,
}

impl Forgetting {
    fn forget(&self) {
        let part = self.denials.part(self.whose);
        let change = part.change();
        part.forgotten.fetch_add(1, Ordering::SeqCst);
        self.denials.remove(self.whose, change);
    }
}

impl Drop for Forgetting {
    fn drop(&mut self) {
        self.forget();
    }
}

impl CachedRefusal {
    fn is_of(&self, check: Check<'_>) -> bool {
        self.cost == check.cost() && self.quotas == *check.quotas()
    }

    fn holds(&self, now: u64) -> bool {
        (self.answered_at..self.until).contains(&now)
    }
}

impl Part {
    const fn new() -> Self {
        Self {
            forgotten: AtomicU64::new(0),
            changes: Mutex::new(()),
        }
    }

    fn forgotten(&self) -> u64 {
        self.forgotten.load(Ordering::SeqCst)
    }

    fn change(&self) -> MutexGuard<'_, ()> {
        // It guards nothing that a panic could leave half done.
        self.changes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// For how long a refusal of such a wait is remembered at most: a clock that is 8.3 % slow shows 0.917 of a
/// time in which one that is 8.3 % fast shows 1.083 of it, and 0.8 is less than 0.917 / 1.083.
fn held_for(wait: u64) -> u64 {
    wait / 5 * 4
}

/// How long a refused check is refused, in microseconds.
fn wait_of(answer: &Answer) -> Option<u64> {
    let waits = answer.quotas().iter().map(|quota| quota.wait());
    match waits.max()? {
        Wait::Zero => None,
        Wait::Micros(micros) => Some(micros),
        Wait::Never => Some(u64::MAX),
    }
}

#[cfg(all(test, feature = "test-util"))]
mod tests {
    use super::*;
    use crate::clock::TestClock;
    use crate::decision::{QuotaAnswer, Source};
    use crate::key::Key;
    use crate::quota::Quota;

    const SECOND: Duration = Duration::from_secs(1);

    /// What is asked, by whom.
    struct Asking {
        limiter: Key,
        key: Key,
        quotas: Quotas,
    }

    impl Asking {
        fn new(key: &str, quotas: impl Into<Quotas>) -> Self {
            Self {
                limiter: Key::from("l"),
                key: Key::from(key),
                quotas: quotas.into(),
            }
        }

        fn check(&self, cost: u32) -> Check<'_> {
            let subject = Subject {
                limiter: &self.limiter,
                key: &self.key,
                quotas: &self.quotas,
            };
            Check { subject, cost }
        }
    }

    fn denials() -> (Arc<RefusalCache>, TestClock) {
        let clock = TestClock::new();
        let meter = StoreMeter::new("test");
        let denials = RefusalCache::new(Clock::Test(clock.clone()), SECOND, meter);
        (Arc::new(denials), clock)
    }

    fn refused(wait: Option<Duration>) -> Answer {
        let of_quota = QuotaAnswer::refused(5, wait, 2 * SECOND);
        Answer::new(Source::Redis, [of_quota])
    }

    #[test]
    fn a_refusal_holds_for_four_fifths_of_its_wait_from_when_it_was_sent() {
        let (denials, clock) = denials();
        let ada = Asking::new("ada", Quota::per_minute(5));
        let wait = Duration::from_millis(500);
        let sent = denials.sending(ada.check(1));
        clock.advance(Duration::from_millis(100));
        denials.note(ada.check(1), &refused(Some(wait)), sent);
        assert!(denials.find(ada.check(1)).is_some());
        clock.advance(Duration::from_micros(299_999));
        let last = denials.find(ada.check(1)).unwrap();
        assert_eq!(last.source(), Source::RefusalCache);
        let left = Wait::Micros(200_001);
        assert_eq!(last.quotas()[0].wait(), left);
        clock.advance(Duration::from_micros(1));
        assert!(denials.find(ada.check(1)).is_none());
    }

    #[test]
    fn a_refusal_that_never_ends_is_told_again_until_it_is_too_old() {
        let (denials, clock) = denials();
        let ada = Asking::new("ada", Quota::per_minute(5));
        denials.note(ada.check(9), &refused(None), denials.sending(ada.check(9)));
        clock.advance(SECOND - Duration::from_micros(1));
        let last = denials.find(ada.check(9)).unwrap();
        assert_eq!(last.quotas()[0].wait(), Wait::Never);
        clock.advance(Duration::from_micros(1));
        assert!(denials.find(ada.check(9)).is_none());
    }

    #[test]
    fn a_refusal_on_its_way_while_something_is_given_back_is_not_remembered() {
        let (denials, _) = denials();
        let ada = Asking::new("ada", Quota::per_minute(5));
        // Sent before, and while Redis is being told.
        let before = denials.sending(ada.check(1));
        let forgetting = denials.forgetting(ada.check(1).subject);
        let meanwhile = denials.sending(ada.check(1));
        drop(forgetting);
        for sent in [before, meanwhile] {
            denials.note(ada.check(1), &refused(Some(SECOND)), sent);
            assert!(denials.find(ada.check(1)).is_none());
        }
        denials.note(
            ada.check(1),
            &refused(Some(SECOND)),
            denials.sending(ada.check(1)),
        );
        assert!(denials.find(ada.check(1)).is_some());
    }

    #[test]
    fn what_was_forgotten_is_not_copied_back_by_another_thread() {
        const ROUNDS: usize = 2_000;
        let (denials, _) = denials();
        let ada = Asking::new("ada", Quota::per_minute(5));
        let note = |cost| {
            let sent = denials.sending(ada.check(cost));
            denials.note(ada.check(cost), &refused(Some(SECOND)), sent);
        };
        let is_done = std::sync::atomic::AtomicBool::new(false);
        let mut copied_back = 0;
        std::thread::scope(|scope| {
            for cost in 2..4 {
                let (note, is_done) = (&note, &is_done);
                scope.spawn(move || {
                    while !is_done.load(Ordering::Relaxed) {
                        note(cost);
                    }
                });
            }
            for _ in 0..ROUNDS {
                let forgetting = denials.forgetting(ada.check(1).subject);
                note(1);
                drop(forgetting);
                // The other threads go on, and remember what they find.
                std::thread::yield_now();
                copied_back += usize::from(denials.find(ada.check(1)).is_some());
            }
            is_done.store(true, Ordering::Relaxed);
        });
        assert_eq!(copied_back, 0, "of {ROUNDS}");
    }

    #[test]
    fn a_refusal_ends_before_redis_admits_though_both_clocks_are_slewed() {
        // The most by which chrony slews a clock, in millionths. That of Redis is fast, ours slow.
        const SLEW: u64 = 83_334;
        let (denials, clock) = denials();
        let ada = Asking::new("ada", Quota::per_minute(5));
        for wait in [1, 1_000, 500_000, 999_999, 1_250_000] {
            let sent = denials.sending(ada.check(1));
            let answer = refused(Some(Duration::from_micros(wait)));
            denials.note(ada.check(1), &answer, sent);
            // When Redis admits, and what our clock says has passed until then.
            let until_admitted = wait * 1_000_000 / (1_000_000 + SLEW);
            let here = until_admitted * (1_000_000 - SLEW) / 1_000_000;
            clock.advance(Duration::from_micros(here));
            assert!(denials.find(ada.check(1)).is_none(), "a wait of {wait} µs");
            clock.advance(SECOND);
        }
    }

    #[test]
    fn an_admission_ends_the_refusals_of_its_key() {
        let (denials, _) = denials();
        let [ada, bob] = ["ada", "bob"].map(|key| Asking::new(key, Quota::per_minute(5)));
        for asking in [&ada, &bob] {
            denials.note(
                asking.check(4),
                &refused(Some(SECOND)),
                denials.sending(asking.check(4)),
            );
        }
        let admitted = Answer::new(Source::Redis, [QuotaAnswer::admitted(2, SECOND)]);
        denials.note(ada.check(1), &admitted, denials.sending(ada.check(1)));
        assert!(denials.find(ada.check(4)).is_none());
        assert!(denials.find(bob.check(4)).is_some());
    }

    #[cfg(feature = "metrics")]
    #[test]
    fn the_gauge_follows_what_is_forgotten() {
        let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
        let told = recorder.handle();
        let told = || {
            let text = told.render();
            let line = text.lines().find(|line| line.starts_with("tollgate_keys{"));
            line.and_then(|line| line.rsplit(' ').next())
                .map(str::to_owned)
        };
        metrics::with_local_recorder(&recorder, || {
            let (denials, _) = denials();
            let ada = Asking::new("ada", Quota::per_minute(5));
            let refuse = || {
                let sent = denials.sending(ada.check(1));
                denials.note(ada.check(1), &refused(Some(SECOND)), sent);
            };
            refuse();
            assert_eq!(told().as_deref(), Some("1"));
            let admitted = Answer::new(Source::Redis, [QuotaAnswer::admitted(2, SECOND)]);
            denials.note(ada.check(1), &admitted, denials.sending(ada.check(1)));
            assert_eq!(told().as_deref(), Some("0"));
            refuse();
            assert_eq!(told().as_deref(), Some("1"));
            drop(denials.forgetting(ada.check(1).subject));
            assert_eq!(told().as_deref(), Some("0"));
        });
    }

    #[test]
    fn no_more_is_remembered_than_there_is_room_for() {
        let (denials, _) = denials();
        let ada = Asking::new("ada", Quota::per_minute(5));
        for cost in 1..=100 {
            denials.note(
                ada.check(cost),
                &refused(Some(SECOND)),
                denials.sending(ada.check(cost)),
            );
        }
        let kept = (1..=100).filter(|cost| denials.find(ada.check(*cost)).is_some());
        assert_eq!(kept.collect::<Vec<_>>(), (93..=100).collect::<Vec<_>>());
        for key in 0..5 * MAX_KEYS {
            let asking = Asking::new(&key.to_string(), Quota::per_minute(5));
            denials.note(
                asking.check(1),
                &refused(Some(SECOND)),
                denials.sending(asking.check(1)),
            );
        }
        assert!(denials.of_keys.len() <= MAX_KEYS);
    }
}
