//! `limitador`: fixed windows in memory, on Redis, and on Redis with a cache that is not exact.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use limitador::limit::{Context, Limit};
use limitador::storage::redis::{AsyncRedisStorage, CachedRedisStorage};
use limitador::{AsyncRateLimiter, RateLimiter};

use crate::workload::Workload;

const NAMESPACE: &str = "bench";

enum Limiter {
    Memory(RateLimiter),
    Redis(AsyncRateLimiter),
}

impl Limiter {
    async fn is_limited(&self, key: &str) -> bool {
        let values = HashMap::from([("key".to_owned(), key.to_owned())]);
        let (namespace, context) = (NAMESPACE.into(), Context::from(values));
        let result = match self {
            Self::Memory(limiter) => limiter.check_rate_limited_and_update(&namespace, &context, 1),
            Self::Redis(limiter) => {
                let checked = limiter.check_rate_limited_and_update(&namespace, &context, 1);
                checked.await
            }
        };
        result.expect("an answer").limited
    }
}

pub(super) async fn layer(router: Router, name: &str, workload: &Workload, redis: &str) -> Router {
    let variables = vec!["key".try_into().expect("a variable")];
    let seconds = workload.window.as_secs();
    let limit = Limit::new(NAMESPACE, workload.limit.into(), seconds, vec![], variables);
    let limiter = match name {
        "limitador-redis" => {
            let storage = AsyncRedisStorage::new(redis).await.expect("a server");
            Limiter::Redis(AsyncRateLimiter::new_with_storage(Box::new(storage)))
        }
        "limitador-cached" => {
            let storage = CachedRedisStorage::new(redis).await.expect("a server");
            Limiter::Redis(AsyncRateLimiter::new_with_storage(Box::new(storage)))
        }
        _ => Limiter::Memory(RateLimiter::new(100_000)),
    };
    match &limiter {
        Limiter::Memory(limiter) => limiter.add_limit(limit),
        Limiter::Redis(limiter) => limiter.add_limit(limit),
    };
    let limiter = Arc::new(limiter);
    router.layer(from_fn(move |request, next| {
        let limiter = Arc::clone(&limiter);
        async move { check(&limiter, request, next).await }
    }))
}

async fn check(limiter: &Limiter, request: Request, next: Next) -> Response {
    if limiter.is_limited(super::key(request.headers())).await {
        StatusCode::TOO_MANY_REQUESTS.into_response()
    } else {
        next.run(request).await
    }
}
