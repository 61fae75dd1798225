//! What another layer has put into the request.

use std::any::type_name;
use std::fmt::{self, Display, Write};
use std::marker::PhantomData;

use http::request::Parts;
use smallvec::SmallVec;

use super::{KeyError, KeyErrorKind, KeyExtractor};
use crate::Key;

/// Counts by an extension of the request, in the form in which it displays: a user or a tenant that
/// a layer outside of this one has found out.
///
/// The key is tagged with the last part of the type's name (`UserId=42`), so that a `UserId` and a
/// `TeamId` that look the same are two; [`named`](Extension::named) gives another tag. The value is
/// stored readable.
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
        tag: short_name(type_name::<T>()),
        of: PhantomData,
    }
}

/// Counts by an extension of the request; made by [`extension`].
pub struct Extension<T> {
    tag: &'static str,
    of: PhantomData<fn() -> T>,
}

impl<T: Display> Extension<T> {
    /// Tags the key with `tag` rather than with the name of the type, which changes when the type is
    /// renamed.
    #[must_use]
    pub fn named(mut self, tag: &'static str) -> Self {
        self.tag = tag;
        self
    }

    /// The key of a request that has this value: to look at it or reset it without a request.
    #[must_use]
    pub fn of(&self, value: &T) -> Key {
        let mut text = Text(SmallVec::new());
        // Only a Display that fails of itself fails here; what it wrote is the value then.
        let _ = write!(text, "{value}");
        Key::tagged(self.tag, &text.0)
    }
}

impl<T: Display + Send + Sync + 'static> KeyExtractor for Extension<T> {
    fn extract(&self, parts: &Parts) -> Result<Key, KeyError> {
        let value = parts.extensions.get::<T>();
        value.map(|value| self.of(value)).ok_or_else(|| {
            let text = format!("the request has no extension `{}`", self.tag);
            KeyError::new(KeyErrorKind::Missing, text)
        })
    }
}

/// `Name` of `path::to::Name<of::What>`.
fn short_name(full: &'static str) -> &'static str {
    let path = full.split('<').next().unwrap_or(full);
    path.rsplit("::").next().unwrap_or(path)
}

/// What is displayed, without an allocation where it is short.
struct Text(SmallVec<[u8; 64]>);

impl Write for Text {
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

    #[test]
    fn a_value_is_tagged_with_its_type() {
        let mut parts = get();
        parts.extensions.insert(7_u64);
        parts.extensions.insert(String::from("a b"));
        let of = |key: Result<Key, KeyError>| key.unwrap().as_str().to_owned();
        assert_eq!(of(extension::<u64>().extract(&parts)), "u64=7");
        assert_eq!(of(extension::<String>().extract(&parts)), "String=a%20b");
        assert_eq!(
            of(extension::<u64>().named("user").extract(&parts)),
            "user=7"
        );
        assert_eq!(extension::<u64>().of(&7).as_str(), "u64=7");
    }

    #[test]
    fn a_missing_extension_is_named() {
        let error = extension::<u64>().extract(&get()).unwrap_err();
        assert_eq!(error.kind(), KeyErrorKind::Missing);
        assert!(error.to_string().contains("u64"));
    }

    #[test]
    fn a_type_is_called_by_its_last_name() {
        assert_eq!(short_name("u64"), "u64");
        assert_eq!(short_name("app::auth::UserId"), "UserId");
        assert_eq!(short_name("app::Id<app::User>"), "Id");
    }
}
