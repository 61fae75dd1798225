//! Parses and formats quotas: `LIMIT/WINDOW`, then the algorithm unless it is the default, then words such as `soft`.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::algorithm::{Algorithm, MAX_BUCKETS, algorithm_rule};
use super::calendar::Calendar;
use super::number::parse_number;
use super::quota::{Quota, is_slot_lease, is_warn_percent};
use super::quotas::Quotas;
use super::shares::Share;
use crate::error::ConfigError;

/// The units of time, longest first: length in microseconds, word for one unit, suffix of a number, and other spellings
/// that are read. The plural of a word is read, too.
const TIME_UNITS: [(u64, &str, &str, &[&str]); 6] = [
    (86_400_000_000, "day", "d", &[]),
    (3_600_000_000, "hour", "h", &["hr", "hrs"]),
    (60_000_000, "minute", "m", &["min", "mins"]),
    (1_000_000, "second", "s", &["sec", "secs"]),
    (1_000, "millisecond", "ms", &[]),
    (1, "microsecond", "us", &[]),
];

/// The separators of a list of quotas.
const SEPARATORS: [char; 2] = [',', ';'];

/// Parses a quota from text, such as `100/minute`, `5/10s gcra`, `5 in-flight` or `200000 total:7d`.
///
/// A quota is `LIMIT/WINDOW`, `LIMIT in-flight` or `LIMIT total:IDLE`. An algorithm may follow, then other words in any order, each once:
///
/// | part | forms | meaning |
/// |---|---|---|
/// | `LIMIT` | `0` to `4294967295` | units per window or altogether, or slots; 0 refuses everything |
/// | `LIMIT` of a rate | `0.17`, `1.5` | a fraction, in lowest terms: `0.17/second` is `17/100s`, and `1.5/minute` is `3/2m` |
/// | `WINDOW` | `minute`, `10s`, `10 seconds` | a unit of time, or a whole number of them: `day` (`d`), `hour` (`h`, `hr`), `minute` (`m`, `min`), `second` (`s`, `sec`), `millisecond` (`ms`), `microsecond` (`us`), also in the plural |
/// | `WINDOW` with the feature `calendar` | `day@UTC`, `week@Europe/Berlin`, `month:17@Europe/Berlin`, `day:04:00@Europe/Paris` | a day, week or month of a time zone; a month may begin on a billing day, a week on a day from 1 (Monday) to 7, and each at a time of that day |
/// | `in-flight` | `5 in-flight`, `5 in-flight:60s` | a quota [in flight](Quota::in_flight), with a [lease](Quota::slot_lease) of its slots from `5s` to `10m` |
/// | `total` | `200000 total:7d` | a [total](Quota::total), which never refills, with its idle time in the form of a window |
/// | algorithm | `sliding-log` (the default), `sorted-set-log`, `sliding-counter`, `sliding-buckets:60`, `fixed-window`, `gcra` | an [`Algorithm`]; a quota in flight, a total and a calendar window have none |
/// | `burst N` | `10/second burst 50` | a token bucket, as [`burst`](Quota::burst): at most 50 at once, then 10 per second, counted by `gcra` |
/// | [share](Quota::shares) | `critical>=200`, `batch<=50%`, `free>=50<=100` | a reserve (`>=`), a bound (`<=`) or both, in units or in percent of the limit; a percentage is rounded down, but to at least one unit. For a sliding log, sliding buckets and slots |
/// | `soft` | `800/hour soft` | [counts and never refuses](Quota::soft); not in flight |
/// | `warn:P%` | `1000/hour warn:90%` | [marks requests](Quota::warn_at) from that part of the limit on |
///
/// Several quotas with `,` or `;` between them are parsed as [`Quotas`]: `100/minute, 5/10s gcra; 5 in-flight`.
///
/// # Examples
///
/// ```
/// use tollgate::{Quota, Quotas};
///
/// let quota: Quota = "1000/minute sliding-buckets:60 critical>=200 batch<=50% warn:80%".parse()?;
/// assert_eq!(quota.limit(), 1_000);
/// "100/minute, 10/second burst 50; 5 in-flight:60s".parse::<Quotas>()?;
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
impl FromStr for Quota {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        QuotaParts::parse(text)
            .map_err(|rule| ConfigError::quota(text, &rule))?
            .into_quota(text)
    }
}

/// Parses quotas with commas or semicolons between them: `100/minute, 5/10s`.
///
/// Empty text is an error, because a missing setting would disable the limiter.
impl FromStr for Quotas {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        text.split(SEPARATORS).map(str::parse::<Quota>).collect()
    }
}

/// The parts of a quota in a text or a map.
#[derive(Default)]
pub(super) struct QuotaParts<'a> {
    pub(super) limit: u32,
    /// The number of windows that have the limit together: above 1 if it was a fraction.
    pub(super) windows: u64,
    /// The window, the lease of slots in flight, or the idle time of a total.
    pub(super) window: Option<&'a str>,
    pub(super) algorithm: Option<Algorithm>,
    pub(super) burst: Option<u32>,
    pub(super) shares: Vec<Share>,
    pub(super) is_soft: bool,
    pub(super) warn_percent: Option<u8>,
}

impl<'a> QuotaParts<'a> {
    /// The error is the rule that the text breaks.
    fn parse(text: &'a str) -> Result<Self, Cow<'static, str>> {
        if text.contains(SEPARATORS) {
            return Err("this is one quota; a list of quotas is parsed as Quotas".into());
        }
        let (limit, algorithm, rest) = split_limit(text).ok_or(QUOTA_RULE)?;
        let (limit, windows) = parse_limit(limit.trim()).ok_or(LIMIT_RULE)?;
        let mut parts = Self {
            limit,
            windows,
            algorithm,
            ..Self::default()
        };
        let words = match (algorithm, rest.strip_prefix(':')) {
            (Some(Algorithm::InFlight), None) if rest.is_empty() || rest.starts_with(is_space) => {
                rest
            }
            (Some(algorithm), None) => return Err(window_rule(algorithm).into()),
            (_, time) => {
                let (window, words) = split_window(time.unwrap_or(rest).trim());
                parts.window = Some(window);
                words
            }
        };
        let is_plain_rate =
            algorithm.is_none() && parts.window.is_some_and(|window| !window.contains('@'));
        if windows > 1 && !is_plain_rate {
            return Err(LIMIT_RULE.into());
        }
        parts.read(words)?;
        Ok(parts)
    }

    /// Reads the words behind the window. The error is the rule of the first word that is wrong.
    fn read(&mut self, words: &str) -> Result<(), String> {
        let mut words = words.split_ascii_whitespace();
        let mut is_first = true;
        while let Some(word) = words.next() {
            let next = words.clone().next();
            let known = if word.contains(SHARE_SIGNS) {
                parse_share(word, self.limit).map(|share| self.shares.push(share))
            } else if let Some(percent) = word.strip_prefix(WARN) {
                percent
                    .strip_suffix('%')
                    .and_then(parse_number)
                    .and_then(|percent| set_once(&mut self.warn_percent, percent))
            } else if word == SOFT {
                let was_soft = std::mem::replace(&mut self.is_soft, true);
                (!was_soft).then_some(())
            } else if word == BURST {
                words
                    .next()
                    .and_then(parse_number)
                    .and_then(|units| set_once(&mut self.burst, units))
            } else if is_first {
                parse_algorithm(word)
                    .filter(|algorithm| algorithm.counts_rates())
                    .and_then(|algorithm| set_once(&mut self.algorithm, algorithm))
            } else {
                None
            };
            is_first = false;
            known.ok_or_else(|| self.find_rule(word, next))?;
        }
        Ok(())
    }

    fn find_rule(&self, word: &str, next: Option<&str>) -> String {
        const BEGINNINGS: [(&str, &str); 6] = [
            ("warn", WARN_RULE),
            (SOFT, SOFT_RULE),
            (BURST, BURST_RULE),
            ("in-flight", SLOTS_RULE),
            ("inflight", SLOTS_RULE),
            ("total", TOTAL_RULE),
        ];
        let word = word.to_ascii_lowercase().replace('_', "-");
        let signs = ['<', '>', '='];
        let known = BEGINNINGS
            .iter()
            .find(|(beginning, _)| word.starts_with(beginning) && !word.contains(SHARE_SIGNS));
        if let Some((_, rule)) = known {
            (*rule).to_owned()
        } else if word.contains(signs)
            || next.is_some_and(|next| next.starts_with(signs))
            || !self.shares.is_empty()
        {
            SHARE_RULE.to_owned()
        } else if let Some(algorithm @ (Algorithm::InFlight | Algorithm::Total)) = self.algorithm {
            window_rule(algorithm).to_owned()
        } else if parse_algorithm(&word).is_some() {
            ALGORITHM_PLACE_RULE.to_owned()
        } else {
            format!("{}; {WORDS_RULE}", algorithm_rule())
        }
    }

    /// Makes a quota of the parts. `shown` is the text of the quota in an error.
    pub(super) fn into_quota(self, shown: &str) -> Result<Quota, ConfigError> {
        let mut quota = match self.algorithm {
            Some(Algorithm::InFlight) => self.slots(shown)?,
            Some(Algorithm::Total) => self.total(shown)?,
            _ => self.rate(shown)?,
        };
        if let Some(units) = self.burst {
            let algorithm = self.algorithm.unwrap_or(Algorithm::Gcra);
            if algorithm != Algorithm::Gcra {
                return Err(ConfigError::quota(shown, BURST_RULE));
            }
            quota = quota.try_burst(units)?;
        }
        if !self.shares.is_empty() {
            quota = quota.try_shares(self.shares)?;
        }
        if self.is_soft {
            if quota.is_in_flight() {
                return Err(ConfigError::quota(shown, SOFT_RULE));
            }
            quota = quota.soft();
        }
        match self.warn_percent {
            None => Ok(quota),
            Some(percent) if is_warn_percent(percent) => Ok(quota.warn_at(percent)),
            Some(_) => Err(ConfigError::quota(shown, WARN_RULE)),
        }
    }

    fn slots(&self, shown: &str) -> Result<Quota, ConfigError> {
        let slots = Quota::in_flight(self.limit);
        let Some(lease) = self.window else {
            return Ok(slots);
        };
        let lease = parse_micros(lease)
            .filter(|micros| is_slot_lease(*micros))
            .ok_or_else(|| ConfigError::quota(shown, SLOTS_RULE))?;
        Ok(slots.slot_lease(Duration::from_micros(lease)))
    }

    fn total(&self, shown: &str) -> Result<Quota, ConfigError> {
        let idle = self
            .window
            .and_then(parse_micros)
            .ok_or_else(|| ConfigError::quota(shown, TOTAL_RULE))?;
        Quota::try_total(self.limit, Duration::from_micros(idle))
    }

    fn rate(&self, shown: &str) -> Result<Quota, ConfigError> {
        let rate = match self.window {
            Some(window) if window.contains('@') => {
                Quota::from_calendar(self.limit, Calendar::parse(window)?)
            }
            window => {
                let micros = window
                    .and_then(parse_micros)
                    .ok_or_else(|| ConfigError::quota(shown, WINDOW_RULE))?;
                let micros = micros.saturating_mul(self.windows);
                Quota::try_new(self.limit, Duration::from_micros(micros))?
            }
        };
        match self.algorithm {
            Some(algorithm) => rate.try_algorithm(algorithm),
            None => Ok(rate),
        }
    }
}

/// `None` if there is a value already.
fn set_once<T>(place: &mut Option<T>, value: T) -> Option<()> {
    let is_free = place.is_none();
    place.get_or_insert(value);
    is_free.then_some(())
}

/// Follows the limit of a quota in flight.
pub(super) const IN_FLIGHT: &str = " in-flight";

/// Follows the limit of a total.
const TOTAL: &str = " total";

/// Splits the limit from the rest. The algorithm is that of a quota that is no rate.
fn split_limit(text: &str) -> Option<(&str, Option<Algorithm>, &str)> {
    [(IN_FLIGHT, Algorithm::InFlight), (TOTAL, Algorithm::Total)]
        .into_iter()
        .find_map(|(word, algorithm)| {
            let (limit, rest) = text.split_once(word)?;
            (!limit.contains('/')).then_some((limit, Some(algorithm), rest))
        })
        .or_else(|| {
            let (limit, rest) = text.split_once('/')?;
            Some((limit, None, rest))
        })
}

const fn window_rule(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::InFlight => SLOTS_RULE,
        Algorithm::Total => TOTAL_RULE,
        _ => WINDOW_RULE,
    }
}

/// The words behind a quota.
const BURST: &str = "burst";
const SOFT: &str = "soft";
const WARN: &str = "warn:";

/// A word with one of them is a share, also if its name is `soft` or begins with `warn:`.
const SHARE_SIGNS: [char; 2] = ['<', '>'];

const QUOTA_RULE: &str = "a quota is LIMIT/WINDOW, like 100/minute or 5/10s, or of slots LIMIT in-flight, like 5 in-flight, or a total LIMIT total:IDLE, like 200000 total:7d";

const LIMIT_RULE: &str = "the limit is a whole number from 0 to 4294967295, or of a rate without a calendar a fraction, like 0.17/second";

const WINDOW_RULE: &str = "the window is day, hour, minute, second, or a number with a unit, like 10s, 250ms or 5 minutes; or that of a calendar, like month@Europe/Berlin";

const SLOTS_RULE: &str = "a quota of slots is LIMIT in-flight, like 5 in-flight, or with a lease from 5s to 10m: 5 in-flight:60s";

const TOTAL_RULE: &str = "a total is LIMIT total:IDLE with the idle time after which it is forgotten, from 1 ms to 366 days, like 200000 total:7d";

const BURST_RULE: &str = "burst may stand once behind a rate, with the units of a token bucket (gcra), like 10/second burst 50";

const SHARE_RULE: &str = "a share is one word: its name with a reserve, a bound or both, in units or percent, like critical>=200, batch<=50% or free>=50<=100";

const SOFT_RULE: &str =
    "soft may stand once behind a quota, unless it is in flight, like 100/minute soft";

const WARN_RULE: &str = "warn: may stand once behind a quota, with a percentage from 1% to 100%, like 100/minute warn:80%";

const ALGORITHM_PLACE_RULE: &str =
    "the algorithm is the first word behind the window, like 100/minute gcra soft";

const WORDS_RULE: &str = "behind it may stand burst 50, shares like batch<=50%, soft and warn:80%";

#[cfg(feature = "serde")]
pub(super) fn parse_shares(text: &str, limit: u32) -> Result<Vec<Share>, ConfigError> {
    text.split_ascii_whitespace()
        .map(|share| parse_share(share, limit))
        .collect::<Option<_>>()
        .ok_or_else(|| ConfigError::quota_part("list of shares", text.trim(), SHARE_RULE))
}

/// Parses a share of a limit: `critical>=200`, `batch<=50%`, or both: `free>=50<=100`.
fn parse_share(text: &str, limit: u32) -> Option<Share> {
    let (rest, most) = match text.split_once("<=") {
        Some((rest, most)) => (rest, Some(parse_units(most, limit)?)),
        None => (text, None),
    };
    let (name, reserve) = match rest.split_once(">=") {
        Some((name, reserve)) => (name, Some(parse_units(reserve, limit)?)),
        None => (rest, None),
    };
    if reserve.is_none() && most.is_none() {
        return None;
    }
    let share = Share::of(name).reserve(reserve.unwrap_or(0));
    match most {
        Some(most) => Some(share.at_most(most)),
        None => Some(share),
    }
}

/// Parses units, or a percentage of a limit. It is rounded down, but to at least one unit, unless one of both is 0.
fn parse_units(text: &str, limit: u32) -> Option<u32> {
    let Some(percent) = text.strip_suffix('%') else {
        return parse_number(text);
    };
    let percent: u8 = parse_number(percent)?;
    if percent > 100 {
        return None;
    }
    let at_least = limit.min(percent.into()).min(1);
    let units = u64::from(limit) * u64::from(percent) / 100;
    Some(u32::try_from(units).ok()?.max(at_least))
}

/// Formats a share as `parse_share` reads it.
impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        if self.reserve > 0 || self.most == u32::MAX {
            write!(f, ">={}", self.reserve)?;
        }
        match self.most {
            u32::MAX => Ok(()),
            most => write!(f, "<={most}"),
        }
    }
}

const fn is_space(c: char) -> bool {
    c.is_ascii_whitespace()
}

/// Splits a window from the words behind it. A space may follow the number of a window.
fn split_window(text: &str) -> (&str, &str) {
    let number_end = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let unit = number_end.trim_start_matches(is_space);
    let unit_end = unit.find(is_space).unwrap_or(unit.len());
    text.split_at(text.len() - unit.len() + unit_end)
}

/// Parses the name of an algorithm, as in the text of a [`Quota`]: `gcra`, `sliding-buckets:60`.
impl FromStr for Algorithm {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        parse_algorithm(text.trim())
            .ok_or_else(|| ConfigError::quota_part("algorithm", text, &algorithm_rule()))
    }
}

/// Formats the algorithm as [`FromStr`](#impl-FromStr-for-Algorithm) parses it.
impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())?;
        match self.buckets() {
            None => Ok(()),
            Some(buckets) => write!(f, ":{buckets}"),
        }
    }
}

fn parse_algorithm(text: &str) -> Option<Algorithm> {
    let (name, buckets) = match text.split_once(':') {
        None => (text, None),
        Some((name, buckets)) => (name, Some(buckets)),
    };
    let algorithm = Algorithm::ALL
        .iter()
        .chain([&Algorithm::Total, &Algorithm::InFlight])
        .find(|algorithm| algorithm.text() == name)?;
    match (algorithm.buckets(), buckets) {
        (None, None) => Some(*algorithm),
        (Some(_), Some(buckets)) => {
            let buckets = parse_number(buckets)?;
            let is_in_range = (1..=MAX_BUCKETS).contains(&buckets);
            is_in_range.then_some(algorithm.with_buckets(buckets))
        }
        _ => None,
    }
}

fn parse_micros(text: &str) -> Option<u64> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let count: u64 = match text.strip_suffix(unit)? {
        "" => 1,
        digits => parse_number(digits)?,
    };
    Some(count.saturating_mul(parse_unit(unit.trim())?))
}

fn parse_unit(text: &str) -> Option<u64> {
    let singular = text.strip_suffix('s').unwrap_or(text);
    TIME_UNITS
        .iter()
        .find(|(_, word, suffix, others)| {
            text == *suffix || [text, singular].contains(word) || others.contains(&text)
        })
        .map(|(micros, ..)| *micros)
}

/// Parses a duration as the window of a quota: `50ms`, `1s`. Zero is a duration, too.
#[cfg(feature = "redis")]
pub(crate) fn parse_duration(text: &str) -> Option<Duration> {
    parse_micros(text.trim()).map(Duration::from_micros)
}

/// Parses a limit and the number of windows that have it together: `0.17` is 17 in 100, and `1.5` is 3 in 2.
fn parse_limit(text: &str) -> Option<(u32, u64)> {
    let Some((whole, fraction)) = text.split_once('.') else {
        return Some((parse_number(text)?, 1));
    };
    let scale = 10_u64.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let units = parse_number::<u64>(whole)?
        .checked_mul(scale)?
        .checked_add(parse_number(fraction)?)?;
    let divisor = greatest_common_divisor(units, scale);
    Some((u32::try_from(units / divisor).ok()?, scale / divisor))
}

fn greatest_common_divisor(one: u64, other: u64) -> u64 {
    match one {
        0 => other,
        _ => greatest_common_divisor(other % one, one),
    }
}

/// Formats the quota as [`FromStr`](#impl-FromStr-for-Quota) parses it: the limit, the window, and the
/// algorithm unless it is the default, or the rate and the [burst](Self::burst) that it was made of; then the shares, `soft` and `warn:80%`, if they are set.
impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_in_flight() {
            write!(f, "{}{IN_FLIGHT}", self.limit())?;
            if !self.has_default_slot_lease() {
                write!(f, ":{}", self.short_window())?;
            }
        } else if self.is_total() {
            write!(f, "{}{TOTAL}:{}", self.limit(), self.short_window())?;
        } else if let Some(rate) = self.written_rate() {
            write!(f, "{rate} {BURST} {}", self.limit())?;
        } else {
            write!(f, "{}/{}", self.limit(), self.window_text())?;
            match self.algorithm() {
                Algorithm::SlidingLog => {}
                Algorithm::FixedWindow if self.calendar().is_some() => {}
                algorithm => write!(f, " {algorithm}")?,
            }
        }
        for share in self.share_list().iter() {
            write!(f, " {share}")?;
        }
        if self.is_soft() {
            write!(f, " {SOFT}")?;
        }
        match self.warn_percent() {
            None => Ok(()),
            Some(percent) => write!(f, " {WARN}{percent}%"),
        }
    }
}

/// Formats the quotas as [`FromStr`](#impl-FromStr-for-Quotas) parses them.
impl fmt::Display for Quotas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, quota) in self.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{quota}")?;
        }
        Ok(())
    }
}

impl Quota {
    /// Formats the window as text has it: `minute`, `90m`, `month@UTC`.
    pub(crate) fn window_text(&self) -> String {
        if let Some(calendar) = self.calendar() {
            return calendar.to_string();
        }
        let window = self.window_micros();
        match TIME_UNITS.iter().find(|(micros, ..)| *micros == window) {
            Some((_, word, ..)) => (*word).to_owned(),
            None => self.short_window(),
        }
    }

    /// Formats the window as a number and a unit: `1s`, `90m`, `1d`; a calendar's window as its unit: `month`.
    pub(crate) fn short_window(&self) -> String {
        if let Some(calendar) = self.calendar() {
            return calendar.unit().word().to_owned();
        }
        let window = self.window_micros();
        TIME_UNITS
            .iter()
            .find(|(micros, ..)| window.is_multiple_of(*micros))
            .map(|(micros, _, suffix, _)| format!("{}{suffix}", window / micros))
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn valid_text_is_parsed() {
        for (text, limit, window) in [
            ("100/minute", 100, Duration::from_secs(60)),
            ("5/10s", 5, Duration::from_secs(10)),
            ("2000/day", 2_000, Duration::from_secs(86_400)),
            ("0/hour", 0, Duration::from_secs(3_600)),
            (" 7 /250ms ", 7, Duration::from_millis(250)),
            (
                "4294967295/366d",
                u32::MAX,
                Duration::from_secs(366 * 86_400),
            ),
            ("1/1ms", 1, Duration::from_millis(1)),
            ("100/s", 100, Duration::from_secs(1)),
            ("100/m", 100, Duration::from_secs(60)),
            ("100/min", 100, Duration::from_secs(60)),
            ("100/minutes", 100, Duration::from_secs(60)),
            ("100 / 1 minute", 100, Duration::from_secs(60)),
            ("5/10 s", 5, Duration::from_secs(10)),
            ("5/10secs", 5, Duration::from_secs(10)),
            ("5/10 seconds", 5, Duration::from_secs(10)),
            ("5/2 hrs", 5, Duration::from_secs(7_200)),
            ("5/7 days", 5, Duration::from_secs(7 * 86_400)),
            ("5/250 milliseconds", 5, Duration::from_millis(250)),
        ] {
            assert_eq!(text.parse(), Ok(Quota::new(limit, window)), "{text}");
        }
    }

    #[test]
    fn a_fraction_of_a_unit_per_window_is_a_whole_number_in_more_windows() {
        for (text, expected) in [
            ("0.17/second", "17/100s"),
            ("0.5/second", "1/2s"),
            ("1.5/minute", "3/2m"),
            ("2.0/minute", "2/minute"),
            ("0.0/minute", "0/minute"),
            ("0.001/ms", "1/second"),
            ("4294967294.000/366d", "4294967294/366d"),
            ("0.17/10 seconds gcra soft", "17/1000s gcra soft"),
            ("2.5/minute a>=20%", "5/2m a>=1"),
            ("0.17/second burst 3", "17/100s burst 3"),
        ] {
            let quota: Quota = text.parse().unwrap();
            assert_eq!(quota.to_string(), expected, "{text}");
            assert_eq!(expected.parse(), Ok(quota), "{text}");
        }
    }

    #[test]
    fn the_error_of_malformed_text_names_the_broken_rule() {
        for (text, rule) in [
            ("", "LIMIT/WINDOW"),
            ("100", "LIMIT/WINDOW"),
            ("/minute", "the limit is"),
            ("-1/minute", "the limit is"),
            ("+1/minute", "the limit is"),
            ("1./minute", "the limit is"),
            (".5/minute", "the limit is"),
            ("1.5.1/minute", "the limit is"),
            ("1.-5/minute", "the limit is"),
            ("1.5 in-flight", "the limit is"),
            ("1.5 total:7d", "the limit is"),
            ("1.5/day@UTC", "the limit is"),
            ("4294967295.5/minute", "the limit is"),
            ("0.00000000000000000001/ms", "the limit is"),
            ("0.0000001/minute", "from 1 ms to 366 days"),
            ("4294967296/minute", "the limit is"),
            ("99999999999999999999/minute", "the limit is"),
            ("1/", "the window is"),
            ("1/minutess", "the window is"),
            ("1/ss", "the window is"),
            ("1/minss", "the window is"),
            ("1/Minute", "the window is"),
            ("1/month", "the window is"),
            ("1/10", "the window is"),
            ("1/10 gcra", "the window is"),
            ("1/10 20s", "the window is"),
            ("1/gcra", "the window is"),
            ("1/10 s token-bucket", "the algorithm is"),
            ("100 per minute", "LIMIT/WINDOW"),
            ("100/minute, 5/second", "parsed as Quotas"),
            ("100/minute; 5/second", "parsed as Quotas"),
            ("1/1.5s", "the window is"),
            ("1/10s/2", "the window is"),
            ("1/10s token-bucket", "the algorithm is"),
            ("1/10s gcra gcra", "the algorithm is"),
            ("1/10s sliding-buckets:0", "the algorithm is"),
            ("1/10s sliding-buckets:1001", "the algorithm is"),
            ("1/10s sliding-buckets", "the algorithm is"),
            ("1/99999999999999999999s", "the window is"),
            ("1/0s", "from 1 ms to 366 days"),
            ("1/999us", "from 1 ms to 366 days"),
            ("1/367d", "from 1 ms to 366 days"),
            ("1/18446744073709551615d", "from 1 ms to 366 days"),
        ] {
            let error = text.parse::<Quota>().unwrap_err().to_string();
            assert!(error.contains(rule), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_quota_in_flight_has_a_limit_and_a_lease() {
        let minute = Duration::from_secs(60);
        for (text, quota) in [
            ("5 in-flight", Quota::in_flight(5)),
            (" 5  in-flight ", Quota::in_flight(5)),
            ("0 in-flight", Quota::in_flight(0)),
            ("5 in-flight:15s", Quota::in_flight(5)),
            ("5 in-flight:60s", Quota::in_flight(5).slot_lease(minute)),
            ("5 in-flight:1m", Quota::in_flight(5).slot_lease(minute)),
            ("5 in-flight:minute", Quota::in_flight(5).slot_lease(minute)),
        ] {
            assert_eq!(text.parse(), Ok(quota.clone()), "{text}");
            assert_eq!(quota.to_string().parse(), Ok(quota));
        }
        assert_eq!(Quota::in_flight(5).to_string(), "5 in-flight");
        let quota = Quota::in_flight(5).slot_lease(minute);
        assert_eq!(quota.to_string(), "5 in-flight:1m");
        let list: Quotas = "10/second, 5 in-flight:60s; 7 in-flight".parse().unwrap();
        let listed = [Quota::per_second(10), quota, Quota::in_flight(7)];
        assert_eq!(list, Quotas::from(listed));
        for (text, rule) in [
            (" in-flight", "the limit is"),
            ("in-flight", "LIMIT/WINDOW"),
            ("-1 in-flight", "the limit is"),
            ("4294967296 in-flight", "the limit is"),
            ("5 in-flight:", "from 5s to 10m"),
            ("5 in-flight:4s", "from 5s to 10m"),
            ("5 in-flight:11m", "from 5s to 10m"),
            ("5 in-flight gcra", "from 5s to 10m"),
            ("5 in-flights", "from 5s to 10m"),
            ("5 in-flight/minute", "from 5s to 10m"),
            ("5/minute in-flight", "a quota of slots is"),
            ("5/minute\tin-flight", "a quota of slots is"),
            ("5 in-flightsoft", "a quota of slots is"),
            ("5 inflight", "LIMIT in-flight"),
            ("5/minute inflight", "a quota of slots is"),
        ] {
            let error = text.parse::<Quota>().unwrap_err().to_string();
            assert!(error.contains(rule), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_quota_may_be_soft_and_may_warn() {
        let minute = Quota::per_minute(100);
        let gcra = minute.clone().with_algorithm(Algorithm::Gcra);
        for (text, quota) in [
            ("100/minute soft", minute.clone().soft()),
            ("100/minute warn:80%", minute.clone().warn_at(80)),
            ("100/minute soft warn:1%", minute.clone().soft().warn_at(1)),
            ("100/minute gcra soft warn:100%", gcra.soft().warn_at(100)),
            ("5 in-flight warn:80%", Quota::in_flight(5).warn_at(80)),
        ] {
            assert_eq!(text.parse(), Ok(quota.clone()), "{text}");
            assert_eq!(quota.to_string(), text);
        }
        let both = minute.soft().warn_at(80);
        assert_eq!(" 100 / 1 minute  warn:80%\tsoft ".parse(), Ok(both));
        for (text, rule) in [
            ("100/minute soft soft", "soft may stand once"),
            ("100/minute soft gcra", "the algorithm is the first word"),
            ("100/minute softly", "soft may stand once"),
            ("100/minute warn:8% warn:9%", "warn: may stand once"),
            ("100/minute warn=80%", "warn: may stand once"),
            ("100/minute WARN:80%", "warn: may stand once"),
            ("100/minute warn:0%", "from 1% to 100%"),
            ("100/minute warn:101%", "from 1% to 100%"),
            ("100/minute warn:300%", "from 1% to 100%"),
            ("100/minute warn:80", "from 1% to 100%"),
            ("100/minute warn:%", "from 1% to 100%"),
            ("100/minute warn:8 0%", "from 1% to 100%"),
            ("5 in-flight soft", "unless it is in flight"),
            ("soft", "LIMIT/WINDOW"),
            (" soft", "LIMIT/WINDOW"),
        ] {
            let error = text.parse::<Quota>().unwrap_err().to_string();
            assert!(error.contains(rule), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_rate_may_have_a_burst() {
        let bucket = Quota::per_second(10).burst(50);
        for text in [
            "10/second burst 50",
            "10/second gcra burst 50",
            "10 / 1 second  burst\t50 ",
        ] {
            assert_eq!(text.parse(), Ok(bucket.clone()), "{text}");
        }
        let warning = bucket.clone().soft().warn_at(80);
        assert_eq!(warning.to_string(), "10/second burst 50 soft warn:80%");
        assert_eq!("10/second warn:80% burst 50 soft".parse(), Ok(warning));
        assert_eq!(Quota::per_second(10).try_burst(50), Ok(bucket));
        for (text, rule) in [
            ("10/second burst", "burst may stand once"),
            ("10/second burst 5x", "burst may stand once"),
            ("10/second burst:50", "burst may stand once"),
            ("10/second burst=50", "burst may stand once"),
            ("10/second burst 5 burst 5", "burst may stand once"),
            ("10/second bursts 50", "burst may stand once"),
            ("10/second sliding-log burst 5", "burst may stand once"),
            ("10 in-flight burst 5", "burst may stand once"),
            ("10/second burst 0", "invalid burst \"0\": at the rate"),
            ("10/day burst 4000", "refilled within 1 ms to 366 days"),
            ("0/second burst 50", "a limit of 0 has no burst"),
            ("10/second burst 50 a>=5", "shares are counted by"),
        ] {
            let error = text.parse::<Quota>().unwrap_err().to_string();
            assert!(error.contains(rule), "{text:?}: {error}");
        }
    }

    #[test]
    fn a_burst_is_shown_as_it_was_written() {
        let bucket: Quota = "17/100s burst 3".parse().unwrap();
        assert_eq!(bucket.to_string(), "17/100s burst 3");
        // The same bucket in another form has the same count.
        let derived: Quota = "3/17647059us gcra".parse().unwrap();
        assert_eq!(bucket, derived);
        assert_eq!(derived.to_string(), "3/17647059us gcra");
        let again = bucket.clone().burst(6);
        assert_eq!(again.to_string(), "3/17647059us burst 6");
        let counted_otherwise = bucket.clone().with_algorithm(Algorithm::SlidingLog);
        assert_eq!(counted_otherwise.to_string(), "3/17647059us");
        assert_eq!(bucket.with_limit(2).to_string(), "2/17647059us gcra");
    }

    #[test]
    fn a_total_has_an_idle_time_in_place_of_a_window() {
        let week = Duration::from_secs(7 * 86_400);
        let total = Quota::total(200_000, week);
        for text in [
            "200000 total:7d",
            " 200000  total:7 days ",
            "200000 total: 168h",
        ] {
            assert_eq!(text.parse(), Ok(total.clone()), "{text}");
        }
        assert_eq!(total.window(), week);
        assert_eq!(total.algorithm(), Algorithm::Total);
        assert_eq!(total.to_string(), "200000 total:7d");
        let day = Quota::total(5, Duration::from_secs(86_400))
            .soft()
            .warn_at(80);
        assert_eq!(day.to_string(), "5 total:1d soft warn:80%");
        assert_eq!("5 total:day warn:80% soft".parse(), Ok(day));
        assert_eq!("total".parse(), Ok(Algorithm::Total));
        let quotas: Quotas = "100/minute, 200000 total:7d; 5 in-flight".parse().unwrap();
        assert_eq!(
            quotas.to_string(),
            "100/minute, 200000 total:7d, 5 in-flight"
        );
        for (text, rule) in [
            ("200000 total", "with the idle time"),
            ("200000 total:", "with the idle time"),
            ("200000 total:fortnight", "with the idle time"),
            ("200000 total:month@UTC", "with the idle time"),
            ("200000 totals:7d", "with the idle time"),
            ("200000 total:367d", "from 1 ms to 366 days"),
            ("200000 total:0s", "from 1 ms to 366 days"),
            ("x total:7d", "the limit is"),
            ("200000 total:7d gcra", "with the idle time"),
            ("200000/7d total", "with the idle time"),
            ("200000 total:7d a>=5", "shares are counted by"),
            ("200000 total:7d burst 5", "burst may stand once"),
            ("200000 total:7d total:7d", "with the idle time"),
        ] {
            let error = text.parse::<Quota>().unwrap_err().to_string();
            assert!(error.contains(rule), "{text:?}: {error}");
        }
        // A share may have the name.
        let quota = Quota::per_minute(9).shares([Share::of("total").reserve(3)]);
        assert_eq!(quota.to_string().parse(), Ok(quota));
    }

    #[test]
    fn a_share_may_have_a_part_of_the_limit() {
        for (text, units) in [
            (
                "1000/minute batch<=50% interactive>=20%",
                "1000/minute batch<=500 interactive>=200",
            ),
            ("7/minute a>=50%<=99%", "7/minute a>=3<=6"),
            ("3/minute a>=1% b<=1%", "3/minute a>=1 b<=1"),
            ("1000/minute a<=0% b>=0%", "1000/minute a<=0 b>=0"),
            ("0/minute a>=50% b<=50%", "0/minute a>=0 b<=0"),
            ("4294967295/day a<=100%", "4294967295/day"),
            ("8 in-flight a>=25% b<=3", "8 in-flight a>=2 b<=3"),
        ] {
            let quota: Quota = text.parse().unwrap();
            assert!(quota.to_string().starts_with(units), "{text:?}: {quota}");
        }
        for (text, rule) in [
            ("9/minute a>=101%", "a share is one word"),
            ("9/minute a>=300%", "a share is one word"),
            ("9/minute a<=%", "a share is one word"),
            ("9/minute a<=1.5%", "a share is one word"),
            ("9/minute a<5", "a share is one word"),
            ("9/minute a=<5", "a share is one word"),
            ("9/minute a=5", "a share is one word"),
            ("9/minute a <= 5%", "a share is one word"),
            ("9/minute a>= 5%", "a share is one word"),
            ("2/minute a>=1% b>=1% c>=1%", "together at most the limit"),
        ] {
            let error = text.parse::<Quota>().unwrap_err().to_string();
            assert!(error.contains(rule), "{text:?}: {error}");
        }
    }

    #[test]
    fn the_error_of_an_unknown_word_lists_the_words() {
        let error = "9/minute x".parse::<Quota>().unwrap_err().to_string();
        for word in ["sliding-log", "burst 50", "batch<=50%", "soft", "warn:80%"] {
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn a_share_may_be_named_as_a_mark() {
        for name in [
            "warn:x",
            "warn:",
            "warn:80%",
            "soft",
            "in-flight",
            "gcra",
            "%",
        ] {
            for quota in [Quota::per_minute(100), Quota::in_flight(5)] {
                for share in [
                    Share::of(name),
                    Share::of(name).reserve(5),
                    Share::of(name).at_most(4),
                ] {
                    let quota = quota.clone().shares([Share::of("first"), share]);
                    assert_eq!(quota.to_string().parse(), Ok(quota.clone()));
                    let quota = quota.warn_at(80);
                    assert_eq!(quota.to_string().parse(), Ok(quota));
                }
            }
        }
    }

    #[cfg(feature = "calendar")]
    #[test]
    fn the_window_may_be_one_of_a_calendar() {
        let quota: Quota = "100/month@Europe/Berlin".parse().unwrap();
        assert_eq!(
            Ok(&quota),
            Quota::per_calendar_month(100, "Europe/Berlin").as_ref()
        );
        assert_eq!(quota.algorithm(), Algorithm::FixedWindow);
        assert_eq!(quota.calendar().unwrap().zone(), "Europe/Berlin");
        assert_eq!(quota.window(), Duration::from_secs(31 * 86_400));
        assert_eq!(quota.short_window(), "month");
        for text in [
            "100/month@Europe/Berlin",
            "0/day@UTC",
            "7/week:7@America/Argentina/Buenos_Aires",
            "500/day:04:00@Europe/Paris",
            "500/week:2:04:30@Etc/GMT+4 soft",
        ] {
            assert_eq!(text.parse::<Quota>().unwrap().to_string(), text);
        }
        assert_eq!(
            "100/month@Europe/Berlin fixed-window".parse(),
            Ok(quota.clone())
        );
        for (text, rule) in [
            ("1/month@Europe/Berlin gcra", "counted as a fixed-window"),
            ("1/month@Europe/Berlin unknown", "the algorithm is"),
            ("1/month", "month@Europe/Berlin"),
            ("1/month@Nowhere", "IANA database"),
        ] {
            let error = text.parse::<Quota>().unwrap_err().to_string();
            assert!(error.contains(rule), "{text:?}: {error}");
        }
        assert_ne!(quota, Quota::per_calendar_month(100, "UTC").unwrap());
        assert_ne!(quota.clone(), quota.starting_on(17).unwrap());
    }

    #[cfg(not(feature = "calendar"))]
    #[test]
    fn the_error_of_a_calendar_window_names_the_feature() {
        let error = "100/month@Europe/Berlin"
            .parse::<Quota>()
            .unwrap_err()
            .to_string();
        assert!(error.contains("feature `calendar`"), "{error}");
    }

    #[test]
    fn the_error_quotes_only_the_beginning_of_a_long_text() {
        let error = "x".repeat(1 << 20).parse::<Quota>().unwrap_err();
        assert!(error.to_string().len() < 300);
    }

    proptest! {
        #[test]
        fn formatted_text_parses_to_the_same_value(
            limit: u32,
            micros in 1_000_u64..=366 * 86_400_000_000,
            algorithm in prop::sample::select(Algorithm::ALL),
            buckets in 1..=MAX_BUCKETS,
            warn in 1..=100_u8,
            is_total: bool,
        ) {
            let algorithm = if is_total { Algorithm::Total } else { algorithm.with_buckets(buckets) };
            let window = Duration::from_micros(micros);
            let quota = if is_total {
                Quota::total(limit, window)
            } else {
                Quota::new(limit, window).with_algorithm(algorithm)
            };
            prop_assert_eq!(quota.to_string().parse(), Ok(quota.clone()));
            let list = Quotas::from([quota.clone().soft(), quota.clone().warn_at(warn), quota.soft().warn_at(warn)]);
            prop_assert_eq!(list.to_string().parse(), Ok(list));
            prop_assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
        }

        #[test]
        fn buckets_and_fractions_parse_to_the_same_value(
            whole in 0..1_000_u32,
            fraction in 1..1_000_u32,
            seconds in 1..10_000_u32,
            units in 1..10_000_u32,
        ) {
            let rate: Quota = format!("{whole}.{fraction:03}/{seconds}s").parse().unwrap();
            let micros = u128::from(seconds) * 1_000_000;
            let exact = u128::from(whole * 1_000 + fraction) * rate.window().as_micros();
            prop_assert_eq!(exact, u128::from(rate.limit()) * micros * 1_000);
            if let Ok(bucket) = rate.try_burst(units) {
                let end = format!(" burst {units}");
                prop_assert!(bucket.to_string().ends_with(&end));
                prop_assert_eq!(bucket.to_string().parse(), Ok(bucket));
            }
        }

        #[test]
        fn slots_parse_to_the_same_value(limit: u32, micros in 5_000_000_u64..=600_000_000) {
            let lease = Duration::from_micros(micros);
            let quota = Quota::in_flight(limit).slot_lease(lease);
            prop_assert_eq!(quota.to_string().parse(), Ok(quota.clone()));
            let list = Quotas::from([Quota::in_flight(limit), Quota::per_day(limit), quota]);
            prop_assert_eq!(list.to_string().parse(), Ok(list));
        }

        #[test]
        fn no_text_panics(text in "[0-9]{0,11} (in-flight|total):?[0-9]{0,22}[a-z]{0,3}|\\PC*|[0-9]{0,22}/[0-9]{0,22} ?[a-z]{0,12} ?[a-z:0-9]{0,9}( soft| warn:[0-9]{0,4}%?){0,3}") {
            let _ = text.parse::<Quota>();
        }
    }

    #[test]
    fn a_list_of_quotas_is_separated_by_commas_or_semicolons() {
        let text = "100/minute, 5/10s gcra";
        let quotas: Quotas = text.parse().unwrap();
        assert_eq!(quotas.len(), 2);
        assert_eq!(quotas.to_string(), text);
        for separated in ["100/minute; 5/10s gcra", "100/minute;5/10s gcra"] {
            assert_eq!(separated.parse(), Ok(quotas.clone()), "{separated}");
        }
        for wrong in [
            "",
            " ",
            ",",
            ";",
            "5/10s,",
            "5/10s;",
            "5/10s,;6/1m",
            "5/10s 6/1m",
        ] {
            assert!(wrong.parse::<Quotas>().is_err(), "{wrong:?}");
        }
    }
}
