//! `tower_governor` 0.8.

pub mod before {
    use std::time::Duration;

    use axum::{Router, routing::get};
    use tower_governor::{GovernorLayer, governor::GovernorConfigBuilder};

    pub fn app() -> Router {
        // 5 at once, then one every 2 seconds.
        let config = GovernorConfigBuilder::default()
            .per_second(2)
            .burst_size(5)
            .use_headers()
            .finish()
            .expect("neither number is 0");

        // Removes idle addresses, which would stay in memory.
        let limiter = config.limiter().clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_secs(60)).await;
                limiter.retain_recent();
            }
        });

        Router::new()
            .route("/", get(|| async { "hello" }))
            .layer(GovernorLayer::new(config))
    }
}

pub mod after {
    // page: after
    use std::time::Duration;

    use axum::{Router, routing::get};
    use tollgate::{Algorithm, Quota, RateLimitLayer, Store};

    pub fn app(store: impl Store) -> Router {
        // 5 at once, then one every 2 seconds: 5 in 5 × 2 seconds.
        let quota = Quota::new(5, Duration::from_secs(10)).with_algorithm(Algorithm::Gcra);

        Router::new()
            .route("/", get(|| async { "hello" }))
            .layer(RateLimitLayer::new(store, quota))
    }
    // page: end
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::body::Body;
    use http::{Request, StatusCode};
    use tollgate::{Algorithm, MemoryStore, Quota};
    use tower_governor::governor::{GovernorConfig, GovernorConfigBuilder};

    use super::{after, before};
    use crate::requests::{compare, from_peer, send};

    const PEER: &str = "192.0.2.7:1000";

    #[tokio::test]
    async fn both_admit_the_same_requests() {
        let (before, after) = (before::app(), after::app(MemoryStore::new()));
        let times = [0, 0, 0, 0, 0, 0, 0, 2_200, 2_200, 4_400, 4_400];
        let admitted = compare(&before, &after, &times.map(Duration::from_millis)).await;
        let expected = [1, 1, 1, 1, 1, 0, 0, 1, 0, 1, 0];
        assert_eq!(admitted, expected.map(|each| each == 1));
    }

    #[tokio::test]
    async fn a_refusal_is_as_the_page_says() {
        let (before, after) = (before::app(), after::app(MemoryStore::new()));
        for app in [&before, &after] {
            for _ in 0..5 {
                assert_eq!(send(app, from_peer(PEER)).await.status, StatusCode::OK);
            }
        }
        let (before, after) = (
            send(&before, from_peer(PEER)).await,
            send(&after, from_peer(PEER)).await,
        );
        assert_eq!(before.status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(after.status, StatusCode::TOO_MANY_REQUESTS);
        // 1.99… seconds are left.
        assert_eq!(before.header("retry-after"), Some("1"));
        assert_eq!(before.header("x-ratelimit-after"), Some("1"));
        assert_eq!(before.body, "Too Many Requests! Wait for 1s");
        assert_eq!(after.header("retry-after"), Some("2"));
        assert_eq!(after.header("x-ratelimit-after"), None);
        assert_eq!(after.body, "rate limit exceeded\n");
        for seen in [&before, &after] {
            assert_eq!(seen.header("x-ratelimit-limit"), Some("5"));
            assert_eq!(seen.header("x-ratelimit-remaining"), Some("0"));
        }
        assert_eq!(before.header("x-ratelimit-reset"), None);
        assert!(after.header("x-ratelimit-reset").is_some());
    }

    #[tokio::test]
    async fn addresses_of_one_network_share_a_limit_after() {
        let (before, after) = (before::app(), after::app(MemoryStore::new()));
        let left = async |app| {
            send(app, from_peer("[2001:db8::1]:1000")).await;
            let seen = send(app, from_peer("[2001:db8::2]:1000")).await;
            seen.header("x-ratelimit-remaining").map(str::to_owned)
        };
        assert_eq!(left(&before).await.as_deref(), Some("4"));
        assert_eq!(left(&after).await.as_deref(), Some("3"));
    }

    #[tokio::test]
    async fn without_an_address_both_answer_500() {
        let (before, after) = (before::app(), after::app(MemoryStore::new()));
        for app in [before, after] {
            let seen = send(&app, Request::new(Body::empty())).await;
            assert_eq!(seen.status, StatusCode::INTERNAL_SERVER_ERROR);
        }
    }

    #[test]
    fn the_defaults_are_those_of_the_table() {
        let of = |config: GovernorConfig<_, governor::middleware::NoOpMiddleware>| {
            let refused = || loop {
                if let Err(refused) = config.limiter().check_key(&[192, 0, 2, 7].into()) {
                    return refused.quota();
                }
            };
            let quota = refused();
            let limit = quota.burst_size().get();
            Quota::new(limit, quota.replenish_interval() * limit).with_algorithm(Algorithm::Gcra)
        };
        let gcra = |limit, millis| {
            Quota::new(limit, Duration::from_millis(millis)).with_algorithm(Algorithm::Gcra)
        };
        let built =
            |builder: &mut GovernorConfigBuilder<_, _>| of(builder.finish().expect("not 0"));
        let builder = GovernorConfigBuilder::default;
        assert_eq!(of(GovernorConfig::default()), gcra(8, 4_000));
        assert_eq!(of(GovernorConfig::secure()), gcra(2, 8_000));
        assert_eq!(
            built(builder().per_second(2).burst_size(5)),
            gcra(5, 10_000)
        );
        assert_eq!(
            built(builder().per_second(60).burst_size(10)),
            gcra(10, 600_000)
        );
        assert_eq!(
            built(builder().per_millisecond(50).burst_size(60)),
            gcra(60, 3_000)
        );
        assert!(builder().burst_size(0).finish().is_none());
    }
}
