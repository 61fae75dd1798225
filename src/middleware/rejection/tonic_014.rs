//! tonic 0.14: a rejection as the status of a gRPC call.
//!
//! This is the only file in this directory that names tonic. The next major version of tonic gets its own file.

use http::header::CONTENT_TYPE;
use tonic::Status;

use super::grpc::Grpc;
use super::rejection::Rejection;

/// Converts as [`RateLimitLayer::grpc`](crate::RateLimitLayer::grpc) answers a call: `RESOURCE_EXHAUSTED` with the wait in a
/// `RetryInfo` and in `grpc-retry-pushback-ms`, or `UNAVAILABLE` if the store failed.
///
/// For a handler that checks a limiter on its own.
///
/// # Examples
///
/// ```
/// use tollgate::{RateLimiter, Rejection};
///
/// async fn admit(limiter: &RateLimiter, user: &str) -> Result<(), Rejection> {
///     limiter.check(user).await?.or_reject()?;
///     Ok(())
/// }
///
/// async fn search(limiter: &RateLimiter, user: &str) -> Result<tonic::Response<()>, tonic::Status> {
///     admit(limiter, user).await?;
///     Ok(tonic::Response::new(()))
/// }
/// ```
#[cfg_attr(docsrs, doc(cfg(feature = "tonic-014")))]
impl From<Rejection> for Status {
    fn from(rejection: Rejection) -> Self {
        let mut response = Grpc("application/grpc").reject(&rejection);
        let headers = response.headers_mut();
        headers.remove(CONTENT_TYPE);
        Self::from_header_map(headers).unwrap_or_else(|| Self::internal(rejection.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tonic::Code;
    use tonic_types::StatusExt;

    use super::*;
    use crate::error::{Error, ErrorKind};
    use crate::limiter::RateLimiter;
    use crate::quota::Quota;
    use crate::store::MemoryStore;

    #[tokio::test]
    async fn a_refusal_is_a_status_with_its_wait() {
        let limiter = RateLimiter::new(MemoryStore::new(), Quota::new(1, Duration::from_secs(3)));
        assert!(limiter.check("ada").await.unwrap().is_allowed());
        let refused = limiter.check("ada").await.unwrap();
        let wait = refused.retry_after();
        let status = Status::from(refused.or_reject().unwrap_err());
        assert_eq!(status.code(), Code::ResourceExhausted);
        assert_eq!(status.message(), "rate limit exceeded");
        let retry_info = status.get_details_retry_info().unwrap();
        assert_eq!(retry_info.retry_delay, wait);
        let pushback = status.metadata().get("grpc-retry-pushback-ms").unwrap();
        let pushback: u64 = pushback.to_str().unwrap().parse().unwrap();
        assert!((2_000..=3_000).contains(&pushback), "{pushback}");
        assert!(status.metadata().get("content-type").is_none());
    }

    #[test]
    fn a_failure_of_the_store_is_unavailable_and_shows_no_error() {
        let error = Error::new(ErrorKind::Unavailable, "redis at 10.0.0.7 is away");
        let status = Status::from(Rejection::from(error));
        assert_eq!(status.code(), Code::Unavailable);
        assert!(!status.message().contains("10.0.0.7"), "{status}");
    }
}
