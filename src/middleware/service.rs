//! The service, which checks a request and then calls the inner service or rejects the request.

use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::body::ResponseBody;
use super::config::LayerConfig;
use super::future::{CallState, PendingCall, ResponseFuture};
use super::request::{StartedRequest, start};

/// A service with a rate limit, created by [`RateLimitLayer`](crate::RateLimitLayer).
///
/// The service is ready if the inner service is ready: `poll_ready` does not check the limit. `call` starts
/// the check, and its future answers a rejected request. While that future waits for the store, it holds
/// what the inner service has reserved for the call, such as a permit of tower's `ConcurrencyLimit`.
///
/// tower has types with the same names: `tower::limit::RateLimit` and `tower::limit::RateLimitLayer`. They
/// make calls wait, and have no keys. `ServiceBuilder::rate_limit` adds tower's. The guide compares them:
/// [migrating](crate::guide::migrating::tower).
///
/// The request body can be of any type. The response body has to implement [`http_body::Body`], like the bodies of
/// axum, hyper, tonic and tower-http, because [`settle`](crate::RateLimitLayer::settle) needs its size. The
/// inner service has to implement `Clone`.
#[derive(Clone, Debug)]
pub struct RateLimit<S> {
    inner: S,
    config: Arc<LayerConfig>,
}

/// The services that a [`RateLimitLayer`](crate::RateLimitLayer) can wrap: all that implement `Clone`, as services of
/// axum, hyper and tonic do.
///
/// While a check waits for the store, its future holds the service that was polled ready, and a clone takes its
/// place.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not `Clone`, so a rate limit cannot wrap it",
    label = "the inner service of a rate limit has to implement `Clone`",
    note = "derive `Clone`, or replace `BoxService` by `BoxCloneService` (`.boxed()` by `.boxed_clone()`)",
    note = "a service that cannot be cloned can be shared by `tower::buffer::Buffer` inside of the rate limit"
)]
pub(crate) trait CloneService: Clone {}

#[diagnostic::do_not_recommend]
impl<S: Clone> CloneService for S {}

impl<S> RateLimit<S> {
    pub(super) fn new(inner: S, config: Arc<LayerConfig>) -> Self {
        Self { inner, config }
    }

    /// Returns a reference to the inner service.
    #[must_use]
    pub fn get_ref(&self) -> &S {
        &self.inner
    }
}

impl<S, B, ResBody> Service<Request<B>> for RateLimit<S>
where
    S: Service<Request<B>, Response = Response<ResBody>> + Clone,
    ResBody: Body,
{
    type Response = Response<ResponseBody<ResBody>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, B>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, req: Request<B>) -> Self::Future {
        let (parts, body) = req.into_parts();
        let state = match start(&self.config, &parts) {
            StartedRequest::Pending(check) => CallState::Checking {
                check,
                call: Some(PendingCall {
                    config: Arc::clone(&self.config),
                    service: self.take_ready(),
                    request: Request::from_parts(parts, body),
                }),
            },
            // Calls the service in place: to clone an axum service allocates.
            StartedRequest::Decided(outcome) => {
                let state = CallState::proceed(&self.config, &mut self.inner, parts, body, outcome);
                if matches!(state, CallState::Rejected { .. }) {
                    // Releases what the inner service has reserved for this call.
                    drop(self.take_ready());
                }
                state
            }
        };
        ResponseFuture { state }
    }
}

impl<S: Clone> RateLimit<S> {
    /// Takes the service that was polled ready, since only that one may be called, and leaves a clone.
    fn take_ready(&mut self) -> S {
        let clone = self.inner.clone();
        mem::replace(&mut self.inner, clone)
    }
}
