//! How a value is hashed that must not be readable where it is stored.

use std::fmt;

/// Separates these hashes from all others that anybody makes with BLAKE3.
const CONTEXT: &str = "tollgate 2026-11-21 value of a header";
const SECRET_CONTEXT: &str = "tollgate 2026-11-21 value of a header, by a secret";

/// The key of the hash: the same for everybody, or one that a secret makes.
#[derive(Clone, Copy)]
pub(super) struct HashKey([u8; 32]);

impl Default for HashKey {
    fn default() -> Self {
        Self(blake3::derive_key(CONTEXT, &[]))
    }
}

impl HashKey {
    pub(super) fn of_secret(secret: &[u8]) -> Self {
        Self(blake3::derive_key(SECRET_CONTEXT, secret))
    }

    pub(super) fn hash(&self, value: &[u8]) -> blake3::Hash {
        blake3::keyed_hash(&self.0, value)
    }

    /// For a value that is not in one piece.
    pub(super) fn hasher(&self) -> blake3::Hasher {
        blake3::Hasher::new_keyed(&self.0)
    }
}

impl fmt::Debug for HashKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // It may be a secret.
        f.write_str("HashKey")
    }
}
