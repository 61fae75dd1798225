//! The value of a header, a cookie or credentials: stored as a hash, and sent exactly once by a request.

use std::fmt;
use std::sync::Arc;

use http::{HeaderMap, HeaderName};

use super::error::{KeyError, KeyErrorKind};
use super::hash_key::HashKey;
use super::key::Key;

/// The place of a value, with the tag of its keys, its hash key and its errors.
#[derive(Clone)]
pub(super) struct HashedValue<Name> {
    name: Result<Name, KeyError>,
    tag: Arc<str>,
    context: &'static str,
    /// `None` if values are stored as readable text.
    pub(super) hash_key: Option<HashKey>,
    missing: KeyError,
    ambiguous: KeyError,
}

impl<Name> HashedValue<Name> {
    /// Prepares the values of a `kind`, such as the header `configured`. `name` is `None` if that name is invalid.
    pub(super) fn new(
        kind: &str,
        configured: &str,
        name: Option<Name>,
        tag: Arc<str>,
        context: &'static str,
    ) -> Self {
        let invalid =
            format!("invalid {kind} name `{configured}`: pass a valid one to key::{kind}");
        let missing = format!("the {kind} `{configured}` is missing");
        let ambiguous = format!("the {kind} `{configured}` is sent more than once");
        Self {
            name: name.ok_or_else(|| KeyError::new(KeyErrorKind::Misconfigured, invalid)),
            tag,
            context,
            hash_key: Some(HashKey::new(context)),
            missing: KeyError::new(KeyErrorKind::Missing, missing),
            ambiguous: KeyError::new(KeyErrorKind::Ambiguous, ambiguous),
        }
    }

    pub(super) fn secret(&mut self, secret: &[u8]) {
        self.hash_key = Some(HashKey::from_secret(self.context, secret));
    }

    /// Fails if the name is invalid, or if the secret is empty.
    pub(super) fn name(&self) -> Result<&Name, KeyError> {
        self.hash_key.iter().try_for_each(HashKey::check)?;
        self.name.as_ref().map_err(KeyError::clone)
    }

    /// Returns the only value. One empty value counts as missing. Two values are ambiguous, even if one is
    /// empty.
    #[inline]
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

    pub(super) fn key(&self, value: &[u8]) -> Key {
        Key::from_value(&self.tag, value, self.hash_key.as_ref())
    }
}

impl HashedValue<HeaderName> {
    pub(super) fn line<'a>(&self, headers: &'a HeaderMap) -> Result<&'a [u8], KeyError> {
        let lines = headers
            .get_all(self.name()?)
            .iter()
            .map(|line| line.as_bytes().trim_ascii());
        self.only(lines)
    }
}

/// Omits the hash key, which may be derived from a secret.
impl<Name: fmt::Debug> fmt::Debug for HashedValue<Name> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}
