//! Of which form a field is, whose name several drafts use for different things.

use http::header::Entry;
use http::{HeaderMap, HeaderName, HeaderValue};

/// The form of a field whose name several drafts use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// A list of the names of policies.
    Named,
    Nameless,
}

impl Form {
    fn of(line: &HeaderValue) -> Self {
        if line.as_bytes().trim_ascii_start().starts_with(b"\"") {
            Self::Named
        } else {
            Self::Nameless
        }
    }

    /// Adds a line to a field, unless what is there has another form: both together would not parse.
    pub(super) fn append(self, name: HeaderName, line: HeaderValue, to: &mut HeaderMap) {
        match to.entry(name) {
            Entry::Vacant(field) => {
                field.insert(line);
            }
            Entry::Occupied(mut field) if field.iter().all(|line| Self::of(line) == self) => {
                field.append(line);
            }
            Entry::Occupied(_) => {}
        }
    }

    /// Writes over a field, unless what is there has another form.
    pub(super) fn replace(self, name: HeaderName, line: HeaderValue, to: &mut HeaderMap) {
        match to.entry(name) {
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
