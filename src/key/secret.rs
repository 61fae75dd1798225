//! How a value is hashed that must not be readable where it is stored.

use std::fmt;

use super::error::{KeyError, KeyErrorKind};

/// Where a value is found. It has contexts of its own, which separate its hashes from all others that
/// anybody makes with BLAKE3: one value in two places is not to be known by its hash.
#[derive(Clone, Copy)]
pub(super) struct Place {
    context: &'static str,
    secret_context: &'static str,
}

pub(super) const HEADER: Place = Place {
    context: "tollgate 2026-11-21 value of a header",
    secret_context: "tollgate 2026-11-21 value of a header, by a secret",
};
pub(super) const COOKIE: Place = Place {
    context: "tollgate 2026-11-21 value of a cookie",
    secret_context: "tollgate 2026-11-21 value of a cookie, by a secret",
};
pub(super) const AUTHORIZATION: Place = Place {
    context: "tollgate 2026-11-21 credentials",
    secret_context: "tollgate 2026-11-21 credentials, by a secret",
};
pub(super) const EXTENSION: Place = Place {
    context: "tollgate 2026-11-21 value of an extension",
    secret_context: "tollgate 2026-11-21 value of an extension, by a secret",
};

/// The key of the hash: the same for everybody, or one that a secret makes.
#[derive(Clone, Copy)]
pub(super) struct HashKey {
    key: [u8; 32],
    /// What should be a secret is empty, and so known to everybody.
    is_known: bool,
}

impl HashKey {
    pub(super) fn new(place: Place) -> Self {
        Self {
            key: blake3::derive_key(place.context, &[]),
            is_known: false,
        }
    }

    pub(super) fn of_secret(place: Place, secret: &[u8]) -> Self {
        Self {
            key: blake3::derive_key(place.secret_context, secret),
            is_known: secret.is_empty(),
        }
    }

    /// Fails where a secret was given that is none: like an environment variable that is not set.
    pub(super) fn check(&self) -> Result<(), KeyError> {
        if self.is_known {
            return Err(KeyError::new(
                KeyErrorKind::Misconfigured,
                "the secret of a key is empty: give `.secret(..)` one, or leave it out",
            ));
        }
        Ok(())
    }

    pub(super) fn hash(&self, value: &[u8]) -> blake3::Hash {
        blake3::keyed_hash(&self.key, value)
    }

    /// For a value that is not in one piece.
    pub(super) fn hasher(&self) -> blake3::Hasher {
        blake3::Hasher::new_keyed(&self.key)
    }
}

impl fmt::Debug for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // It may be a secret.
        f.write_str("HashKey")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_places_have_one_hash_of_one_value() {
        let places = [HEADER, COOKIE, AUTHORIZATION, EXTENSION];
        let keys = places.into_iter().flat_map(|place| {
            ["s", "t"]
                .map(|secret| HashKey::of_secret(place, secret.as_bytes()))
                .into_iter()
                .chain([HashKey::new(place)])
        });
        let hashes: HashSet<_> = keys.map(|key| key.hash(b"hunter2")).collect();
        assert_eq!(hashes.len(), 12);
    }
}
