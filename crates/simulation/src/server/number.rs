//! Numbers as Redis reads and writes them.

use std::ops::Range;

use super::reply::Reply;

/// The significant digits of a score or of a number that a script passes.
const DIGITS: usize = 17;

/// Writes a number as C's `%.17g`, as Redis does.
pub(super) fn format_number(number: f64) -> Vec<u8> {
    if number.is_infinite() {
        return if number > 0.0 {
            b"inf".to_vec()
        } else {
            b"-inf".to_vec()
        };
    }
    let scientific = format!("{number:.precision$e}", precision = DIGITS - 1);
    let Some((mantissa, exponent)) = scientific.split_once('e') else {
        return scientific.into_bytes();
    };
    let exponent: i32 = exponent.parse().unwrap_or_default();
    let text = if (-4..DIGITS as i32).contains(&exponent) {
        let decimals = (DIGITS as i32 - 1 - exponent) as usize;
        without_zeros(&format!("{number:.decimals$}")).to_owned()
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        let mantissa = without_zeros(mantissa);
        format!("{mantissa}e{sign}{:02}", exponent.abs())
    };
    text.into_bytes()
}

fn without_zeros(decimal: &str) -> &str {
    if decimal.contains('.') {
        decimal.trim_end_matches('0').trim_end_matches('.')
    } else {
        decimal
    }
}

/// Reads a whole number: no sign but `-`, no leading zeros.
pub(super) fn int(text: &[u8]) -> Result<i64, Reply> {
    let parsed = std::str::from_utf8(text).ok().and_then(|text| {
        let number: i64 = text.parse().ok()?;
        (number.to_string() == text).then_some(number)
    });
    parsed.ok_or_else(|| Reply::error("ERR value is not an integer or out of range"))
}

/// Reads a score.
pub(super) fn float(text: &[u8]) -> Result<f64, Reply> {
    parsed_float(text).ok_or_else(|| Reply::error("ERR value is not a valid float"))
}

fn parsed_float(text: &[u8]) -> Option<f64> {
    let number: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    (!number.is_nan()).then_some(number)
}

/// A bound of scores.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScoreBound {
    score: f64,
    is_excluded: bool,
}

impl ScoreBound {
    /// Reads a bound, such as `12`, `(12` or `-inf`.
    pub(super) fn parse(text: &[u8]) -> Result<Self, Reply> {
        let excluded = text.strip_prefix(b"(");
        let score = parsed_float(excluded.unwrap_or(text));
        let score = score.ok_or_else(|| Reply::error("ERR min or max is not a float"))?;
        Ok(Self {
            score,
            is_excluded: excluded.is_some(),
        })
    }

    pub(super) fn is_below(self, score: f64) -> bool {
        self.score < score || !self.is_excluded && self.score == score
    }

    pub(super) fn is_above(self, score: f64) -> bool {
        self.score > score || !self.is_excluded && self.score == score
    }
}

/// Returns the indexes `from` to `to` of something this long. Negative ones count from its end.
pub(super) fn range(from: i64, to: i64, length: usize) -> Range<usize> {
    let length = length as i64;
    let from = if from < 0 {
        (from + length).max(0)
    } else {
        from
    };
    let to = if to < 0 { to + length } else { to };
    let to = to.min(length - 1);
    if from > to {
        return 0..0;
    }
    from as usize..to as usize + 1
}

#[cfg(test)]
mod tests {
    use super::format_number;

    #[test]
    fn numbers_are_written_as_by_c() {
        for (number, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (-3.0, "-3"),
            (0.1, "0.10000000000000001"),
            (1.5, "1.5"),
            (1_750_000_000_000_000.0, "1750000000000000"),
            (12_345_678_901_234_567.0, "12345678901234568"),
            (1e17, "1e+17"),
            (1e22, "1e+22"),
            (0.0001, "0.0001"),
            (0.00001, "1.0000000000000001e-05"),
        ] {
            assert_eq!(String::from_utf8(format_number(number)).unwrap(), text);
        }
    }
}
