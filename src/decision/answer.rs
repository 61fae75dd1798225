//! What a store says of a check: the numbers, before they are joined to their quotas.

use std::time::Duration;

use smallvec::SmallVec;

/// What a [store](crate::Store) says of one check: where the counts are kept, and an answer for
/// each quota in the order in which the check lists them.
///
/// The check is admitted if every quota admits it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    source: Source,
    quotas: SmallVec<[QuotaAnswer; 2]>,
    /// When the store decided, in microseconds of its clock.
    time: u64,
}

/// One that says nothing yet, for a store to write to.
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
    /// Joins the answers of the quotas.
    pub fn new(source: Source, quotas: impl IntoIterator<Item = QuotaAnswer>) -> Self {
        Self::at(0, source, quotas)
    }

    /// Joins the answers that a store gave at a time of its clock, by which it finds again what it
    /// charged.
    pub(crate) fn at(
        time: u64,
        source: Source,
        quotas: impl IntoIterator<Item = QuotaAnswer>,
    ) -> Self {
        Self {
            source,
            quotas: quotas.into_iter().collect(),
            time,
        }
    }

    /// Begins anew, without the answer of any quota.
    #[inline]
    pub(crate) fn begin(&mut self, time: u64, source: Source) {
        self.source = source;
        self.time = time;
        self.quotas.clear();
    }

    /// Adds the answer of the next quota.
    #[inline]
    pub(crate) fn push(&mut self, answer: QuotaAnswer) {
        self.quotas.push(answer);
    }

    /// Says in which count the key was counted.
    pub(crate) fn counted_in(&mut self, counted: Counted) {
        for answer in &mut self.quotas {
            answer.receipt.counted = counted;
        }
    }

    /// In which count the key was counted.
    pub(crate) fn counted(&self) -> Counted {
        let first = self.quotas.first();
        first.map_or(Counted::Own, |answer| answer.receipt.counted)
    }

    pub(crate) fn time(&self) -> u64 {
        self.time
    }

    /// The same, as a memory store says it that stands in for another store.
    pub(crate) fn of_fallback(self) -> Self {
        let source = Source::Fallback;
        Self { source, ..self }
    }

    /// What this refusal says after so many microseconds, to the same check: it need not be asked
    /// again. What is used is told as it was.
    pub(crate) fn aged_locally(&self, micros: u64) -> Self {
        let quotas = self.quotas.iter().map(|quota| quota.aged(micros));
        Self::at(self.time, Source::RefusalCache, quotas)
    }

    /// Where the counts are kept.
    #[must_use]
    pub fn source(&self) -> Source {
        self.source
    }

    /// The answers of the quotas.
    #[must_use]
    #[inline]
    pub fn quotas(&self) -> &[QuotaAnswer] {
        &self.quotas
    }
}

/// Who decided.
// As wide as its neighbours in an answer: what is copied in words of one width is not waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u64)]
#[non_exhaustive]
pub enum Source {
    /// Redis, exact over all processes.
    Redis,
    /// A memory store, exact in this process.
    Memory,
    /// This process, which remembers that Redis has refused the same check, for as long as Redis
    /// would.
    RefusalCache,
    /// The counts of this process, while the store fails: see
    /// [`FailurePolicy::fall_back`](crate::FailurePolicy::fall_back).
    Fallback,
    /// Nobody was asked: the key is [blocked](crate::Admin::block).
    Block,
    /// A store of another crate.
    Other,
    /// Nobody: there is no quota, or the store fails and the limiter is
    /// [open](crate::FailurePolicy::open).
    None,
}

impl Source {
    /// All of them, each at its own place.
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

    /// What metrics and events call it.
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

/// What a store says of one quota of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaAnswer {
    used: u32,
    /// In microseconds: zero, or [`NEVER`].
    wait: u64,
    reset_micros: u64,
    receipt: Receipt,
}

/// The wait of a cost that never passes. None that ends is as long.
const NEVER: u64 = u64::MAX;

/// By what a store finds again the units of one check among those of all: numbers whose meaning is
/// the algorithm's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Receipt {
    /// The generation of the count that was charged: one that was reset or has ended since is another.
    pub(crate) generation: u64,
    /// The position of the charge in that generation.
    pub(crate) position: u64,
    pub(crate) counted: Counted,
}

/// In which count of a memory store a key was counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Counted {
    /// Its own.
    #[default]
    Own,
    /// The one of its network, since the store was full.
    Network,
    /// One that it shares with other keys, since there was no room for its network either.
    Shared,
}

/// How long until a cost passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wait {
    Zero,
    Micros(u64),
    Never,
}

impl QuotaAnswer {
    /// The quota admits the check: the units used now, those of the check included if all quotas
    /// admit it, and the time until more are left.
    #[must_use]
    pub fn admitted(used: u32, reset_after: Duration) -> Self {
        Self::from_micros(used, Wait::Zero, micros(reset_after))
    }

    /// The quota refuses the check: the units used now, the shortest wait after which the same check
    /// is admitted (`None`: never; zero counts as a microsecond), and the time until more are left.
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

    fn aged(self, micros: u64) -> Self {
        let wait = match self.wait() {
            Wait::Micros(wait) if wait > micros => Wait::Micros(wait - micros),
            Wait::Micros(_) | Wait::Zero => Wait::Zero,
            Wait::Never => Wait::Never,
        };
        let reset_micros = self.reset_micros.saturating_sub(micros);
        Self::from_micros(self.used, wait, reset_micros).with_receipt(self.receipt)
    }

    #[inline]
    pub(crate) fn with_receipt(self, receipt: Receipt) -> Self {
        Self { receipt, ..self }
    }

    pub(crate) fn receipt(&self) -> Receipt {
        self.receipt
    }

    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    pub(crate) fn wait(&self) -> Wait {
        match self.wait {
            0 => Wait::Zero,
            NEVER => Wait::Never,
            micros => Wait::Micros(micros),
        }
    }

    #[inline]
    pub(crate) fn is_admitted(&self) -> bool {
        self.wait == 0
    }

    pub(crate) fn reset_micros(&self) -> u64 {
        self.reset_micros
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
