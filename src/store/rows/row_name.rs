//! The names of rows.

use std::fmt;

use crate::key::Key;

/// The name of a row: at most 129 printable ASCII characters, without spaces, quotes, backslashes and braces.
///
/// So it needs no escape in a statement, and fits into an indexed column of any database.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowName(String);

impl RowName {
    /// The text of a key has no `|`, so no two pairs have one name.
    pub(super) fn counts(limiter: &Key, key: &Key) -> Self {
        Self(format!("{}|{}", limiter.as_str(), key.as_str()))
    }

    pub(super) fn blocks(number: u32) -> Self {
        Self(format!("blocks||{number:x}"))
    }

    /// Creates the name of a row that no request writes, to ask whether the database answers.
    pub(super) fn ping() -> Self {
        Self("ping||".to_owned())
    }

    pub(super) fn kit(name: &str) -> Self {
        Self(format!("kit||{name}"))
    }

    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RowName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_key_makes_a_name_that_needs_an_escape() {
        let long = "x'".repeat(99);
        for text in ["a' OR 1", "a|b", "a b", "a\\", "{", "\u{e9}\n", &long] {
            let limiter = Key::from(text);
            let name = RowName::counts(&limiter, &limiter.and(&limiter));
            let name = name.as_str();
            assert_eq!(name.matches('|').count(), 1, "{name}");
            assert!(!name.contains(['\'', '\\', ' ', '"', '{', '}']), "{name}");
            assert!(name.bytes().all(|byte| byte.is_ascii_graphic()), "{name}");
            assert!(name.len() <= 129, "{name}");
        }
    }
}
