//! `tower-redis-cell` 0.3, with the module redis-cell in Redis.

pub mod before {
    use axum::body::Body;
    use axum::response::{AppendHeaders, IntoResponse, Response};
    use axum::{Router, routing::get};
    use http::{Request, StatusCode, header};
    use redis::aio::ConnectionLike;
    use tower_redis_cell::redis_cell::Policy;
    use tower_redis_cell::{Error, ProvideRule, ProvideRuleResult};
    use tower_redis_cell::{RateLimitConfig, RateLimitLayer, Rule};

    // 5 at once, then one every 2 seconds.
    const POLICY: Policy = Policy::from_tokens_per_minute(30).max_burst(4);

    #[derive(Clone)]
    struct ByApiKey;

    impl ProvideRule<Request<Body>> for ByApiKey {
        fn provide<'a>(&self, request: &'a Request<Body>) -> ProvideRuleResult<'a> {
            let key = request.headers().get("x-api-key");
            let key = key.and_then(|value| value.to_str().ok());
            Ok(Some(Rule::new(key.ok_or("no API key")?, POLICY)))
        }
    }

    fn on_error(error: Error<'_>, _: &Request<Body>) -> Response {
        match error {
            Error::ProvideRule(_) => StatusCode::UNAUTHORIZED.into_response(),
            Error::RateLimit(refused) => {
                let wait = AppendHeaders([(header::RETRY_AFTER, refused.details.retry_after)]);
                (StatusCode::TOO_MANY_REQUESTS, wait).into_response()
            }
            _ => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    }

    pub fn app(redis: impl ConnectionLike + Clone + Send + Sync + 'static) -> Router {
        let config = RateLimitConfig::new(ByApiKey, on_error);
        Router::new()
            .route("/", get(|| async { "hello" }))
            .layer(RateLimitLayer::new(config, redis))
    }
}

pub mod after {
    // page: after
    use std::time::Duration;

    use axum::{Router, routing::get};
    use tollgate::{Algorithm, FailurePolicy, Quota, RateLimitLayer, Store, key};

    // 5 at once, then one every 2 seconds: 5 in 5 × 2 seconds.
    pub const QUOTA: Quota = Quota::new(5, Duration::from_secs(10)).with_algorithm(Algorithm::Gcra);

    pub fn app(store: impl Store) -> Router {
        let limit = RateLimitLayer::new(store, QUOTA)
            .key(key::header("x-api-key"))
            // As before, nothing passes without Redis. The default falls back to counts in memory.
            .on_failure(FailurePolicy::closed());
        Router::new()
            .route("/", get(|| async { "hello" }))
            .layer(limit)
    }
    // page: end
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use http::{Request, StatusCode};
    use redis::Value;
    use redis_test::{MockCmd, MockRedisConnection};
    use tollgate::store::TestStore;
    use tollgate::{ErrorKind, MemoryStore};

    use super::{after, before};
    use crate::redis_server::RedisServer;
    use crate::requests::{send, with_api_key};

    /// A connection to a Redis with the module, which answers the commands of one API key.
    fn module(replies: impl IntoIterator<Item = [i64; 5]>) -> MockRedisConnection {
        let mut command = redis::cmd("CL.THROTTLE");
        // The burst, without the one that a key may always have; tokens in a period of seconds; the cost.
        command.arg("ada").arg(4).arg(30).arg(60).arg(1);
        MockRedisConnection::new(replies.into_iter().map(|reply| {
            let reply = reply.map(Value::Int).to_vec();
            MockCmd::new(command.clone(), Ok(Value::Array(reply)))
        }))
    }

    #[tokio::test]
    async fn both_refuse_the_sixth_request() {
        let replies = [4, 3, 2, 1, 0].map(|left| [0, 5, left, -1, 2 * (5 - left)]);
        let before = before::app(module(replies.into_iter().chain([[1, 5, 0, 2, 10]])));
        let after = after::app(MemoryStore::new());
        for app in [&before, &after] {
            for _ in 0..5 {
                assert_eq!(send(app, with_api_key("ada")).await.status, StatusCode::OK);
            }
            let refused = send(app, with_api_key("ada")).await;
            assert_eq!(refused.status, StatusCode::TOO_MANY_REQUESTS);
            assert_eq!(refused.header("retry-after"), Some("2"));
        }
    }

    #[tokio::test]
    async fn without_the_module_each_request_fails() {
        let server = RedisServer::start();
        let client = redis::Client::open(server.url()).expect("a URL");
        let connection = redis::aio::ConnectionManager::new(client).await;
        let before = before::app(connection.expect("the server answers"));
        let seen = send(&before, with_api_key("ada")).await;
        assert_eq!(seen.status, StatusCode::INTERNAL_SERVER_ERROR);

        let store = tollgate::RedisStore::open(&server.url()).expect("a URL");
        let seen = send(&after::app(store), with_api_key("ada")).await;
        assert_eq!(seen.status, StatusCode::OK);
    }

    #[tokio::test]
    async fn without_redis_or_without_a_key_nothing_passes() {
        let store = TestStore::new();
        store.fail_all(ErrorKind::Unavailable);
        let seen = send(&after::app(store), with_api_key("ada")).await;
        assert_eq!(seen.status, StatusCode::SERVICE_UNAVAILABLE);

        let anonymous = || Request::new(Body::empty());
        let seen = send(&before::app(module([])), anonymous()).await;
        assert_eq!(seen.status, StatusCode::UNAUTHORIZED);
        let seen = send(&after::app(MemoryStore::new()), anonymous()).await;
        assert_eq!(seen.status, StatusCode::BAD_REQUEST);
    }
}
