//! A gateway that reserves what the JSON body of a request may use, and settles what the answer used.

use std::time::Duration;

use futures_util::stream::{self, Stream};
use reqwest::Client;
use tollgate::{MemoryStore, RedisStore};

use crate::support::redis_server::RedisServer;
use crate::support::served::{number, serve};

const MONTH: Duration = Duration::from_secs(30 * 86_400);

// page: shown
use axum::{body::Bytes, middleware::Next, response::Response};
use http::{Request, StatusCode, request::Parts};
use tollgate::{Level, RateLimitLayer, RateLimiter, key};

#[derive(serde::Deserialize)]
struct Prompt {
    max_tokens: u32, // the model gets this bound, too
}

#[derive(Clone, Copy)]
struct Estimate(u32);

/// Reads the body in front of the limit: a token for four bytes, and the bound of the answer.
async fn estimate(mut parts: Parts, body: Bytes, next: Next) -> Result<Response, StatusCode> {
    let prompt: Prompt = serde_json::from_slice(&body).map_err(|_| StatusCode::BAD_REQUEST)?;
    let read = u32::try_from(body.len() / 4).unwrap_or(u32::MAX);
    parts
        .extensions
        .insert(Estimate(read.saturating_add(prompt.max_tokens)));
    Ok(next.run(Request::from_parts(parts, body.into())).await)
}

fn estimated(parts: &Parts) -> u32 {
    parts
        .extensions
        .get::<Estimate>()
        .map_or(1, |estimate| estimate.0)
}

fn limit(tokens: RateLimiter, budget: RateLimiter) -> RateLimitLayer {
    let money = Level::new(budget, key::header("x-team")).cost(|parts| price(estimated(parts)));
    let spent = StatusCode::PAYMENT_REQUIRED;
    RateLimitLayer::from(tokens)
        .key(key::header("x-team"))
        .cost(estimated)
        .and_level(money.hidden())
        .reserve()
        .responder(move |rejection| (rejection.limiter() == "budget").then_some(spent))
}
// page: end

use std::convert::Infallible;

use axum::{Json, Router, body::Body, extract::State, middleware::from_fn, routing::post};
use futures_util::StreamExt;
use tollgate::Algorithm::SlidingBuckets;
use tollgate::{Quota, Reservation, Store};

struct Usage {
    reservation: Reservation,
    budget: RateLimiter,
    tokens: u32,
}

impl Usage {
    /// Takes all of the guard, so that the closure of a stream owns all of it.
    fn add(&mut self, tokens: u32) {
        self.tokens += tokens;
    }
}

impl Drop for Usage {
    fn drop(&mut self) {
        let used = self.tokens.max(1); // a client that leaves at once is not free
        self.reservation.settle(used);
        self.reservation.settle_level(&self.budget, price(used));
    }
}

async fn complete(
    State(budget): State<RateLimiter>,
    reservation: Reservation,
    Json(prompt): Json<Answer>,
) -> Body {
    let mut usage = Usage {
        reservation,
        budget,
        tokens: 0,
    };
    // The stream owns the guard, so whatever ends the stream settles.
    let answer = model(prompt.tokens).map(move |(text, tokens)| {
        usage.add(tokens);
        Ok::<_, Infallible>(text)
    });
    Body::from_stream(answer)
}

fn app(tokens: RateLimiter, budget: RateLimiter) -> Router {
    let limit = limit(tokens, budget.clone());
    let complete = post(complete).layer(limit).layer(from_fn(estimate));
    Router::new()
        .route("/complete", complete)
        .with_state(budget)
}

/// A token costs a unit of money, so that both have the same numbers.
fn price(tokens: u32) -> u32 {
    tokens
}

/// The prompt of the tests.
#[derive(serde::Deserialize)]
struct Answer {
    tokens: u32,
}

/// Answers with so many tokens, one every millisecond.
fn model(tokens: u32) -> impl Stream<Item = (Bytes, u32)> {
    stream::unfold(tokens, |left| async move {
        tokio::time::sleep(Duration::from_millis(1)).await;
        let left = left.checked_sub(1)?;
        Some(((Bytes::from_static(b"word "), 1), left))
    })
}

struct Gateway {
    url: String,
    tokens: RateLimiter,
    budget: RateLimiter,
}

impl Gateway {
    async fn start(store: impl Store + Clone, budget: u32) -> Self {
        let budget = Quota::total(budget, MONTH);
        let budget = RateLimiter::new(store.clone(), budget).name("budget");
        let quota = Quota::per_minute(20_000).with_algorithm(SlidingBuckets(60));
        let tokens = RateLimiter::new(store, quota).name("tokens");
        let url = serve(app(tokens.clone(), budget.clone())).await;
        Self {
            url: format!("{url}/complete"),
            tokens,
            budget,
        }
    }

    /// Asks for an answer of so many tokens, with this bound.
    async fn ask(&self, tokens: u32, max_tokens: u32) -> reqwest::Response {
        let body = serde_json::json!({ "max_tokens": max_tokens, "tokens": tokens });
        let request = Client::new().post(&self.url).header("x-team", "acme");
        let request = request.header("content-type", "application/json");
        let request = request.body(body.to_string());
        request.send().await.expect("an answer")
    }

    /// Returns the tokens and the money that are used.
    async fn used(&self) -> [u32; 2] {
        let team = key::header("x-team").of("acme");
        let tokens = self.tokens.peek(&team).await.expect("an answer");
        let budget = self.budget.peek(&team).await.expect("an answer");
        [tokens.used(), budget.used()]
    }

    /// Waits until so much is used: a settlement runs in the background.
    async fn until_used(&self, used: u32) {
        for _ in 0..1_000 {
            if self.used().await == [used; 2] {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(self.used().await, [used; 2]);
    }
}

async fn gateways(server: &RedisServer, budget: u32) -> [Gateway; 2] {
    let redis = RedisStore::open(&server.url()).expect("a URL");
    let redis = redis.deadline(Duration::from_secs(30));
    [
        Gateway::start(MemoryStore::new(), budget).await,
        Gateway::start(redis, budget).await,
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_tells_what_to_reserve_and_the_answer_what_to_charge() {
    let server = RedisServer::start();
    for gateway in gateways(&server, 50_000).await {
        let answer = gateway.ask(640, 1_000).await;
        assert_eq!(answer.status(), 200);
        // `{"max_tokens":1000,"prompt":"640"}` has 34 bytes.
        assert_eq!(
            number(answer.headers(), "x-ratelimit-remaining"),
            20_000 - 8 - 1_000
        );
        let text = answer.text().await.expect("all of it");
        assert_eq!(text.split_whitespace().count(), 640);
        gateway.until_used(640).await;

        // More than the estimate is charged in full.
        let answer = gateway.ask(1_500, 1_000).await;
        answer.text().await.expect("all of it");
        gateway.until_used(640 + 1_500).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_pays_for_what_was_generated() {
    let server = RedisServer::start();
    for gateway in gateways(&server, 50_000).await {
        let mut answer = gateway.ask(10_000, 10_000).await;
        answer.chunk().await.expect("no error").expect("a token");
        let [reserved, _] = gateway.used().await;
        assert_eq!(reserved, 10_008);
        drop(answer);
        let mut used = reserved;
        for _ in 0..1_000 {
            if used < reserved {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
            [used, _] = gateway.used().await;
        }
        assert!((1..10_000).contains(&used), "{used}");
        gateway.until_used(used).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rate_answers_429_and_a_budget_402_without_a_wait() {
    let server = RedisServer::start();
    for gateway in gateways(&server, 18_000).await {
        let running = gateway.ask(10_000, 12_000).await;
        assert_eq!(running.status(), 200);
        let before = gateway.used().await;

        let refused = gateway.ask(1, 5_990).await;
        assert_eq!(refused.status(), 402);
        assert!(!refused.headers().contains_key("retry-after"));

        // More money, and the rate refuses: the team may wait.
        let team = key::header("x-team").of("acme");
        let admin = gateway.budget.admin();
        let idle = Quota::total(18_000, MONTH);
        admin
            .quotas(idle)
            .credit(&team, 10_000)
            .await
            .expect("an answer");
        let refused = gateway.ask(1, 7_990).await;
        assert_eq!(refused.status(), 429);
        assert!(number(refused.headers(), "retry-after") >= 1);

        // What was refused is charged to neither.
        assert_eq!(gateway.used().await, [before[0], before[1] - 10_000]);
        let malformed = Client::new().post(&gateway.url).header("x-team", "acme");
        let malformed = malformed.body("{}").send().await.expect("an answer");
        assert_eq!(malformed.status(), 400);
    }
}
