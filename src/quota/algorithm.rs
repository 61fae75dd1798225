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

impl Algorithm {
    /// The most units that one check may cost.
    pub(crate) const fn max_cost(self) -> u32 {
        match self {
            Self::SlidingLog | Self::SortedSetLog => 100_000,
            Self::SlidingCounter | Self::SlidingBuckets(_) | Self::FixedWindow | Self::Gcra => {
                u32::MAX
            }
        }
    }

    /// Into how many parts the window is divided.
    pub(crate) fn parts(self) -> u64 {
        match self {
            Self::SlidingBuckets(buckets) => buckets.into(),
            _ => 1,
        }
    }

    /// With the nearest number of buckets that there may be.
    pub(super) const fn in_range(self) -> Self {
        match self {
            Self::SlidingBuckets(0) => Self::SlidingBuckets(1),
            Self::SlidingBuckets(1_001..) => Self::SlidingBuckets(1_000),
            in_range => in_range,
        }
    }
}
