//! The syntax of structured fields (RFC 9651), as the drafts use it: integers, strings, and the lines of a field whose
//! name several drafts share.

use http::{HeaderMap, HeaderName, HeaderValue};

/// The largest integer of a structured field (RFC 9651, section 3.3.1).
const MAX_INTEGER: u64 = 999_999_999_999_999;

/// Returns a number as an integer of a structured field: at most [`MAX_INTEGER`].
pub(super) fn integer(number: u64) -> u64 {
    number.min(MAX_INTEGER)
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

/// The syntax of a field whose name several drafts share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FieldSyntax {
    /// A list of policy names, as in draft 11: `"burst";r=42`.
    Named,
    /// Numbers without names, as in the older drafts: `limit=100, remaining=42`.
    Unnamed,
}

impl FieldSyntax {
    fn of(line: &HeaderValue) -> Self {
        if line.as_bytes().trim_ascii_start().starts_with(b"\"") {
            Self::Named
        } else {
            Self::Unnamed
        }
    }

    /// Returns whether all lines of a field have this syntax. If not, it is not changed: lines of both would not parse.
    pub(super) fn is_of_field(self, name: &HeaderName, headers: &HeaderMap) -> bool {
        let mut lines = headers.get_all(name).iter();
        lines.all(|line| Self::of(line) == self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_integer_has_at_most_fifteen_digits() {
        assert_eq!(integer(0), 0);
        for number in [MAX_INTEGER, MAX_INTEGER + 1, u64::MAX] {
            assert_eq!(integer(number).to_string(), "999999999999999");
        }
    }

    #[test]
    fn quotes_and_backslashes_are_escaped() {
        assert_eq!(quoted(r#"a "b" \c"#), r#""a \"b\" \\c""#);
    }
}
