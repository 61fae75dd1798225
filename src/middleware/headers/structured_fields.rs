//! The syntax of structured fields (RFC 9651), as the drafts use it: integers, strings, and the lines of a field whose
//! name several drafts share.

use std::ops::Range;

use http::{HeaderMap, HeaderName, HeaderValue};

/// The largest integer of a structured field (RFC 9651, section 3.3.1).
const MAX_INTEGER: u64 = 999_999_999_999_999;

pub(super) fn integer(number: u64) -> u64 {
    number.min(MAX_INTEGER)
}

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

/// Finds the integers of a parameter of a list, each with its place in the text: 3 for `t` in `"burst";r=0;t=3`.
pub(super) fn find_integers(list: &str, parameter: &str) -> Vec<(Range<usize>, u64)> {
    let mut integers = Vec::new();
    let mut part_end = 0;
    for part in split_outside_strings(list, &[',', ';']) {
        part_end += part.len();
        if let Some((name, value)) = part.split_once('=')
            && name.trim_start() == parameter
        {
            let start = part_end - value.len();
            let digits = value.trim_end();
            if let Ok(integer) = digits.parse() {
                integers.push((start..start + digits.len(), integer));
            }
        }
        // The delimiter.
        part_end += 1;
    }
    integers
}

/// Splits a text at each of these characters, but not within strings.
pub(in crate::middleware) fn split_outside_strings<'a>(
    text: &'a str,
    delimiters: &'static [char],
) -> impl Iterator<Item = &'a str> {
    let mut is_in_string = false;
    let mut is_escaped = false;
    text.split(move |letter| {
        let splits = delimiters.contains(&letter) && !is_in_string;
        is_in_string ^= letter == '"' && !is_escaped;
        is_escaped = letter == '\\' && is_in_string && !is_escaped;
        splits
    })
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
    fn detect(line: &HeaderValue) -> Self {
        if line.as_bytes().trim_ascii_start().starts_with(b"\"") {
            Self::Named
        } else {
            Self::Unnamed
        }
    }

    /// A field with lines of another syntax is not changed: lines of both would not parse.
    pub(super) fn is_field(self, name: &HeaderName, headers: &HeaderMap) -> bool {
        headers
            .get_all(name)
            .iter()
            .all(|line| Self::detect(line) == self)
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
    fn the_integers_of_a_parameter_are_found_outside_of_strings_only() {
        let list = r#""a;t=1, \";t=2";r=0;t=30, "b";t=4 ;r=5, "c";tt=6;t=x,"d"; t=7"#;
        let found = find_integers(list, "t");
        let texts: Vec<_> = found
            .iter()
            .map(|(place, _)| &list[place.clone()])
            .collect();
        assert_eq!(texts, ["30", "4", "7"]);
        let integers: Vec<_> = found.iter().map(|(_, integer)| *integer).collect();
        assert_eq!(integers, [30, 4, 7]);
        assert_eq!(find_integers("", "t"), []);
    }

    #[test]
    fn quotes_and_backslashes_are_escaped() {
        assert_eq!(quoted(r#"a "b" \c"#), r#""a \"b\" \\c""#);
    }
}
