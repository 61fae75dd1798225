//! The answer of a store to a check: numbers, without the quotas that they belong to.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use smallvec::SmallVec;

/// The answer of a [store](crate::Store) to one check: its source, and an answer for each quota in the
/// order in which the check lists them.
///
/// The check is admitted if every quota admits it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    source: Source,
    quotas: SmallVec<[QuotaAnswer; 2]>,
    /// The time of the decision, in microseconds of the store's clock.
    time: u64,
}

/// An empty answer, for a store to write to.
impl Default for Answer {
    fn default() -> Self {
        Self {
            source: Source::None,
            quotas: SmallVec::new(),
            time: 0,
        }
    }
}

impl Answer {
    /// Creates an answer from the answers of the quotas.
    pub fn new(source: Source, quotas: impl IntoIterator<Item = QuotaAnswer>) -> Self {
        Self::at(0, source, quotas)
    }

    /// Creates an answer with the time of the decision, in microseconds of the store's clock.
    ///
    /// A refund hands the answer back to the store, which may find the charge by this time and by the
    /// [receipts](QuotaAnswer::with_receipt). A settlement charges more only if the time is set, and while
    /// the charge still counts.
    pub fn at(time: u64, source: Source, quotas: impl IntoIterator<Item = QuotaAnswer>) -> Self {
        Self {
            source,
            quotas: quotas.into_iter().collect(),
            time,
        }
    }

    /// Removes the answers of all quotas, and sets the time and the source of the next ones.
    #[inline]
    pub(crate) fn clear(&mut self, time: u64, source: Source) {
        self.source = source;
        self.time = time;
        self.quotas.clear();
    }

    /// Adds the answer of the next quota.
    #[inline]
    pub(crate) fn push(&mut self, answer: QuotaAnswer) {
        self.quotas.push(answer);
    }

    /// Sets the scope of the count in which the key was counted.
    pub(crate) fn set_scope(&mut self, scope: CountScope) {
        for answer in &mut self.quotas {
            answer.receipt.scope = scope;
        }
    }

    /// Returns the scope of the count in which the key was counted.
    pub(crate) fn scope(&self) -> CountScope {
        let first = self.quotas.first();
        first.map_or(CountScope::Own, |answer| answer.receipt.scope)
    }

    /// Returns the time of the decision, in microseconds of the store's clock; 0 if the store has not
    /// set it.
    #[must_use]
    pub fn time(&self) -> u64 {
        self.time
    }

    /// Returns whether every quota admits the check.
    #[must_use]
    pub fn is_admitted(&self) -> bool {
        self.quotas.iter().all(QuotaAnswer::is_admitted)
    }

    /// Marks the answer as one of the fallback store.
    pub(crate) fn into_fallback(self) -> Self {
        let source = Source::Fallback;
        Self { source, ..self }
    }

    /// Returns this refusal as the refusal cache repeats it to the same check, `micros` microseconds
    /// later. The used units stay as they were.
    pub(crate) fn repeated_after(&self, micros: u64) -> Self {
        let quotas = self.quotas.iter().map(|quota| quota.after(micros));
        Self::at(self.time, Source::RefusalCache, quotas)
    }

    /// Returns the source of the answer.
    #[must_use]
    pub fn source(&self) -> Source {
        self.source
    }

    /// Returns the answers of the quotas.
    #[must_use]
    #[inline]
    pub fn quotas(&self) -> &[QuotaAnswer] {
        &self.quotas
    }
}

/// The source of a decision.
// As wide as its neighbours in an answer: what is copied in words of one width is not waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u64)]
#[non_exhaustive]
pub enum Source {
    /// Redis: exact over all processes.
    Redis,
    /// A memory store: exact in this process.
    Memory,
    /// The refusal cache of this process: Redis refused the same check, and would still do so.
    RefusalCache,
    /// The counts of this process while the store fails: see
    /// [`FailurePolicy::fall_back`](crate::FailurePolicy::fall_back).
    Fallback,
    /// The block list, without a call of the store: the key is [blocked](crate::Admin::block).
    Block,
    /// A store of another crate.
    Other,
    /// No store: there is no quota, or the store fails and the limiter is
    /// [open](crate::FailurePolicy::open).
    None,
}

impl Source {
    /// All sources, each at the index of its discriminant.
    #[cfg(any(feature = "metrics", test))]
    pub(crate) const ALL: [Self; 7] = [
        Self::Redis,
        Self::Memory,
        Self::RefusalCache,
        Self::Fallback,
        Self::Block,
        Self::Other,
        Self::None,
    ];

    /// Returns the label in metrics and events.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Redis => "redis",
            Self::Memory => "memory",
            Self::RefusalCache => "refusal_cache",
            Self::Fallback => "fallback",
            Self::Block => "block",
            Self::Other => "other",
            Self::None => "none",
        }
    }
}

/// The answer of a store to one quota of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaAnswer {
    used: u32,
    /// Microseconds; 0 if admitted, [`NEVER`] if never.
    wait: u64,
    reset_micros: u64,
    receipt: Receipt,
}

/// The wait for a cost that is never admitted. Longer than any other wait.
const NEVER: u64 = u64::MAX;

/// Identifies the units that one check charged, so that a store can refund them.
///
/// The store defines the meaning of both numbers, and gets them back in
/// [`Refund::charged`](crate::store::Refund::charged).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// The generation of the count. A count that was reset or has ended since is in another one.
    pub(crate) generation: u64,
    /// The position in the count.
    pub(crate) position: u64,
    pub(crate) scope: CountScope,
}

impl Receipt {
    /// Creates a receipt.
    ///
    /// A store may set `generation` to a number that changes when a count is reset or has ended, and
    /// `position` to the place of the charge in the count. The pair should be unique among the charges of
    /// a count: otherwise a refund takes units of another charge.
    #[must_use]
    pub fn new(generation: u64, position: u64) -> Self {
        Self {
            generation,
            position,
            scope: CountScope::Own,
        }
    }

    /// Returns the generation of the count.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Returns the position in the count.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }
}

/// The keys that share the count of a key in a memory store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum CountScope {
    /// The key alone.
    #[default]
    Own,
    /// The keys of its network, because the store was full.
    Network,
    /// Keys of several networks, because its network had no room either.
    Shared,
}

/// The time until a cost is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wait {
    Zero,
    Micros(u64),
    Never,
}

impl QuotaAnswer {
    /// Creates the answer of a quota that admits the check.
    ///
    /// `used` are the units used now, including those of the check if all quotas admit it.
    /// `reset_after` is the time until more are left.
    #[must_use]
    pub fn admitted(used: u32, reset_after: Duration) -> Self {
        Self::from_micros(used, Wait::Zero, micros(reset_after))
    }

    /// Creates the answer of a quota that refuses the check.
    ///
    /// `used` are the units used now. `retry_after` is the shortest wait after which the same check is
    /// admitted; `None` means never, and zero counts as a microsecond. `reset_after` is the time until
    /// more units are left.
    #[must_use]
    pub fn refused(used: u32, retry_after: Option<Duration>, reset_after: Duration) -> Self {
        let wait = retry_after.map_or(Wait::Never, |wait| Wait::Micros(micros(wait).max(1)));
        Self::from_micros(used, wait, micros(reset_after))
    }

    #[inline]
    pub(crate) fn from_micros(used: u32, wait: Wait, reset_micros: u64) -> Self {
        let wait = match wait {
            Wait::Zero => 0,
            Wait::Micros(micros) => micros.min(NEVER - 1),
            Wait::Never => NEVER,
        };
        Self {
            used,
            wait,
            reset_micros,
            receipt: Receipt::default(),
        }
    }

    fn after(self, micros: u64) -> Self {
        let wait = match self.wait() {
            Wait::Micros(wait) if wait > micros => Wait::Micros(wait - micros),
            Wait::Micros(_) | Wait::Zero => Wait::Zero,
            Wait::Never => Wait::Never,
        };
        let reset_micros = self.reset_micros.saturating_sub(micros);
        Self::from_micros(self.used, wait, reset_micros).with_receipt(self.receipt)
    }

    /// Adds the receipt of the charge, by which the store finds it again to refund it.
    #[must_use]
    #[inline]
    pub fn with_receipt(self, receipt: Receipt) -> Self {
        Self { receipt, ..self }
    }

    /// Returns the receipt of the charge.
    #[must_use]
    pub fn receipt(&self) -> Receipt {
        self.receipt
    }

    /// Returns the units used, including those of the check if all quotas admitted it.
    #[must_use]
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Returns the shortest wait after which the same check is admitted. `None` if it was admitted, and if
    /// no wait helps.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self.wait() {
            Wait::Zero | Wait::Never => None,
            Wait::Micros(micros) => Some(Duration::from_micros(micros)),
        }
    }

    /// Returns the time until more units are left.
    #[must_use]
    pub fn reset_after(&self) -> Duration {
        Duration::from_micros(self.reset_micros)
    }

    pub(crate) fn wait(&self) -> Wait {
        match self.wait {
            0 => Wait::Zero,
            NEVER => Wait::Never,
            micros => Wait::Micros(micros),
        }
    }

    /// Returns whether this quota admits the check.
    #[must_use]
    #[inline]
    pub fn is_admitted(&self) -> bool {
        self.wait == 0
    }
}

/// Identifies a store in this process. Handles of one store have the same identity.
///
/// A store keeps one and returns it from [`Store::id`](crate::Store::id). Limiters whose stores have the
/// same identity are decided together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StoreId(u64);

impl StoreId {
    /// Creates an identity that no other store of this process has.
    #[must_use]
    pub fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
