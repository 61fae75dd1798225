//! Names for traces.

use std::fmt;
use std::hash::{Hash, Hasher};

/// The name of a process. States that differ only in names are equal: the processes of a model change places.
#[derive(Clone, Copy, Default)]
pub(crate) struct Name(pub(crate) u8);

impl PartialEq for Name {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Name {}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Name {
    fn cmp(&self, _: &Self) -> std::cmp::Ordering {
        std::cmp::Ordering::Equal
    }
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", char::from(b'A'.saturating_add(self.0)))
    }
}
