//! The future of an answer: the store's, then the service's.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::Rejection;
use crate::body::ResponseBody;
use crate::decision::Draft;
use crate::gate::{Gate, Judged, Telling};
use crate::store::Guarded;

pin_project! {
    /// The future of [`RateLimit`](crate::RateLimit).
    pub struct ResponseFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        state: State<S, B>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<S, B>
    where
        S: Service<Request<B>>,
    {
        Asking { #[pin] answer: Guarded, then: Option<Asking<S, B>> },
        Calling { #[pin] response: S::Future, telling: Option<Telling> },
        Rejected { rejection: Option<(Rejection, Arc<Gate>)> },
    }
}

/// What waits for the store: the ready service and the request.
pub(crate) struct Asking<S, B> {
    pub(crate) service: S,
    pub(crate) request: Request<B>,
    pub(crate) draft: Draft,
    pub(crate) gate: Arc<Gate>,
}

impl<S: Service<Request<B>>, B> ResponseFuture<S, B> {
    pub(crate) fn asking(answer: Guarded, then: Asking<S, B>) -> Self {
        let then = Some(then);
        Self {
            state: State::Asking { answer, then },
        }
    }

    pub(crate) fn admitted(response: S::Future, telling: Telling) -> Self {
        let telling = Some(telling);
        Self {
            state: State::Calling { response, telling },
        }
    }

    pub(crate) fn exempt(response: S::Future) -> Self {
        let telling = None;
        Self {
            state: State::Calling { response, telling },
        }
    }

    pub(crate) fn rejected(rejection: Rejection, gate: Arc<Gate>) -> Self {
        let rejection = Some((rejection, gate));
        Self {
            state: State::Rejected { rejection },
        }
    }
}

impl<S, B, ResBody> Future for ResponseFuture<S, B>
where
    S: Service<Request<B>, Response = Response<ResBody>>,
{
    type Output = Result<Response<ResponseBody<ResBody>>, S::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.project().state;
        loop {
            let next = match state.as_mut().project() {
                StateProjection::Asking { answer, then } => {
                    let answer = ready!(answer.poll(cx));
                    let Some(asking) = then.take() else {
                        return Poll::Pending;
                    };
                    asking.go_on(answer)
                }
                StateProjection::Calling { response, telling } => {
                    let mut response = ready!(response.poll(cx))?;
                    if let Some(telling) = telling.take() {
                        telling.write_to(&mut response);
                    }
                    return Poll::Ready(Ok(response.map(ResponseBody::inner)));
                }
                StateProjection::Rejected { rejection } => {
                    // Polled again after its end, there is nothing left to answer.
                    let Some((rejection, gate)) = rejection.take() else {
                        return Poll::Pending;
                    };
                    let response = rejection.into_response(&gate.headers);
                    return Poll::Ready(Ok(response.map(ResponseBody::refusal)));
                }
            };
            state.set(next);
        }
    }
}

impl<S: Service<Request<B>>, B> Asking<S, B> {
    fn go_on(mut self, answer: <Guarded as Future>::Output) -> State<S, B> {
        match self.gate.judge_late(self.draft, answer) {
            Judged::Admitted(decision) => {
                let (parts, body) = self.request.into_parts();
                let (request, telling) = self.gate.admit(parts, body, decision);
                State::Calling {
                    response: self.service.call(request),
                    telling: Some(telling),
                }
            }
            Judged::Rejected(rejection) => State::Rejected {
                rejection: Some((rejection, self.gate)),
            },
        }
    }
}

impl<S: Service<Request<B>>, B> fmt::Debug for ResponseFuture<S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            State::Asking { .. } => "asking",
            State::Calling { .. } => "calling",
            State::Rejected { .. } => "rejected",
        };
        f.debug_tuple("ResponseFuture").field(&state).finish()
    }
}
