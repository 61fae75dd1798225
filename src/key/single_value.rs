//! A value that a request has once, or not at all.

use super::error::{KeyError, KeyErrorKind};

/// What is answered where a value is not there exactly once.
#[derive(Clone, Debug)]
pub(super) struct Once {
    missing: KeyError,
    ambiguous: KeyError,
}

impl Once {
    /// Of a place like "the header `x-api-key`".
    pub(super) fn new(place: &str) -> Self {
        let error = |kind, what| KeyError::new(kind, format!("{place} {what}"));
        Self {
            missing: error(KeyErrorKind::Missing, "is missing"),
            ambiguous: error(KeyErrorKind::Ambiguous, "is sent more than once"),
        }
    }

    /// The only value. An empty one is missing, but counts where there is another.
    pub(super) fn only<'a>(
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
