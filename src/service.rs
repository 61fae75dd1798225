//! The service: asks the limiter, then calls the service inside or answers itself.

use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::request::Parts;
use http::{Request, Response};
use tower_service::Service;

use crate::body::ResponseBody;
use crate::decision::Answer;
use crate::future::{Asking, ResponseFuture};
use crate::key::KeyErrorKind;
use crate::layer::{MissingKey, Settings};
use crate::store::StoreFuture;
use crate::{DecisionView, Error, Rejection, RejectionReason};

/// A service with a limit before it; made by [`RateLimitLayer`](crate::RateLimitLayer).
///
/// It is ready when the service inside is, and never waits for a quota there: a request that is
/// refused is answered at once.
#[derive(Clone, Debug)]
pub struct RateLimit<S> {
    inner: S,
    settings: Arc<Settings>,
}

impl<S> RateLimit<S> {
    pub(crate) fn new(inner: S, settings: Arc<Settings>) -> Self {
        Self { inner, settings }
    }

    /// The service inside.
    #[must_use]
    pub fn get_ref(&self) -> &S {
        &self.inner
    }

    /// The service inside.
    #[must_use]
    pub fn get_mut(&mut self) -> &mut S {
        &mut self.inner
    }

    /// The service inside, without the limit.
    #[must_use]
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S, B, ResBody> Service<Request<B>> for RateLimit<S>
where
    S: Service<Request<B>, Response = Response<ResBody>> + Clone,
{
    type Response = Response<ResponseBody<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, req: Request<B>) -> Self::Future {
        let (parts, body) = req.into_parts();
        match self.settings.ask(&parts) {
            Asked::Exempt => {
                let request = Request::from_parts(parts, body);
                ResponseFuture::exempt(self.inner.call(request))
            }
            Asked::Rejected(rejection) => {
                ResponseFuture::rejected(rejection, self.settings.headers)
            }
            Asked::Store { answer, cost } => match answer.try_ready() {
                // Without waiting, the service need not be cloned, which for axum's would allocate.
                Ok(answer) => match self.settings.judge(cost, answer) {
                    Judged::Admitted(decision) => {
                        let request = admit(parts, body, &decision);
                        let response = self.inner.call(request);
                        ResponseFuture::admitted(response, decision, self.settings.headers)
                    }
                    Judged::Rejected(rejection) => {
                        ResponseFuture::rejected(rejection, self.settings.headers)
                    }
                },
                Err(answer) => {
                    // The service that was polled ready is the one that is called.
                    let clone = self.inner.clone();
                    ResponseFuture::asking(
                        answer,
                        Asking {
                            service: mem::replace(&mut self.inner, clone),
                            request: Request::from_parts(parts, body),
                            cost,
                            settings: Arc::clone(&self.settings),
                        },
                    )
                }
            },
        }
    }
}

/// Puts a request together again, with the decision for its handler.
pub(crate) fn admit<B>(mut parts: Parts, body: B, decision: &DecisionView) -> Request<B> {
    parts.extensions.insert(decision.clone());
    Request::from_parts(parts, body)
}

/// What comes of a request before the store has answered.
enum Asked {
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

impl Settings {
    /// Finds out who asks and for how much, and asks the store.
    fn ask(&self, parts: &Parts) -> Asked {
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
                self.notices.store_fails(limiter, &error);
                Judged::Rejected(self.reject(RejectionReason::Failed(error)))
            }
        }
    }

    fn reject(&self, reason: RejectionReason) -> Rejection {
        Rejection::new(self.limiter.label(), reason)
    }
}
