//! Numbers as header values. Numbers below 10 000 are static values and do not allocate.

use http::HeaderValue;

/// The maximum number of digits of a static value: enough for most limits, and for waits of an hour in
/// seconds.
const DIGITS: usize = 4;
const COUNT: usize = 10_000;

/// The numbers below `COUNT`, with leading zeros.
static TEXTS: [[u8; DIGITS]; COUNT] = texts();

#[expect(
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "evaluated at compile time, on digits"
)]
const fn texts() -> [[u8; DIGITS]; COUNT] {
    let mut texts = [[0; DIGITS]; COUNT];
    let mut number = 0;
    while number < COUNT {
        let (mut rest, mut position) = (number, DIGITS);
        while position > 0 {
            position -= 1;
            texts[number][position] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        number += 1;
    }
    texts
}

/// Returns a number as the value of a header.
pub(in crate::middleware) fn number_value(number: u64) -> HeaderValue {
    let text = usize::try_from(number)
        .ok()
        .and_then(|index| TEXTS.get(index));
    let leading_zeros = match number {
        0..10 => 3,
        10..100 => 2,
        100..1_000 => 1,
        _ => 0,
    };
    let digits = text.and_then(|text| text.get(leading_zeros..));
    match digits.and_then(|digits| std::str::from_utf8(digits).ok()) {
        Some(digits) => HeaderValue::from_static(digits),
        // Allocates once. The conversion of `http` allocates twice, since its buffer is longer than the text.
        None => HeaderValue::from_str(itoa::Buffer::new().format(number))
            .unwrap_or_else(|_| number.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_written_without_leading_zeros() {
        for number in (0..20_000).chain([u64::MAX]) {
            assert_eq!(number_value(number), number.to_string().as_str());
        }
    }
}
