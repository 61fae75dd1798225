//! The algorithms that count units, and facts about them.

/// The algorithm that counts the units of a [`Quota`](crate::Quota).
///
/// The algorithms differ in how many units they admit in a window, and in how much they store for each key.
/// The default, [`SlidingLog`](Self::SlidingLog), never admits more than the limit.
///
/// | algorithm | promise about any span as long as the window | stored for each key |
/// |---|---|---|
/// | [`SlidingLog`](Self::SlidingLog) | never more than the limit | 12 bytes a charge, up to 34 with what waits to be removed |
/// | [`SortedSetLog`](Self::SortedSetLog) | never more than the limit | a sorted set, 20 bytes a unit up to 128 of them, 120 to 130 beyond |
/// | [`SlidingBuckets(n)`](Self::SlidingBuckets) | never more than the limit; a unit returns at most window/n late | up to n + 1 counts |
/// | [`SlidingCounter`](Self::SlidingCounter) | about the limit for steady traffic, below twice the limit at worst | two counts |
/// | [`FixedWindow`](Self::FixedWindow) | never more than the limit in one aligned window, up to twice across an edge | one count |
/// | [`Gcra`](Self::Gcra) | the limit per window after a burst of at most the limit: below twice | a time and a level |
/// | [`Total`](Self::Total), of [`Quota::total`](crate::Quota::total) only | never more than the limit, however long, until it is forgotten | one count |
///
/// Each algorithm has its own stored counts, so a change of the algorithm starts at 0 units. All windows of
/// `SlidingLog` are one stored count, so another window keeps the history, as far back as the longest
/// window before it. The guide [helps to choose](crate::guide::algorithms).
///
/// # Examples
///
/// ```
/// use tollgate::{Algorithm, Quota};
///
/// // An hour in buckets of one minute: a key has at most 61 counts, not 100 000 times.
/// let quota = Quota::per_hour(100_000).with_algorithm(Algorithm::SlidingBuckets(60));
///
/// let configured: Quota = "100000/hour sliding-buckets:60".parse()?;
/// assert_eq!(configured, quota);
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// Stores the time of each charged unit. The default, because it never admits more than the limit and
    /// returns each unit exactly one window after it was charged.
    ///
    /// All quotas of a key that count so share one log, with any windows.
    ///
    /// In a [`MemoryStore`](crate::MemoryStore), a key takes 12 bytes for each microsecond in which units were
    /// charged, and up to twice that with those that wait to be removed. A check may cost at most 100 000 units.
    #[default]
    SlidingLog,
    /// Decides exactly as [`SlidingLog`](Self::SlidingLog) does, but stores a Redis sorted set with times as
    /// scores, which other programs can read.
    ///
    /// A check may cost at most 100 000 units.
    SortedSetLog,
    /// Estimates the units in the sliding window from the counts of two aligned windows: all of the current
    /// window, and the part of the previous window that the sliding window still overlaps.
    ///
    /// The estimate is right if the traffic of the previous window was even.
    SlidingCounter,
    /// Divides the window into n buckets and stores one count for each. A bucket counts in full until its
    /// last moment is one window ago.
    ///
    /// Never admits more than the limit, and the size is bounded however high the limit is. With 60 buckets,
    /// a unit of a one-minute quota returns at most one second late.
    ///
    /// Quotas of a key with buckets of one length share them: for example `SlidingBuckets(60)` of an hour and
    /// `SlidingBuckets(1)` of a minute.
    ///
    /// The number of buckets is from 1 to 1000. [`Quota::with_algorithm`](crate::Quota::with_algorithm) accepts no
    /// other.
    SlidingBuckets(u16),
    /// Counts aligned windows, which start at multiples of their length since the Unix epoch, by the store's
    /// clock.
    ///
    /// A client may use the whole limit at the end of one window and again at the start of the next.
    FixedWindow,
    /// The generic cell rate algorithm (ITU-T I.371), a leaky bucket. Each charge raises a level, which drains
    /// evenly at the rate of `limit` units per window. Checks raise the level to at most the limit.
    ///
    /// For traffic that should arrive smoothly: after a burst, units return one by one.
    ///
    /// Checks with different limits may share a key, for example while a deployment changes a limit. In any
    /// span as long as the window, they are then admitted less than twice the largest limit that charged
    /// units within the span. The level drains at the limit of the last charge, so a check with a lower limit
    /// waits at most one window.
    #[doc(alias("token_bucket", "leaky_bucket"))]
    Gcra,
    /// Adds up all units that were ever charged, and returns none of them with time.
    ///
    /// Only [`Quota::total`](crate::Quota::total) has it. It is no way to count a rate, so it is not in
    /// [`ALL`](Self::ALL), and [`Quota::with_algorithm`](crate::Quota::with_algorithm) panics for it.
    Total,
    /// Counts the slots that are held now, not the units that were charged in a window.
    ///
    /// Only [`Quota::in_flight`](crate::Quota::in_flight) has it. It is no way to count a rate, so it is not in
    /// [`ALL`](Self::ALL), and [`Quota::with_algorithm`](crate::Quota::with_algorithm) panics for it.
    InFlight,
    /// Counts the units that processes hold now, beside the counts of all quotas of a limiter with a
    /// [`reserve_lease`](crate::RateLimiter::reserve_lease). No quota has it.
    #[doc(hidden)]
    Held,
}

/// The most buckets of [`Algorithm::SlidingBuckets`].
pub(super) const MAX_BUCKETS: u16 = 1_000;

impl Algorithm {
    /// All algorithms of rates, from the strictest promise to the loosest. [`SlidingBuckets`](Self::SlidingBuckets) has 60
    /// buckets here.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::Algorithm;
    ///
    /// let names: Vec<_> = Algorithm::ALL.iter().map(Algorithm::to_string).collect();
    /// assert_eq!(names[2], "sliding-buckets:60");
    /// ```
    pub const ALL: &'static [Self] = &[
        Self::SlidingLog,
        Self::SortedSetLog,
        Self::SlidingBuckets(60),
        Self::SlidingCounter,
        Self::Gcra,
        Self::FixedWindow,
    ];

    /// The name in the text of a quota, such as `sliding-log`. After the name of
    /// [`SlidingBuckets`](Self::SlidingBuckets), a quota has the number of buckets: `:60`.
    pub(super) const fn text(self) -> &'static str {
        match self {
            Self::SlidingLog => "sliding-log",
            Self::SortedSetLog => "sorted-set-log",
            Self::SlidingBuckets(_) => "sliding-buckets",
            Self::SlidingCounter => "sliding-counter",
            Self::Gcra => "gcra",
            Self::FixedWindow => "fixed-window",
            Self::Total => "total",
            Self::InFlight => "in-flight",
            Self::Held => "held",
        }
    }

    /// The name of the file in `lua/` without its extension, and of the algorithm in a call of the script.
    #[cfg(feature = "redis")]
    pub(crate) const fn script(self) -> &'static str {
        match self {
            Self::SlidingLog => "sliding_log",
            Self::SortedSetLog => "sorted_set_log",
            Self::SlidingBuckets(_) => "sliding_buckets",
            Self::SlidingCounter => "sliding_counter",
            Self::Gcra => "gcra",
            Self::FixedWindow => "fixed_window",
            Self::Total => "total",
            Self::InFlight => "in_flight",
            Self::Held => "held",
        }
    }

    #[inline]
    pub(crate) const fn max_cost(self) -> u32 {
        match self {
            Self::SlidingLog | Self::SortedSetLog => 100_000,
            _ => u32::MAX,
        }
    }

    /// The time in Redis that each unit of a check adds, in tenths of a microsecond.
    #[cfg(feature = "redis")]
    #[inline]
    pub(crate) fn work_per_unit(self) -> u64 {
        u64::from(self == Self::SortedSetLog)
    }

    pub(super) const fn counts_rates(self) -> bool {
        !matches!(self, Self::Total | Self::InFlight | Self::Held)
    }

    pub(crate) const fn buckets(self) -> Option<u16> {
        match self {
            Self::SlidingBuckets(buckets) => Some(buckets),
            _ => None,
        }
    }

    pub(crate) const fn with_buckets(self, buckets: u16) -> Self {
        match self {
            Self::SlidingBuckets(_) => Self::SlidingBuckets(buckets),
            algorithm => algorithm,
        }
    }

    /// Returns the most units that are admitted in any span as long as the window. If checks with different limits share
    /// a key, `limit` is the largest one that charged units within the span.
    #[cfg(test)]
    pub(crate) const fn max_units(self, limit: u32) -> u64 {
        let limit = limit as u64;
        match self {
            Self::SlidingLog
            | Self::SortedSetLog
            | Self::SlidingBuckets(_)
            | Self::Total
            | Self::InFlight
            | Self::Held => limit,
            Self::SlidingCounter | Self::Gcra => (2 * limit).saturating_sub(1),
            Self::FixedWindow => 2 * limit,
        }
    }

    #[cfg(feature = "redis")]
    #[inline]
    pub(crate) fn parts(self) -> u64 {
        self.buckets().map_or(1, u64::from)
    }

    pub(super) const fn is_in_range(self) -> bool {
        match self.buckets() {
            Some(buckets) => buckets >= 1 && buckets <= MAX_BUCKETS,
            None => true,
        }
    }
}

pub(super) fn algorithm_rule() -> String {
    let names =
        Algorithm::ALL
            .iter()
            .map(|algorithm| match (algorithm.text(), algorithm.buckets()) {
                (text, None) => text.to_owned(),
                (text, Some(_)) => format!("{text}:N with N from 1 to {MAX_BUCKETS}"),
            });
    let names: Vec<_> = names.collect();
    format!("the algorithm is one of {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_algorithm_has_unique_names() {
        let texts: HashSet<_> = Algorithm::ALL.iter().map(|one| one.text()).collect();
        assert_eq!(texts.len(), Algorithm::ALL.len());
        #[cfg(feature = "redis")]
        {
            let scripts: HashSet<_> = Algorithm::ALL.iter().map(|one| one.script()).collect();
            assert_eq!(scripts.len(), Algorithm::ALL.len());
        }
    }

    #[test]
    fn the_number_of_buckets_is_from_1_to_1000() {
        for buckets in [1, MAX_BUCKETS] {
            assert!(Algorithm::SlidingBuckets(buckets).is_in_range());
        }
        for buckets in [0, MAX_BUCKETS + 1, u16::MAX] {
            assert!(!Algorithm::SlidingBuckets(buckets).is_in_range());
        }
    }
}
