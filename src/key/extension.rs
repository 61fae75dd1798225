//! Keys from a value in the extensions of the request.

use std::any::type_name;
use std::fmt::{self, Display, Write};
use std::sync::Arc;

use http::request::Parts;
use smallvec::SmallVec;

use super::error::{KeyError, KeyErrorKind};
use super::extractor::{KeyExtractor, inherent_or};
use super::hash_key::{EXTENSION, HashKey};
use super::key::Key;
use super::reads::Reads;
use super::tag::named_tag;

/// Returns an extractor that counts by a request extension, such as the user that an outer layer
/// authenticated.
///
/// The key is the text that the `Display` implementation of `T` writes; `T` is also `Send + Sync`. For a type
/// without `Display`, use [`extension_with`]. A request without the extension, or with an empty text, has no key.
///
/// The text is tagged with the name of the type (`extension:app::UserId=42`), so a `UserId` and a `TeamId`
/// with the same text have different keys. The name changes if the type is renamed or moved, or if a
/// compiler spells it differently, and then new counts start. Set a permanent tag with
/// [`name`](Extension::name).
///
/// The text is stored readable. [`secret`](Extension::secret) stores a hash instead.
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
#[expect(private_bounds, reason = "the trait only words the error")]
pub fn extension<T: DisplayExtension>() -> Extension<T> {
    Extension::new(|value| display_text(value))
}

/// Returns an extractor that counts by a part of a request extension, which a closure returns.
///
/// The key is the text of what the closure returns: a number, a `String`, a UUID, or anything else that can be
/// displayed. It is tagged with the name of the extension's type, as in [`extension`]. A request without
/// the extension, or with an empty text, has no key.
///
/// The closure returns an owned value. To borrow from the extension, or to return no key, use
/// [`from_fn`](super::from_fn()).
///
/// # Examples
///
/// ```
/// use tollgate::{MemoryStore, Quota, RateLimitLayer, key};
///
/// #[derive(Clone)]
/// struct User {
///     id: u64,
///     tenant: String,
/// }
///
/// let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(60));
/// let by_user = layer.clone().key(key::extension_with(|user: &User| user.id));
///
/// let tenant = key::extension_with(|user: &User| user.tenant.clone()).name("tenant");
/// let by_tenant = layer.key(tenant);
/// ```
#[must_use]
pub fn extension_with<T, F, D>(value: F) -> Extension<T>
where
    T: Send + Sync + 'static,
    F: Fn(&T) -> D + Send + Sync + 'static,
    D: Display,
{
    Extension::new(move |extension| display_text(&value(extension)))
}

/// Types of request extensions that [`extension`] takes: all that implement `Display`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no text that could be a key: it does not implement `Display`",
    label = "this type does not implement `Display`",
    note = "take a part of it with a closure: `key::extension_with(|value: &{Self}| value.id)`"
)]
pub(crate) trait DisplayExtension: Display + Send + Sync + 'static {}

#[diagnostic::do_not_recommend]
impl<T: Display + Send + Sync + 'static> DisplayExtension for T {}

/// A key extractor that counts by a request extension; created by [`extension`] and [`extension_with`].
pub struct Extension<T> {
    tag: Arc<str>,
    /// `None` if the text is stored as it is.
    hash_key: Option<HashKey>,
    missing: KeyError,
    to_text: Arc<TextFn<T>>,
}

type TextFn<T> = dyn Fn(&T) -> TextBytes + Send + Sync;

impl<T> Extension<T> {
    fn new(to_text: impl Fn(&T) -> TextBytes + Send + Sync + 'static) -> Self {
        Self {
            tag: named_tag("extension", type_name::<T>()),
            hash_key: None,
            // Clients see it, so it does not contain the type name.
            missing: KeyError::new(KeyErrorKind::Missing, "the request has no key"),
            to_text: Arc::new(to_text),
        }
    }

    /// Tags the key with `tag` instead of the type name, which changes if the type is renamed.
    ///
    /// A client that is rejected because the extension is missing sees this tag. A client never sees the
    /// type name. Give two parts of one type different tags: otherwise a user and a tenant with the same number have
    /// the same key.
    #[must_use]
    pub fn name(mut self, tag: &'static str) -> Self {
        self.tag = named_tag("extension", tag);
        self.missing = KeyError::new(KeyErrorKind::Missing, format!("the request has no `{tag}`"));
        self
    }

    /// Stores the value as a hash with a secret of your application, for personal data such as e-mail
    /// addresses.
    ///
    /// All processes must use the same secret. A new secret starts new counts. With an empty secret, all
    /// requests are answered 500, and one log line says so.
    #[must_use]
    pub fn secret(mut self, secret: impl AsRef<[u8]>) -> Self {
        self.hash_key = Some(HashKey::from_secret(EXTENSION, secret.as_ref()));
        self
    }

    /// Returns the key of requests with this value, to inspect or reset its count.
    #[must_use]
    pub fn of(&self, value: &T) -> Key {
        self.tagged_key(&(self.to_text)(value))
    }

    fn tagged_key(&self, text: &[u8]) -> Key {
        Key::from_value(&self.tag, text, self.hash_key.as_ref())
    }
}

impl<T: Send + Sync + 'static> KeyExtractor for Extension<T> {
    fn extract(&self, parts: &Parts) -> Result<Key, KeyError> {
        self.hash_key.iter().try_for_each(HashKey::check)?;
        match parts.extensions.get::<T>().map(&*self.to_text) {
            Some(text) if !text.is_empty() => Ok(self.tagged_key(&text)),
            _ => Err(self.missing.clone()),
        }
    }

    fn reads(&self) -> Reads {
        Reads::extension::<T>()
    }

    fn config_error(&self) -> Option<KeyError> {
        self.hash_key?.check().err()
    }
}

inherent_or!(Extension<T>);

type TextBytes = SmallVec<[u8; 64]>;

fn display_text(value: &impl Display) -> TextBytes {
    let mut text = ValueText(SmallVec::new());
    match write!(text, "{value}") {
        Ok(()) => text.0,
        // The value counts as missing: the part that was written could equal another value.
        Err(fmt::Error) => SmallVec::new(),
    }
}

/// The text of a value. It allocates only if it is longer than 64 bytes.
struct ValueText(TextBytes);

impl Write for ValueText {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.0.extend_from_slice(s.as_bytes());
        Ok(())
    }
}

impl<T> Clone for Extension<T> {
    fn clone(&self) -> Self {
        Self {
            tag: Arc::clone(&self.tag),
            hash_key: self.hash_key,
            missing: self.missing.clone(),
            to_text: Arc::clone(&self.to_text),
        }
    }
}

impl<T> fmt::Debug for Extension<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Extension").field(&self.tag).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::marker::PhantomData;

    use super::*;
    use crate::key::test_request::get;

    struct Id<T>(u64, PhantomData<fn() -> T>);

    impl<T> Display for Id<T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.fmt(f)
        }
    }

    #[test]
    fn a_value_is_tagged_with_its_type_or_with_the_given_name() {
        let mut parts = get();
        parts.extensions.insert(7_u64);
        let unnamed = extension::<u64>().extract(&parts).unwrap();
        assert_eq!(unnamed.as_str(), "extension:u64=7");
        let user = extension::<u64>().name("user");
        let named = user.extract(&parts).unwrap();
        assert_eq!(named.as_str(), "extension:user=7");
        assert_eq!(user.of(&7), named);
    }

    #[test]
    fn a_closure_returns_a_part_of_the_extension() {
        #[derive(Clone)]
        struct User {
            id: u64,
            team: String,
        }
        let ada = User {
            id: 7,
            team: "math".to_owned(),
        };
        let mut parts = get();
        let id = extension_with(|user: &User| user.id);
        let team = extension_with(|user: &User| user.team.clone()).name("team");
        for error in [
            id.extract(&parts).unwrap_err(),
            team.extract(&parts).unwrap_err(),
        ] {
            assert_eq!(error.kind(), KeyErrorKind::Missing);
            assert!(!error.to_string().contains("User"), "{error}");
        }
        parts.extensions.insert(ada.clone());
        let key = id.extract(&parts).unwrap();
        assert!(key.as_str().ends_with("User=7") || key.as_str().starts_with('#'));
        assert_eq!(key, id.of(&ada));
        let key = team.extract(&parts).unwrap();
        assert_eq!(key.as_str(), "extension:team=math");
        assert_eq!(key, team.of(&ada));
        assert_ne!(team.clone().secret("s3cret").of(&ada), key);
        parts.extensions.insert(User {
            id: 7,
            team: String::new(),
        });
        assert_eq!(
            team.extract(&parts).unwrap_err().kind(),
            KeyErrorKind::Missing
        );
    }

    #[test]
    fn equal_texts_of_two_types_have_different_keys() {
        let user = extension::<Id<u8>>().of(&Id(7, PhantomData));
        let team = extension::<Id<u16>>().of(&Id(7, PhantomData));
        assert_ne!(user, team);
    }

    #[test]
    fn the_error_contains_the_tag_and_never_the_type_name() {
        let unnamed = error_text(&extension());
        assert!(
            !unnamed.contains("tring") && !unnamed.contains("::"),
            "{unnamed}"
        );
        assert!(error_text(&extension().name("user")).contains("`user`"));
    }

    fn error_text(key: &Extension<String>) -> String {
        key.extract(&get()).unwrap_err().to_string()
    }

    #[test]
    fn an_absent_an_empty_and_a_failing_value_are_missing() {
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
    fn a_value_is_hashed_with_a_secret() {
        let mut parts = get();
        parts.extensions.insert("ada@example.com".to_owned());
        let mail = extension::<String>().name("mail");
        let hashed = mail.clone().secret("s3cret");
        let key = hashed.extract(&parts).unwrap();
        assert!(key.as_str().starts_with("extension:mail=~"), "{key:?}");
        assert_eq!(key, hashed.of(&"ada@example.com".to_owned()));
        assert_ne!(key, mail.extract(&parts).unwrap());
        assert_ne!(key, mail.clone().secret("other").extract(&parts).unwrap());
        assert!(!format!("{hashed:?}").contains("s3cret"));
        let empty = mail.secret("").extract(&parts).unwrap_err();
        assert_eq!(empty.kind(), KeyErrorKind::Misconfigured);
    }
}
