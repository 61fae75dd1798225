//! How units are counted.

/// How units are counted: what is promised, and what a key costs.
///
/// | algorithm | promise about any span as long as the window | stored for each key |
/// |---|---|---|
/// | [`SlidingLog`](Self::SlidingLog) | never more than the limit | about 10 bytes a unit, a Redis list |
/// | [`SortedSetLog`](Self::SortedSetLog) | never more than the limit | a sorted set, 20 bytes a unit up to 128 of them, 120 to 130 beyond |
/// | [`SlidingBuckets(n)`](Self::SlidingBuckets) | never more than the limit; a unit returns at most window/n late | up to n + 1 counts |
/// | [`SlidingCounter`](Self::SlidingCounter) | about the limit for steady traffic, below twice the limit at worst | two counts |
/// | [`FixedWindow`](Self::FixedWindow) | never more than the limit in one aligned window, up to twice across an edge | one count |
/// | [`Gcra`](Self::Gcra) | the limit per window after a burst of at most the limit: below twice | a time and a level |
///
/// A quota of another algorithm has a count of its own: changing the algorithm starts anew. When to
/// take which: [`choosing_an_algorithm`](crate::guide::choosing_an_algorithm).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// Remembers when each unit was charged. The default, because it is the one without a footnote.
    ///
    /// In memory it takes 8 bytes for each microsecond in which units were charged. Takes costs up
    /// to 100 000 at once.
    #[default]
    SlidingLog,
    /// Decides as [`SlidingLog`](Self::SlidingLog) does, but keeps a sorted set by time in Redis,
    /// which other tools can read. Takes costs up to 100 000 at once.
    SortedSetLog,
    /// Counts aligned windows, and adds to this one the part of the one before that a window back
    /// from now overlaps. The cheapest in memory that has no edge to burst across.
    SlidingCounter,
    /// Counts buckets of window/n, each in full until all of it is a window back. Exact on the safe
    /// side at a bounded size: with 60, a unit of a minute returns at most a second late.
    ///
    /// The number of buckets is from 1 to 1 000; others are taken as the nearest of these.
    SlidingBuckets(u16),
    /// Counts aligned windows, which begin at multiples of their length by the store's clock.
    FixedWindow,
    /// Lets units flow out evenly, a limit of them in a window, where up to a limit may wait. For
    /// traffic that should come smoothly rather than in bursts.
    ///
    /// Callers with different limits may share a key, as while a deployment changes a limit. Any span as
    /// long as the window then holds less than twice the largest limit that charged within it. A caller
    /// with a lower limit waits until the level is below that limit, a window at most.
    Gcra,
}

/// The facts about one algorithm: a row of [`Algorithm::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AlgorithmFacts {
    /// The algorithm. [`SlidingBuckets`](Algorithm::SlidingBuckets) has 60 buckets here; its facts
    /// hold for any number of them.
    pub algorithm: Algorithm,
    /// The name in the text of a quota: `sliding-log`. The number of buckets follows the name of
    /// [`SlidingBuckets`](Algorithm::SlidingBuckets) as `:60`.
    pub text: &'static str,
    /// The units admitted in any span as long as the window.
    pub promise: Promise,
    /// The highest cost of one check.
    pub max_cost: u32,
    /// The tag in the names of stored keys. The number of buckets follows it.
    pub(crate) key_tag: &'static str,
    /// The file in `lua/` without its extension, and the algorithm's name in a call of the script.
    pub(crate) script: &'static str,
    /// Whether a refund finds its charge by a receipt. The logs find it by its time.
    pub(crate) needs_receipt: bool,
    /// The work in Redis that each unit of a check adds, in tenths of a microsecond of the server.
    pub(crate) work_per_unit: u64,
}

impl AlgorithmFacts {
    /// Returns the algorithm, with `buckets` buckets if it takes a number of them.
    ///
    /// The number is clamped to the range from 1 to 1 000.
    #[must_use]
    pub const fn with_buckets(&self, buckets: u16) -> Algorithm {
        match self.algorithm {
            Algorithm::SlidingBuckets(_) => Algorithm::SlidingBuckets(buckets).in_range(),
            algorithm => algorithm,
        }
    }
}

/// The most units that an algorithm admits in any span as long as the window.
///
/// Where limits of one key differ between callers, the limit is the largest one that charged within
/// the span.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Promise {
    /// Never more than the limit.
    Limit,
    /// Less than twice the limit.
    BelowTwice,
    /// At most twice the limit.
    Twice,
}

impl Promise {
    /// Returns the most units that a limit admits in any span as long as the window.
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

/// Builds [`Algorithm::ALL`] and [`Algorithm::facts`] from the same rows: an algorithm without a row
/// does not compile.
macro_rules! algorithm_table {
    ($($algorithm:pat => $facts:expr,)*) => {
        impl Algorithm {
            /// The table of all algorithms, from the strictest [promise](Promise) to the loosest.
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

            /// Returns the algorithm's row of [`Algorithm::ALL`].
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
        key_tag: "log",
        script: "sliding_log",
        needs_receipt: false,
        work_per_unit: 1,
    },
    Algorithm::SortedSetLog => AlgorithmFacts {
        algorithm: Algorithm::SortedSetLog,
        text: "sorted-set-log",
        promise: Promise::Limit,
        max_cost: MAX_COST_OF_LOGS,
        key_tag: "set",
        script: "sorted_set_log",
        needs_receipt: false,
        work_per_unit: 1,
    },
    Algorithm::SlidingBuckets(_) => AlgorithmFacts {
        algorithm: Algorithm::SlidingBuckets(60),
        text: "sliding-buckets",
        promise: Promise::Limit,
        max_cost: u32::MAX,
        key_tag: "buckets",
        script: "sliding_buckets",
        needs_receipt: true,
        work_per_unit: 0,
    },
    Algorithm::SlidingCounter => AlgorithmFacts {
        algorithm: Algorithm::SlidingCounter,
        text: "sliding-counter",
        promise: Promise::BelowTwice,
        max_cost: u32::MAX,
        key_tag: "counter",
        script: "sliding_counter",
        needs_receipt: true,
        work_per_unit: 0,
    },
    Algorithm::Gcra => AlgorithmFacts {
        algorithm: Algorithm::Gcra,
        text: "gcra",
        promise: Promise::BelowTwice,
        max_cost: u32::MAX,
        key_tag: "gcra",
        script: "gcra",
        needs_receipt: true,
        work_per_unit: 0,
    },
    Algorithm::FixedWindow => AlgorithmFacts {
        algorithm: Algorithm::FixedWindow,
        text: "fixed-window",
        promise: Promise::Twice,
        max_cost: u32::MAX,
        key_tag: "fixed",
        script: "fixed_window",
        needs_receipt: true,
        work_per_unit: 0,
    },
}

impl Algorithm {
    /// Returns the number of buckets, if the algorithm takes one.
    pub(crate) const fn buckets(self) -> Option<u16> {
        match self {
            Self::SlidingBuckets(buckets) => Some(buckets),
            _ => None,
        }
    }

    /// Returns the number of parts that the window is divided into.
    #[inline]
    pub(crate) fn parts(self) -> u64 {
        self.buckets().map_or(1, u64::from)
    }

    /// Clamps the number of buckets to its range.
    pub(super) const fn in_range(self) -> Self {
        match self {
            Self::SlidingBuckets(0) => Self::SlidingBuckets(1),
            Self::SlidingBuckets(buckets) if buckets > MAX_BUCKETS => {
                Self::SlidingBuckets(MAX_BUCKETS)
            }
            in_range => in_range,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_row_describes_its_own_algorithm_by_names_of_its_own() {
        let distinct = |name: fn(&AlgorithmFacts) -> &str| {
            let names: HashSet<_> = Algorithm::ALL.iter().map(name).collect();
            assert_eq!(names.len(), Algorithm::ALL.len());
        };
        distinct(|facts| facts.text);
        distinct(|facts| facts.key_tag);
        distinct(|facts| facts.script);
        for facts in Algorithm::ALL {
            assert_eq!(facts.algorithm.facts(), facts);
            assert_eq!(facts.with_buckets(7).facts(), facts);
        }
    }
}
