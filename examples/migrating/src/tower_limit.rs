//! `tower::limit::RateLimit` of tower 0.5, around a client.

pub mod before {
    use std::time::Duration;

    use axum::body::Body;
    use http::{Request, Response};
    use tower::util::BoxCloneService;
    use tower::{BoxError, Service, ServiceBuilder};

    pub fn limited<S>(client: S) -> BoxCloneService<Request<Body>, Response<Body>, BoxError>
    where
        S: Service<Request<Body>, Response = Response<Body>> + Send + 'static,
        S::Error: Into<BoxError> + Send + Sync,
        S::Future: Send,
    {
        let service = ServiceBuilder::new()
            // `RateLimit` is not `Clone`. A buffer is.
            .buffer(64)
            .rate_limit(10, Duration::from_secs(1))
            .service(client);
        BoxCloneService::new(service)
    }
}

pub mod after {
    // page: after
    use axum::body::Body;
    use http::{Request, Response};
    use tollgate::{OutboundLayer, Quota, RateLimit, RateLimiter, Store};
    use tower::{Service, ServiceBuilder};

    pub fn limited<S>(client: S, store: impl Store) -> RateLimit<S>
    where
        S: Service<Request<Body>, Response = Response<Body>> + Clone,
    {
        let limiter = RateLimiter::new(store, Quota::per_second(10)).name("upstream");
        ServiceBuilder::new()
            .layer(OutboundLayer::new(limiter))
            .service(client)
    }
    // page: end
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::{Duration, Instant};

    use axum::body::Body;
    use http::{Request, Response, StatusCode};
    use tollgate::{MemoryStore, Quota, RateLimitLayer, key};
    use tower::{Layer, Service, ServiceExt, service_fn};

    use super::{after, before};

    async fn upstream(_: Request<Body>) -> Result<Response<Body>, Infallible> {
        Ok(Response::new(Body::empty()))
    }

    /// Sends calls one after the other, and returns how long they took.
    async fn time_of<S, B>(mut service: S, calls: u32) -> Duration
    where
        S: Service<Request<Body>, Response = Response<B>>,
        S::Error: std::fmt::Debug,
    {
        let start = Instant::now();
        for _ in 0..calls {
            let ready = service.ready().await.expect("the upstream is ready");
            let response = ready.call(Request::new(Body::empty())).await;
            assert_eq!(response.expect("a response").status(), StatusCode::OK);
        }
        start.elapsed()
    }

    #[tokio::test]
    async fn both_make_the_eleventh_call_wait() {
        let client = service_fn(upstream);
        let (ten, eleven) = tokio::join!(
            time_of(before::limited(client), 10),
            time_of(before::limited(client), 11),
        );
        assert!(ten < Duration::from_secs(1) && eleven >= Duration::from_secs(1));
        let (ten, eleven) = tokio::join!(
            time_of(after::limited(client, MemoryStore::new()), 10),
            time_of(after::limited(client, MemoryStore::new()), 11),
        );
        assert!(ten < Duration::from_secs(1) && eleven >= Duration::from_secs(1));
    }

    #[tokio::test]
    async fn a_call_that_would_wait_longer_is_rejected() {
        let limit = RateLimitLayer::new(MemoryStore::new(), Quota::per_hour(1))
            .key(key::global())
            .wait_up_to(Duration::from_secs(30));
        let service = limit.layer(service_fn(upstream));
        for expected in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
            let response = service.clone().oneshot(Request::new(Body::empty())).await;
            assert_eq!(response.expect("a response").status(), expected);
        }
    }
}
