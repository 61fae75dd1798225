//! The response body: from the inner service, or from a rejection.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::permit::HeldPermit;

pin_project! {
    /// The response body of [`RateLimit`](crate::RateLimit): the body `B` of the inner service, or the body of a
    /// rejection.
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        kind: Kind<B>,
    }
}

pin_project! {
    #[project = KindProjection]
    #[derive(Debug)]
    enum Kind<B> {
        Inner { #[pin] body: B, permit: Option<HeldPermit> },
        // `None` if it is empty or was already read.
        Rejection { text: Option<Bytes> },
    }
}

impl<B> ResponseBody<B> {
    /// The body of the inner service. The permit is held until it ends.
    pub(super) fn inner(body: B, permit: Option<HeldPermit>) -> Self {
        let kind = Kind::Inner { body, permit };
        Self { kind }
    }

    pub(super) fn rejection(text: Bytes) -> Self {
        let kind = Kind::Rejection {
            text: Some(text).filter(|text| !text.is_empty()),
        };
        Self { kind }
    }
}

/// Creates the default body of the inner service, mostly an empty one. Outer layers that answer requests
/// themselves need it, such as `CorsLayer` and `TimeoutLayer` of tower-http.
impl<B: Default> Default for ResponseBody<B> {
    fn default() -> Self {
        Self::inner(B::default(), None)
    }
}

impl<B: Body<Data = Bytes>> Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().kind.project() {
            KindProjection::Inner { mut body, permit } => {
                let frame = body.as_mut().poll_frame(cx);
                if permit.is_some() {
                    let has_ended = match &frame {
                        Poll::Ready(Some(Ok(_))) => body.is_end_stream(),
                        Poll::Ready(_) => true,
                        Poll::Pending => false,
                    };
                    if has_ended {
                        *permit = None;
                    }
                }
                frame
            }
            KindProjection::Rejection { text } => Poll::Ready(text.take().map(Frame::data).map(Ok)),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Inner { body, .. } => body.is_end_stream(),
            Kind::Rejection { text } => text.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Inner { body, .. } => body.size_hint(),
            Kind::Rejection { text: None } => SizeHint::with_exact(0),
            Kind::Rejection { text: Some(text) } => {
                SizeHint::with_exact(u64::try_from(text.len()).unwrap_or(u64::MAX))
            }
        }
    }
}
