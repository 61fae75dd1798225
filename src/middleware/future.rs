//! The future of an answer: the store's, then the service's.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_service::Service;

use super::body::ResponseBody;
use super::check::CheckFuture;
use super::config::Judged;
use super::response::ResponseFinisher;

pin_project! {
    /// The future of [`RateLimit`](crate::RateLimit).
    ///
    /// Dropped before the decision, what the store was asked for may have been charged; dropped after
    /// it, it was. Either way the charge stays, until its window has passed.
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
        // The service is the ready one.
        Asking { inquiry: CheckFuture, then: Option<(S, Request<B>)> },
        Calling { #[pin] response: S::Future, telling: Option<ResponseFinisher> },
        Rejected { response: Option<Response<Bytes>> },
    }
}

impl<S: Service<Request<B>>, B> ResponseFuture<S, B> {
    pub(crate) fn asking(inquiry: CheckFuture, service: S, request: Request<B>) -> Self {
        let then = Some((service, request));
        Self {
            state: State::Asking { inquiry, then },
        }
    }

    pub(crate) fn calling(response: S::Future, telling: Option<ResponseFinisher>) -> Self {
        Self {
            state: State::Calling { response, telling },
        }
    }

    pub(crate) fn rejected(response: Response<Bytes>) -> Self {
        let response = Some(response);
        Self {
            state: State::Rejected { response },
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
                StateProjection::Asking { inquiry, then } => {
                    let judged = ready!(Pin::new(&mut *inquiry).poll(cx));
                    let Some((service, request)) = then.take() else {
                        return Poll::Pending;
                    };
                    go_on(inquiry, judged, service, request)
                }
                StateProjection::Calling { response, telling } => {
                    let response = ready!(response.poll(cx))?;
                    let response = match telling.take() {
                        Some(telling) => telling.on_answer(response),
                        None => response,
                    };
                    return Poll::Ready(Ok(response.map(ResponseBody::inner)));
                }
                StateProjection::Rejected { response } => {
                    // Polled again after its end, there is nothing left to answer.
                    let Some(response) = response.take() else {
                        return Poll::Pending;
                    };
                    return Poll::Ready(Ok(response.map(ResponseBody::refusal)));
                }
            };
            state.set(next);
        }
    }
}

fn go_on<S: Service<Request<B>>, B>(
    inquiry: &CheckFuture,
    judged: Judged,
    mut service: S,
    request: Request<B>,
) -> State<S, B> {
    let (parts, body) = request.into_parts();
    match judged {
        Judged::Passes(pass) => {
            let (request, telling) = inquiry.gate().let_in(parts, body, pass);
            let response = service.call(request);
            State::Calling { response, telling }
        }
        Judged::Rejected(rejection) => State::Rejected {
            response: Some(inquiry.gate().refuse(rejection, &parts)),
        },
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
