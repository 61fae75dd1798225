//! The forms in which services tell a time: seconds, a time since 1970, a duration such as `6m0s`, and an HTTP date.

use std::time::{Duration, SystemTime};

/// The longest wait that makes sense: the reset of a monthly limit.
const MAX_WAIT: Duration = Duration::from_secs(31 * 86_400);

/// From here on, a number of seconds is a time since 1970, of 2001 or later. As a wait, it would be 31 years.
const EPOCH: Duration = Duration::from_secs(1_000_000_000);

const SECOND: u64 = 1_000_000;

/// The units of a duration, in microseconds. `ms` comes before `m`.
const UNITS: [(&str, u64); 5] = [
    ("ms", 1_000),
    ("s", SECOND),
    ("m", 60 * SECOND),
    ("h", 3_600 * SECOND),
    ("d", 86_400 * SECOND),
];

/// Parses a time in any of the forms. Returns how long it is after `now`, which is a time since 1970. `None` if it makes
/// no sense: it is malformed, negative, in the past, or too far away.
pub(super) fn wait(text: &str, now: Duration) -> Option<Duration> {
    let wait = if let Some(micros) = decimal(text, SECOND) {
        match Duration::from_micros(micros) {
            seconds if seconds < EPOCH => seconds,
            // Some services tell milliseconds since 1970.
            time if time >= EPOCH * 1_000 => (time / 1_000).checked_sub(now)?,
            time => time.checked_sub(now)?,
        }
    } else if let Some(duration) = duration(text) {
        duration
    } else {
        since_1970(text)?.checked_sub(now)?
    };
    (wait <= MAX_WAIT).then_some(wait)
}

/// Parses a number of milliseconds.
pub(super) fn millis(text: &str) -> Option<Duration> {
    let wait = Duration::from_micros(decimal(text, 1_000)?);
    (wait <= MAX_WAIT).then_some(wait)
}

/// Returns whether a number of units is 0. `None` if it is no such number.
pub(super) fn is_zero(text: &str) -> Option<bool> {
    Some(decimal(text, SECOND)? == 0)
}

/// Parses an HTTP date as a time since 1970.
pub(super) fn since_1970(date: &str) -> Option<Duration> {
    let date = httpdate::parse_http_date(date).ok()?;
    date.duration_since(SystemTime::UNIX_EPOCH).ok()
}

/// Parses a duration such as `1h2m3.5s` or `20ms`.
fn duration(text: &str) -> Option<Duration> {
    let (mut rest, mut sum) = (text, 0_u64);
    while !rest.is_empty() {
        let end = rest.find(|char: char| !(char.is_ascii_digit() || char == '.'))?;
        let (number, after) = rest.split_at_checked(end)?;
        let mut units = UNITS.iter();
        let (unit, after) =
            units.find_map(|(name, unit)| Some((*unit, after.strip_prefix(name)?)))?;
        sum = sum.checked_add(decimal(number, unit)?)?;
        rest = after;
    }
    (!text.is_empty()).then(|| Duration::from_micros(sum))
}

/// Parses a decimal number of units that are this long, in microseconds. Rounds up.
fn decimal(text: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| -> Option<u64> {
        let are_digits = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|_| are_digits)
    };
    // A unit has at most eleven digits, so that the product with nine more fits.
    let fraction = fraction.get(..9).unwrap_or(fraction);
    let scale = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let part = u128::from(digits(fraction)?) * u128::from(unit);
    let part = u64::try_from(part.div_ceil(scale)).ok()?;
    digits(whole)?.checked_mul(unit)?.checked_add(part)
}

#[cfg(test)]
mod tests {
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
        assert_eq!(millis("250"), Some(Duration::from_millis(250)));
        assert_eq!(millis("250.5"), Some(Duration::from_micros(250_500)));
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
}
