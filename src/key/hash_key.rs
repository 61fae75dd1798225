//! The keyed hash of values that are stored as a hash.

use std::fmt;

use super::error::{KeyError, KeyErrorKind};

// The BLAKE3 key derivation contexts of the kinds of values. Equal values of two kinds have different hashes, so a hash
// does not reveal that they are equal.
pub(super) const HEADER: &str = "tollgate 2026-11-21 value of a header";
pub(super) const COOKIE: &str = "tollgate 2026-11-21 value of a cookie";
pub(super) const CREDENTIALS: &str = "tollgate 2026-11-21 credentials";
pub(super) const EXTENSION: &str = "tollgate 2026-11-21 value of an extension";
pub(super) const ALIAS: &str = "tollgate 2026-11-29 alias of a key";

/// The key of a keyed hash: a constant of this crate, or derived from a secret of the application.
#[derive(Clone, Copy)]
pub(crate) struct HashKey {
    key: [u8; 32],
    /// Whether the secret is empty, so that anyone can derive the key.
    has_empty_secret: bool,
}

impl HashKey {
    pub(super) fn new(context: &str) -> Self {
        Self {
            key: blake3::derive_key(context, &[]),
            has_empty_secret: false,
        }
    }

    pub(super) fn from_secret(context: &str, secret: &[u8]) -> Self {
        Self {
            key: blake3::derive_key(&format!("{context}, by a secret"), secret),
            has_empty_secret: secret.is_empty(),
        }
    }

    /// Fails if the secret is empty, for example an environment variable that is not set.
    pub(super) fn check(&self) -> Result<(), KeyError> {
        if self.has_empty_secret {
            return Err(KeyError::new(
                KeyErrorKind::Misconfigured,
                "the secret of a key is empty: pass another one to `.secret(..)`, or do not call it",
            ));
        }
        Ok(())
    }

    pub(super) fn hash(&self, value: &[u8]) -> blake3::Hash {
        blake3::keyed_hash(&self.key, value)
    }
}

impl fmt::Debug for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Omits the key, which may be derived from a secret.
        f.write_str("HashKey")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_value_has_a_different_hash_in_every_context_and_for_every_secret() {
        let contexts = [HEADER, COOKIE, CREDENTIALS, EXTENSION, ALIAS];
        let keys = contexts.into_iter().flat_map(|context| {
            ["s", "t"]
                .map(|secret| HashKey::from_secret(context, secret.as_bytes()))
                .into_iter()
                .chain([HashKey::new(context)])
        });
        let hashes: HashSet<_> = keys.map(|key| key.hash(b"hunter2")).collect();
        assert_eq!(hashes.len(), 15);
    }
}
