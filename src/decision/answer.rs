//! The answer of a store to a check.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use smallvec::SmallVec;

use crate::clock::micros;
use crate::quota::{Quota, Quotas, ShareId};

/// The answer of a [`Store`](crate::Store) to one check.
///
/// It has the [source](Self::source), and one [`QuotaAnswer`] for each quota of the check, in the order of
/// [`Subject::quotas`](crate::store::protocol::Subject::quotas). The check is admitted if every quota admits it.
///
/// The answer does not contain the quotas. The limiter makes a [`Decision`](crate::Decision) from both.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    source: Source,
    quotas: SmallVec<[QuotaAnswer; 2]>,
    /// The time of the decision, in microseconds of the store's clock; 0 if the store does not set it.
    time: u64,
    /// The units that were charged beyond the cost of the check.
    // As wide as the other fields, like the source.
    extra: u64,
    /// The number of the grant that the units came from. 0 if the check itself was charged.
    grant: u64,
}

impl Answer {
    /// Creates an answer from the answers to the quotas, without a time.
    pub fn new(source: Source, quotas: impl IntoIterator<Item = QuotaAnswer>) -> Self {
        Self::at(0, source, quotas)
    }

    /// Creates an answer with the time of the decision, in microseconds of the store's clock.
    ///
    /// A [`Refund`](crate::store::protocol::Change::Refund) has the answer, so a store may find the charge by its time, or by the
    /// [receipts](QuotaAnswer::with_receipt) of the quotas.
    pub fn at(time: u64, source: Source, quotas: impl IntoIterator<Item = QuotaAnswer>) -> Self {
        Self {
            source,
            quotas: quotas.into_iter().collect(),
            time,
            ..Self::default()
        }
    }

    #[inline]
    pub(crate) fn single(time: u64, source: Source, quota: QuotaAnswer) -> Self {
        Self {
            source,
            // One quota is the usual case: made in place.
            quotas: SmallVec::from_buf_and_len([quota; 2], 1),
            time,
            extra: 0,
            grant: 0,
        }
    }

    /// Sets the number of units that were charged beyond the cost, because the check asked for
    /// [extra units](crate::store::protocol::Check::extra_units).
    #[must_use]
    pub fn with_extra_units(mut self, extra: u32) -> Self {
        self.set_extra_units(extra);
        self
    }

    pub(crate) fn set_extra_units(&mut self, extra: u32) {
        self.extra = extra.into();
    }

    /// Returns the number of units that were charged beyond the cost, because the check asked for
    /// [extra units](crate::store::protocol::Check::extra_units).
    #[must_use]
    pub fn extra_units(&self) -> u32 {
        u32::try_from(self.extra).unwrap_or(u32::MAX)
    }

    /// 0 if the units came from no grant: the check itself was charged.
    pub(crate) fn grant(&self) -> u64 {
        self.grant
    }

    /// Writes the answer to a check whose units came from a grant. `self` is the answer of the store to the grant.
    #[inline]
    pub(crate) fn write_use(&self, grant: GrantUse, answer: &mut Self) {
        let GrantUse {
            number,
            extra,
            held,
            age,
        } = grant;
        answer.clear(self.time, Source::Lease);
        answer.extra = extra.into();
        answer.grant = number;
        for quota in &self.quotas {
            answer.push(quota.used_after(held, age));
        }
    }

    #[inline]
    pub(crate) fn clear(&mut self, time: u64, source: Source) {
        self.source = source;
        self.time = time;
        self.extra = 0;
        self.grant = 0;
        self.quotas.clear();
    }

    #[inline]
    pub(crate) fn push(&mut self, answer: QuotaAnswer) {
        self.quotas.push(answer);
    }

    /// Puts the answer to a quota in its place. The places may be filled in any order, and all of them are.
    #[cfg(feature = "redis")]
    #[inline]
    pub(crate) fn put(&mut self, place: usize, answer: QuotaAnswer) {
        match self.quotas.get_mut(place) {
            Some(earlier) => *earlier = answer,
            // It stands for those in front, which come later.
            None => self.quotas.resize(place + 1, answer),
        }
    }

    pub(crate) fn set_scope(&mut self, scope: CountScope) {
        for answer in &mut self.quotas {
            answer.receipt.scope = scope;
        }
    }

    pub(crate) fn scope(&self) -> CountScope {
        self.quotas
            .first()
            .map_or(CountScope::Own, |answer| answer.receipt.scope)
    }

    /// Returns the time of the decision, in microseconds of the store's clock; 0 if the store did not set
    /// it.
    #[must_use]
    pub fn time(&self) -> u64 {
        self.time
    }

    /// Returns whether every quota admits the check.
    #[must_use]
    pub fn is_admitted(&self) -> bool {
        self.quotas.iter().all(QuotaAnswer::is_admitted)
    }

    /// The highest cost for which the rates have room. Soft quotas count only if there are no others.
    pub(crate) fn room(&self, quotas: &Quotas) -> u32 {
        quotas
            .iter()
            .zip(&self.quotas)
            .filter(|(quota, _)| !quota.is_in_flight())
            .map(|(quota, answer)| {
                let left = quota.limit().saturating_sub(answer.used);
                (quota.is_soft(), left)
            })
            .min()
            .map_or(0, |(_, left)| left)
    }

    /// Returns the units that processes hold of the key, which count as used beside those that were charged.
    pub(crate) fn reserved(&self, quotas: &Quotas) -> u32 {
        if !quotas.has_held() {
            return 0;
        }
        self.quotas.get(quotas.len()).map_or(0, |held| held.used)
    }

    /// Counts what processes hold, as the last answer says, as used of each quota. A quota that has room for the cost without
    /// it refuses a check that was not admitted: then it is unknown when there is room.
    pub(crate) fn count_reserved(&mut self, quotas: &Quotas, refused_cost: u32) {
        let reserved = self.reserved(quotas);
        for (quota, answer) in quotas.iter().zip(&mut self.quotas) {
            let used = u64::from(answer.used) + u64::from(reserved);
            let is_missing = used + u64::from(refused_cost) > quota.limit().into();
            if answer.wait == 0 && refused_cost > 0 && is_missing {
                answer.wait = 1;
            }
            answer.used = u32::try_from(used).unwrap_or(u32::MAX);
        }
    }

    /// Sets the wait of each quota that would have room for the cost if nothing were held: it is an estimate.
    pub(crate) fn estimate_waits(&mut self, quotas: &Quotas, cost: u32, estimate: Duration) {
        let reserved = self.reserved(quotas);
        for (quota, answer) in quotas.iter().zip(&mut self.quotas) {
            if answer.retry_after().is_some() && answer.lacks_only_reserved(quota, reserved, cost) {
                answer.wait = micros(estimate).max(1);
            }
        }
    }

    pub(crate) fn set_source(&mut self, source: Source) {
        self.source = source;
    }

    /// The units of a charge that was refunded are no longer used, and have no receipt.
    pub(crate) fn remove_charge(&mut self, cost: u32) {
        for quota in &mut self.quotas {
            quota.used = quota.used.saturating_sub(cost);
            quota.receipt = Receipt::default();
        }
    }

    /// Makes this answer to a cost of 0 say whether each quota would admit one more unit, or one more slot. A slot is
    /// estimated to return after `slot_wait`.
    pub(crate) fn look_for_unit(
        &mut self,
        quotas: &Quotas,
        share: Option<ShareId>,
        slot_wait: Duration,
    ) {
        let reserved = self.reserved(quotas);
        for (quota, answer) in quotas.iter().zip(&mut self.quotas) {
            let wait = if quota.ceiling(share) == 0 {
                Wait::Never
            } else if answer.used < quota.limit() {
                Wait::Zero
            } else if quota.is_in_flight() || answer.lacks_only_reserved(quota, reserved, 1) {
                Wait::Micros(micros(slot_wait))
            } else if quota.is_total() {
                Wait::Never
            } else {
                // Without room, more units are left as soon as one is.
                Wait::Micros(answer.reset_micros.max(1))
            };
            let looked = QuotaAnswer::from_micros(answer.used, wait, answer.reset_micros);
            *answer = looked.softened(quota);
        }
    }

    /// The refusal cache repeats a refusal with shorter waits and the same used units.
    pub(crate) fn repeated_after(&self, micros: u64) -> Self {
        let quotas = self.quotas.iter().map(|quota| quota.after(micros));
        Self::at(self.time, Source::RefusalCache, quotas)
    }

    /// Returns the source of the answer.
    #[must_use]
    pub fn source(&self) -> Source {
        self.source
    }

    pub(crate) fn quotas_mut(&mut self) -> &mut [QuotaAnswer] {
        &mut self.quotas
    }

    /// Returns the answers to the quotas, in the order of the check.
    #[must_use]
    #[inline]
    pub fn quotas(&self) -> &[QuotaAnswer] {
        &self.quotas
    }
}

/// The source of a decision: the store, or what decided in its place.
///
/// [`DecisionView::source`](crate::DecisionView::source) returns it, and metrics and events have it as a label. In a
/// service with Redis, [`Fallback`](Self::Fallback) and [`None`](Self::None) show that the store fails.
///
/// # Examples
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use tollgate::{MemoryStore, Quota, RateLimiter, Source};
///
/// let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_minute(100));
/// let decision = limiter.check("ada").await?;
/// assert_eq!(decision.source(), Source::Memory);
/// # Ok::<(), tollgate::Error>(())
/// # }).unwrap();
/// ```
// As wide as the other fields of an answer: copying fields of different widths stalls the processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u64)]
#[non_exhaustive]
pub enum Source {
    /// Redis: the counts of all processes.
    Redis,
    /// Units that this process holds: the store charged them [in advance](crate::RateLimiter::lease).
    Lease,
    /// A [`MemoryStore`](crate::MemoryStore): the counts of this process.
    Memory,
    /// The refusal cache of this process: the store refused the same check
    /// before, and the wait has not passed yet.
    RefusalCache,
    /// The fallback counts of this process, because the store failed: see
    /// [`FailurePolicy::fall_back`](crate::FailurePolicy::fall_back).
    Fallback,
    /// The block list of this process: an operator [blocked](crate::Admin::block) the key.
    Block,
    /// The answer of an upstream: it asked this process, or another one, to [wait](crate::RateLimiter::observe).
    Paused,
    /// The answer of an upstream that said that the allowance of the key is used up, for hours or days: see
    /// [`max_exhausted_pause`](crate::RateLimiter::max_exhausted_pause).
    Exhausted,
    /// A store outside this crate. Metrics and events have the name of its
    /// [store](crate::store::StoreOn::name) in place of `other`.
    Other,
    /// Nothing: there are no quotas, or the store failed and the policy is
    /// [`FailurePolicy::open`](crate::FailurePolicy::open). The check was admitted and not charged.
    #[default]
    None,
}

impl Source {
    /// All sources, each at the index of its discriminant.
    pub(crate) const ALL: [Self; 10] = [
        Self::Redis,
        Self::Lease,
        Self::Memory,
        Self::RefusalCache,
        Self::Fallback,
        Self::Block,
        Self::Paused,
        Self::Exhausted,
        Self::Other,
        Self::None,
    ];

    /// The label in metrics and events. `store` is the name of a store outside this crate.
    pub(crate) fn text(self, store: &str) -> &str {
        match self {
            Self::Redis => "redis",
            Self::Lease => "lease",
            Self::Memory => "memory",
            Self::RefusalCache => "refusal_cache",
            Self::Fallback => "fallback",
            Self::Block => "block",
            Self::Paused => "paused",
            Self::Exhausted => "exhausted",
            Self::Other => store,
            Self::None => "none",
        }
    }
}

/// A use of units that a process holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GrantUse {
    /// The number of the grant.
    pub(crate) number: u64,
    /// The other units of the grant.
    pub(crate) extra: u32,
    /// The units of the store's answer that are unused. They are left, although the store has charged them.
    pub(crate) held: u32,
    /// The time since the answer of the store, in microseconds.
    pub(crate) age: u64,
}

/// The answer of a [`Store`](crate::Store) to one quota of a check: admitted or refused, with its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaAnswer {
    used: u32,
    /// Microseconds until the check is admitted; 0 if it is admitted now, [`NEVER`] if no wait helps, [`EXCEEDED`] if a soft
    /// quota has no room for it.
    wait: u64,
    reset_micros: u64,
    receipt: Receipt,
}

/// The wait for a cost above the limit. Longer than any other wait.
const NEVER: u64 = u64::MAX;

/// Stands for the wait of a soft quota without room, which admits the check and is not charged.
const EXCEEDED: u64 = NEVER - 1;

/// Identifies the units that one check charged to one quota, so that a store can refund them.
///
/// A store adds it with [`QuotaAnswer::with_receipt`], and gets it back in
/// [`Adjust::counts`](crate::store::protocol::Adjust::counts). The store defines the meaning of both numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    /// The generation of the count. It changes when the count is reset or has been empty.
    pub generation: u64,
    /// The position of the charge in the count.
    pub position: u64,
    pub(crate) scope: CountScope,
}

impl Receipt {
    /// Creates a receipt.
    ///
    /// Set `generation` to a number that changes when the count is reset or has been empty, and `position`
    /// to the place of the charge in the count. The pair should be unique among the charges of a count:
    /// otherwise a refund may take units of another charge.
    #[must_use]
    pub fn new(generation: u64, position: u64) -> Self {
        Self {
            generation,
            position,
            scope: CountScope::Own,
        }
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
    /// Keys of several networks, because the store had no room for its network either.
    Shared,
}

/// The time until a check is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wait {
    Zero,
    Micros(u64),
    Never,
}

impl QuotaAnswer {
    /// Creates the answer of a quota that admits the check.
    ///
    /// `used` is the number of units that count now, including the check's if all quotas admit it.
    /// `reset_after` is the time until more units are left.
    #[must_use]
    pub fn admitted(used: u32, reset_after: Duration) -> Self {
        Self::from_micros(used, Wait::Zero, micros(reset_after))
    }

    /// Creates the answer of a [soft](Quota::soft) quota that has no room for the check: it admits the check and is not
    /// charged. A cost above 100 000 never has room in a log.
    ///
    /// `used` is the number of units that count now, and `reset_after` the time until there are fewer, as in
    /// [`refused`](Self::refused).
    #[must_use]
    pub fn exceeded(used: u32, reset_after: Duration) -> Self {
        Self {
            wait: EXCEEDED,
            ..Self::from_micros(used, Wait::Zero, micros(reset_after))
        }
    }

    /// Creates the answer of a quota that refuses the check.
    ///
    /// - `used` is the number of units that count now.
    /// - `retry_after` is the shortest wait after which the same check is admitted. `None` means that no wait
    ///   helps, because the cost is above the limit. Zero is taken as one microsecond.
    /// - `reset_after` is the time until more units are left.
    #[must_use]
    pub fn refused(used: u32, retry_after: Option<Duration>, reset_after: Duration) -> Self {
        let wait = retry_after.map_or(Wait::Never, |wait| Wait::Micros(micros(wait).max(1)));
        Self::from_micros(used, wait, micros(reset_after))
    }

    #[inline]
    pub(crate) fn from_micros(used: u32, wait: Wait, reset_micros: u64) -> Self {
        let wait = match wait {
            Wait::Zero => 0,
            Wait::Micros(micros) => micros.min(EXCEEDED - 1),
            Wait::Never => NEVER,
        };
        Self {
            used,
            wait,
            reset_micros,
            receipt: Receipt::default(),
        }
    }

    #[inline]
    pub(crate) fn softened(self, quota: &Quota) -> Self {
        if self.wait == 0 || !quota.is_soft() {
            return self;
        }
        Self {
            wait: EXCEEDED,
            receipt: Receipt::default(),
            ..self
        }
    }

    /// Returns whether this is a [soft](crate::Quota::soft) quota without room, which is not charged.
    #[must_use]
    #[inline]
    pub fn is_exceeded(&self) -> bool {
        self.wait == EXCEEDED
    }

    /// Returns whether the quota would have room for a cost now if `reserved` units were not held.
    pub(crate) fn lacks_only_reserved(&self, quota: &Quota, reserved: u32, cost: u32) -> bool {
        let charged = self.used.saturating_sub(reserved);
        reserved > 0 && charged.saturating_add(cost) <= quota.limit()
    }

    fn after(self, micros: u64) -> Self {
        let wait = match self.wait {
            0 | NEVER | EXCEEDED => self.wait,
            // A refusal stays one: a wait of 0 would admit.
            wait => wait.saturating_sub(micros).max(1),
        };
        Self {
            wait,
            reset_micros: self.reset_micros.saturating_sub(micros),
            ..self
        }
    }

    /// The answer to a use of units that were charged `age` microseconds ago. `held` of them are not used.
    #[inline]
    fn used_after(&self, held: u32, age: u64) -> Self {
        Self {
            used: self.used.saturating_sub(held),
            reset_micros: self.reset_micros.saturating_sub(age).max(1),
            ..*self
        }
    }

    /// Adds the receipt of the charge, by which the store finds the units of a refund.
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

    /// Returns the units that count now, including the check's if all quotas admitted it.
    #[must_use]
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Returns the shortest wait after which the same check is admitted. `None` if this quota admits it, and
    /// if no wait helps.
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
            0 | EXCEEDED => Wait::Zero,
            NEVER => Wait::Never,
            micros => Wait::Micros(micros),
        }
    }

    /// Returns whether this quota admits the check. A [soft](Quota::soft) quota always does.
    #[must_use]
    #[inline]
    pub fn is_admitted(&self) -> bool {
        self.wait == 0 || self.is_exceeded()
    }
}

/// Identifies a store in this process: handles that share counts have the same identity.
///
/// A store creates one with [`StoreId::unique`], keeps it for its lifetime, and returns it from
/// [`Store::id`](crate::Store::id). By this identity, the crate knows which limiters share counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StoreId(u64);

impl StoreId {
    /// Creates a new identity, different from every other one of this process.
    #[must_use]
    pub fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_refusal_stays_one_beyond_its_wait() {
        let second = Duration::from_secs(1);
        let refused = QuotaAnswer::refused(5, Some(second), second);
        for age in [999_999, 1_000_000, 1_500_000, u64::MAX] {
            let repeated = refused.after(age);
            assert!(!repeated.is_admitted(), "after {age} microseconds");
            assert_eq!(repeated.wait(), Wait::Micros(1));
        }
        let admitted = QuotaAnswer::admitted(3, second);
        assert!(admitted.after(500_000).is_admitted());
    }
}
