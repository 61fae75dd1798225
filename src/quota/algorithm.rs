//! The algorithms that count units, and a table of facts about them.

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
///
/// Each algorithm has its own stored counts, so a change of the algorithm starts at 0 units. All windows of
/// `SlidingLog` are one stored count, so another window keeps the history. The guide [helps to choose](crate::guide::algorithms). [`Algorithm::ALL`] has these facts as values.
///
/// # Examples
///
/// ```
/// use tollgate::{Algorithm, Quota};
///
/// // An hour in buckets of one minute: a key has at most 61 counts, not 100 000 times.
/// let quota = Quota::per_hour(100_000).algorithm(Algorithm::SlidingBuckets(60));
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
    /// All quotas of a key that count so share one log, whatever their windows.
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
    /// Quotas of a key with buckets of one length share them: those of `SlidingBuckets(60)` of an hour and of
    /// `SlidingBuckets(1)` of a minute.
    ///
    /// The number of buckets is from 1 to 1000. [`Quota::algorithm`](crate::Quota::algorithm) accepts no
    /// other.
    SlidingBuckets(u16),
    /// Counts aligned windows, which start at multiples of their length since the Unix epoch, by the store's
    /// clock.
    ///
    /// A client may use the whole limit at the end of one window and again at the start of the next.
    FixedWindow,
    /// The generic cell rate algorithm (ITU-T I.371), a leaky bucket. Each charge raises a level, which drains
    /// evenly at the rate of `limit` units per window. The level is at most the limit.
    ///
    /// For traffic that should arrive smoothly: after a burst, units return one by one.
    ///
    /// Checks with different limits may share a key, for example while a deployment changes a limit. In any
    /// span as long as the window, they are then admitted less than twice the largest limit that charged
    /// units within the span. The level drains at the limit of the last charge, so a check with a lower limit
    /// waits at most one window.
    Gcra,
}

/// The facts about one algorithm: a row of [`Algorithm::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AlgorithmFacts {
    /// The algorithm. [`SlidingBuckets`](Algorithm::SlidingBuckets) has 60 buckets here; its facts
    /// hold for any number of them.
    pub algorithm: Algorithm,
    /// The name in the text of a quota, such as `sliding-log`. After the name of
    /// [`SlidingBuckets`](Algorithm::SlidingBuckets), a quota has the number of buckets: `:60`.
    pub text: &'static str,
    /// The most units that are admitted in any span as long as the window.
    pub promise: Promise,
    /// The highest cost of one check.
    pub max_cost: u32,
    /// The name of the file in `lua/` without its extension, and of the algorithm in a call of the script.
    pub(crate) script: &'static str,
    /// Whether a refund needs the receipt of the charge. The logs find a charge by its time.
    pub(crate) needs_receipt: bool,
    /// The time in Redis that each unit of a check adds, in tenths of a microsecond.
    pub(crate) work_per_unit: u64,
}

impl AlgorithmFacts {
    /// Returns the algorithm with `buckets` buckets, or the algorithm as it is if it has no buckets.
    ///
    /// # Panics
    ///
    /// Panics if the algorithm has buckets and the number is not from 1 to 1000. In a `const`, that is a
    /// compile error. For a number from outside the program, parse text such as `sliding-buckets:60`.
    #[must_use]
    pub const fn with_buckets(&self, buckets: u16) -> Algorithm {
        match self.algorithm {
            Algorithm::SlidingBuckets(_) => {
                let algorithm = Algorithm::SlidingBuckets(buckets);
                algorithm.assert_in_range();
                algorithm
            }
            algorithm => algorithm,
        }
    }
}

/// The most units that an algorithm admits in any span as long as the window.
///
/// If checks with different limits share a key, "the limit" is the largest one that charged units within the
/// span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Promise {
    /// At most the limit.
    Limit,
    /// Less than twice the limit.
    BelowTwice,
    /// At most twice the limit.
    Twice,
}

impl Promise {
    /// Returns the most units that a quota with this limit admits in any span as long as the window.
    #[must_use]
    pub const fn max_units(self, limit: u32) -> u64 {
        let limit = limit as u64;
        match self {
            Self::Limit => limit,
            Self::BelowTwice => (2 * limit).saturating_sub(1),
            Self::Twice => 2 * limit,
        }
    }
}

/// The most buckets of [`Algorithm::SlidingBuckets`].
pub(super) const MAX_BUCKETS: u16 = 1_000;

/// The highest cost for logs, which store each unit.
const MAX_COST_OF_LOGS: u32 = 100_000;

/// Builds [`Algorithm::ALL`] and [`Algorithm::facts`] from the same rows, so that an algorithm without a row
/// does not compile.
macro_rules! algorithm_table {
    ($($algorithm:pat => $facts:expr,)*) => {
        impl Algorithm {
            /// The facts about every algorithm, from the strictest [promise](Promise) to the loosest.
            ///
            /// # Examples
            ///
            /// ```
            /// use tollgate::Algorithm;
            ///
            /// let names: Vec<_> = Algorithm::ALL.iter().map(|facts| facts.text).collect();
            /// assert!(names.contains(&"gcra"));
            /// ```
            pub const ALL: &'static [AlgorithmFacts] = &[$($facts),*];

            /// Returns the row of this algorithm in [`Algorithm::ALL`].
            #[must_use]
            #[inline]
            pub const fn facts(self) -> &'static AlgorithmFacts {
                match self {
                    $($algorithm => const { &$facts },)*
                }
            }
        }
    };
}

algorithm_table! {
    Algorithm::SlidingLog => AlgorithmFacts {
        algorithm: Algorithm::SlidingLog,
        text: "sliding-log",
        promise: Promise::Limit,
        max_cost: MAX_COST_OF_LOGS,
        script: "sliding_log",
        needs_receipt: false,
        work_per_unit: 0,
    },
    Algorithm::SortedSetLog => AlgorithmFacts {
        algorithm: Algorithm::SortedSetLog,
        text: "sorted-set-log",
        promise: Promise::Limit,
        max_cost: MAX_COST_OF_LOGS,
        script: "sorted_set_log",
        needs_receipt: false,
        work_per_unit: 1,
    },
    Algorithm::SlidingBuckets(_) => AlgorithmFacts {
        algorithm: Algorithm::SlidingBuckets(60),
        text: "sliding-buckets",
        promise: Promise::Limit,
        max_cost: u32::MAX,
        script: "sliding_buckets",
        needs_receipt: true,
        work_per_unit: 0,
    },
    Algorithm::SlidingCounter => AlgorithmFacts {
        algorithm: Algorithm::SlidingCounter,
        text: "sliding-counter",
        promise: Promise::BelowTwice,
        max_cost: u32::MAX,
        script: "sliding_counter",
        needs_receipt: true,
        work_per_unit: 0,
    },
    Algorithm::Gcra => AlgorithmFacts {
        algorithm: Algorithm::Gcra,
        text: "gcra",
        promise: Promise::BelowTwice,
        max_cost: u32::MAX,
        script: "gcra",
        needs_receipt: true,
        work_per_unit: 0,
    },
    Algorithm::FixedWindow => AlgorithmFacts {
        algorithm: Algorithm::FixedWindow,
        text: "fixed-window",
        promise: Promise::Twice,
        max_cost: u32::MAX,
        script: "fixed_window",
        needs_receipt: true,
        work_per_unit: 0,
    },
}

impl Algorithm {
    /// Returns the number of buckets, if the algorithm has buckets.
    pub(crate) const fn buckets(self) -> Option<u16> {
        match self {
            Self::SlidingBuckets(buckets) => Some(buckets),
            _ => None,
        }
    }

    /// Returns the number of parts that the window is divided into.
    #[cfg(feature = "redis")]
    #[inline]
    pub(crate) fn parts(self) -> u64 {
        self.buckets().map_or(1, u64::from)
    }

    /// Returns whether the number of buckets is valid, or the algorithm has no buckets.
    pub(super) const fn is_in_range(self) -> bool {
        match self.buckets() {
            Some(buckets) => buckets >= 1 && buckets <= MAX_BUCKETS,
            None => true,
        }
    }

    pub(super) const fn assert_in_range(self) {
        assert!(
            self.is_in_range(),
            "the number of buckets must be from 1 to 1000"
        );
    }
}

/// Returns the rule for the text of an algorithm: the names of all algorithms.
pub(super) fn algorithm_rule() -> String {
    let names = Algorithm::ALL
        .iter()
        .map(|facts| match facts.algorithm.buckets() {
            None => facts.text.to_owned(),
            Some(_) => format!("{}:N with N from 1 to {MAX_BUCKETS}", facts.text),
        });
    let names: Vec<_> = names.collect();
    format!("the algorithm is one of {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_algorithm_has_a_row_with_unique_names() {
        let distinct = |name: fn(&AlgorithmFacts) -> &str| {
            let names: HashSet<_> = Algorithm::ALL.iter().map(name).collect();
            assert_eq!(names.len(), Algorithm::ALL.len());
        };
        distinct(|facts| facts.text);
        distinct(|facts| facts.script);
        for facts in Algorithm::ALL {
            assert_eq!(facts.algorithm.facts(), facts);
            assert_eq!(facts.with_buckets(7).facts(), facts);
        }
    }

    #[test]
    fn the_number_of_buckets_is_from_1_to_1000() {
        let facts = Algorithm::SlidingBuckets(60).facts();
        for buckets in [1, MAX_BUCKETS] {
            let algorithm = facts.with_buckets(buckets);
            assert_eq!(algorithm, Algorithm::SlidingBuckets(buckets));
        }
        for buckets in [0, MAX_BUCKETS + 1, u16::MAX] {
            let panic = std::panic::catch_unwind(|| facts.with_buckets(buckets)).unwrap_err();
            let text = panic.downcast::<&str>().unwrap();
            assert!(text.contains("from 1 to 1000"), "{text}");
        }
        // The other algorithms have no buckets.
        assert_eq!(Algorithm::Gcra.facts().with_buckets(0), Algorithm::Gcra);
    }
}
