//! Which key the answer of an upstream pauses.

use std::sync::Arc;

use http::response::Parts;

use crate::key::Key;
use crate::limiter::{DecisionView, RateLimiter};

type PausedKey = dyn Fn(&Parts) -> Option<Key> + Send + Sync;

/// The observer of the answers of an upstream.
#[derive(Clone, Default)]
pub(in crate::middleware) struct Observer {
    /// The keys of other limiters that an answer may be about, in place of the key of its request.
    others: Vec<(RateLimiter, Arc<PausedKey>)>,
}

impl Observer {
    pub(super) fn add(
        &mut self,
        limiter: RateLimiter,
        key: impl Fn(&Parts) -> Option<Key> + Send + Sync + 'static,
    ) {
        self.others.push((limiter, Arc::new(key)));
    }

    /// Pauses the key that an answer is about, if the answer asks for it.
    #[cold]
    pub(in crate::middleware) fn observe(&self, decision: &DecisionView, head: &Parts) {
        let mut is_of_other = false;
        for (limiter, key) in &self.others {
            if let Some(key) = key(head) {
                limiter.observe(key, head.status, &head.headers);
                is_of_other = true;
            }
        }
        if is_of_other {
            return;
        }
        let own = decision.limiters().find(|(_, level)| level.place() == 0);
        if let Some((limiter, own)) = own {
            limiter.observe(&own.record().key, head.status, &head.headers);
        }
    }
}
