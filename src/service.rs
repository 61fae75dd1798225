//! The service: asks the limiter, then calls the service inside or answers itself.

use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tower_service::Service;

use crate::Rejection;
use crate::body::ResponseBody;
use crate::future::{Asking, ResponseFuture};
use crate::gate::{Asked, Gate, Judged};

/// A service with a limit before it; made by [`RateLimitLayer`](crate::RateLimitLayer).
///
/// It is ready when the service inside is, and never waits for a quota there: a request that is
/// refused is answered at once.
#[derive(Clone, Debug)]
pub struct RateLimit<S> {
    inner: S,
    gate: Arc<Gate>,
}

impl<S> RateLimit<S> {
    pub(crate) fn new(inner: S, gate: Arc<Gate>) -> Self {
        Self { inner, gate }
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
        match self.gate.ask(&parts) {
            Asked::Exempt => {
                let request = Request::from_parts(parts, body);
                ResponseFuture::exempt(self.inner.call(request))
            }
            // Without waiting, the service need not be cloned, which for axum's would allocate.
            Asked::Judged(Judged::Admitted(decision)) => {
                let (request, told) = self.gate.admit(parts, body, decision);
                ResponseFuture::admitted(self.inner.call(request), told)
            }
            Asked::Judged(Judged::Rejected(rejection)) => self.reject(rejection),
            Asked::Waiting { draft, answer } => {
                let asking = Asking {
                    service: self.take_ready(),
                    request: Request::from_parts(parts, body),
                    draft,
                    gate: Arc::clone(&self.gate),
                };
                ResponseFuture::asking(answer, asking)
            }
        }
    }
}

impl<S: Clone> RateLimit<S> {
    /// The service that was polled ready, which is the one to call.
    fn take_ready(&mut self) -> S {
        let clone = self.inner.clone();
        mem::replace(&mut self.inner, clone)
    }

    /// Answers without the service. What it has set aside for this call, like a permit of
    /// `ConcurrencyLimit`, is given back.
    fn reject<B>(&mut self, rejection: Rejection) -> ResponseFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        drop(self.take_ready());
        ResponseFuture::rejected(rejection, Arc::clone(&self.gate))
    }
}
