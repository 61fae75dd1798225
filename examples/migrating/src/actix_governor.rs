//! `actix-governor` 0.10, in a service that stays with actix-web.

pub mod before {
    use actix_governor::governor::middleware::NoOpMiddleware;
    use actix_governor::{Governor, GovernorConfig, GovernorConfigBuilder, PeerIpKeyExtractor};
    use actix_web::web::{self, ServiceConfig};

    type Limit = GovernorConfig<PeerIpKeyExtractor, NoOpMiddleware>;

    /// Called once: two configurations count separately.
    pub fn limit() -> Limit {
        // 5 at once, then one every 2 seconds.
        GovernorConfigBuilder::default()
            .seconds_per_request(2)
            .burst_size(5)
            .finish()
            .expect("neither number is 0")
    }

    pub fn routes(services: &mut ServiceConfig, limit: &Limit) {
        let hello = web::get().to(|| async { "hello" });
        services.service(web::resource("/").wrap(Governor::new(limit)).route(hello));
    }
}

pub mod after {
    // page: after
    use std::time::Duration;

    use actix_web::HttpResponse;
    use actix_web::body::MessageBody;
    use actix_web::dev::{ServiceRequest, ServiceResponse};
    use actix_web::error::{Error, ErrorInternalServerError, ErrorServiceUnavailable};
    use actix_web::http::header::RETRY_AFTER;
    use actix_web::middleware::{Next, from_fn};
    use actix_web::web::{self, Data, ServiceConfig};
    use tollgate::{Algorithm, FailurePolicy, Quota, RateLimiter, Store, key};

    /// Called once: its clones share their counts.
    pub fn limit(store: impl Store) -> RateLimiter {
        // 5 at once, then one every 2 seconds: 5 in 5 × 2 seconds.
        let quota = Quota::new(5, Duration::from_secs(10)).with_algorithm(Algorithm::Gcra);
        RateLimiter::new(store, quota).on_failure(FailurePolicy::fall_back())
    }

    async fn check(
        limit: Data<RateLimiter>,
        request: ServiceRequest,
        next: Next<impl MessageBody + 'static>,
    ) -> Result<ServiceResponse<impl MessageBody>, Error> {
        let peer = request
            .peer_addr()
            .ok_or(ErrorInternalServerError("no address"))?;
        let client = key::peer_ip().ipv6_prefix(56).of(peer.ip());
        let decision = limit.check(client).await.map_err(ErrorServiceUnavailable)?;
        if decision.is_allowed() {
            return Ok(next.call(request).await?.map_into_left_body());
        }
        let mut response = HttpResponse::TooManyRequests();
        if let Some(wait) = decision.retry_after() {
            let seconds = wait.as_millis().div_ceil(1_000).to_string();
            response.insert_header((RETRY_AFTER, seconds));
        }
        let response = response.body("rate limit exceeded\n");
        Ok(request.into_response(response).map_into_right_body())
    }

    pub fn routes(services: &mut ServiceConfig, limit: &RateLimiter) {
        let hello = web::get().to(|| async { "hello" });
        services
            .app_data(Data::new(limit.clone()))
            .service(web::resource("/").wrap(from_fn(check)).route(hello));
    }
    // page: end
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use actix_web::App;
    use actix_web::rt::System;
    use actix_web::rt::time::{Instant, sleep_until};
    use actix_web::test::{TestRequest, call_service, init_service};
    use tollgate::{MemoryStore, RateLimitLayer, key};

    use super::{after, before};
    use crate::requests;

    const PEER: &str = "192.0.2.7:1000";

    fn from_peer(peer: &str) -> TestRequest {
        let peer: SocketAddr = peer.parse().expect("an address and a port");
        TestRequest::get().peer_addr(peer)
    }

    #[test]
    fn both_admit_the_same_requests() {
        System::new().block_on(async {
            let (old, new) = (before::limit(), after::limit(MemoryStore::new()));
            let before = init_service(App::new().configure(|all| before::routes(all, &old))).await;
            let after = init_service(App::new().configure(|all| after::routes(all, &new))).await;
            let start = Instant::now();
            let times = [0, 0, 0, 0, 0, 0, 2_200, 2_200, 4_400];
            let expected = [200, 200, 200, 200, 200, 429, 200, 429, 200];
            for (time, expected) in times.into_iter().zip(expected) {
                sleep_until(start + Duration::from_millis(time)).await;
                let before = call_service(&before, from_peer(PEER).to_request()).await;
                let after = call_service(&after, from_peer(PEER).to_request()).await;
                assert_eq!(before.status(), expected);
                assert_eq!(after.status(), expected);
                if time == 0 && expected == 429 {
                    // 1.99… seconds are left.
                    assert_eq!(before.headers().get("retry-after").expect("a wait"), "1");
                    assert_eq!(after.headers().get("retry-after").expect("a wait"), "2");
                }
            }
        });
    }

    #[test]
    fn a_service_of_actix_and_one_of_axum_share_a_limit() {
        System::new().block_on(async {
            let limit = after::limit(MemoryStore::new());
            let actix = init_service(App::new().configure(|all| after::routes(all, &limit))).await;
            let layer = RateLimitLayer::from(limit.clone()).key(key::peer_ip().ipv6_prefix(56));
            let axum = axum::Router::new()
                .route("/", axum::routing::get(|| async { "hello" }))
                .layer(layer);
            call_service(&actix, from_peer("[2001:db8::1]:1000").to_request()).await;
            let seen = requests::send(&axum, requests::from_peer("[2001:db8:0:1::1]:1000")).await;
            assert_eq!(seen.header("x-ratelimit-remaining"), Some("3"));
        });
    }
}
