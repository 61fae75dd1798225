//! The service: asks the limiter, then calls the service inside or answers itself.

use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use tower_service::Service;

use crate::body::ResponseBody;
use crate::future::{Asking, ResponseFuture};
use crate::gate::{Asked, Gate, Judged, admit};

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
            Asked::Rejected(rejection) => ResponseFuture::rejected(rejection, self.gate.headers),
            Asked::Store { answer, cost } => match answer.try_ready() {
                // Without waiting, the service need not be cloned, which for axum's would allocate.
                Ok(answer) => match self.gate.judge(cost, answer) {
                    Judged::Admitted(decision) => {
                        let request = admit(parts, body, &decision);
                        let response = self.inner.call(request);
                        ResponseFuture::admitted(response, decision, self.gate.headers)
                    }
                    Judged::Rejected(rejection) => {
                        ResponseFuture::rejected(rejection, self.gate.headers)
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
                            gate: Arc::clone(&self.gate),
                        },
                    )
                }
            },
        }
    }
}
