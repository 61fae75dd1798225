//! Parses and formats quotas: `LIMIT/WINDOW`, then the algorithm unless it is the default, then `soft` and `warn:80%`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::algorithm::{Algorithm, MAX_BUCKETS, algorithm_rule};
use super::calendar::Calendar;
use super::quota::Quota;
use super::quotas::Quotas;
use super::shares::Share;
use crate::error::ConfigError;

/// The units of time, longest first: length in microseconds, word for one unit, suffix of a number.
const TIME_UNITS: [(u64, &str, &str); 6] = [
    (86_400_000_000, "day", "d"),
    (3_600_000_000, "hour", "h"),
    (60_000_000, "minute", "m"),
    (1_000_000, "second", "s"),
    (1_000, "millisecond", "ms"),
    (1, "microsecond", "us"),
];

/// Other spellings of units that are read, with the word of the unit. A plural of a word is read, too.
const UNIT_ALIASES: [(&str, &str); 6] = [
    ("hr", "hour"),
    ("hrs", "hour"),
    ("min", "minute"),
    ("mins", "minute"),
    ("sec", "second"),
    ("secs", "second"),
];

/// The separators of a list of quotas.
const SEPARATORS: [char; 2] = [',', ';'];

/// Parses `LIMIT/WINDOW` or `LIMIT/WINDOW ALGORITHM`: `100/minute`, `5/10s`, `2000/day gcra`.
///
/// - The limit is a whole number from 0 to 4294967295.
/// - The window is a unit, such as `minute`, or a whole number with a unit: `10s`, `10 seconds`. The units are
///   `day`, `hour`, `minute`, `second`, `millisecond` and `microsecond`, also as `d`, `h`, `m`, `s`, `ms`, `us`,
///   `hr`, `min`, `sec`, and in the plural.
/// - With the feature `calendar`, the window may be a `day`, `week` or `month` of a time zone:
///   `1000000/month@Europe/Berlin`, `5000/day@UTC`. A month may begin on a billing day, and a week on a day from 1
///   (Monday) to 7: `1000000/month:17@Europe/Berlin`.
/// - The algorithm is `sliding-log` (the default), `sorted-set-log`, `sliding-counter`,
///   `sliding-buckets:60`, `fixed-window` or `gcra`.
///
/// A quota [in flight](Quota::in_flight) is `5 in-flight`, or `5 in-flight:60s` with a lease of its slots.
///
/// [Shares](Quota::shares) follow, each with its reserve and its bound: `1000/minute critical>=200 batch<=400 free>=50<=100`.
///
/// The last words may be `soft`, for a [soft](Quota::soft) quota, and `warn:80%`, for [`warn_at`](Quota::warn_at):
/// `100/minute gcra soft warn:80%`.
impl FromStr for Quota {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        if text.contains(SEPARATORS) {
            return Err(ConfigError::quota(
                text,
                "this is one quota; a list of quotas is parsed as Quotas",
            ));
        }
        let malformed = || ConfigError::quota(text, MARKS_RULE);
        let (unmarked, is_soft, warn_percent) = split_marks(text).ok_or_else(malformed)?;
        let quota = match split_shares(unmarked) {
            Some((unshared, shares)) => parse_unmarked(unshared)?.with_shares_of(shares)?,
            None => parse_unmarked(unmarked)?,
        };
        if !is_soft && warn_percent.is_none() {
            return Ok(quota);
        }
        quota.try_marks(is_soft, warn_percent).ok_or_else(malformed)
    }
}

/// Splits off the words behind a quota: whether it is soft, and the percentage at which it warns. Each stands once at most.
fn split_marks(text: &str) -> Option<(&str, bool, Option<u8>)> {
    let (mut rest, mut is_soft, mut warn_percent) = (text, false, None);
    while let Some((before, word)) = rest
        .trim_end()
        .rsplit_once(|c: char| c.is_ascii_whitespace())
    {
        if word == SOFT && !is_soft {
            is_soft = true;
        } else if let Some(percent) = word.strip_prefix(WARN)
            && warn_percent.is_none()
            && !word.contains(SHARE_SIGNS)
        {
            let percent = parse_number(percent.strip_suffix('%')?)?;
            warn_percent = Some(u8::try_from(percent).ok()?);
        } else {
            break;
        }
        rest = before;
    }
    Some((rest, is_soft, warn_percent))
}

/// Parses the text of a quota without the words behind it.
fn parse_unmarked(text: &str) -> Result<Quota, ConfigError> {
    let malformed = |rule: &str| ConfigError::quota(text, rule);
    let parse_limit = |limit: &str| {
        parse_number(limit.trim())
            .and_then(|limit| u32::try_from(limit).ok())
            .ok_or_else(|| malformed("the limit is a whole number from 0 to 4294967295"))
    };
    if let Some((limit, lease)) = text.split_once(IN_FLIGHT) {
        if limit.contains('/') {
            return Err(malformed(SLOT_LEASE_RULE));
        }
        let quota = Quota::in_flight(parse_limit(limit)?);
        let quota = match lease.trim_end() {
            "" => Some(quota),
            lease => lease
                .strip_prefix(':')
                .and_then(parse_micros)
                .and_then(|micros| quota.try_slot_lease(micros)),
        };
        return quota.ok_or_else(|| malformed(SLOT_LEASE_RULE));
    }
    let (limit, rest) = text
        .trim()
        .split_once('/')
        .ok_or_else(|| malformed("a quota is LIMIT/WINDOW, like 100/minute or 5/10s"))?;
    let limit = parse_limit(limit)?;
    let (window, algorithm) = split_window(rest.trim());
    let quota = Window::parse(window)
        .ok_or_else(|| malformed(WINDOW_RULE))??
        .into_quota(limit)?;
    match algorithm {
        "" => Ok(quota),
        name => {
            quota.try_algorithm(parse_algorithm(name).ok_or_else(|| malformed(&algorithm_rule()))?)
        }
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

/// Follows the limit of a quota in flight.
pub(super) const IN_FLIGHT: &str = " in-flight";

/// The words behind a quota.
const SOFT: &str = "soft";
const WARN: &str = "warn:";

/// A word with one of them is a share, whatever its name begins with.
const SHARE_SIGNS: [char; 2] = ['<', '>'];

const MARKS_RULE: &str = "behind a quota may stand soft, unless it is in flight, and warn: with a percentage from 1% to 100%, like 100/minute soft warn:80%";

const SLOT_LEASE_RULE: &str = "a quota of slots is LIMIT in-flight, like 5 in-flight, or with a lease from 5s to 10m: 5 in-flight:60s";

const WINDOW_RULE: &str = "the window is day, hour, minute, second, or a number with a unit, like 10s, 250ms or 5 minutes; or that of a calendar, like month@Europe/Berlin";

/// Splits off the shares: all words from the first one with a reserve or a bound on.
fn split_shares(text: &str) -> Option<(&str, &str)> {
    let sign = text.find(SHARE_SIGNS)?;
    let (before, _) = text.split_at(sign);
    let word = before.rfind(|c: char| c.is_ascii_whitespace())?;
    Some(text.split_at(word))
}

/// Parses a share: `critical>=200`, `batch<=400`, or both: `free>=50<=100`.
fn parse_share(text: &str) -> Option<Share> {
    let units = |text: &str| u32::try_from(parse_number(text)?).ok();
    let (rest, most) = match text.split_once("<=") {
        Some((rest, most)) => (rest, Some(units(most)?)),
        None => (text, None),
    };
    let (name, reserve) = match rest.split_once(">=") {
        Some((name, reserve)) => (name, Some(units(reserve)?)),
        None => (rest, None),
    };
    if (reserve, most) == (None, None) {
        return None;
    }
    let share = Share::of(name).reserve(reserve.unwrap_or(0));
    Some(match most {
        Some(most) => share.at_most(most),
        None => share,
    })
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

const SHARE_RULE: &str = "a share is its name with its reserve, its bound or both, like critical>=200, batch<=400 or free>=50<=100";

/// The window of a quota as text has it.
pub(super) enum Window {
    Micros(u64),
    Calendar(Calendar),
}

impl Window {
    /// Returns `None` if the text is not a window, and an error if it is an invalid window of a calendar.
    fn parse(text: &str) -> Option<Result<Self, ConfigError>> {
        if text.contains('@') {
            return Some(Calendar::parse(text).map(Self::Calendar));
        }
        parse_micros(text).map(|micros| Ok(Self::Micros(micros)))
    }

    pub(super) fn into_quota(self, limit: u32) -> Result<Quota, ConfigError> {
        match self {
            Self::Micros(micros) => Quota::try_new(limit, Duration::from_micros(micros)),
            Self::Calendar(calendar) => Ok(Quota::from_calendar(limit, calendar)),
        }
    }
}

/// Splits off the algorithm, which is empty if there is none. A space may follow the number of a window.
fn split_window(text: &str) -> (&str, &str) {
    let is_space = |c: char| c.is_ascii_whitespace();
    let number_end = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let unit = number_end.trim_start_matches(is_space);
    let unit_end = unit.find(is_space).unwrap_or(unit.len());
    let (window, algorithm) = text.split_at(text.len() - unit.len() + unit_end);
    (window, algorithm.trim())
}

#[cfg(feature = "serde")]
pub(super) fn parse_window(text: &str) -> Result<Window, ConfigError> {
    let malformed = || ConfigError::quota_part("window", text, WINDOW_RULE);
    Window::parse(text.trim()).ok_or_else(malformed)?
}

/// Formats a window as [`parse_window`] reads it.
#[cfg(feature = "serde")]
pub(super) fn format_window(quota: &Quota) -> String {
    struct OfQuota<'a>(&'a Quota);
    impl fmt::Display for OfQuota<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write_window(f, self.0)
        }
    }
    OfQuota(quota).to_string()
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
        f.write_str(self.facts().text)?;
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
    let mut algorithms = Algorithm::ALL.iter().chain([&Algorithm::InFlight]);
    let algorithm = algorithms.find(|algorithm| algorithm.facts().text == name)?;
    match (algorithm.buckets(), buckets) {
        (None, None) => Some(*algorithm),
        (Some(_), Some(buckets)) => {
            let buckets = u16::try_from(parse_number(buckets)?).ok()?;
            let is_in_range = (1..=MAX_BUCKETS).contains(&buckets);
            is_in_range.then_some(algorithm.with_buckets(buckets))
        }
        _ => None,
    }
}

fn parse_micros(text: &str) -> Option<u64> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let count = match text.strip_suffix(unit)? {
        "" => 1,
        digits => parse_number(digits)?,
    };
    Some(count.saturating_mul(parse_unit(unit.trim())?))
}

/// Parses a unit of time. Returns its length in microseconds.
fn parse_unit(text: &str) -> Option<u64> {
    let alias = UNIT_ALIASES.iter().find(|(alias, _)| *alias == text);
    let text = alias.map_or(text, |(_, word)| word);
    let is_unit = |word: &str, suffix: &str| {
        text == suffix || text == word || text.strip_suffix('s') == Some(word)
    };
    let mut units = TIME_UNITS.iter();
    let unit = units.find(|(_, word, suffix)| is_unit(word, suffix));
    unit.map(|(micros, ..)| *micros)
}

/// Parses a duration as the window of a quota: `50ms`, `1s`. Zero is a duration, too.
#[cfg(feature = "redis")]
pub(crate) fn parse_duration(text: &str) -> Option<Duration> {
    parse_micros(text.trim()).map(Duration::from_micros)
}

/// Accepts digits only, unlike `u64::from_str`, which accepts a sign.
fn parse_number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

/// Formats the quota as [`FromStr`](#impl-FromStr-for-Quota) parses it: the limit, the window, and the
/// algorithm unless it is the default; then the shares, `soft` and `warn:80%`, if they are set.
impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_in_flight() {
            write!(f, "{}{IN_FLIGHT}", self.limit())?;
            if !self.has_default_slot_lease() {
                write!(f, ":{}", self.short_window())?;
            }
        } else {
            write!(f, "{}/", self.limit())?;
            write_window(f, self)?;
            match self.algorithm() {
                Algorithm::SlidingLog => {}
                Algorithm::FixedWindow if self.calendar().is_some() => {}
                algorithm => write!(f, " {algorithm}")?,
            }
        }
        for share in self.share_list().list() {
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

/// Formats the shares of a quota with spaces between them.
#[cfg(feature = "serde")]
pub(super) fn format_shares(quota: &Quota) -> String {
    let shares = quota.share_list().list().iter();
    shares.map(Share::to_string).collect::<Vec<_>>().join(" ")
}

impl Quota {
    /// Sets the shares that a text lists.
    pub(super) fn with_shares_of(self, text: &str) -> Result<Self, ConfigError> {
        let shares = text.split_ascii_whitespace().map(parse_share);
        let shares: Option<Vec<_>> = shares.collect();
        let malformed = || ConfigError::quota_part("list of shares", text.trim(), SHARE_RULE);
        self.try_shares(shares.ok_or_else(malformed)?)
    }

    /// Formats the window as a number and a unit: `1s`, `90m`, `1d`; a calendar's window as its unit: `month`.
    pub(crate) fn short_window(&self) -> String {
        if let Some(calendar) = self.calendar() {
            return calendar.unit().word().to_owned();
        }
        let window = self.window_micros();
        let mut units = TIME_UNITS.iter();
        let unit = units.find(|(micros, ..)| window.is_multiple_of(*micros));
        unit.map(|(micros, _, suffix)| format!("{}{suffix}", window / micros))
            .unwrap_or_default()
    }
}

fn write_window(f: &mut fmt::Formatter<'_>, quota: &Quota) -> fmt::Result {
    if let Some(calendar) = quota.calendar() {
        return write!(f, "{calendar}");
    }
    let window = quota.window_micros();
    for (micros, word, suffix) in TIME_UNITS {
        if window == micros {
            return f.write_str(word);
        }
        if window.is_multiple_of(micros) {
            return write!(f, "{}{suffix}", window / micros);
        }
    }
    Ok(())
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
    fn the_error_of_malformed_text_names_the_broken_rule() {
        for (text, rule) in [
            ("", "LIMIT/WINDOW"),
            ("100", "LIMIT/WINDOW"),
            ("/minute", "the limit is"),
            ("-1/minute", "the limit is"),
            ("+1/minute", "the limit is"),
            ("1.5/minute", "the limit is"),
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
            ("5/minute\tin-flight", "slots in flight"),
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
            ("100/minute soft soft", "the algorithm is"),
            ("100/minute soft gcra", "the algorithm is"),
            ("100/minute softly", "the algorithm is"),
            ("100/minute warn:0%", "from 1% to 100%"),
            ("100/minute warn:101%", "from 1% to 100%"),
            ("100/minute warn:300%", "from 1% to 100%"),
            ("100/minute warn:80", "from 1% to 100%"),
            ("100/minute warn:%", "from 1% to 100%"),
            ("100/minute warn:8 0%", "the algorithm is"),
            ("5 in-flight soft", "unless it is in flight"),
            ("soft", "LIMIT/WINDOW"),
            (" soft", "LIMIT/WINDOW"),
        ] {
            let error = text.parse::<Quota>().unwrap_err().to_string();
            assert!(error.contains(rule), "{text:?}: {error}");
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
        assert_eq!(quota.time_zone(), Some("Europe/Berlin"));
        assert_eq!(quota.window(), Duration::from_secs(31 * 86_400));
        assert_eq!(quota.short_window(), "month");
        for text in [
            "100/month@Europe/Berlin",
            "0/day@UTC",
            "7/week:7@America/Argentina/Buenos_Aires",
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
        ) {
            let algorithm = algorithm.with_buckets(buckets);
            let quota = Quota::new(limit, Duration::from_micros(micros)).with_algorithm(algorithm);
            prop_assert_eq!(quota.to_string().parse(), Ok(quota.clone()));
            let list = Quotas::from([quota.clone().soft(), quota.clone().warn_at(warn), quota.soft().warn_at(warn)]);
            prop_assert_eq!(list.to_string().parse(), Ok(list));
            prop_assert_eq!(algorithm.to_string().parse(), Ok(algorithm));
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
        fn no_text_panics(text in "[0-9]{0,11} in-flight:?[0-9]{0,22}[a-z]{0,3}|\\PC*|[0-9]{0,22}/[0-9]{0,22} ?[a-z]{0,12} ?[a-z:0-9]{0,9}( soft| warn:[0-9]{0,4}%?){0,3}") {
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
