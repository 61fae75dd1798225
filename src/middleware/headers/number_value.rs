//! Numbers as header values. Values of common numbers are static, and values of recent ones are shared.

use std::cell::RefCell;

use http::HeaderValue;

/// The maximum number of digits of a static value: enough for most limits, and for waits of an hour in
/// seconds.
const DIGITS: usize = 4;
const COUNT: usize = 10_000;

/// The numbers below `COUNT`, with leading zeros.
static TEXTS: &str = match str::from_utf8(TEXT_BYTES.as_flattened()) {
    Ok(texts) => texts,
    Err(_) => "",
};
static TEXT_BYTES: [[u8; DIGITS]; COUNT] = text_bytes();

/// The larger numbers that a thread remembers: the Unix times of a minute, and limits.
const RECENT: usize = 64;

thread_local! {
    /// Each number is at its remainder by the length.
    static RECENT_VALUES: RefCell<[Option<(u64, HeaderValue)>; RECENT]> =
        const { RefCell::new([const { None }; RECENT]) };
}

#[expect(
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "evaluated at compile time, on digits"
)]
const fn text_bytes() -> [[u8; DIGITS]; COUNT] {
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
    match static_text(number) {
        Some(text) => HeaderValue::from_static(text),
        None => new_value(number),
    }
}

/// Returns a number that other responses are likely to have too, such as a limit or the time of a reset.
pub(super) fn common_number_value(number: u64) -> HeaderValue {
    match static_text(number) {
        Some(text) => HeaderValue::from_static(text),
        None => recent_value(number).unwrap_or_else(|| new_value(number)),
    }
}

/// Returns the text of a number below 10 000.
pub(super) fn static_text(number: u64) -> Option<&'static str> {
    let leading_zeros = match number {
        0..10 => 3,
        10..100 => 2,
        100..1_000 => 1,
        1_000..10_000 => 0,
        _ => return None,
    };
    let start = usize::try_from(number).ok()? * DIGITS;
    TEXTS.get(start + leading_zeros..start + DIGITS)
}

/// Returns the value that this thread remembers for a number, and remembers it from now on. `None` if the
/// thread is ending.
fn recent_value(number: u64) -> Option<HeaderValue> {
    let index = usize::try_from(number % RECENT as u64).ok()?;
    let value = RECENT_VALUES.try_with(|values| {
        let mut values = values.try_borrow_mut().ok()?;
        let recent = values.get_mut(index)?;
        match recent {
            Some((known, value)) if *known == number => Some(value.clone()),
            _ => {
                let value = new_value(number);
                *recent = Some((number, value.clone()));
                Some(value)
            }
        }
    });
    value.ok().flatten()
}

/// This allocates once. The conversion of `http` allocates twice: its buffer is longer than the text.
fn new_value(number: u64) -> HeaderValue {
    HeaderValue::from_str(itoa::Buffer::new().format(number)).unwrap_or_else(|_| number.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_written_without_leading_zeros() {
        for number in (0..20_000).chain([u64::MAX]) {
            let text = number.to_string();
            assert_eq!(number_value(number), text.as_str());
            // The second value is remembered.
            assert_eq!(common_number_value(number), text.as_str());
            assert_eq!(common_number_value(number), text.as_str());
        }
    }
}
