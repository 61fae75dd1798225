//! Tags before the value of a key: `ip=`, `header:x-tenant-id=`. They keep equal values from different
//! places apart.

use std::sync::Arc;

use super::stored_text::encoded;

/// Encoded once for all requests.
pub(super) fn named_tag(kind: &str, name: &str) -> Arc<str> {
    let name = encoded(name.as_bytes());
    format!("{kind}:{name}=").into()
}
