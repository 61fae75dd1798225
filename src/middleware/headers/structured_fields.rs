//! Integers and strings of structured fields (RFC 9651), as the drafts use them.

/// The largest integer of a structured field (RFC 9651, section 3.3.1).
const MAX_INTEGER: u64 = 999_999_999_999_999;

/// Formats integers. Larger numbers than [`MAX_INTEGER`] are clamped.
pub(super) struct Integer(itoa::Buffer);

impl Integer {
    pub(super) fn new() -> Self {
        Self(itoa::Buffer::new())
    }

    pub(super) fn format(&mut self, number: u64) -> &str {
        self.0.format(number.min(MAX_INTEGER))
    }
}

/// Formats a text of printable ASCII as a string.
pub(super) fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for letter in text.chars() {
        if matches!(letter, '"' | '\\') {
            quoted.push('\\');
        }
        quoted.push(letter);
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_integer_has_at_most_fifteen_digits() {
        assert_eq!(Integer::new().format(0), "0");
        assert_eq!(Integer::new().format(MAX_INTEGER), "999999999999999");
        assert_eq!(Integer::new().format(MAX_INTEGER + 1), "999999999999999");
        assert_eq!(Integer::new().format(u64::MAX), "999999999999999");
    }

    #[test]
    fn quotes_and_backslashes_are_escaped() {
        assert_eq!(quoted(r#"a "b" \c"#), r#""a \"b\" \\c""#);
    }
}
