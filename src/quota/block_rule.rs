//! The rule of automatic blocks: how often a key is refused before it is blocked, and for how long.

use std::fmt::Debug;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::algorithm::Algorithm;
use super::quota::{MAX_WINDOW, Quota};
use crate::error::ConfigError;

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

const REFUSALS: RangeInclusive<u32> = 1..=1_000_000;
/// Processes send their refusals once a second, so shorter times would be too coarse.
const WITHIN: RangeInclusive<Duration> = Duration::from_secs(10)..=DAY;
const BLOCK: RangeInclusive<Duration> = SECOND..=MAX_WINDOW;

/// Long enough for a client that waits for `Retry-After` to be refused a few times only.
const DEFAULT_WITHIN: Duration = Duration::from_secs(600);
/// Ends before most people ask for support.
const DEFAULT_BLOCK: Duration = Duration::from_secs(600);
/// A mistake heals overnight.
const DEFAULT_LONGEST: Duration = DAY;

/// The rule by which a limiter blocks keys that are refused too often, for longer each time.
///
/// A client that hammers on after a refusal is blocked in all processes, like a key that an operator
/// [blocks](crate::Admin::block). Set the rule with [`RateLimitLayer::block_after`](crate::RateLimitLayer::block_after)
/// or [`RateLimiter::block_after`](crate::RateLimiter::block_after).
///
/// Before you set one, read [how to choose the key](crate::guide::security#growing-blocks): a block by address locks
/// out everyone who shares the address.
///
/// # Examples
///
/// After 20 refusals within 10 minutes, a key is blocked for an hour, then for 2 hours, 4 hours, up to a day:
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use std::time::Duration;
/// use tollgate::{BlockRule, MemoryStore, Quota, RateLimiter, Source};
///
/// const MINUTE: Duration = Duration::from_secs(60);
/// const RULE: BlockRule = BlockRule::refusals(20)
///     .within(Duration::from_secs(10 * 60))
///     .block_for(Duration::from_secs(60 * 60))
///     .doubling()
///     .max_block(Duration::from_secs(24 * 60 * 60));
///
/// let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_hour(5)).block_after(RULE);
/// for _ in 0..5 + 20 {
///     let _ = limiter.check("ada").await?;
/// }
/// let decision = limiter.check("ada").await?;
/// assert_eq!(decision.source(), Source::Block);
/// assert!(decision.retry_after() > Some(59 * MINUTE));
///
/// // An operator lifts the block. The earlier blocks of the key are forgotten.
/// limiter.admin().unblock("ada").await?;
/// # assert_eq!(limiter.check("ada").await?.source(), Source::Memory);
/// # Ok::<(), tollgate::Error>(())
/// # }).unwrap();
/// ```
///
/// While the key is blocked, `retry_after` is the later of two: the end of the block, and the end of the wait that the last
/// refusals reported, because the quotas refuse the key until then. Only a process whose refusals made the block due knows
/// this wait, for the last 10 000 keys. It does not see a credit by another process.
///
/// # Counted refusals
///
/// A refusal counts if a quota refused the check and a wait would help. These do not count:
///
/// - refusals while the key is blocked, so a client that keeps hammering is not blocked for ever. Another process may
///   count some in the second until it knows of the block;
/// - rejections without a decision: a missing key, a store that fails (503);
/// - refusals by the [fallback](crate::FailurePolicy::fall_back) counts of a process, which may have a part of the limit
///   only;
/// - checks of cost 0, and those with a cost above the limit, which no wait helps;
/// - a [dry run](crate::RateLimitLayer::dry_run).
///
/// In a check of several levels, a refusal counts for the key of each level that refused.
///
/// # Precision
///
/// A key that was refused fewer times within the time is not blocked. A key that was refused that often within seven
/// tenths of the time is blocked. In between, it depends. The limiter counts refusals like units, with a
/// [quota](crate::Algorithm::SlidingBuckets) of ten buckets and seven tenths of the time. So a refusal counts for up to
/// 0.77 of the time, and one that was not sent within a fifth of the time is dropped. The rest, 0.03 of the time, is for
/// the call of the store.
///
/// With a store that other processes share, a process sends its refusals in the background, once a second: one check
/// for each key, however often it was refused. So a block may start about a second late, and reaches the other processes
/// within another second. The refusals before it are counted as early as they
/// are sent, so that a second is missing from the seven tenths.
///
/// Several processes that find a block due at the same time block the key once. The one whose block takes effect then
/// forgets the refusals and counts the block. If it ends or the store fails in between, the refusals count towards the
/// next block, which is as long as this one, and [`Admin::status`](crate::Admin::status) shows a block by an operator.
///
/// # Limits
///
/// - A process holds the unsent refusals of at most 10 000 keys. It does not count the refusals of more keys until it
///   has sent these. Refusals that a failing store may have counted are not sent again.
/// - The refusals and the blocks of a key take the room of one more key in the store. If a
///   [`MemoryStore`](crate::MemoryStore) is full of keys near their limits, it counts no refusals of new keys.
/// - A key is not blocked automatically while 1 000 keys of its limiter are blocked, or 9 000 keys of the store. So other
///   limiters have room, and so do operators: the block list has 10 000 entries. The log says that there is no room.
#[doc(alias("ban", "fail2ban", "brute_force"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockRule {
    refusals: u32,
    within: Duration,
    first: Duration,
    is_doubling: bool,
    /// `None` for the default.
    longest: Option<Duration>,
    /// `None` for the longest block.
    forgotten: Option<Duration>,
}

impl BlockRule {
    /// Blocks a key after `refusals` refusals within 10 minutes, for 10 minutes.
    ///
    /// The number is from 1 to 1 000 000.
    #[must_use]
    pub const fn refusals(refusals: u32) -> Self {
        Self {
            refusals,
            within: DEFAULT_WITHIN,
            first: DEFAULT_BLOCK,
            is_doubling: false,
            longest: None,
            forgotten: None,
        }
    }

    /// Sets the time within which the refusals are counted, from 10 s to 1 day. The default is 10 minutes.
    #[must_use]
    pub const fn within(mut self, time: Duration) -> Self {
        self.within = time;
        self
    }

    /// Sets the duration of a block, from 1 s to 366 days. The default is 10 minutes.
    #[must_use]
    pub const fn block_for(mut self, duration: Duration) -> Self {
        self.first = duration;
        self
    }

    /// Doubles the duration with each further block of a key. By default, all blocks are equally long.
    #[must_use]
    pub const fn doubling(mut self) -> Self {
        self.is_doubling = true;
        self
    }

    /// Sets the longest block, from 1 s to 366 days. The default is a day, or the [duration](Self::block_for) if that is
    /// longer: a client that was blocked by mistake is back the next day. A shorter one than the duration shortens
    /// all blocks.
    #[must_use]
    pub const fn max_block(mut self, longest: Duration) -> Self {
        self.longest = Some(longest);
        self
    }

    /// Sets the time without a block after which the earlier blocks of a key are forgotten, from 1 s to 366 days. Then
    /// the next block is a first one again.
    ///
    /// The time begins when the last block ends. The default is the longest block: a day by default. Blocks are forgotten
    /// at the latest 366 days after the last one has started.
    #[must_use]
    pub const fn forget_after(mut self, time: Duration) -> Self {
        self.forgotten = Some(time);
        self
    }

    /// Returns the rule if all of its values are in range.
    ///
    /// Use it for a rule from outside the program: [`block_after`](crate::RateLimiter::block_after) panics if a value is out
    /// of range.
    ///
    /// # Errors
    ///
    /// Returns an error that names the value and its range.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::BlockRule;
    ///
    /// let refusals = "0".parse().unwrap();
    /// let error = BlockRule::refusals(refusals).validated().unwrap_err();
    /// assert!(error.to_string().contains("1 to 1000000 refusals"));
    /// ```
    pub fn validated(self) -> Result<Self, ConfigError> {
        let quiet = self.forgotten.unwrap_or(SECOND);
        let refusals_rule = "a key is blocked after 1 to 1000000 refusals";
        let time_rule = "refusals are counted within 10 s to 1 day";
        let block_rule = "a block lasts from 1 s to 366 days";
        let quiet_rule = "earlier blocks are forgotten after 1 s to 366 days";
        validate(&self.refusals, &REFUSALS, refusals_rule)?;
        validate(&self.within, &WITHIN, time_rule)?;
        validate(&self.first, &BLOCK, block_rule)?;
        validate(&self.longest(), &BLOCK, block_rule)?;
        validate(&quiet, &BLOCK, quiet_rule)?;
        Ok(self)
    }

    /// `earlier` is the number of blocks before that are not forgotten.
    pub(crate) fn duration_after(&self, earlier: u32) -> Duration {
        // 2^30 seconds are longer than the longest block.
        let doublings = if self.is_doubling { earlier.min(30) } else { 0 };
        self.first
            .saturating_mul(1 << doublings)
            .min(self.longest())
    }

    /// The quota refuses a charge of refusals after which a block is due.
    ///
    /// A refusal never counts for longer than the time: its unit returns up to a tenth of the window late, and it is
    /// charged [late](Self::max_age).
    pub(crate) fn refusals_quota(&self) -> Quota {
        let limit = self.refusals.saturating_sub(1);
        let window = self.within / 10 * 7;
        Quota::new(limit, window).with_algorithm(Algorithm::SlidingBuckets(10))
    }

    pub(crate) fn max_age(&self) -> Duration {
        // An unblock is known for an hour.
        (self.within / 5).min(Duration::from_secs(3_600))
    }

    /// Returns the quota to which `blocks` blocks are charged. They count until they are forgotten, or for the longest
    /// window.
    pub(crate) fn blocks_quota(&self, blocks: u32) -> Quota {
        Quota::new(blocks, self.forgotten_after(blocks).min(MAX_WINDOW))
    }

    /// Returns the time after the start of the last of `blocks` blocks after which all of them are forgotten.
    pub(crate) fn forgotten_after(&self, blocks: u32) -> Duration {
        let quiet = self.forgotten.unwrap_or_else(|| self.longest());
        self.duration_after(blocks.saturating_sub(1)) + quiet
    }

    fn longest(&self) -> Duration {
        let default = self.first.max(DEFAULT_LONGEST);
        self.longest.unwrap_or(default)
    }
}

fn validate<T: Debug + PartialOrd>(
    value: &T,
    range: &RangeInclusive<T>,
    rule: &'static str,
) -> Result<(), ConfigError> {
    if !range.contains(value) {
        return Err(ConfigError::block_rule(value, rule));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);
    const NANO: Duration = Duration::from_nanos(1);

    #[test]
    fn blocks_double_up_to_the_longest() {
        let rule = BlockRule::refusals(20)
            .block_for(HOUR)
            .doubling()
            .max_block(DAY);
        let hours = (0..7).map(|earlier| rule.duration_after(earlier).as_secs() / 3_600);
        assert_eq!(hours.collect::<Vec<_>>(), [1, 2, 4, 8, 16, 24, 24]);
        assert_eq!(rule.duration_after(u32::MAX), DAY);
        let constant = BlockRule::refusals(20).block_for(HOUR);
        assert_eq!(constant.duration_after(9), HOUR);
        // A day by default, and never shorter than the first block.
        let by_default = BlockRule::refusals(1).block_for(HOUR).doubling();
        assert_eq!(by_default.duration_after(9), DAY);
        let long = BlockRule::refusals(1).block_for(9 * DAY).doubling();
        assert_eq!(long.duration_after(9), 9 * DAY);
        let longest = BlockRule::refusals(1)
            .block_for(SECOND)
            .doubling()
            .max_block(366 * DAY);
        assert_eq!(longest.duration_after(u32::MAX), 366 * DAY);
    }

    #[test]
    fn earlier_blocks_are_forgotten_after_the_longest_block_by_default() {
        let rule = BlockRule::refusals(20)
            .block_for(HOUR)
            .doubling()
            .max_block(9 * DAY);
        assert_eq!(rule.forgotten_after(1), HOUR + 9 * DAY);
        assert_eq!(rule.forgotten_after(3), 4 * HOUR + 9 * DAY);
        let by_default = BlockRule::refusals(1).block_for(HOUR);
        assert_eq!(by_default.forgotten_after(9), HOUR + DAY);
        assert_eq!(rule.forget_after(SECOND).forgotten_after(1), HOUR + SECOND);
    }

    #[test]
    fn a_refusal_counts_for_less_than_the_time_and_the_quotas_are_in_range() {
        for within in [10 * SECOND, 12_345_679 * Duration::from_micros(1), DAY] {
            let rule = BlockRule::refusals(1_000_000).within(within);
            let quota = rule.refusals_quota();
            let latest = Duration::from_micros(quota.bucket_micros(0)) + quota.window();
            // The rest of the time is for the call of the store.
            assert!(latest + rule.max_age() < within / 100 * 98);
        }
        let rule = BlockRule::refusals(1)
            .block_for(MAX_WINDOW)
            .max_block(MAX_WINDOW);
        assert_eq!(rule.blocks_quota(7).window(), MAX_WINDOW);
    }

    #[test]
    fn values_out_of_range_are_errors_that_name_the_value_and_the_range() {
        let rule = BlockRule::refusals(1);
        let texts = [
            BlockRule::refusals(0),
            BlockRule::refusals(1_000_001),
            rule.within(10 * SECOND - NANO * 1_000),
            rule.within(DAY + NANO),
            rule.block_for(SECOND - NANO * 1_000),
            rule.block_for(366 * DAY + NANO),
            rule.max_block(Duration::ZERO),
            rule.forget_after(Duration::MAX),
        ]
        .map(|rule| rule.validated().unwrap_err().to_string());
        let parts = [
            ("invalid block rule 0:", "1 to 1000000"),
            ("1000001:", "1 to 1000000"),
            ("9.999999s:", "10 s to 1 day"),
            ("86400.000000001s:", "10 s to 1 day"),
            ("999.999ms:", "1 s to 366 days"),
            ("31622400.000000001s:", "1 s to 366 days"),
            ("0ns:", "1 s to 366 days"),
            ("18446744073709551615.999999999s:", "1 s to 366 days"),
        ];
        for (text, (value, range)) in texts.iter().zip(parts) {
            assert!(text.contains(value) && text.contains(range), "{text}");
        }
        for rule in [
            rule,
            BlockRule::refusals(1_000_000),
            rule.within(10 * SECOND),
            rule.within(DAY),
            rule.block_for(SECOND),
            rule.max_block(366 * DAY),
            rule.forget_after(SECOND),
        ] {
            assert_eq!(rule.validated(), Ok(rule));
        }
    }
}
