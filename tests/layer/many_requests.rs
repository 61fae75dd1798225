//! Thousands of requests through two layers, each with its own settlement: afterwards the units in Redis equal those that
//! the test expects.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use axum::http::{HeaderMap, Response as HttpResponse, StatusCode};
use axum::{Router, routing::get};
use reqwest::Client;
use tollgate::{
    FailurePolicy, Key, KeyExtractor, Quota, RateLimitLayer, RateLimiter, RedisStore, Reservation,
    key,
};

use crate::support::cases::some_or_all;
use crate::support::redis_server::RedisServer;
use crate::support::served::serve;
use crate::support::store_on;
use crate::used;

const AT_A_TIME: u32 = 32;

/// Roomy for some, and for two of each layer a limit that is reached.
const ROOM: u32 = 1_000_000;
const TIGHT: u32 = 300;

const TENANTS: u32 = 7;
const USERS: u32 = 23;

/// What the site charges before it knows better, and the model.
const SITE_COST: u32 = 3;
const MODEL_COST: u32 = 10;

/// Which request it is says all about it.
#[derive(Clone, Copy)]
struct Call(u32);

impl Call {
    fn tenant(self) -> u32 {
        self.0 % TENANTS
    }

    fn user(self) -> u32 {
        self.0 % USERS
    }

    fn is_roomy(self) -> bool {
        self.tenant() >= 2 && self.user() >= 2
    }

    /// How it is answered.
    fn status(self) -> StatusCode {
        match self.0 / 3 % 5 {
            0 => StatusCode::NOT_MODIFIED,
            1 => StatusCode::INTERNAL_SERVER_ERROR,
            // More than was charged is charged where there is room for sure.
            2 if self.is_roomy() => StatusCode::PARTIAL_CONTENT,
            _ => StatusCode::OK,
        }
    }

    /// The tokens that it takes, if its handler says so.
    fn tokens(self) -> Option<u32> {
        match self.0 / 7 % 4 {
            0 => None,
            1 => Some(0),
            2 if self.is_roomy() => Some(MODEL_COST + 7),
            _ => Some(6),
        }
    }
}

/// What the site charges for an answer; nothing for what the model had no room for.
fn site_cost(status: StatusCode) -> u32 {
    match status {
        StatusCode::NOT_MODIFIED | StatusCode::TOO_MANY_REQUESTS => 0,
        StatusCode::INTERNAL_SERVER_ERROR => 1,
        StatusCode::PARTIAL_CONTENT => SITE_COST + 4,
        _ => SITE_COST,
    }
}

fn by(name: &'static str) -> impl KeyExtractor {
    key::from_fn(move |parts| Some(Key::from(parts.headers.get(name)?.as_bytes())))
}

fn limit_of(number: u32) -> u32 {
    if number < 2 { TIGHT } else { ROOM }
}

/// A limiter in the eyes of the test.
fn limiter(store: &RedisStore, name: &str) -> RateLimiter {
    RateLimiter::new(store.clone(), Quota::per_hour(ROOM)).name(name)
}

/// One of the two layers. A rejection has the name of its layer.
fn layer(store: &RedisStore, name: &'static str, header: &'static str) -> RateLimitLayer {
    RateLimitLayer::from(limiter(store, name))
        .key(by(header))
        .quotas_for(move |_, parts| {
            let number = number_in(&parts.headers, header);
            async move { Quota::per_hour(limit_of(number)) }
        })
        .on_failure(FailurePolicy::closed())
        .responder(|rejection| {
            let response = HttpResponse::builder().status(rejection.status());
            let response = response.header("x-refused-by", rejection.limiter());
            response.body("").expect("a response")
        })
}

fn number_in(headers: &HeaderMap, name: &str) -> u32 {
    let value = headers.get(name).and_then(|value| value.to_str().ok());
    value.expect("a header").parse().expect("a number")
}

async fn answer(headers: HeaderMap, reservation: Reservation) -> StatusCode {
    let call = Call(number_in(&headers, "x-call"));
    if let Some(tokens) = call.tokens() {
        reservation.settle(tokens);
    }
    call.status()
}

/// The units of each key that the test has counted, by the names of limiter and key.
type Counted = BTreeMap<(&'static str, u32), u32>;

#[derive(Default)]
struct Model {
    counted: Counted,
    refused: BTreeMap<&'static str, u32>,
}

impl Model {
    fn note(&mut self, call: Call, status: StatusCode, refused_by: Option<&str>) {
        let tenant = self.counted.entry(("site", call.tenant())).or_default();
        match refused_by {
            Some("site") => *self.refused.entry("site").or_default() += 1,
            Some(_) => {
                *tenant += site_cost(StatusCode::TOO_MANY_REQUESTS);
                *self.refused.entry("model").or_default() += 1;
            }
            None => {
                assert_eq!(status, call.status());
                *tenant += site_cost(status);
                let user = self.counted.entry(("model", call.user())).or_default();
                *user += call.tokens().unwrap_or(MODEL_COST);
            }
        }
    }

    fn add(&mut self, other: Self) {
        for (whose, units) in other.counted {
            *self.counted.entry(whose).or_default() += units;
        }
        for (by, refusals) in other.refused {
            *self.refused.entry(by).or_default() += refusals;
        }
    }
}

async fn send(client: &Client, url: &str, call: Call, model: &mut Model) {
    let request = client
        .get(url)
        .header("x-call", call.0)
        .header("x-tenant", call.tenant())
        .header("x-user", call.user());
    let response = request.send().await.expect("an answer");
    let refused_by = response.headers().get("x-refused-by");
    let refused_by = refused_by.map(|name| name.to_str().expect("text"));
    let status = response.status();
    assert_eq!(refused_by.is_some(), status == 429, "{status}");
    model.note(call, status, refused_by);
}

/// What Redis holds of the same keys.
async fn held(store: &RedisStore, counted: &Counted) -> Counted {
    let mut held = Counted::new();
    for &(name, number) in counted.keys() {
        let units = used(&limiter(store, name), &number.to_string()).await;
        held.insert((name, number), units);
    }
    held
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_holds_exactly_what_was_charged() {
    let requests = some_or_all(3_000, 10_000);
    let server = RedisServer::start();
    let store = store_on(&server);
    let site = layer(&store, "site", "x-tenant")
        .cost(|_| SITE_COST)
        .settle(|_, response, _| site_cost(response.status));
    let model = layer(&store, "model", "x-user")
        .cost(|_| MODEL_COST)
        .reserve();
    let app = Router::new()
        .route("/", get(answer))
        .layer(model)
        .layer(site);
    let url: Arc<str> = serve(app).await.into();

    let (next, client) = (Arc::new(AtomicU32::new(0)), Client::new());
    let clients: Vec<_> = (0..AT_A_TIME)
        .map(|_| {
            let (next, client, url) = (Arc::clone(&next), client.clone(), Arc::clone(&url));
            tokio::spawn(async move {
                let mut model = Model::default();
                loop {
                    let call = Call(next.fetch_add(1, Ordering::Relaxed));
                    if call.0 >= requests {
                        return model;
                    }
                    send(&client, &url, call, &mut model).await;
                }
            })
        })
        .collect();
    let mut model = Model::default();
    for client in clients {
        model.add(client.await.expect("a client ends"));
    }
    // Both layers have refused, and neither nearly all.
    for by in ["site", "model"] {
        let refused = model.refused.get(by).copied().unwrap_or_default();
        assert!((100..requests / 3).contains(&refused), "{by}: {refused}");
    }

    // What is settled last is settled soon, and stays so.
    let patience = Instant::now() + Duration::from_secs(10);
    while held(&store, &model.counted).await != model.counted && Instant::now() < patience {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(held(&store, &model.counted).await, model.counted);
    for ((name, number), units) in model.counted {
        assert!(units <= limit_of(number), "{name} {number}: {units}");
    }
}
