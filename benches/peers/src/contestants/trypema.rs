//! `trypema`: sliding buckets on Redis, and a hybrid of memory and Redis that is not exact.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use trypema::hybrid::HybridRateLimiterProvider;
use trypema::redis::{RedisKey, RedisRateLimiterProvider};
use trypema::{RateLimit, RateLimitDecision, RateLimiterBuilder, WindowSize};

use crate::workload::Workload;

enum Provider {
    Redis(Arc<RedisRateLimiterProvider>),
    Hybrid(Arc<HybridRateLimiterProvider>),
}

impl Provider {
    async fn admits(&self, key: &str, rate: &RateLimit) -> bool {
        let key = RedisKey::try_from(key.to_owned()).expect("a key");
        let decision = match self {
            Self::Redis(provider) => provider.absolute().inc(&key, rate, 1).await,
            Self::Hybrid(provider) => provider.absolute().inc(&key, rate, 1).await,
        };
        matches!(decision.expect("an answer"), RateLimitDecision::Allowed)
    }
}

pub(super) async fn layer(router: Router, name: &str, workload: &Workload, redis: &str) -> Router {
    let client = redis::Client::open(redis).expect("a URL");
    let connection = client.get_connection_manager().await.expect("a server");
    let window = WindowSize::seconds_or_panic(workload.window.as_secs());
    let provider = if name == "trypema-redis" {
        let builder = RedisRateLimiterProvider::builder(connection).window_size(window);
        Provider::Redis(builder.build().expect("a provider"))
    } else {
        let builder = HybridRateLimiterProvider::builder(connection).window_size(window);
        Provider::Hybrid(builder.build().expect("a provider"))
    };
    let rate = f64::from(workload.limit) / workload.window.as_secs_f64();
    let limiter = Arc::new((provider, RateLimit::per_second_or_panic(rate)));
    router.layer(from_fn(move |request, next| {
        let limiter = Arc::clone(&limiter);
        async move { check(&limiter, request, next).await }
    }))
}

async fn check((provider, rate): &(Provider, RateLimit), request: Request, next: Next) -> Response {
    if provider.admits(super::key(request.headers()), rate).await {
        next.run(request).await
    } else {
        StatusCode::TOO_MANY_REQUESTS.into_response()
    }
}
