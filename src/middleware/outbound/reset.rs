//! The formats of a wait or a time in headers: seconds, milliseconds, a duration such as `6m0s`, a time since 1970, an HTTP
//! date, and RFC 3339.

use std::time::{Duration, SystemTime};

use crate::quota::parse_number;

/// The longest wait that makes sense: the reset of a monthly limit.
const MAX_WAIT: Duration = Duration::from_secs(31 * 86_400);

/// From here on, a number of seconds is a time since 1970, of 2001 or later. As a wait, it would be 31 years.
const EPOCH: Duration = Duration::from_secs(1_000_000_000);

const SECOND: u64 = 1_000_000;

const WEEKDAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// The units of a duration, in microseconds. `ms` comes before `m`.
const UNITS: [(&str, u64); 5] = [
    ("ms", 1_000),
    ("s", SECOND),
    ("m", 60 * SECOND),
    ("h", 3_600 * SECOND),
    ("d", 86_400 * SECOND),
];

/// A parser of one form or several. It returns how long the time is after `now`, which is a time since 1970. `None` if
/// the text makes no sense: it is malformed, negative, in the past, or too far away.
pub(super) type Form = fn(text: &str, now: Duration) -> Option<Duration>;

/// Parses seconds, a duration, a time since 1970 or an HTTP date.
pub(super) fn wait(text: &str, now: Duration) -> Option<Duration> {
    if let Some(time) = epoch(text).or_else(|| http_date(text)) {
        return plausible(time.checked_sub(now)?);
    }
    let seconds = decimal(text, SECOND).map(Duration::from_micros);
    plausible(seconds.or_else(|| duration(text))?)
}

/// Parses a time since 1970 or of RFC 3339. A small number is no wait here: services differ in whether it is in seconds
/// or in milliseconds.
pub(super) fn time(text: &str, now: Duration) -> Option<Duration> {
    let time = epoch(text).or_else(|| rfc_3339(text))?;
    plausible(time.checked_sub(now)?)
}

pub(super) fn millis(text: &str, _: Duration) -> Option<Duration> {
    plausible(Duration::from_micros(decimal(text, 1_000)?))
}

/// Parses the milliseconds of a gRPC pushback. A negative number forbids retries, which tells no time.
pub(super) fn pushback(text: &str, now: Duration) -> Option<Duration> {
    if text.starts_with('-') {
        return Some(Duration::ZERO);
    }
    millis(text, now)
}

pub(super) fn plausible(wait: Duration) -> Option<Duration> {
    (wait <= MAX_WAIT).then_some(wait)
}

/// `None` if the text is no number of units.
pub(super) fn is_zero(text: &str) -> Option<bool> {
    Some(decimal(text, SECOND)? == 0)
}

/// Parses an HTTP date as a time since 1970.
pub(super) fn http_date(date: &str) -> Option<Duration> {
    let date = httpdate::parse_http_date(date).ok()?;
    date.duration_since(SystemTime::UNIX_EPOCH).ok()
}

/// Parses a time of RFC 3339 in UTC, such as `2026-11-25T00:00:30.5Z`, as a time since 1970.
fn rfc_3339(text: &str) -> Option<Duration> {
    let utc = text
        .strip_suffix('Z')
        .or_else(|| text.strip_suffix("+00:00"))?;
    let (date, time) = utc.split_once('T')?;
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let mut date = date.splitn(3, '-');
    let year = date.next()?;
    let month = date.next()?;
    let day = date.next()?;
    let month = MONTHS.get(month.parse::<usize>().ok()?.checked_sub(1)?)?;
    // An HTTP date has a day of the week, and is valid with the right one only.
    let seconds = WEEKDAYS
        .into_iter()
        .find_map(|weekday| http_date(&format!("{weekday}, {day} {month} {year} {time} GMT")))?;
    let fraction = decimal(&format!("0.{fraction}"), SECOND)?;
    Some(seconds + Duration::from_micros(fraction))
}

/// Parses a number of seconds or milliseconds since 1970.
fn epoch(text: &str) -> Option<Duration> {
    match Duration::from_micros(decimal(text, SECOND)?) {
        time if time < EPOCH => None,
        time if time < EPOCH * 1_000 => Some(time),
        time => Some(time / 1_000),
    }
}

/// Parses a duration such as `1h2m3.5s` or `20ms`.
fn duration(text: &str) -> Option<Duration> {
    let mut rest = text;
    let mut sum = 0_u64;
    while !rest.is_empty() {
        let end = rest.find(|char: char| !(char.is_ascii_digit() || char == '.'))?;
        let (number, after) = rest.split_at_checked(end)?;
        let (unit, after) = UNITS
            .iter()
            .find_map(|(name, unit)| Some((*unit, after.strip_prefix(name)?)))?;
        sum = sum.checked_add(decimal(number, unit)?)?;
        rest = after;
    }
    (!text.is_empty()).then(|| Duration::from_micros(sum))
}

/// Parses a decimal number of units that are this long, in microseconds. Rounds up.
fn decimal(text: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    // A unit has at most eleven digits, so that the product with nine more fits.
    let fraction = fraction.get(..9).unwrap_or(fraction);
    let scale = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let part = u128::from(parse_number::<u64>(fraction)?) * u128::from(unit);
    let part = u64::try_from(part.div_ceil(scale)).ok()?;
    parse_number::<u64>(whole)?
        .checked_mul(unit)?
        .checked_add(part)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// 25 November 2026, 00:00:00.
    const NOW: Duration = Duration::from_secs(1_795_564_800);

    fn micros(text: &str) -> Option<u64> {
        wait(text, NOW).map(crate::clock::micros)
    }

    #[test]
    fn each_form_of_a_time_is_understood() {
        for (text, expected) in [
            ("0", 0),
            ("30", 30_000_000),
            ("2.0", 2_000_000),
            ("0.0000001", 1),
            ("1.9999999999999999999999", 2_000_000),
            ("6m0s", 360_000_000),
            ("2m59.56s", 179_560_000),
            ("1s", 1_000_000),
            ("20ms", 20_000),
            ("1h2m3s", 3_723_000_000),
            ("1d", 86_400_000_000),
            ("1795564830", 30_000_000),
            ("1795564830.5", 30_500_000),
            ("1795564830250", 30_250_000),
            ("Wed, 25 Nov 2026 00:00:30 GMT", 30_000_000),
            ("Wednesday, 25-Nov-26 00:00:30 GMT", 30_000_000),
            ("2678400", 2_678_400_000_000),
        ] {
            assert_eq!(micros(text), Some(expected), "{text}");
        }
        assert_eq!(millis("250", NOW), Some(Duration::from_millis(250)));
        assert_eq!(millis("250.5", NOW), Some(Duration::from_micros(250_500)));
    }

    #[test]
    fn what_makes_no_sense_is_none() {
        for text in [
            "",
            ".",
            "-1",
            "+1",
            "1e3",
            "1,5",
            "1 s",
            "s",
            "1.5.2s",
            "6m0",
            "1y",
            "١",
            "99999999999999999999",
            "2678401",
            "31536000",
            "32d",
            "1795564799",
            "Tue, 24 Nov 2026 23:59:59 GMT",
            "Thu, 25 Nov 2027 00:00:00 GMT",
            "Wed, 25 Nov 2026",
            "2026-11-25T00:00:30Z",
        ] {
            assert_eq!(micros(text), None, "{text}");
        }
    }

    #[test]
    fn a_time_is_since_1970_or_of_rfc_3339_and_never_a_wait() {
        for (text, expected) in [
            ("1795564830", Some(30_000_000)),
            ("1795564830250", Some(30_250_000)),
            ("2026-11-25T00:00:30Z", Some(30_000_000)),
            ("2026-11-25T00:00:30.25Z", Some(30_250_000)),
            ("2026-11-25T00:00:30.000000001Z", Some(30_000_001)),
            ("2026-11-25T00:00:30+00:00", Some(30_000_000)),
            ("2026-11-25T00:00:00Z", Some(0)),
            ("2026-12-26T00:00:00Z", Some(2_678_400_000_000)),
            ("2026-12-26T00:00:00.1Z", None),
            ("2026-11-24T23:59:59Z", None),
            ("2026-11-31T00:00:00Z", None),
            ("2026-13-01T00:00:00Z", None),
            ("2026-00-01T00:00:00Z", None),
            ("2026-12-1T00:00:00Z", None),
            ("2026-11-25T24:00:00Z", None),
            ("2026-11-25T00:00:30", None),
            ("2026-11-25T00:00:30+01:00", None),
            ("2026-11-25 00:00:30Z", None),
            ("2026-11-25T00:00:30.Z", None),
            ("2026-11-25T00:00:30,5Z", None),
            ("2026-11-25TZ", None),
            ("Z", None),
            ("30", None),
            ("30s", None),
            ("Wed, 25 Nov 2026 00:00:30 GMT", None),
        ] {
            let wait = time(text, NOW).map(crate::clock::micros);
            assert_eq!(wait, expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_time_as_another_crate_writes_it_is_understood(
            now in 1_000_000_000_u32..4_000_000_000,
            wait in 0_u32..2_678_400,
            micros in 0_i32..1_000_000,
        ) {
            let seconds = i64::from(now) + i64::from(wait);
            let nanos = micros * 1_000;
            let text = prost_types::Timestamp { seconds, nanos }.to_string();
            let expected = u64::from(wait) * SECOND + u64::from(micros.unsigned_abs());
            let wait = time(&text, Duration::from_secs(now.into()));
            prop_assert_eq!(wait, Some(Duration::from_micros(expected)), "{}", text);
        }
    }
}
