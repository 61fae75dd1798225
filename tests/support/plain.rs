//! A store that implements only what each store has to.

use tollgate::store::protocol::{Check, StoreFuture, StoreId};
use tollgate::{MemoryStore, Store};

/// A store that only checks: it changes no units, and has no blocks.
pub(crate) struct Plain(pub(crate) MemoryStore);

impl Store for Plain {
    fn id(&self) -> StoreId {
        self.0.id()
    }

    fn check(&self, checks: &[Check<'_>]) -> StoreFuture {
        self.0.check(checks)
    }
}
