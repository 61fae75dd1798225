//! The forms of a wait or a time in headers: a number, a duration such as `6m0s`, an HTTP date, and RFC 3339. Each may stand in
//! any header: services change their forms more often than their headers.

use std::time::{Duration, SystemTime};

use crate::quota::parse_number;

/// From here on, a number of seconds is a time since 1970, of 2001 or later. As a wait, it would be 31 years.
const EPOCH: u64 = 1_000_000_000;

/// From here on, a number is a time since 1970 in milliseconds: as seconds, it would be after the year 30 000.
const EPOCH_MILLIS: u64 = EPOCH * 1_000;

const MILLI: u64 = 1_000;

const SECOND: u64 = 1_000_000;

const WEEKDAYS: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// The units of a duration, in microseconds. `ms` comes before `m`.
pub(super) const UNITS: [(&str, u64); 5] = [
    ("ms", MILLI),
    ("s", SECOND),
    ("m", 60 * SECOND),
    ("h", 3_600 * SECOND),
    ("d", 86_400 * SECOND),
];

/// The meaning of a number in a header, if it is too small for a time since 1970.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum BareNumber {
    Seconds,
    Millis,
    /// Nothing: services differ in the unit of this header.
    Nothing,
}

/// Returns how long the time is after `now`, a time since 1970. `None` if the text is malformed or negative, or in the past.
/// A number that is too large for any wait is a long wait.
pub(super) fn wait(text: &str, number: BareNumber, now: Duration) -> Option<Duration> {
    if let Some(whole) = whole_part(text) {
        let is_in_millis = number == BareNumber::Millis || whole >= EPOCH_MILLIS;
        let epoch = if is_in_millis { EPOCH_MILLIS } else { EPOCH };
        let unit = if is_in_millis { MILLI } else { SECOND };
        let span = Duration::from_micros(decimal(text, unit)?);
        if whole >= epoch {
            return span.checked_sub(now);
        }
        return (number != BareNumber::Nothing).then_some(span);
    }
    if let Some(time) = http_date(text).or_else(|| rfc_3339(text)) {
        return time.checked_sub(now);
    }
    duration(text)
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

/// Parses a time of RFC 3339, such as `2026-11-25T01:00:30.5+01:00`, as a time since 1970.
fn rfc_3339(text: &str) -> Option<Duration> {
    let (date, time) = text.split_once(['T', 't', ' '])?;
    let offset_at = time.find(['Z', 'z', '+', '-'])?;
    let (time, offset) = time.split_at_checked(offset_at)?;
    let (time, fraction) = time.split_once('.').unwrap_or((time, "0"));
    let mut date = date.splitn(3, '-');
    let year = date.next()?;
    let month = date.next()?;
    let day = date.next()?;
    let month = MONTHS.get(month.parse::<usize>().ok()?.checked_sub(1)?)?;
    // An HTTP date has a day of the week, and is valid with the right one only.
    let local = WEEKDAYS
        .into_iter()
        .find_map(|weekday| http_date(&format!("{weekday}, {day} {month} {year} {time} GMT")))?;
    let fraction = decimal(&format!("0.{fraction}"), SECOND)?;
    let local = local + Duration::from_micros(fraction);
    match offset.strip_prefix('+') {
        Some(east) => local.checked_sub(utc_offset(east)?),
        None => match offset.strip_prefix('-') {
            Some(west) => local.checked_add(utc_offset(west)?),
            None => (offset.len() == 1).then_some(local),
        },
    }
}

/// Parses the hours and minutes between local time and UTC, such as `05:30`.
fn utc_offset(text: &str) -> Option<Duration> {
    let (hours, minutes) = text.split_once(':')?;
    let hours = parse_number::<u64>(hours).filter(|hours| *hours < 24)?;
    let minutes = parse_number::<u64>(minutes).filter(|minutes| *minutes < 60)?;
    let is_complete = text.len() == "05:30".len();
    is_complete.then(|| Duration::from_secs(hours * 3_600 + minutes * 60))
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
        sum = sum.saturating_add(decimal(number, unit)?);
        rest = after;
    }
    (!text.is_empty()).then(|| Duration::from_micros(sum))
}

/// Parses a decimal number of units that are this long, in microseconds. Rounds up. What is too large is the largest number.
fn decimal(text: &str, unit: u64) -> Option<u64> {
    let whole = whole_part(text)?;
    let (_, fraction) = text.split_once('.').unwrap_or((text, "0"));
    // A unit has at most eleven digits, so that the product with nine more fits.
    let fraction = fraction.get(..9).unwrap_or(fraction);
    let scale = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let part = u128::from(parse_number::<u64>(fraction)?) * u128::from(unit);
    let part = u64::try_from(part.div_ceil(scale)).ok()?;
    Some(whole.saturating_mul(unit).saturating_add(part))
}

/// The digits before the point of a decimal number. `None` if the text is no such number.
fn whole_part(text: &str) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_decimal = is_number(whole) && is_number(fraction);
    is_decimal.then(|| whole.parse().unwrap_or(u64::MAX))
}

fn is_number(digits: &str) -> bool {
    !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// 25 November 2026, 00:00:00.
    const NOW: Duration = Duration::from_secs(1_795_564_800);

    fn micros(text: &str, number: BareNumber) -> Option<u64> {
        wait(text, number, NOW).map(crate::clock::micros)
    }

    /// The forms that name their unit or their time.
    const FORMS: [(&str, u64); 19] = [
        ("6m0s", 360_000_000),
        ("2m59.56s", 179_560_000),
        ("1s", 1_000_000),
        ("20ms", 20_000),
        ("1h2m3s", 3_723_000_000),
        ("1d", 86_400_000_000),
        ("32d", 2_764_800_000_000),
        ("1795564830250", 30_250_000),
        ("Wed, 25 Nov 2026 00:00:30 GMT", 30_000_000),
        ("Wednesday, 25-Nov-26 00:00:30 GMT", 30_000_000),
        ("Thu, 25 Nov 2027 00:00:00 GMT", 31_536_000_000_000),
        ("2026-11-25T00:00:30Z", 30_000_000),
        ("2026-11-25T00:00:30.25Z", 30_250_000),
        ("2026-11-25T00:00:30.000000001Z", 30_000_001),
        ("2026-11-25T00:00:30+00:00", 30_000_000),
        ("2026-11-25t05:30:30+05:30", 30_000_000),
        ("2026-11-24 16:00:30-08:00", 30_000_000),
        ("2026-11-25T00:00:00Z", 0),
        ("2026-12-26T00:00:00.1Z", 2_678_400_100_000),
    ];

    #[test]
    fn a_form_that_names_its_unit_says_the_same_in_each_header() {
        for (text, expected) in FORMS {
            for number in [BareNumber::Seconds, BareNumber::Millis, BareNumber::Nothing] {
                assert_eq!(micros(text, number), Some(expected), "{text}");
            }
        }
    }

    #[test]
    fn the_header_says_what_a_number_is() {
        for (text, seconds, millis, nothing) in [
            ("0", Some(0), Some(0), None),
            ("30", Some(30_000_000), Some(30_000), None),
            ("2.0", Some(2_000_000), Some(2_000), None),
            ("250.5", Some(250_500_000), Some(250_500), None),
            ("0.0000001", Some(1), Some(1), None),
            (
                "1.9999999999999999999999",
                Some(2_000_000),
                Some(2_000),
                None,
            ),
            (
                "2678401",
                Some(2_678_401_000_000),
                Some(2_678_401_000),
                None,
            ),
            (
                "1795564830",
                Some(30_000_000),
                Some(1_795_564_830_000),
                Some(30_000_000),
            ),
            (
                "1795564830.5",
                Some(30_500_000),
                Some(1_795_564_830_500),
                Some(30_500_000),
            ),
            // In the past, as a time.
            ("1795564799", None, Some(1_795_564_799_000), None),
        ] {
            assert_eq!(micros(text, BareNumber::Seconds), seconds, "{text}");
            assert_eq!(micros(text, BareNumber::Millis), millis, "{text}");
            assert_eq!(micros(text, BareNumber::Nothing), nothing, "{text}");
        }
        let century = Duration::from_secs(100 * 365 * 86_400);
        for text in [
            "99999999999999999999",
            "340282366920938463463374607431768211456.5",
        ] {
            for number in [BareNumber::Seconds, BareNumber::Millis, BareNumber::Nothing] {
                assert!(wait(text, number, NOW) > Some(century), "{text}");
            }
        }
    }

    #[test]
    fn what_makes_no_sense_is_none() {
        for text in [
            "",
            ".",
            "1.",
            ".5",
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
            "1795564799000",
            "Tue, 24 Nov 2026 23:59:59 GMT",
            "Wed, 25 Nov 2026",
            "2026-11-24T23:59:59Z",
            "2026-11-31T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-00-01T00:00:00Z",
            "2026-12-1T00:00:00Z",
            "2026-11-25T24:00:00Z",
            "2026-11-25T00:00:30",
            "2026-11-25T00:00:30.Z",
            "2026-11-25T00:00:30,5Z",
            "2026-11-25T00:00:30Zulu",
            "2026-11-25T00:00:30+1:00",
            "2026-11-25T00:00:30+0100",
            "2026-11-25T00:00:30-24:00",
            "2026-11-25T00:00:30-01:60",
            "2026-11-25T00:00:30--01:00",
            "2026-11-25TZ",
            "Z",
        ] {
            for number in [BareNumber::Seconds, BareNumber::Millis, BareNumber::Nothing] {
                assert_eq!(micros(text, number), None, "{text}");
            }
        }
    }

    proptest! {
        #[test]
        fn a_time_as_another_crate_writes_it_is_understood(
            now in 1_000_000_000_u32..4_000_000_000,
            left in 0_u32..2_678_400,
            micros in 0_i32..1_000_000,
        ) {
            let seconds = i64::from(now) + i64::from(left);
            let nanos = micros * 1_000;
            let text = prost_types::Timestamp { seconds, nanos }.to_string();
            let expected = u64::from(left) * SECOND + u64::from(micros.unsigned_abs());
            let wait = wait(&text, BareNumber::Nothing, Duration::from_secs(now.into()));
            prop_assert_eq!(wait, Some(Duration::from_micros(expected)), "{}", text);
        }
    }
}
