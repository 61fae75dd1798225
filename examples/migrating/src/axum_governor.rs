//! `axum-governor` 2.1.

pub mod before {
    use axum::{Router, routing::get};
    use axum_governor::extractor::PeerIp;
    use axum_governor::{GovernorConfigBuilder, GovernorLayer, Quota, nz};

    pub fn app() -> Router {
        let config = GovernorConfigBuilder::default()
            .with_extractor(PeerIp::default())
            .expect_connect_info()
            .quotas(
                "site",
                PeerIp::default(),
                [
                    Quota::requests_per_second(nz!(5u32)),
                    Quota::requests_per_minute(nz!(20u32)),
                ],
            )
            .finish()
            .expect("a valid configuration");

        Router::new()
            .route("/", get(|| async { "hello" }))
            .layer(GovernorLayer::new(config))
    }
}

pub mod after {
    // page: after
    use axum::{Router, routing::get};
    use tollgate::{Algorithm, Headers, IetfDraft, Quota, RateLimitLayer, Store, key};

    pub fn app(store: impl Store) -> Router {
        let quotas = [
            Quota::per_second(5).with_algorithm(Algorithm::Gcra),
            Quota::per_minute(20).with_algorithm(Algorithm::Gcra),
        ];
        let headers = Headers::x_ratelimit().delta_reset();

        Router::new().route("/", get(|| async { "hello" })).layer(
            RateLimitLayer::new(store, quotas)
                .name("site")
                .key(key::peer_ip().ipv6_prefix(56))
                .headers(headers.and(Headers::ietf(IetfDraft::Draft11))),
        )
    }
    // page: end
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::body::Body;
    use axum::{Router, routing::get};
    use axum_governor::extractor::PeerIp;
    use axum_governor::{GovernorConfigBuilder, GovernorLayer, Quota, SmartIp, nz};
    use http::{HeaderValue, Request, StatusCode};
    use tollgate::{MemoryStore, RateLimitLayer, key};

    use super::{after, before};
    use crate::requests::{compare, from_peer, send};

    const PEER: &str = "192.0.2.7:1000";

    fn hello() -> Router {
        Router::new().route("/", get(|| async { "hello" }))
    }

    #[tokio::test]
    async fn both_admit_the_same_requests() {
        let (before, after) = (before::app(), after::app(MemoryStore::new()));
        let mut times = [[0; 7], [1_100; 7], [2_200; 7], [3_300; 7]].concat();
        times.extend([4_400; 2]);
        let times: Vec<_> = times.into_iter().map(Duration::from_millis).collect();
        let admitted = compare(&before, &after, &times).await;
        let mut expected = [1, 1, 1, 1, 1, 0, 0].repeat(4);
        expected.extend([1, 0]);
        let expected: Vec<_> = expected.into_iter().map(|each| each == 1).collect();
        assert_eq!(admitted, expected);

        // The next unit of the minute comes at 6 seconds: 1.6 are left.
        let (before, after) = (
            send(&before, from_peer(PEER)).await,
            send(&after, from_peer(PEER)).await,
        );
        assert_eq!(before.header("retry-after"), Some("1"));
        assert_eq!(before.header("x-ratelimit-reset"), Some("1"));
        assert_eq!(before.body, "Too Many Requests, retry in 1s");
        assert_eq!(before.header("ratelimit"), Some("\"site:1m\";r=0;t=1"));
        assert_eq!(after.header("retry-after"), Some("2"));
        assert_eq!(after.header("x-ratelimit-reset"), Some("2"));
        assert_eq!(after.header("ratelimit"), Some("\"site-1m\";r=0;t=2"));
        assert_eq!(after.body, "rate limit exceeded\n");
    }

    #[tokio::test]
    async fn an_admitted_request_has_the_headers_of_the_page() {
        let (before, after) = (before::app(), after::app(MemoryStore::new()));
        let (before, after) = (
            send(&before, from_peer(PEER)).await,
            send(&after, from_peer(PEER)).await,
        );
        let one = "\"site:1s\";r=4;t=0";
        assert_eq!(before.header("ratelimit"), Some(one));
        let both = "\"site-1s\";r=4;t=1, \"site-1m\";r=19;t=3";
        assert_eq!(after.header("ratelimit"), Some(both));
        for (seen, separator) in [(before, ":"), (after, "-")] {
            let policies = "\"site:1s\";q=5;w=1, \"site:1m\";q=20;w=60".replace(':', separator);
            assert_eq!(seen.header("ratelimit-policy"), Some(&*policies));
            assert_eq!(seen.header("x-ratelimit-limit"), Some("5"));
        }
    }

    #[tokio::test]
    async fn only_before_a_refusal_is_charged_to_earlier_policies() {
        let quotas = [
            Quota::requests_per_hour(nz!(4u32)),
            Quota::requests_per_second(nz!(2u32)),
        ];
        let config = GovernorConfigBuilder::default()
            .with_extractor(PeerIp::default())
            .expect_connect_info()
            .quotas("site", PeerIp::default(), quotas);
        let before = hello().layer(GovernorLayer::new(config.finish().expect("valid")));
        let quotas = [tollgate::Quota::per_hour(4), tollgate::Quota::per_second(2)];
        let after = hello().layer(RateLimitLayer::new(MemoryStore::new(), quotas));
        for (app, later) in [(before, 429), (after, 200)] {
            for expected in [200, 200, 429, 429] {
                assert_eq!(send(&app, from_peer(PEER)).await.status, expected);
            }
            tokio::time::sleep(Duration::from_millis(1_100)).await;
            assert_eq!(send(&app, from_peer(PEER)).await.status, later);
        }
    }

    #[tokio::test]
    async fn a_header_of_a_peer_that_is_no_proxy_is_rejected_before_and_ignored_after() {
        let proxies = ["10.0.0.0/8"];
        let trusted = proxies.map(|network| network.parse().expect("a network"));
        let config = GovernorConfigBuilder::default()
            .with_extractor(SmartIp::new().with_trusted_proxies(trusted))
            .expect_connect_info()
            .quota_default(Quota::requests_per_second(nz!(5u32)));
        let before = hello().layer(GovernorLayer::new(config.finish().expect("valid")));
        let layer = RateLimitLayer::new(MemoryStore::new(), tollgate::Quota::per_second(5));
        let after = hello().layer(layer.key(key::client_ip().behind(proxies)));
        for (app, expected) in [(before, StatusCode::BAD_REQUEST), (after, StatusCode::OK)] {
            let mut request = from_peer(PEER);
            let forwarded = HeaderValue::from_static("198.51.100.1");
            request.headers_mut().insert("x-forwarded-for", forwarded);
            assert_eq!(send(&app, request).await.status, expected);
        }
    }

    #[tokio::test]
    async fn without_an_address_both_answer_500() {
        for app in [before::app(), after::app(MemoryStore::new())] {
            let status = send(&app, Request::new(Body::empty())).await.status;
            assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
        }
    }
}
