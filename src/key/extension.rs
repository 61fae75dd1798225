//! Keys from a value that an outer layer put into the request's extensions.

use std::any::type_name;
use std::fmt::{self, Display, Write};
use std::marker::PhantomData;
use std::sync::Arc;

use http::request::Parts;
use smallvec::SmallVec;

use super::error::{KeyError, KeyErrorKind};
use super::extractor::{KeyExtractor, inherent_or};
use super::hash_key::{EXTENSION, HashKey};
use super::key::Key;
use super::tag::Tag;

/// Counts by an extension of the request, as its `Display` implementation writes it: a user or a tenant
/// that an outer layer has identified.
///
/// The key is tagged with the name of the type (`extension:app::UserId=42`), so that a `UserId` and a
/// `TeamId` with the same text are two keys. The name changes, and new counts begin, when the type is
/// renamed or moved, or when a compiler spells it differently. [`named`](Extension::named) sets a tag that
/// never changes.
///
/// The value is stored readable, unless it is hashed under a [`secret`](Extension::secret). A value whose
/// text is empty is missing.
///
/// # Examples
///
/// ```
/// use tollgate::{MemoryStore, Quota, RateLimitLayer, key};
///
/// #[derive(Clone)]
/// struct UserId(u64);
///
/// impl std::fmt::Display for UserId {
///     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
///         self.0.fmt(f)
///     }
/// }
///
/// let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(60))
///     .key(key::extension::<UserId>());
/// ```
#[must_use]
pub fn extension<T: Display + Send + Sync + 'static>() -> Extension<T> {
    Extension {
        tag: type_name::<T>(),
        is_named: false,
        hash_key: None,
        value_type: PhantomData,
    }
}

/// Counts by an extension of the request; made by [`extension`].
pub struct Extension<T> {
    tag: &'static str,
    is_named: bool,
    hash_key: Option<HashKey>,
    value_type: PhantomData<fn() -> T>,
}

impl<T: Display> Extension<T> {
    /// Tags the key with `tag` rather than with the name of the type, which changes when the type is
    /// renamed.
    ///
    /// The rejection of a request without the value shows this tag to the client. It never shows the name
    /// of a type.
    #[must_use]
    pub fn named(mut self, tag: &'static str) -> Self {
        (self.tag, self.is_named) = (tag, true);
        self
    }

    /// Hashes the value under a secret of the application before it is stored: for personal data, like an
    /// e-mail address.
    ///
    /// All processes must use the same secret. Changing it starts new counts.
    #[must_use]
    pub fn secret(mut self, secret: impl AsRef<[u8]>) -> Self {
        self.hash_key = Some(HashKey::from_secret(EXTENSION, secret.as_ref()));
        self
    }

    /// Returns the key of a request with this value, to inspect or reset its counts without a request.
    #[must_use]
    pub fn of(&self, value: &T) -> Key {
        self.key_of(&text_of(value))
    }
}

impl<T: Display + Send + Sync + 'static> KeyExtractor for Extension<T> {
    fn extract(&self, parts: &Parts) -> Result<Key, KeyError> {
        self.hash_key.iter().try_for_each(HashKey::check)?;
        let text = parts.extensions.get::<T>().map(|value| text_of(value));
        match text {
            Some(text) if !text.is_empty() => Ok(self.key_of(&text)),
            _ => Err(KeyError::new(KeyErrorKind::Missing, self.missing_text())),
        }
    }
}

inherent_or!(Extension<T>);

impl<T> Extension<T> {
    fn key_of(&self, text: &[u8]) -> Key {
        let tag = Tag::Extension(self.tag);
        match &self.hash_key {
            None => Key::tagged(tag, text),
            Some(hash_key) => Key::hashed(tag, &hash_key.hash(text)),
        }
    }

    /// Returns the error text, which clients see: without the name of a type, an internal of the server.
    fn missing_text(&self) -> Arc<str> {
        if self.is_named {
            format!("a layer before has found no `{}`", self.tag).into()
        } else {
            "a layer before has not found what it is counted by".into()
        }
    }
}

fn text_of(value: &impl Display) -> SmallVec<[u8; 64]> {
    let mut text = ValueText(SmallVec::new());
    match write!(text, "{value}") {
        Ok(()) => text.0,
        // A value that fails to display is missing: the part that was written could be another value.
        Err(fmt::Error) => SmallVec::new(),
    }
}

/// The text of a value. It allocates only above 64 bytes.
struct ValueText(SmallVec<[u8; 64]>);

impl Write for ValueText {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.0.extend_from_slice(s.as_bytes());
        Ok(())
    }
}

impl<T> Clone for Extension<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Extension<T> {}

impl<T> fmt::Debug for Extension<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Extension").field(&self.tag).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::test_request::get;

    struct Id<T>(u64, PhantomData<fn() -> T>);

    impl<T> Display for Id<T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.fmt(f)
        }
    }

    #[test]
    fn a_value_is_tagged_with_its_type_or_its_name() {
        let mut parts = get();
        parts.extensions.insert(7_u64);
        let text = |key: Result<Key, KeyError>| key.unwrap().as_str().to_owned();
        assert_eq!(text(extension::<u64>().extract(&parts)), "extension:u64=7");
        let named = extension::<u64>().named("user");
        assert_eq!(text(named.extract(&parts)), "extension:user=7");
        assert_eq!(named.of(&7), named.extract(&parts).unwrap());
    }

    #[test]
    fn equal_texts_of_two_types_are_two_keys() {
        let user = extension::<Id<u8>>().of(&Id(7, PhantomData));
        let team = extension::<Id<u16>>().of(&Id(7, PhantomData));
        assert_ne!(user, team);
    }

    #[test]
    fn a_client_sees_the_tag_and_never_the_name_of_a_type() {
        let text = |key: Extension<String>| key.extract(&get()).unwrap_err().to_string();
        let unnamed = text(extension());
        assert!(
            !unnamed.contains("tring") && !unnamed.contains("::"),
            "{unnamed}"
        );
        assert!(text(extension().named("user")).contains("`user`"));
    }

    #[test]
    fn a_value_that_is_absent_or_displays_as_nothing_is_missing() {
        struct Broken;
        impl Display for Broken {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("half of it")?;
                Err(fmt::Error)
            }
        }
        let mut parts = get();
        let error = extension::<String>().extract(&parts).unwrap_err();
        parts.extensions.insert(Arc::new(String::new()));
        parts.extensions.insert(Arc::new(Broken));
        for error in [
            error,
            extension::<Arc<String>>().extract(&parts).unwrap_err(),
            extension::<Arc<Broken>>().extract(&parts).unwrap_err(),
        ] {
            assert_eq!(error.kind(), KeyErrorKind::Missing);
        }
    }

    #[test]
    fn a_value_is_hashed_under_a_secret() {
        let mut parts = get();
        parts.extensions.insert("ada@example.com".to_owned());
        let mail = extension::<String>().named("mail");
        let hashed = mail.secret("s3cret");
        let key = hashed.extract(&parts).unwrap();
        assert!(key.as_str().starts_with("extension:mail=~"), "{key:?}");
        assert_eq!(key, hashed.of(&"ada@example.com".to_owned()));
        assert_ne!(key, mail.extract(&parts).unwrap());
        assert_ne!(key, mail.secret("other").extract(&parts).unwrap());
        assert!(!format!("{hashed:?}").contains("s3cret"));
        let empty = mail.secret("").extract(&parts).unwrap_err();
        assert_eq!(empty.kind(), KeyErrorKind::Misconfigured);
    }
}
