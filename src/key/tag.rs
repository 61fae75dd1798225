//! Tags before the value of a key: `ip=`, `header:x-tenant-id=`. They keep equal values from different
//! places apart.

use std::fmt::{self, Write};
use std::sync::Arc;

use super::stored_text::{encode, encoded};

/// The place where a value was found, written before the value in the stored text.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tag<'a> {
    /// A place that needs no name, including the `=`: `ip=`, `path=`.
    Kind(&'static str),
    Named(&'a NamedTag),
    /// The name of an extension: its type, or the name set by `named`.
    Extension(&'a str),
}

impl Tag<'_> {
    pub(super) fn write_to(self, text: &mut dyn Write) -> fmt::Result {
        match self {
            Self::Kind(kind) => text.write_str(kind),
            Self::Named(tag) => text.write_str(&tag.0),
            Self::Extension(name) => {
                text.write_str("extension:")?;
                encode(name.as_bytes(), text)?;
                text.write_str("=")
            }
        }
    }
}

/// The tag of a header, a cookie or credentials, encoded once for all requests.
#[derive(Clone, Debug)]
pub(super) struct NamedTag(Arc<str>);

impl NamedTag {
    pub(super) fn header(name: &str) -> Self {
        Self::new("header", name)
    }

    pub(super) fn cookie(name: &str) -> Self {
        Self::new("cookie", name)
    }

    pub(super) fn authorization() -> Self {
        Self("authorization=".into())
    }

    fn new(kind: &str, name: &str) -> Self {
        let name = encoded(name.as_bytes());
        Self(format!("{kind}:{name}=").into())
    }
}
