//! What stands between a request and the service: who asks, for how much, and whether it may.
//!
//! A layer and all its services have one gate.

use std::fmt;
use std::sync::Arc;

use http::request::Parts;
use http::{Request, Response};

use crate::decision::{Answer, Draft};
use crate::key::{KeyErrorKind, KeyExtractor};
use crate::limiter::Begun;
use crate::notice::Notices;
use crate::store::Guarded;
use crate::{
    Decision, DecisionView, Error, ErrorKind, Headers, RateLimiter, Rejection, RejectionReason,
};

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
    /// It goes on without being counted, and without a
    /// [`DecisionView`](crate::DecisionView) in its extensions: where another layer limits it.
    Exempt,
}

/// What comes of a request at once.
pub(crate) enum Asked {
    /// Not counted.
    Exempt,
    Judged(Judged),
    /// To be judged when the store has answered.
    Waiting {
        draft: Draft,
        answer: Guarded,
    },
}

/// What comes of a request in the end.
pub(crate) enum Judged {
    Admitted(DecisionView),
    Rejected(Rejection),
}

/// What the answer to an admitted request tells its client.
pub(crate) struct Telling {
    decision: DecisionView,
    headers: Headers,
    /// Whether another layer outside has admitted the request before.
    is_nested: bool,
}

/// Left in the answer by a nested layer: how few units are left there.
#[derive(Clone, Copy)]
struct Told {
    remaining: u32,
}

impl Telling {
    /// Writes the headers, unless a layer further in has refused the request or left fewer units.
    pub(crate) fn write_to<B>(self, response: &mut Response<B>) {
        let extensions = response.extensions();
        let refused_inside = extensions
            .get::<Rejection>()
            .is_some_and(Rejection::is_limited);
        let told = extensions.get::<Told>().map(|told| told.remaining);
        let remaining = self.decision.remaining();
        if refused_inside || told.is_some_and(|told| told <= remaining) {
            return;
        }
        self.headers.write(&self.decision, response.headers_mut());
        if self.is_nested {
            response.extensions_mut().insert(Told { remaining });
        }
    }
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
                let rejection = self.reject(RejectionReason::NoKey(error));
                return Asked::Judged(Judged::Rejected(rejection));
            }
        };
        let cost = self.cost.as_ref().map_or(1, |cost| cost(parts));
        match self.limiter.begin(key, cost) {
            Begun::Decided(decided) => Asked::Judged(self.judge(decided)),
            Begun::Waiting { draft, answer } => Asked::Waiting { draft, answer },
        }
    }

    /// Lets a request through or not, when the store has answered.
    pub(crate) fn judge_late(&self, draft: Draft, answer: Result<Answer, Error>) -> Judged {
        self.judge(self.limiter.finish(draft, answer))
    }

    fn judge(&self, decided: Result<Decision, Error>) -> Judged {
        match decided {
            Ok(decision) => {
                let decision = decision.into_view();
                if decision.is_allowed() {
                    Judged::Admitted(decision)
                } else {
                    Judged::Rejected(self.reject(RejectionReason::Limited(decision)))
                }
            }
            Err(error) => {
                if error.kind() == ErrorKind::CostTooLarge {
                    self.notices.cost_too_large(self.limiter.label(), &error);
                }
                Judged::Rejected(self.reject(RejectionReason::Failed(error)))
            }
        }
    }

    /// Puts a request together again, with the decision for its handler, and keeps what its answer
    /// is to tell.
    pub(crate) fn admit<B>(
        &self,
        mut parts: Parts,
        body: B,
        decision: DecisionView,
    ) -> (Request<B>, Telling) {
        let outer = parts.extensions.insert(decision.clone());
        let telling = Telling {
            decision,
            headers: self.headers.clone(),
            is_nested: outer.is_some(),
        };
        (Request::from_parts(parts, body), telling)
    }

    fn reject(&self, reason: RejectionReason) -> Rejection {
        Rejection::new(self.limiter.label(), reason)
    }
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
