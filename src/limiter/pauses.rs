//! The paused keys of a limiter: their name in the store, the refusals that told no wait, and the warnings about them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::clock::{Clock, micros_rounded_up};
use crate::decision::Source;
use crate::error::{Error, warning};
use crate::key::Key;
use crate::store::{FingerprintCache, fingerprint_cache};
use crate::telemetry::LineInterval;

/// The default of [`RateLimiter::max_pause`](crate::RateLimiter::max_pause): an upstream that errs keeps no client away for a day.
pub(super) const DEFAULT_MAX_PAUSE: Duration = Duration::from_secs(3_600);

/// The default of [`RateLimiter::default_pause`](crate::RateLimiter::default_pause): most upstreams count by the second or the
/// minute.
pub(super) const DEFAULT_PAUSES: DefaultPauses = DefaultPauses {
    first: Duration::from_secs(1),
    longest: Duration::from_secs(60),
};

/// The most keys whose pauses grow. When there are more, the least used begin anew.
const MAX_GROWING: usize = 10_000;

/// Why an upstream's answer pauses a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PauseReason {
    /// Too much was sent for a moment.
    Throttled,
    /// The allowance is used up, for hours or days.
    Exhausted,
}

impl PauseReason {
    pub(super) const ALL: [Self; 2] = [Self::Throttled, Self::Exhausted];

    pub(super) fn source(self) -> Source {
        match self {
            Self::Throttled => Source::Paused,
            Self::Exhausted => Source::Exhausted,
        }
    }
}

/// The paused keys of a limiter.
pub(crate) struct Pauses {
    /// The names under which the store keeps them, one for each reason.
    names: [Key; 2],
    /// Empty until a refusal tells no wait.
    growing: OnceLock<FingerprintCache<GrowingPause>>,
    /// Whether a check waits for the refresh of a block list that is too old: an upstream may have paused its key.
    needs_fresh_list: AtomicBool,
    warnings: LineInterval,
}

/// The pauses after refusals that tell no wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct DefaultPauses {
    pub(super) first: Duration,
    pub(super) longest: Duration,
}

/// The last pause of a key after a refusal that told no wait.
#[derive(Clone, Copy)]
struct GrowingPause {
    pause: Duration,
    /// In microseconds of the clock of the block list.
    ends_at: u64,
}

impl GrowingPause {
    /// A key that was not asked for a long time begins anew.
    fn is_over(&self, now: u64, longest: Duration) -> bool {
        self.ends_at.saturating_add(micros_rounded_up(longest)) <= now
    }
}

impl Pauses {
    pub(super) fn new(limiter: &Key) -> Arc<Self> {
        Arc::new(Self {
            names: [limiter.pauses_name(), limiter.exhausted_name()],
            growing: OnceLock::new(),
            needs_fresh_list: AtomicBool::new(false),
            warnings: LineInterval::new(Duration::from_secs(60)),
        })
    }

    pub(super) fn names(&self) -> [&Key; 2] {
        self.names.each_ref()
    }

    pub(super) fn name(&self, reason: PauseReason) -> &Key {
        let [throttled, exhausted] = &self.names;
        match reason {
            PauseReason::Throttled => throttled,
            PauseReason::Exhausted => exhausted,
        }
    }

    /// Returns how long a refusal that tells no wait pauses a key. `None` if the key is paused by an earlier one: requests that
    /// were sent together are refused together.
    pub(super) fn default_pause(
        &self,
        key: &Key,
        pauses: DefaultPauses,
        now: u64,
    ) -> Option<Duration> {
        let DefaultPauses { first, longest } = pauses;
        if first.is_zero() {
            return None;
        }
        let growing = self
            .growing
            .get_or_init(|| fingerprint_cache(0, MAX_GROWING));
        let known = growing
            .get(&key.fingerprint())
            .filter(|known| !known.is_over(now, longest));
        if known.is_some_and(|known| now < known.ends_at) {
            return None;
        }
        let pause = known.map_or(first, |known| known.pause.saturating_mul(2));
        let pause = pause.min(longest);
        let ends_at = now.saturating_add(micros_rounded_up(pause));
        growing.insert(key.fingerprint(), GrowingPause { pause, ends_at });
        Some(pause)
    }

    /// Takes in that an upstream has served a request of a key. During its pause, the request was sent before the refusal.
    pub(super) fn was_served(&self, key: &Key, clock: &Clock) {
        if let Some(growing) = self.growing.get()
            && let Some(known) = growing.get(&key.fingerprint())
            && known.ends_at <= clock.now()
        {
            growing.remove(&key.fingerprint());
        }
    }

    /// Returns the pauses of a limiter of another name that was made of this one.
    pub(super) fn renamed(&self, limiter: &Key) -> Arc<Self> {
        let renamed = Self::new(limiter);
        if self.needs_fresh_list() {
            renamed.need_fresh_list();
        }
        renamed
    }

    #[inline]
    pub(super) fn needs_fresh_list(&self) -> bool {
        self.needs_fresh_list.load(Ordering::Relaxed)
    }

    pub(crate) fn need_fresh_list(&self) {
        // Each response asks for it: a line that is only read stays in the caches of all processors.
        if !self.needs_fresh_list() {
            self.needs_fresh_list.store(true, Ordering::Relaxed);
        }
    }

    /// Warns at most once a minute that other processes do not know of a key.
    pub(super) fn warn(&self, limiter: &str, error: &Error) {
        if self.warnings.is_due() {
            tracing::warn!(
                target: "tollgate::diagnostics",
                code = warning::PAUSE_NOT_SHARED,
                limiter,
                "cannot tell other processes that a key is paused: {error}"
            );
        }
    }
}
