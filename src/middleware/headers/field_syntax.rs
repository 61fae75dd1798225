//! The syntax of the fields `RateLimit` and `RateLimit-Policy`, which differs between drafts.

use http::header::Entry;
use http::{HeaderMap, HeaderName, HeaderValue};

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

    /// Appends a line to a field. A field in another syntax is not changed: both together would not parse.
    pub(super) fn append(self, name: HeaderName, line: HeaderValue, headers: &mut HeaderMap) {
        match headers.entry(name) {
            Entry::Vacant(field) => {
                field.insert(line);
            }
            Entry::Occupied(mut field) if field.iter().all(|line| Self::of(line) == self) => {
                field.append(line);
            }
            Entry::Occupied(_) => {}
        }
    }

    /// Replaces a field. A field in another syntax is not changed.
    pub(super) fn replace(self, name: HeaderName, line: HeaderValue, headers: &mut HeaderMap) {
        match headers.entry(name) {
            Entry::Vacant(field) => {
                field.insert(line);
            }
            Entry::Occupied(mut field) if field.iter().all(|line| Self::of(line) == self) => {
                field.insert(line);
            }
            Entry::Occupied(_) => {}
        }
    }
}
