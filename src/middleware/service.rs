//! The service: asks the limiter, then calls the service inside or answers itself.

use std::mem;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use http_body::Body;
use tower_service::Service;

use super::body::ResponseBody;
use super::config::{Asked, Judged, LayerConfig};
use super::future::ResponseFuture;

/// A service with a limit before it; made by [`RateLimitLayer`](crate::RateLimitLayer).
///
/// It is ready when the service inside is, and never waits for a quota there: a request that is
/// refused is answered, by its future. While that asks the store, it holds what the service inside
/// has set aside for the call.
///
/// The request body may be of any type. The response body has to implement [`http_body::Body`], as those
/// of axum, hyper, tonic and tower-http do: [`settle`](crate::RateLimitLayer::settle) asks for its size.
#[derive(Clone, Debug)]
pub struct RateLimit<S> {
    inner: S,
    gate: Arc<LayerConfig>,
}

impl<S> RateLimit<S> {
    pub(crate) fn new(inner: S, gate: Arc<LayerConfig>) -> Self {
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
        match self.gate.ask(&parts) {
            // Without waiting, the service need not be cloned, which for axum's would allocate.
            Asked::Judged(Judged::Passes(pass)) => {
                let (request, telling) = self.gate.let_in(parts, body, pass);
                ResponseFuture::calling(self.inner.call(request), telling)
            }
            Asked::Judged(Judged::Rejected(rejection)) => {
                // What the service has set aside for this call, like a permit of `ConcurrencyLimit`,
                // is given back.
                drop(self.take_ready());
                ResponseFuture::rejected(self.gate.refuse(rejection, &parts))
            }
            Asked::Pending(inquiry) => {
                let service = self.take_ready();
                let request = Request::from_parts(parts, body);
                ResponseFuture::asking(inquiry, service, request)
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
}
