//! A quota: a limit of units per window.

use std::sync::Arc;
use std::time::Duration;

use super::algorithm::{Algorithm, algorithm_rule};
use super::calendar::Calendar;
#[cfg(feature = "redis")]
use super::calendar_windows::longest_window;
use super::shares::{Share, ShareId, Shares};
use super::written_rate::WrittenRate;
use crate::clock::micros_rounded_up;
use crate::error::ConfigError;
#[cfg(tollgate_simulation)]
use crate::planted::is_planted;

const MICROS_PER_SECOND: u64 = 1_000_000;
const MIN_WINDOW_MICROS: u64 = 1_000;
const MAX_WINDOW_MICROS: u64 = 366 * 86_400 * MICROS_PER_SECOND;

/// The leases of slots, in microseconds. A shorter one would need a message in less than two seconds for each key that is
/// held; after a longer one, the slots of a process that was killed are missed for long.
const MIN_SLOT_LEASE_MICROS: u64 = 5 * MICROS_PER_SECOND;
const MAX_SLOT_LEASE_MICROS: u64 = 600 * MICROS_PER_SECOND;
const DEFAULT_SLOT_LEASE_MICROS: u64 = 15 * MICROS_PER_SECOND;

/// The longest window of a quota.
pub(crate) const MAX_WINDOW: Duration = Duration::from_micros(MAX_WINDOW_MICROS);

/// A limit of units per window, such as 100 requests per minute.
///
/// A *unit* is what a check charges: by default, one for each request. By default the window slides: a unit
/// that is charged at time *t* counts until *t* + window, to the microsecond, and then returns. Other
/// [algorithms](Algorithm) may count differently. A client may use the whole limit at once, unless
/// [`burst`](Self::burst) sets another size.
///
/// The constructors are `const`, so a quota can be a constant. For values from a configuration, parse text
/// like `100/minute` (see [`FromStr`](#impl-FromStr-for-Quota)) or call [`Quota::try_new`]. With the feature
/// `serde`, a quota deserializes from the same text or from a map.
///
/// A limit of 0 is valid and refuses every check, also one of cost 0.
///
/// A quota [in flight](Self::in_flight) is no rate: it limits what runs at the same time. Neither is a
/// [total](Self::total), of which no unit returns with time.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::Quota;
///
/// const SEARCH: Quota = Quota::per_minute(30);
/// assert_eq!(SEARCH.limit(), 30);
/// assert_eq!(SEARCH.window(), Duration::from_secs(60));
///
/// let configured: Quota = "5/10s".parse()?;
/// assert_eq!(configured, Quota::new(5, Duration::from_secs(10)));
/// assert_eq!(configured.to_string(), "5/10s");
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    limit: u32,
    /// The length of the window; of a calendar, the nominal length; of a total, its idle time.
    window_micros: u64,
    pub(super) algorithm: Algorithm,
    /// The windows, if they are days, weeks or months of a time zone.
    pub(super) calendar: Option<Calendar>,
    name: Option<Arc<str>>,
    /// 0 if the quota refuses; of a soft quota, the number of its count: see [`soft`](Self::soft).
    soft: u8,
    /// The percent of the limit from which on a decision is marked as warned; 0 for none.
    warn_percent: u8,
    shares: Shares,
    rate: WrittenRate,
}

impl Quota {
    /// Creates a quota of `limit` units in any second.
    #[must_use]
    pub const fn per_second(limit: u32) -> Self {
        Self::from_micros(limit, MICROS_PER_SECOND)
    }

    /// Creates a quota of `limit` units in any 60 seconds.
    #[must_use]
    pub const fn per_minute(limit: u32) -> Self {
        Self::from_micros(limit, 60 * MICROS_PER_SECOND)
    }

    /// Creates a quota of `limit` units in any 3 600 seconds.
    #[must_use]
    pub const fn per_hour(limit: u32) -> Self {
        Self::from_micros(limit, 3_600 * MICROS_PER_SECOND)
    }

    /// Creates a quota of `limit` units in any 86 400 seconds.
    ///
    /// This is not a calendar day: around midnight, a client could use two daily limits in a few seconds. For
    /// plans that are billed by the day or month, see
    #[cfg_attr(
        feature = "calendar",
        doc = "[`per_calendar_month`](Self::per_calendar_month)."
    )]
    #[cfg_attr(
        not(feature = "calendar"),
        doc = "`per_calendar_month`, with the feature `calendar`."
    )]
    #[must_use]
    pub const fn per_day(limit: u32) -> Self {
        Self::from_micros(limit, 86_400 * MICROS_PER_SECOND)
    }

    /// Creates a quota of `limit` units in any span of `window`.
    ///
    /// The window is from 1 ms to 366 days. A fraction of a microsecond is rounded up.
    ///
    /// # Panics
    ///
    /// Panics if the window is out of range. In a `const`, that is a compile error. For a window from
    /// outside the program, use [`Quota::try_new`].
    #[must_use]
    pub const fn new(limit: u32, window: Duration) -> Self {
        let micros = micros_rounded_up(window);
        assert!(
            window_in_range(micros),
            "the window of a quota must be from 1 ms to 366 days"
        );
        Self::from_micros(limit, micros)
    }

    /// Creates a quota as [`Quota::new`] does, but returns an error in place of a panic.
    ///
    /// For a window from outside the program, such as a configuration file.
    ///
    /// # Errors
    ///
    /// Returns an error if the window is shorter than 1 ms or longer than 366 days.
    pub fn try_new(limit: u32, window: Duration) -> Result<Self, ConfigError> {
        let micros = micros_rounded_up(window);
        if window_in_range(micros) {
            Ok(Self::from_micros(limit, micros))
        } else {
            Err(ConfigError::window(window))
        }
    }

    pub(super) fn from_calendar(limit: u32, calendar: Calendar) -> Self {
        Self {
            algorithm: Algorithm::FixedWindow,
            window_micros: calendar.unit().nominal_micros(),
            calendar: Some(calendar),
            ..Self::per_second(limit)
        }
    }

    pub(super) const fn from_micros(limit: u32, window_micros: u64) -> Self {
        Self {
            limit,
            window_micros,
            algorithm: Algorithm::SlidingLog,
            calendar: None,
            name: None,
            soft: 0,
            warn_percent: 0,
            shares: Shares::NONE,
            rate: WrittenRate(None),
        }
    }

    /// Creates a quota of at most `limit` slots that are held at the same time, over all processes.
    ///
    /// A running request or job holds a slot. [`RateLimiter::acquire`](crate::RateLimiter::acquire) takes one and returns a
    /// [`Permit`](crate::Permit), which holds it until it is dropped. A [`RateLimitLayer`](crate::RateLimitLayer) holds one
    /// until the response body ends. A check of any cost takes one slot.
    ///
    /// The quota may stand beside rates in one list: either all of them admit a check, or none is charged. The slots of a
    /// killed process return when their [lease](Self::slot_lease) ends. [The guide](crate::guide::in_flight) has the promise
    /// and its bounds.
    ///
    /// As text, this is `5 in-flight`.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Quota, Quotas};
    ///
    /// // Ten requests a second, of which at most five run at the same time.
    /// let quotas = Quotas::from([Quota::per_second(10), Quota::in_flight(5)]);
    /// assert_eq!(quotas, "10/second, 5 in-flight".parse()?);
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[must_use]
    #[doc(alias("concurrency", "semaphore"))]
    pub const fn in_flight(limit: u32) -> Self {
        let mut quota = Self::from_micros(limit, DEFAULT_SLOT_LEASE_MICROS);
        quota.algorithm = Algorithm::InFlight;
        quota
    }

    /// Sets the lease of the slots of a quota [in flight](Self::in_flight), from 5 seconds to 10 minutes. The default is
    /// 15 seconds. [`window`](Self::window) returns it.
    ///
    /// The lease does not bound the work: a process renews what it holds about three times per lease. It bounds how long the
    /// slots of a killed process are missed. A permit is [lost](crate::Permit::lost) if the store did not answer for 0.8 of
    /// the lease, so take a longer one if the store may be away for longer and work must not overlap.
    ///
    /// As text, this is `5 in-flight:60s`.
    ///
    /// # Panics
    ///
    /// Panics if this is no quota in flight, or if the lease is out of range. In a `const`, that is a compile error.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::Quota;
    ///
    /// const EXPORTS: Quota = Quota::in_flight(2).slot_lease(Duration::from_secs(60));
    /// assert_eq!(EXPORTS, "2 in-flight:60s".parse()?);
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[must_use]
    pub const fn slot_lease(mut self, lease: Duration) -> Self {
        let micros = micros_rounded_up(lease);
        assert!(self.is_in_flight(), "only slots in flight have a lease");
        assert!(
            is_slot_lease(micros),
            "the lease of slots must be from 5 seconds to 10 minutes"
        );
        self.window_micros = micros;
        self
    }

    #[inline]
    pub(crate) const fn is_in_flight(&self) -> bool {
        matches!(self.algorithm, Algorithm::InFlight)
    }

    /// The count of the units that processes hold with this lease, beside the quotas of a list.
    pub(super) const fn held(lease: Duration) -> Self {
        let micros = micros_rounded_up(lease);
        assert!(
            is_slot_lease(micros),
            "the lease of reserved units must be from 5 seconds to 10 minutes"
        );
        let mut quota = Self::from_micros(u32::MAX, micros);
        quota.algorithm = Algorithm::Held;
        quota
    }

    pub(super) const fn has_default_slot_lease(&self) -> bool {
        self.window_micros == DEFAULT_SLOT_LEASE_MICROS
    }

    /// Sets the algorithm that counts the units. The default is [`Algorithm::SlidingLog`].
    ///
    /// # Panics
    ///
    /// Panics if the number of buckets of [`Algorithm::SlidingBuckets`] is not from 1 to 1000, or if the window is
    /// one of a calendar and the algorithm is not [`Algorithm::FixedWindow`]. In a `const`, that is a compile
    /// error. Text from outside the program, such as `100/minute gcra`, is parsed by [`FromStr`](#impl-FromStr-for-Quota).
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Algorithm, Quota};
    ///
    /// const EXPORTS: Quota = Quota::per_day(100_000).with_algorithm(Algorithm::SlidingBuckets(24));
    /// assert_eq!(EXPORTS.to_string(), "100000/day sliding-buckets:24");
    /// ```
    #[must_use]
    pub const fn with_algorithm(mut self, algorithm: Algorithm) -> Self {
        assert!(
            algorithm.is_in_range(),
            "the number of buckets must be from 1 to 1000"
        );
        assert!(
            self.may_be_counted_by(algorithm),
            "a calendar window is counted as a fixed window, slots in flight and totals by no other algorithm, and shares of a rate by a log or buckets"
        );
        self.algorithm = algorithm;
        self.rate = WrittenRate(None);
        self
    }

    /// Makes the quota a token bucket that holds `units` tokens, and is refilled at the rate of the quota.
    ///
    /// Ten per second with a burst of 50 are 50 per 5 seconds, counted with [`Algorithm::Gcra`]: a client may use 50 at
    /// once, and then ten per second. So [`limit`](Self::limit), which the headers show, is 50. The time for a refill is
    /// rounded up to a microsecond. As text, it stays the rate and the burst.
    ///
    /// # Panics
    ///
    /// Panics if the limit is 0, if the window is one of a calendar, or if the bucket would be full only after more than
    /// 366 days or within 1 ms. In a `const`, that is a compile error. For a size from outside the program, parse text: it is
    /// an error there.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::Quota;
    ///
    /// const API: Quota = Quota::per_second(10).burst(50);
    /// assert_eq!(API.to_string(), "10/second burst 50");
    /// assert_eq!(API, "50/5s gcra".parse()?);
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[must_use]
    #[doc(alias("burst_size", "token_bucket", "try_burst"))]
    pub const fn burst(self, units: u32) -> Self {
        assert!(self.limit > 0, "a limit of 0 has no burst");
        let micros = self.refill_micros(units);
        let rate = WrittenRate(Some((self.limit, self.window_micros)));
        assert!(
            window_in_range(micros),
            "a burst must be refilled within 1 ms to 366 days"
        );
        let mut quota = self.with_algorithm(Algorithm::Gcra);
        quota.limit = units;
        quota.window_micros = micros;
        quota.rate = rate;
        quota
    }

    /// Returns the rate of a token bucket as it was written. `None` if the quota was not made by [`burst`](Self::burst).
    pub(super) fn written_rate(&self) -> Option<Self> {
        let WrittenRate(rate) = self.rate;
        rate.map(|(limit, window_micros)| Self::from_micros(limit, window_micros))
    }

    pub(super) fn try_burst(self, units: u32) -> Result<Self, ConfigError> {
        let rule = if !self.may_be_counted_by(Algorithm::Gcra) {
            "only a rate without a calendar and without shares has a burst"
        } else if self.limit == 0 {
            "a limit of 0 has no burst"
        } else if !window_in_range(self.refill_micros(units)) {
            "at the rate of the quota, a burst is refilled within 1 ms to 366 days"
        } else {
            return Ok(self.burst(units));
        };
        Err(ConfigError::quota_part("burst", &units.to_string(), rule))
    }

    /// The time in which the rate refills a bucket of this size, rounded up. The limit is not 0.
    const fn refill_micros(&self, units: u32) -> u64 {
        let window = self.window_micros;
        let limit = self.limit as u64;
        let rest = (window % limit * units as u64).div_ceil(limit);
        let whole = (window / limit).saturating_mul(units as u64);
        whole.saturating_add(rest)
    }

    const fn may_be_counted_by(&self, algorithm: Algorithm) -> bool {
        match (algorithm, self.algorithm) {
            (to, from) if !to.counts_rates() || !from.counts_rates() => false,
            (Algorithm::SlidingLog | Algorithm::SlidingBuckets(_), _) => self.calendar.is_none(),
            (Algorithm::FixedWindow, _) => self.shares.is_none(),
            _ => self.calendar.is_none() && self.shares.is_none(),
        }
    }

    pub(super) fn try_algorithm(self, algorithm: Algorithm) -> Result<Self, ConfigError> {
        let rule = if !self.may_be_counted_by(algorithm) {
            "a calendar window is counted as a fixed-window, slots in flight and totals by no other algorithm, and shares by a sliding-log or sliding-buckets".to_owned()
        } else if !algorithm.is_in_range() {
            algorithm_rule()
        } else {
            return Ok(self.with_algorithm(algorithm));
        };
        let text = algorithm.to_string();
        Err(ConfigError::quota_part("algorithm", &text, &rule))
    }

    /// Names the quota.
    ///
    /// The name distinguishes the quota in [`DecisionView::quotas`](crate::DecisionView::quotas) and in the
    /// [headers](crate::Headers). Stored counts do not depend on it.
    #[must_use]
    pub fn with_name(mut self, name: impl AsRef<str>) -> Self {
        self.name = Some(name.as_ref().into());
        self
    }

    /// Makes the quota soft: it tells who exceeds it, and refuses nothing.
    ///
    /// A soft quota is a dry run of one quota, beside others that refuse. An admitted check is charged to it if it has room.
    /// Otherwise it is not, and the decision [is exceeded](crate::DecisionView::is_exceeded). So its count is what it would be
    /// if the quota refused. Each soft quota has a count of its own, which no other quota shares.
    ///
    /// A log charges at most 100 000 units at once. A soft quota that counts with a log does not count a check of more, and is
    /// exceeded by it.
    ///
    /// A soft quota never adds a `Retry-After`, and no other quota depends on it. The numbers of a decision and its headers
    /// belong to the quotas that refuse, unless all are soft. A limiter with a soft quota has no [lease](crate::RateLimiter::lease).
    ///
    /// As text, this is `100/minute soft`. [The guide](crate::guide::getting_started#limits-that-only-warn) says when to use it.
    ///
    /// # Panics
    ///
    /// Panics if this is a quota [in flight](Self::in_flight), whose slots are held or not. In a `const`, that is a compile
    /// error.
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use tollgate::{MemoryStore, Quota, RateLimiter};
    ///
    /// // 100 requests a minute are admitted. A client that uses more than 60 is asked to buy a larger plan.
    /// let quotas = [Quota::per_minute(100), Quota::per_minute(60).soft()];
    /// let limiter = RateLimiter::new(MemoryStore::new(), quotas);
    /// assert!(!limiter.check_n("acme", 60).await?.is_exceeded());
    ///
    /// let decision = limiter.check_n("acme", 10).await?;
    /// assert!(decision.is_allowed() && decision.is_exceeded());
    /// assert_eq!(decision.remaining(), 30);
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub const fn soft(mut self) -> Self {
        assert!(!self.is_in_flight(), "a quota in flight cannot be soft");
        self.soft = 1;
        self
    }

    /// Returns whether the quota is [soft](Self::soft).
    #[must_use]
    #[inline]
    pub const fn is_soft(&self) -> bool {
        self.soft > 0
    }

    /// Returns whether the quota admits a check of this cost without counting it. A soft log charges as few units at once as
    /// any log.
    pub(crate) fn leaves_out(&self, cost: u32) -> bool {
        self.is_soft() && cost > self.algorithm.max_cost()
    }

    /// Marks decisions as [warned](crate::DecisionView::is_warned) once `percent` of the limit are used, from 1 to 100.
    ///
    /// The mark is computed from the answer of the store, so it costs no further count. A decision is marked if the used
    /// units, with those of the check, are at least this part of the limit. With [shares](Self::shares), they are at least
    /// this part of what the share of the check can have at most.
    ///
    /// As text, this is `100/minute warn:80%`.
    ///
    /// # Panics
    ///
    /// Panics if the percentage is not from 1 to 100. In a `const`, that is a compile error.
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use tollgate::{MemoryStore, Quota, RateLimiter};
    ///
    /// let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_day(1_000).warn_at(80));
    /// assert!(!limiter.check_n("acme", 799).await?.is_warned());
    /// assert!(limiter.check("acme").await?.is_warned());
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub const fn warn_at(mut self, percent: u8) -> Self {
        assert!(
            is_warn_percent(percent),
            "a quota warns at 1 to 100 percent"
        );
        self.warn_percent = percent;
        self
    }

    /// `None` if [`warn_at`](Self::warn_at) is not set.
    pub(super) fn warn_percent(&self) -> Option<u8> {
        Some(self.warn_percent).filter(|percent| *percent > 0)
    }

    #[inline]
    pub(crate) fn warns_at(&self, used: u32, share: Option<ShareId>) -> bool {
        // The part of the limit above the ceiling of the share counts as used.
        let most = self.ceiling(share);
        let used = used.saturating_sub(self.limit - most);
        let percent = u64::from(self.warn_percent);
        percent > 0 && u64::from(used) * 100 >= u64::from(most) * percent
    }

    #[inline]
    pub(crate) const fn may_mark(&self) -> bool {
        self.soft | self.warn_percent != 0
    }

    /// Gives a soft quota another number than the soft quotas before it in a list whose count it would share. Two that
    /// differ only in their limits are charged by different checks.
    pub(super) fn with_own_soft_count(self, before: &[Self]) -> Self {
        if self.soft == 0 {
            return self;
        }
        for soft in 1..=u8::MAX {
            let numbered = Self {
                soft,
                ..self.clone()
            };
            let is_taken = before.iter().any(|other| {
                other.soft == soft
                    && (other.soft_count() == numbered.soft_count()
                        || other.is_same_count(0, &numbered, 0))
            });
            if !is_taken {
                return numbered;
            }
        }
        self
    }

    /// Returns what distinguishes the count of a soft quota: its window, 0 for a total, and its number among those that it would share a
    /// count with. `None` if the quota is not soft.
    #[inline]
    pub(crate) fn soft_count(&self) -> Option<(u64, u8)> {
        self.is_soft().then(|| {
            let (_, window, soft) = self.stored_count(0);
            (window, soft)
        })
    }

    pub(crate) fn with_limit(self, limit: u32) -> Self {
        let shares = self.shares.scaled(self.limit, limit);
        Self {
            limit,
            shares,
            rate: WrittenRate(None),
            ..self
        }
    }

    /// Divides the limit into shares: units that are kept for some requests, or bounded for them.
    ///
    /// A charge is admitted if the limit has room for it, if its share stays within
    /// [its bound](Share::at_most), and if it leaves to all other shares what they have
    /// [reserved](Share::reserve) and not used. So the limit is never exceeded, a share below its reserve is
    /// never refused because of others, and all may use units that are not reserved. Requests without a share, or with
    /// one that the quota does not have, have no reserve.
    ///
    /// In the decision about a request, [`remaining`](crate::QuotaDecision::remaining) is what its share may still
    /// use, and [`used`](crate::QuotaDecision::used) is the rest of the limit: units that are used, kept for others, or
    /// above its bound.
    /// `retry_after` and `reset_after` are exact for the share that asked.
    ///
    /// When shares change, the history stays. After a raised reserve or a lowered limit, a share below its reserve may be
    /// refused for at most one window: as long as the units used by all leave no room below the limit.
    ///
    /// Quotas with [`SlidingLog`](Algorithm::SlidingLog) and [`SlidingBuckets`](Algorithm::SlidingBuckets), and those
    /// [in flight](Self::in_flight), may have shares, but not with a [lease](crate::RateLimiter::lease). Each share that is
    /// charged adds 4 bytes to each stored charge of its key; in flight, each process has an entry of 48 bytes for each share.
    ///
    /// As text, this is `1000/minute critical>=200 batch<=400`.
    ///
    /// # Panics
    ///
    /// Panics
    ///
    /// - if the reserves are together above the limit;
    /// - if the bound of a share is below its reserve;
    /// - if a name is empty, has a character that [`Share::of`] rules out, or is that of two shares;
    /// - if there are more than 16 shares;
    /// - if the quota has another algorithm than the sliding log and sliding buckets, and is not in flight.
    ///
    /// For shares from outside the program, parse text such as `100/minute batch<=40`: these are errors there.
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use tollgate::{MemoryStore, Quota, RateLimiter, Share};
    ///
    /// let quota = Quota::per_minute(10).shares([Share::of("critical").reserve(2)]);
    /// let limiter = RateLimiter::new(MemoryStore::new(), quota);
    ///
    /// // Others get all but the two units that are kept.
    /// let others = limiter.check_n("ada", 8).await?;
    /// assert_eq!((others.is_allowed(), others.remaining()), (true, 0));
    /// assert!(!limiter.check("ada").await?.is_allowed());
    ///
    /// let critical = RateLimiter::check_all([limiter.level("ada").share("critical")]).await?;
    /// assert_eq!((critical.is_allowed(), critical.remaining()), (true, 1));
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    #[doc(alias("try_shares", "priority", "fairness"))]
    #[must_use]
    pub fn shares(self, shares: impl IntoIterator<Item = Share>) -> Self {
        let shares = self.try_shares(shares);
        let problem = shares.as_ref().err().map(ConfigError::to_string);
        assert!(problem.is_none(), "{}", problem.unwrap_or_default());
        shares.unwrap_or_else(|_| Self::per_second(0))
    }

    pub(super) fn try_shares(
        self,
        shares: impl IntoIterator<Item = Share>,
    ) -> Result<Self, ConfigError> {
        let shares = Shares::new(shares.into_iter().collect(), self.limit)?;
        match self.algorithm {
            Algorithm::SlidingLog | Algorithm::SlidingBuckets(_) | Algorithm::InFlight => {
                Ok(Self { shares, ..self })
            }
            algorithm => {
                let rule = "shares are counted by a sliding-log, by sliding-buckets or in flight";
                let text = algorithm.to_string();
                Err(ConfigError::quota_part("algorithm", &text, rule))
            }
        }
    }

    #[inline]
    pub(crate) fn share_list(&self) -> &Shares {
        &self.shares
    }

    #[inline]
    pub(super) fn has_share(&self, share: ShareId) -> bool {
        self.shares.name_of(share).is_some()
    }

    pub(crate) fn ceiling(&self, share: Option<ShareId>) -> u32 {
        self.shares.ceiling(self.limit, share)
    }

    /// Names the highest cost that is ever admitted: the limit, or what its shares leave of it to a request of this share.
    pub(crate) fn bound(&self, share: Option<ShareId>) -> String {
        let most = self.ceiling(share);
        match share.and_then(|share| self.shares.name_of(share)) {
            _ if most == self.limit => format!("limit of {most}"),
            Some(share) => format!("bound of {most} for share {share:?}"),
            None => format!("bound of {most} for requests without a share"),
        }
    }

    /// Returns the number of units that a window or a [total](Self::total) has room for, or of slots
    /// [in flight](Self::in_flight).
    #[must_use]
    pub const fn limit(&self) -> u32 {
        self.limit
    }

    /// Returns the length of the window. A calendar window has its nominal length: 1, 7 or 31 days. For a quota
    /// [in flight](Self::in_flight), returns the [lease](Self::slot_lease) of its slots, and for a [total](Self::total) its
    /// idle time.
    #[must_use]
    pub const fn window(&self) -> Duration {
        Duration::from_micros(self.window_micros)
    }

    /// Returns the algorithm that counts the units.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns the name, if [`with_name`](Self::with_name) set one.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    #[inline]
    pub(crate) fn calendar(&self) -> Option<&Calendar> {
        self.calendar.as_ref()
    }

    pub(crate) const fn window_micros(&self) -> u64 {
        self.window_micros
    }

    /// Returns how long a charged unit counts: the window and the lease, which is the time for which a process may hold
    /// the unit before it uses it. For a calendar, a number that stands for its windows: see
    /// [`longest_counted_micros`](Self::longest_counted_micros).
    ///
    /// Uses within one window were charged within this time, so a count that bounds the charges bounds the
    /// uses. The windows of `FixedWindow` are aligned; its units are used in the window in which they are
    /// charged. Slots have a lease of their own.
    #[inline]
    pub(crate) fn counted_micros(&self, lease: u64) -> u64 {
        #[cfg(tollgate_simulation)]
        let lease = lease * u64::from(!is_planted("NoWindowExtension"));
        match (self.algorithm, &self.calendar) {
            (
                Algorithm::FixedWindow | Algorithm::InFlight | Algorithm::Held | Algorithm::Total,
                None,
            ) => self.window_micros,
            (_, None) => self.window_micros + lease,
            (_, Some(calendar)) => calendar.counted_micros(),
        }
    }

    #[cfg(feature = "redis")]
    pub(crate) fn longest_counted_micros(&self, lease: u64) -> u64 {
        longest_window(self.counted_micros(lease))
    }

    /// Returns the length of a bucket, rounded up so that n + 1 buckets cover the window; 0 without buckets.
    #[inline]
    pub(crate) fn bucket_micros(&self, lease: u64) -> u64 {
        match self.algorithm.buckets() {
            Some(buckets) => self.counted_micros(lease).div_ceil(buckets.into()),
            None => 0,
        }
    }

    /// Returns the algorithm and the window of the stored count of a key, and the number of a soft quota.
    ///
    /// All windows of a log are one count, so it has no window here, and buckets of one length are one count for any
    /// number. Soft ones share none. All totals of a key are one count, whatever their idle times.
    #[inline]
    pub(crate) fn stored_count(&self, lease: u64) -> (Algorithm, u64, u8) {
        let soft = self.soft;
        match self.algorithm {
            Algorithm::SlidingLog if soft == 0 => (Algorithm::SlidingLog, 0, soft),
            Algorithm::SlidingBuckets(_) if soft == 0 => (
                Algorithm::SlidingBuckets(1),
                self.bucket_micros(lease),
                soft,
            ),
            Algorithm::InFlight => (Algorithm::InFlight, 0, soft),
            Algorithm::Total => (Algorithm::Total, 0, soft),
            Algorithm::Held => (Algorithm::Held, 0, soft),
            algorithm => (algorithm, self.counted_micros(lease), soft),
        }
    }

    /// Returns whether both quotas have one stored count, each with its lease, for the same limiter and key.
    pub(crate) fn is_same_count(&self, lease: u64, other: &Self, others_lease: u64) -> bool {
        self.stored_count(lease) == other.stored_count(others_lease)
            && self.calendar == other.calendar
    }

    /// Returns whether this quota charges the stored count that both share.
    ///
    /// The one with the longest window does, and of these the one with the largest limit, so that a log keeps what they
    /// need. A counter is charged by the lowest limit: `Gcra` drains at its rate.
    pub(super) fn charges_before(&self, other: &Self) -> bool {
        match self.algorithm {
            Algorithm::SlidingLog | Algorithm::SlidingBuckets(_) | Algorithm::SortedSetLog => {
                (self.window_micros, self.limit) > (other.window_micros, other.limit)
            }
            _ => self.limit < other.limit,
        }
    }
}

pub(super) const fn window_in_range(micros: u64) -> bool {
    micros >= MIN_WINDOW_MICROS && micros <= MAX_WINDOW_MICROS
}

pub(super) const fn is_warn_percent(percent: u8) -> bool {
    percent >= 1 && percent <= 100
}

pub(super) const fn is_slot_lease(micros: u64) -> bool {
    micros >= MIN_SLOT_LEASE_MICROS && micros <= MAX_SLOT_LEASE_MICROS
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn a_window_is_from_one_millisecond_to_366_days() {
        for window in [Duration::from_millis(1), 366 * DAY] {
            assert_eq!(Quota::try_new(1, window).unwrap().window(), window);
        }
        for window in [
            Duration::ZERO,
            Duration::from_micros(998),
            366 * DAY + Duration::from_nanos(1),
            Duration::MAX,
        ] {
            let text = Quota::try_new(1, window).unwrap_err().to_string();
            assert!(text.contains(&format!("{window:?}")), "{text}");
            assert!(text.contains("from 1 ms to 366 days"), "{text}");
        }
    }

    #[test]
    #[should_panic(expected = "from 1 ms to 366 days")]
    fn new_panics_on_a_window_out_of_range() {
        let _ = Quota::new(1, Duration::from_micros(999));
    }

    #[test]
    fn the_number_of_buckets_is_from_1_to_1000() {
        for buckets in [1, 1_000] {
            let algorithm = Algorithm::SlidingBuckets(buckets);
            let quota = Quota::per_hour(5).with_algorithm(algorithm);
            assert_eq!(quota.algorithm(), algorithm);
            assert_eq!(Quota::per_hour(5).try_algorithm(algorithm), Ok(quota));
        }
        for buckets in [0, 1_001, u16::MAX] {
            let algorithm = Algorithm::SlidingBuckets(buckets);
            let error = Quota::per_hour(5).try_algorithm(algorithm).unwrap_err();
            // The text of such an algorithm fails with the same error.
            let parsed = algorithm.to_string().parse::<Algorithm>();
            assert_eq!(parsed, Err(error.clone()));
            let text = error.to_string();
            assert!(text.contains(&algorithm.to_string()), "{text}");
            assert!(text.contains("from 1 to 1000"), "{text}");
        }
    }

    #[test]
    fn a_burst_keeps_the_rate() {
        for (quota, units, text) in [
            (Quota::per_second(10), 50, "50/5s gcra"),
            (Quota::per_minute(60), 1, "1/second gcra"),
            (Quota::per_second(3), 1, "1/333334us gcra"),
            (Quota::per_day(u32::MAX), u32::MAX, "4294967295/day gcra"),
        ] {
            assert_eq!(Ok(quota.burst(units)), text.parse());
        }
    }

    #[test]
    fn a_burst_that_no_window_holds_panics() {
        for (quota, units) in [
            (Quota::per_second(0), 5),
            (Quota::per_second(1), 0),
            (Quota::per_day(1), 367),
            (Quota::per_day(1), u32::MAX),
            (Quota::per_second(10_000), 1),
        ] {
            assert!(std::panic::catch_unwind(|| quota.clone().burst(units)).is_err());
            let error = quota.try_burst(units).unwrap_err().to_string();
            assert!(
                error.contains(&format!("invalid burst \"{units}\"")),
                "{error}"
            );
        }
    }

    #[test]
    #[should_panic(expected = "from 1 to 1000")]
    fn too_few_buckets_panic() {
        let _ = Quota::per_hour(5).with_algorithm(Algorithm::SlidingBuckets(0));
    }

    #[test]
    #[should_panic(expected = "from 1 to 1000")]
    fn too_many_buckets_panic() {
        let _ = Quota::per_hour(5).with_algorithm(Algorithm::SlidingBuckets(1_001));
    }

    #[test]
    #[should_panic(expected = "cannot be soft")]
    fn slots_are_not_soft() {
        let _ = Quota::in_flight(5).soft();
    }

    #[test]
    fn a_quota_warns_from_a_percentage_of_its_limit_on() {
        for (limit, percent, first) in [
            (100, 80, 80),
            (7, 50, 4),
            (1, 1, 1),
            (u32::MAX, 100, u32::MAX),
        ] {
            let quota = Quota::per_minute(limit).warn_at(percent);
            assert!(
                quota.warns_at(first, None) && !quota.warns_at(first - 1, None),
                "{quota}"
            );
        }
        assert!(!Quota::per_minute(1).warns_at(u32::MAX, None));
        for percent in [0, 101] {
            assert!(std::panic::catch_unwind(|| Quota::per_minute(1).warn_at(percent)).is_err());
        }
    }

    #[test]
    fn another_limit_rounds_shares_down_but_leaves_a_bound_one_unit() {
        let quota: Quota = "10/minute critical>=3<=4 batch<=2 none<=0 free>=0"
            .parse()
            .unwrap();
        for (limit, text) in [
            (1, "1/minute critical<=1 batch<=1 none<=0 free>=0"),
            (5, "5/minute critical>=1<=2 batch<=1 none<=0 free>=0"),
            (20, "20/minute critical>=6<=8 batch<=4 none<=0 free>=0"),
        ] {
            assert_eq!(quota.clone().with_limit(limit).to_string(), text);
        }
    }

    #[test]
    fn a_share_warns_from_a_percentage_of_what_it_can_have_on() {
        let shares = [
            Share::of("live").reserve(600),
            Share::of("batch").at_most(100),
        ];
        let quota = Quota::per_minute(1_000).shares(shares).warn_at(80);
        // Units that are kept from the share that asks are used from the beginning on.
        for (share, first) in [("batch", 900 + 80), ("live", 800), ("", 600 + 320)] {
            let id = Some(ShareId::of(share));
            assert!(
                quota.warns_at(first, id) && !quota.warns_at(first - 1, id),
                "{share:?}"
            );
        }
    }

    #[test]
    fn a_fraction_of_a_microsecond_is_rounded_up() {
        let quota = Quota::new(1, Duration::from_nanos(1_000_001));
        assert_eq!(quota.window(), Duration::from_micros(1_001));
    }
}
