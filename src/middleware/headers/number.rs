//! Numbers as values of headers. The common ones are there already, and take no allocation.

use http::HeaderValue;

/// The longest of them: what a limit, a rest and a wait of some minutes or an hour come to.
const DIGITS: usize = 4;
const COUNT: usize = 10_000;

/// The numbers below `COUNT`, with leading zeros.
static TEXTS: [[u8; DIGITS]; COUNT] = texts();

#[expect(
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "evaluated when it is compiled, of digits"
)]
const fn texts() -> [[u8; DIGITS]; COUNT] {
    let mut texts = [[0; DIGITS]; COUNT];
    let mut number = 0;
    while number < COUNT {
        let (mut rest, mut at) = (number, DIGITS);
        while at > 0 {
            at -= 1;
            texts[number][at] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        number += 1;
    }
    texts
}

/// The value of a header that is this number.
pub(crate) fn value_of(number: u64) -> HeaderValue {
    let known = usize::try_from(number).ok().and_then(|at| TEXTS.get(at));
    let leading_zeros = match number {
        0..10 => 3,
        10..100 => 2,
        100..1_000 => 1,
        _ => 0,
    };
    let digits = known.and_then(|text| text.get(leading_zeros..));
    match digits.and_then(|digits| std::str::from_utf8(digits).ok()) {
        Some(digits) => HeaderValue::from_static(digits),
        // One allocation; the conversion of http takes two, since its buffer is longer than the text.
        None => HeaderValue::from_str(itoa::Buffer::new().format(number))
            .unwrap_or_else(|_| number.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_written_as_it_is() {
        for number in (0..20_000).chain([u64::MAX]) {
            assert_eq!(value_of(number), number.to_string().as_str());
        }
    }
}
