//! The aliases of keys, in output for people that must not reveal the keys.

use super::hash_key::{ALIAS, HashKey};
use super::key::Key;

/// The digits of an alias, of 4 bits each.
const DIGITS: usize = 16;

/// The way in which keys get their aliases.
#[derive(Clone, Debug, Default)]
pub(crate) enum KeyAliases {
    /// By a random number of this process: addresses and mails could be guessed from a number that is known.
    #[default]
    OfProcess,
    /// By a secret that all processes of a service have.
    Secret(HashKey),
}

impl KeyAliases {
    pub(crate) fn by_secret(secret: &[u8]) -> Self {
        if secret.is_empty() {
            return Self::OfProcess;
        }
        Self::Secret(HashKey::from_secret(ALIAS, secret))
    }

    pub(crate) fn alias(&self, key: &Key) -> String {
        match self {
            Self::OfProcess => format!("{:0DIGITS$x}", key.fingerprint().alias()),
            Self::Secret(hash_key) => {
                let digits = hash_key.hash(key.as_str().as_bytes()).to_hex();
                digits.chars().take(DIGITS).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_makes_the_alias_and_an_empty_one_leaves_it_to_the_process() {
        let key = Key::from("ada");
        let aliases = ["", "s", "t"].map(|secret| KeyAliases::by_secret(secret.as_bytes()));
        let [of_process, s, t] = aliases.each_ref().map(|aliases| aliases.alias(&key));
        assert_eq!(of_process, KeyAliases::default().alias(&key));
        assert!(s != t && s != of_process);
        for alias in [&of_process, &s, &t] {
            assert_eq!(alias.len(), DIGITS);
            assert!(
                alias.bytes().all(|digit| digit.is_ascii_hexdigit()),
                "{alias}"
            );
        }
        // As each process of each version computes it.
        let context = "tollgate 2026-11-29 alias of a key, by a secret";
        let hash = blake3::keyed_hash(&blake3::derive_key(context, b"s"), b"ada");
        assert!(hash.to_hex().starts_with(&s), "{s}");
        assert_ne!(aliases[1].alias(&Key::from("bob")), s);
    }
}
