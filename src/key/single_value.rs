//! Values that a request must have exactly once.

use super::error::{KeyError, KeyErrorKind};

/// The errors for a value that a request does not have exactly once.
#[derive(Clone, Debug)]
pub(super) struct SingleValue {
    missing: KeyError,
    ambiguous: KeyError,
}

impl SingleValue {
    /// Prepares the errors for a place, such as "the header `x-api-key`".
    pub(super) fn new(place: &str) -> Self {
        let error = |kind, problem| KeyError::new(kind, format!("{place} {problem}"));
        Self {
            missing: error(KeyErrorKind::Missing, "is missing"),
            ambiguous: error(KeyErrorKind::Ambiguous, "is sent more than once"),
        }
    }

    /// Returns the only value. One empty value counts as missing. Two values are ambiguous, even if one is
    /// empty.
    #[inline]
    pub(super) fn require<'a>(
        &self,
        mut values: impl Iterator<Item = &'a [u8]>,
    ) -> Result<&'a [u8], KeyError> {
        match (values.next(), values.next()) {
            (_, Some(_)) => Err(self.ambiguous.clone()),
            (None | Some([]), None) => Err(self.missing.clone()),
            (Some(value), None) => Ok(value),
        }
    }
}
