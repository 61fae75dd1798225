//! The response future: the check, then the call of the inner service.

use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::request::Parts;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_service::Service;

use super::body::ResponseBody;
use super::config::LayerConfig;
use super::outcome::Outcome;
use super::request::PendingOutcome;
use super::response::{ResponseFinisher, prepare_request, rejection_response};
use crate::error::polled_after_completion;

pin_project! {
    /// The response future of [`RateLimit`](crate::RateLimit): it waits for the check, then for the inner
    /// service.
    ///
    /// If it is dropped while it waits for the store, the request may or may not have been charged. If it is
    /// dropped later, an admitted request stays charged. The units return when their window has passed.
    ///
    /// # Panics
    ///
    /// Panics if it is polled after completion.
    pub struct ResponseFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        pub(super) state: CallState<S, B>,
    }
}

pin_project! {
    #[project = CallStateProjection]
    pub(super) enum CallState<S, B>
    where
        S: Service<Request<B>>,
    {
        // `None` after the check is done.
        Checking { check: PendingOutcome, call: Option<PendingCall<S, B>> },
        Calling { #[pin] response: S::Future, finisher: ResponseFinisher },
        Rejected { response: Option<Response<Bytes>> },
        Done,
    }
}

impl<S: Service<Request<B>>, B> CallState<S, B> {
    #[inline]
    pub(super) fn proceed(
        config: &Arc<LayerConfig>,
        service: &mut S,
        mut parts: Parts,
        body: B,
        outcome: Outcome,
    ) -> Self {
        match outcome {
            Ok(pass) => {
                let finisher = prepare_request(config, &mut parts, pass);
                let response = service.call(Request::from_parts(parts, body));
                Self::Calling { response, finisher }
            }
            Err(rejection) => {
                let response = Some(rejection_response(config, rejection, &parts));
                Self::Rejected { response }
            }
        }
    }
}

impl<S, B, ResBody> Future for ResponseFuture<S, B>
where
    S: Service<Request<B>, Response = Response<ResBody>>,
    ResBody: Body,
{
    type Output = Result<Response<ResponseBody<ResBody>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                CallStateProjection::Checking { check, call } => {
                    let outcome = ready!(check.as_mut().poll(cx));
                    let call = call.take();
                    // The service may panic.
                    state.set(CallState::Done);
                    let Some(mut call) = call else {
                        polled_after_completion("ResponseFuture");
                    };
                    let (parts, body) = call.request.into_parts();
                    CallState::proceed(&call.config, &mut call.service, parts, body, outcome)
                }
                CallStateProjection::Calling { response, finisher } => {
                    let response = ready!(response.poll(cx));
                    let finisher = mem::take(finisher);
                    state.set(CallState::Done);
                    let (mut head, body) = response?.into_parts();
                    let permit = finisher.finish(&mut head, &body);
                    let body = ResponseBody::inner(body, permit);
                    return Poll::Ready(Ok(Response::from_parts(head, body)));
                }
                CallStateProjection::Rejected { response } => {
                    let Some(response) = response.take() else {
                        polled_after_completion("ResponseFuture");
                    };
                    return Poll::Ready(Ok(response.map(ResponseBody::rejection)));
                }
                CallStateProjection::Done => polled_after_completion("ResponseFuture"),
            };
            state.set(next);
        }
    }
}

/// The call of the service after the check.
pub(super) struct PendingCall<S, B> {
    pub(super) config: Arc<LayerConfig>,
    /// The service that was polled ready.
    pub(super) service: S,
    pub(super) request: Request<B>,
}

impl<S: Service<Request<B>>, B> fmt::Debug for ResponseFuture<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            CallState::Checking { .. } => "checking",
            CallState::Calling { .. } => "calling",
            CallState::Rejected { .. } => "rejected",
            CallState::Done => "done",
        };
        f.debug_tuple("ResponseFuture").field(&state).finish()
    }
}
