//! A gateway that holds what a request may use, from its JSON body, and charges what the answer uses as it is streamed.

use std::time::Duration;

use axum::middleware::{self, Next};
use axum::{Router, body::Bytes, extract::Request, routing::post};
use futures_util::stream::{self, Stream};
use reqwest::Client;
use tollgate::{Algorithm, MemoryStore, Quota, RedisStore, Store};

use crate::support::redis_server::RedisServer;
use crate::support::served::{number, serve};

// page: shown
use std::convert::Infallible;

use axum::response::{IntoResponse, Response};
use axum::{Extension, Json, body::Body, extract::State, http::StatusCode};
use futures_util::StreamExt;
use tollgate::{Key, RateLimiter, Rejection};

async fn complete(
    State([tokens, budget]): State<[RateLimiter; 2]>,
    Extension(team): Extension<Key>, // from your authentication
    Json(prompt): Json<Prompt>,
) -> Result<Response, Rejection> {
    // A token for four bytes, and the bound of the answer, which the model gets, too.
    let read = u32::try_from(prompt.text.len() / 4).unwrap_or(u32::MAX);
    let most = read.saturating_add(prompt.max_tokens);
    let levels = [&tokens, &budget].map(|limiter| limiter.level(&team).cost(most));
    let mut permit = match RateLimiter::try_acquire_all(levels).await?.or_reject() {
        Ok(permit) => permit,
        // No wait helps: the budget is spent.
        Err(refused) if refused.retry_after().is_none() => {
            return Ok(StatusCode::PAYMENT_REQUIRED.into_response());
        }
        Err(refused) => return Err(refused),
    };
    permit.add(read);
    // The stream owns the permit. When it ends, also because the client leaves, the rest returns.
    let answer = model(prompt).map(move |part| {
        permit.add(part.tokens);
        Ok::<_, Infallible>(part.text)
    });
    Ok(Body::from_stream(answer).into_response())
}
// page: end

const LEASE: Duration = Duration::from_secs(15);
const IDLE: Duration = Duration::from_secs(30 * 86_400);

#[derive(serde::Deserialize)]
struct Prompt {
    text: String,
    max_tokens: u32,
    /// How many tokens the model of the tests makes.
    tokens: u32,
}

struct Part {
    text: Bytes,
    tokens: u32,
}

/// Answers with a token every millisecond.
fn model(prompt: Prompt) -> impl Stream<Item = Part> {
    stream::unfold(prompt, |mut prompt| async move {
        tokio::time::sleep(Duration::from_millis(1)).await;
        prompt.tokens = prompt.tokens.checked_sub(1)?;
        let text = Bytes::from_static(b"word ");
        Some((Part { text, tokens: 1 }, prompt))
    })
}

async fn authenticate(mut request: Request, next: Next) -> Response {
    request.extensions_mut().insert(Key::from("acme"));
    next.run(request).await
}

struct Gateway {
    url: String,
    tokens: RateLimiter,
    budget: RateLimiter,
}

impl Gateway {
    async fn start(store: impl Store + Clone, budget: u32) -> Self {
        let rate = Quota::per_minute(20_000).with_algorithm(Algorithm::SlidingBuckets(60));
        let tokens = RateLimiter::new(store.clone(), rate).name("tokens");
        let tokens = tokens.reserve_lease(LEASE);
        let budget = RateLimiter::new(store, Quota::total(budget, IDLE)).name("budget");
        let budget = budget.reserve_lease(LEASE);
        let app = Router::new()
            .route("/complete", post(complete))
            .layer(middleware::from_fn(authenticate))
            .with_state([tokens.clone(), budget.clone()]);
        let url = serve(app).await;
        Self {
            url: format!("{url}/complete"),
            tokens,
            budget,
        }
    }

    /// Asks for an answer of so many tokens, with this bound, by a prompt of eight tokens.
    async fn ask(&self, tokens: u32, max_tokens: u32) -> reqwest::Response {
        let text = "Tell me a story of the limits...";
        let body = serde_json::json!({ "text": text, "max_tokens": max_tokens, "tokens": tokens });
        let request = Client::new().post(&self.url);
        let request = request.header("content-type", "application/json");
        let request = request.body(body.to_string());
        request.send().await.expect("an answer")
    }

    /// Returns what counts as used of the rate and of the budget.
    async fn used(&self) -> [u32; 2] {
        let tokens = self.tokens.peek("acme").await.expect("an answer");
        let budget = self.budget.peek("acme").await.expect("an answer");
        [tokens.used(), budget.used()]
    }

    /// Waits until so much is used: the store learns of a stream's end in the background.
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
async fn a_body_tells_what_to_hold_and_the_answer_what_to_charge() {
    let server = RedisServer::start();
    for gateway in gateways(&server, 50_000).await {
        let answer = gateway.ask(640, 1_000).await;
        assert_eq!(answer.status(), 200);
        assert_eq!(gateway.used().await, [1_008; 2]);
        let text = answer.text().await.expect("all of it");
        assert_eq!(text.split_whitespace().count(), 640);
        gateway.until_used(648).await;

        // More than the estimate is charged in full.
        let answer = gateway.ask(1_500, 1_000).await;
        answer.text().await.expect("all of it");
        gateway.until_used(648 + 1_508).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_leaves_pays_for_what_was_generated() {
    let server = RedisServer::start();
    for gateway in gateways(&server, 50_000).await {
        let mut answer = gateway.ask(10_000, 10_000).await;
        answer.chunk().await.expect("no error").expect("a token");
        let [held, _] = gateway.used().await;
        assert_eq!(held, 10_008);
        drop(answer);
        let mut used = held;
        for _ in 0..1_000 {
            if used < held {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
            [used, _] = gateway.used().await;
        }
        assert!((9..10_000).contains(&used), "{used}");
        gateway.until_used(used).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rate_answers_429_and_a_budget_that_is_spent_402() {
    let server = RedisServer::start();
    for gateway in gateways(&server, 30_000).await {
        let running = gateway.ask(10_000, 18_000).await;
        assert_eq!(running.status(), 200);
        let before = gateway.used().await;
        assert_eq!(before, [18_008; 2]);

        // The rate has no room, and a budget of which others only hold units is not spent.
        for max_tokens in [2_000, 12_000] {
            let refused = gateway.ask(1, max_tokens).await;
            assert_eq!(refused.status(), 429);
            assert!(number(refused.headers(), "retry-after") >= 1);
        }
        // What was refused is charged to neither.
        assert_eq!(gateway.used().await, before);
        drop(running);

        let reported = gateway.budget.charge("acme", 29_000).await;
        reported.expect("an answer");
        let refused = gateway.ask(1, 1_000).await;
        assert_eq!(refused.status(), 402);
        assert!(!refused.headers().contains_key("retry-after"));
    }
}
