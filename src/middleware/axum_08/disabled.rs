//! Replaces `axum_08.rs` in builds without the feature `axum-08`: a responder may return responses of `http`.

use bytes::Bytes;
use http::Response;
use http_body::Body;

use super::rejection_response::{RejectionResponse, with_ready_body};

impl<B> RejectionResponse<Response<Bytes>> for Response<B>
where
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    fn into_rejection_response(self) -> Option<Response<Bytes>> {
        Some(with_ready_body(self))
    }
}
