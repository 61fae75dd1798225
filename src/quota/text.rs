//! A quota as text: `LIMIT/WINDOW`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::Quota;
use crate::ConfigError;

/// The units of a window, longest first: microseconds, the word that stands for one of it, the
/// letters that follow a number.
const UNITS: [(u64, &str, &str); 6] = [
    (86_400_000_000, "day", "d"),
    (3_600_000_000, "hour", "h"),
    (60_000_000, "minute", "m"),
    (1_000_000, "second", "s"),
    (1_000, "millisecond", "ms"),
    (1, "microsecond", "us"),
];

/// Reads `LIMIT/WINDOW`, where the window is a word (`second`, `minute`, `hour`, `day`) or a number
/// and a unit (`us`, `ms`, `s`, `m`, `h`, `d`): `100/minute`, `5/10s`, `2000/day`.
impl FromStr for Quota {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let malformed = |rule| ConfigError::quota(text, rule);
        let (limit, window) = text
            .trim()
            .split_once('/')
            .ok_or_else(|| malformed("a quota is LIMIT/WINDOW, like 100/minute or 5/10s"))?;
        let limit = number(limit.trim())
            .and_then(|limit| u32::try_from(limit).ok())
            .ok_or_else(|| malformed("the limit is a whole number from 0 to 4294967295"))?;
        let micros = window_micros(window.trim()).ok_or_else(|| {
            malformed("the window is second, minute, hour, day, or a number and us, ms, s, m, h, d")
        })?;
        Self::try_new(limit, Duration::from_micros(micros))
    }
}

fn window_micros(text: &str) -> Option<u64> {
    if let Some((micros, ..)) = UNITS.iter().find(|(_, word, _)| *word == text) {
        return Some(*micros);
    }
    let letters = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let count = number(text.strip_suffix(letters)?)?;
    let (micros, ..) = UNITS.iter().find(|(.., unit)| *unit == letters.trim())?;
    Some(count.saturating_mul(*micros))
}

/// Digits only: `u64::from_str` would also take a sign.
fn number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().ok()).flatten()
}

/// Writes what [`FromStr`](#impl-FromStr-for-Quota) reads: the limit and the window.
impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let window = self.window_micros();
        write!(f, "{}/", self.limit())?;
        for (micros, word, letters) in UNITS {
            if window == micros {
                return f.write_str(word);
            }
            if window.is_multiple_of(micros) {
                return write!(f, "{}{letters}", window / micros);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn text_is_read_as_it_is_meant() {
        for (text, limit, window) in [
            ("100/minute", 100, Duration::from_secs(60)),
            ("5/10s", 5, Duration::from_secs(10)),
            ("2000/day", 2_000, Duration::from_secs(86_400)),
            ("0/hour", 0, Duration::from_secs(3_600)),
            (" 7 / 250ms ", 7, Duration::from_millis(250)),
            (
                "4294967295/366d",
                u32::MAX,
                Duration::from_secs(366 * 86_400),
            ),
            ("1/1ms", 1, Duration::from_millis(1)),
        ] {
            assert_eq!(text.parse(), Ok(Quota::new(limit, window)), "{text}");
        }
    }

    #[test]
    fn malformed_text_is_named_with_the_rule_it_breaks() {
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
            ("1/minutes", "the window is"),
            ("1/Minute", "the window is"),
            ("1/10", "the window is"),
            ("1/s", "the window is"),
            ("1/1.5s", "the window is"),
            ("1/10s/2", "the window is"),
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
    fn a_long_malformed_text_is_quoted_in_part() {
        let error = "x".repeat(1 << 20).parse::<Quota>().unwrap_err();
        assert!(error.to_string().len() < 300);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(limit: u32, micros in 1_000_u64..=366 * 86_400_000_000) {
            let quota = Quota::new(limit, Duration::from_micros(micros));
            prop_assert_eq!(quota.to_string().parse(), Ok(quota));
        }

        #[test]
        fn no_text_panics(text in "\\PC*|[0-9]{0,22}/[0-9]{0,22}[a-z]{0,12}") {
            let _ = text.parse::<Quota>();
        }
    }
}
