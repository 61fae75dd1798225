//! What stands between a request and the service: who asks, for how much, and whether it may.
//!
//! A layer and all its services have one gate.

use std::fmt;
use std::sync::Arc;

use http::Request;
use http::request::Parts;

use crate::decision::Answer;
use crate::key::{KeyErrorKind, KeyExtractor};
use crate::notice::Notices;
use crate::store::StoreFuture;
use crate::{DecisionView, Error, Headers, RateLimiter, Rejection, RejectionReason};

/// What a layer was told.
#[derive(Clone)]
pub(crate) struct Gate {
    pub(crate) limiter: RateLimiter,
    pub(crate) key: Arc<dyn KeyExtractor>,
    pub(crate) cost: Option<Arc<CostFn>>,
    pub(crate) on_missing_key: MissingKey,
    pub(crate) headers: Headers,
    pub(crate) notices: Arc<Notices>,
}

type CostFn = dyn Fn(&Parts) -> u32 + Send + Sync;

/// What happens to a request without a key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum MissingKey {
    /// It is answered 400, and told what is missing. The default: who could leave out the key would
    /// leave out the limit.
    #[default]
    Refuse,
    /// It goes on without being counted: where another layer limits it.
    Exempt,
}

/// What comes of a request before the store has answered.
pub(crate) enum Asked {
    /// Not counted.
    Exempt,
    Rejected(Rejection),
    Store {
        answer: StoreFuture,
        cost: u32,
    },
}

/// What comes of a request when the store has answered.
pub(crate) enum Judged {
    Admitted(DecisionView),
    Rejected(Rejection),
}

impl Gate {
    /// Finds out who asks and for how much, and asks the store.
    pub(crate) fn ask(&self, parts: &Parts) -> Asked {
        let key = match self.key.extract(parts) {
            Ok(key) => key,
            Err(error) => {
                match (error.kind(), self.on_missing_key) {
                    (KeyErrorKind::Missing, MissingKey::Exempt) => return Asked::Exempt,
                    (KeyErrorKind::Misconfigured, _) => {
                        self.notices.keys_unknown(self.limiter.label(), &error);
                    }
                    (KeyErrorKind::Missing | KeyErrorKind::Ambiguous, _) => {}
                }
                return Asked::Rejected(self.reject(RejectionReason::NoKey(error)));
            }
        };
        let cost = self.cost.as_ref().map_or(1, |cost| cost(parts));
        let answer = self.limiter.ask(&key, cost);
        Asked::Store { answer, cost }
    }

    /// Lets a request through or not, by what the store said.
    pub(crate) fn judge(&self, cost: u32, answer: Result<Answer, Error>) -> Judged {
        let limiter = self.limiter.label();
        match answer.and_then(|answer| self.limiter.decide(cost, answer)) {
            Ok(decision) => {
                self.notices.store_answers(limiter);
                let decision = decision.into_view();
                if decision.is_allowed() {
                    Judged::Admitted(decision)
                } else {
                    Judged::Rejected(self.reject(RejectionReason::Limited(decision)))
                }
            }
            Err(error) => {
                self.notices.no_decision(limiter, &error);
                Judged::Rejected(self.reject(RejectionReason::Failed(error)))
            }
        }
    }

    fn reject(&self, reason: RejectionReason) -> Rejection {
        Rejection::new(self.limiter.label(), reason)
    }
}

/// Puts a request together again, with the decision for its handler.
pub(crate) fn admit<B>(mut parts: Parts, body: B, decision: &DecisionView) -> Request<B> {
    parts.extensions.insert(decision.clone());
    Request::from_parts(parts, body)
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            limiter,
            key: _,
            cost: _,
            on_missing_key,
            headers,
            notices: _,
        } = self;
        f.debug_struct("Gate")
            .field("limiter", limiter)
            .field("on_missing_key", on_missing_key)
            .field("headers", headers)
            .finish_non_exhaustive()
    }
}
