//! The rule of automatic blocks: how often a key is refused before it is blocked, and for how long.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::algorithm::Algorithm;
use super::quota::{MAX_WINDOW, Quota};
use crate::error::ConfigError;

const MICROS_PER_SECOND: u64 = 1_000_000;
const DAY_MICROS: u64 = 86_400 * MICROS_PER_SECOND;

const REFUSALS: RangeInclusive<u32> = 1..=1_000_000;
/// Processes send their refusals once a second, so shorter times would be too coarse.
const WITHIN_MICROS: RangeInclusive<u64> = 10 * MICROS_PER_SECOND..=DAY_MICROS;
const BLOCK_MICROS: RangeInclusive<u64> = MICROS_PER_SECOND..=366 * DAY_MICROS;

/// Long enough for a client that waits for `Retry-After` to be refused a few times only.
const DEFAULT_WITHIN_MICROS: u64 = 600 * MICROS_PER_SECOND;
/// Ends before most people ask for support.
const DEFAULT_BLOCK_MICROS: u64 = 600 * MICROS_PER_SECOND;
/// A mistake heals overnight.
const DEFAULT_LONGEST_MICROS: u64 = DAY_MICROS;

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
/// refusals told, because the quotas refuse the key until then. A process knows the waits of its own refusals, of the last
/// 10 000 blocked keys. It does not see a credit by another process.
///
/// # Counted refusals
///
/// A refusal counts if a quota refused the check and a wait would help. These do not count:
///
/// - refusals while the key is blocked, so a client that keeps hammering is not blocked for ever;
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
/// A key that was refused fewer times within the time is never blocked. A key that was refused that often within
/// four fifths of the time is blocked. In between, it depends: refusals are counted in ten parts of the time.
///
/// With a store that other processes share, a process sends its refusals in the background, once a second for all
/// keys together. So a block may start about a second late, and reaches the other processes within another
/// [second](crate::RedisStore::block_list_refresh). Redis sees at most one call a second, however often a client is
/// refused.
///
/// # Limits
///
/// - A process holds the unsent refusals of at most 10 000 keys. It does not count the refusals of more keys until it
///   has sent these. Refusals that a failing store may have counted are not sent again.
/// - A key is not blocked automatically while 1 000 keys of its limiter are blocked, or 9 000 keys of the store. So other
///   limiters have room, and so do operators: the block list has 10 000 entries. The log says that there is no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockRule {
    refusals: u32,
    within_micros: u64,
    first_micros: u64,
    is_doubling: bool,
    /// `None` for the default.
    longest_micros: Option<u64>,
    /// `None` for the longest block.
    forgotten_micros: Option<u64>,
}

impl BlockRule {
    /// Blocks a key after `refusals` refusals within 10 minutes, for 10 minutes.
    ///
    /// The number is from 1 to 1 000 000.
    #[must_use]
    pub const fn refusals(refusals: u32) -> Self {
        Self {
            refusals,
            within_micros: DEFAULT_WITHIN_MICROS,
            first_micros: DEFAULT_BLOCK_MICROS,
            is_doubling: false,
            longest_micros: None,
            forgotten_micros: None,
        }
    }

    /// Sets the time within which the refusals are counted, from 10 s to 1 day. The default is 10 minutes.
    #[must_use]
    pub const fn within(mut self, time: Duration) -> Self {
        self.within_micros = micros(time);
        self
    }

    /// Sets the duration of a block, from 1 s to 366 days. The default is 10 minutes.
    #[must_use]
    pub const fn block_for(mut self, duration: Duration) -> Self {
        self.first_micros = micros(duration);
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
        self.longest_micros = Some(micros(longest));
        self
    }

    /// Sets the time without a block after which the earlier blocks of a key are forgotten, from 1 s to 366 days. Then
    /// the next block is a first one again.
    ///
    /// The time begins when the last block ends. The default is the longest block: a day by default.
    #[must_use]
    pub const fn forget_after(mut self, time: Duration) -> Self {
        self.forgotten_micros = Some(micros(time));
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
        let time = Duration::from_micros;
        let block = BLOCK_MICROS.contains(&self.first_micros);
        let longest = self
            .longest_micros
            .filter(|micros| !BLOCK_MICROS.contains(micros));
        let forgotten = self
            .forgotten_micros
            .filter(|micros| !BLOCK_MICROS.contains(micros));
        if !REFUSALS.contains(&self.refusals) {
            let rule = "a key is blocked after 1 to 1000000 refusals";
            return Err(ConfigError::block_rule(&self.refusals, rule));
        }
        if !WITHIN_MICROS.contains(&self.within_micros) {
            let rule = "refusals are counted within 10 s to 1 day";
            return Err(ConfigError::block_rule(&time(self.within_micros), rule));
        }
        if let Some(micros) = (!block).then_some(self.first_micros).or(longest) {
            let rule = "a block lasts from 1 s to 366 days";
            return Err(ConfigError::block_rule(&time(micros), rule));
        }
        if let Some(micros) = forgotten {
            let rule = "earlier blocks are forgotten after 1 s to 366 days";
            return Err(ConfigError::block_rule(&time(micros), rule));
        }
        Ok(self)
    }

    /// Returns the duration of a block after `earlier` blocks that are not forgotten.
    #[must_use]
    pub fn duration_after(&self, earlier: u32) -> Duration {
        let factor = match earlier {
            _ if !self.is_doubling => 1,
            // 2^32 seconds are longer than the longest block.
            earlier => 1_u64 << earlier.min(32),
        };
        let micros = self.first_micros.saturating_mul(factor);
        Duration::from_micros(micros.min(self.longest_micros()))
    }

    /// Returns the quota of refusals that count. It refuses a charge after which a block is due.
    ///
    /// A refusal never counts for longer than the time: its unit returns up to a tenth of the window late, and it is
    /// charged [late](Self::max_age_micros).
    pub(crate) fn refusals_quota(&self) -> Quota {
        let window = Duration::from_micros(self.within_micros / 10 * 7);
        Quota::new(self.refusals.saturating_sub(1), window).algorithm(Algorithm::SlidingBuckets(10))
    }

    /// Returns the age from which on refusals are not sent any more.
    pub(crate) const fn max_age_micros(&self) -> u64 {
        self.within_micros / 5
    }

    /// Returns the quota to which `blocks` blocks are charged. They count until they are forgotten, or for the longest
    /// window.
    pub(crate) fn blocks_quota(&self, blocks: u32) -> Quota {
        Quota::new(blocks, self.forgotten_after(blocks).min(MAX_WINDOW))
    }

    /// Returns the time after the start of the last of `blocks` blocks after which all of them are forgotten.
    pub(crate) fn forgotten_after(&self, blocks: u32) -> Duration {
        let quiet = self.forgotten_micros.unwrap_or(self.longest_micros());
        self.duration_after(blocks.saturating_sub(1)) + Duration::from_micros(quiet)
    }

    fn longest_micros(&self) -> u64 {
        let default = self.first_micros.max(DEFAULT_LONGEST_MICROS);
        self.longest_micros.unwrap_or(default)
    }
}

/// Converts to microseconds, rounded up. Saturates, because a time that long is out of range anyway.
const fn micros(time: Duration) -> u64 {
    let fraction: u64 = if time.subsec_nanos().is_multiple_of(1_000) {
        0
    } else {
        1
    };
    time.as_secs()
        .saturating_mul(MICROS_PER_SECOND)
        .saturating_add(time.subsec_micros() as u64 + fraction)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const HOUR: Duration = Duration::from_secs(3_600);
    const DAY: Duration = Duration::from_secs(86_400);
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
        let day = DEFAULT_LONGEST_MICROS;
        assert_eq!(rule.forgotten_micros(), 9 * day);
        assert_eq!(BlockRule::refusals(1).forgotten_micros(), day);
        assert_eq!(rule.forget_after(SECOND).forgotten_micros(), 1_000_000);
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
            ("86400.000001s:", "10 s to 1 day"),
            ("999.999ms:", "1 s to 366 days"),
            ("31622400.000001s:", "1 s to 366 days"),
            ("0ns:", "1 s to 366 days"),
            ("18446744073709.551615s:", "1 s to 366 days"),
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
