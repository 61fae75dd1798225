//! Budgets of an agent: its session, each run in it, and each child that a run starts.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, routing::post};
use futures_util::stream;
use http::StatusCode;
use reqwest::Client;
use tollgate::{MemoryStore, RedisStore, Rejection};

use crate::support::redis_server::RedisServer;
use crate::support::served::serve;

// page: shown
use std::time::Duration;

use tollgate::{Acquired, Error, Quota, RateLimiter, Store};

const DAY: Duration = Duration::from_secs(86_400);

fn budgets(store: &(impl Store + Clone)) -> [RateLimiter; 3] {
    // Each is forgotten so long after its last charge, when nobody comes back to it.
    let budgets = [
        ("session", 1_000_000, 30 * DAY),
        ("run", 200_000, 7 * DAY),
        ("child", 50_000, 7 * DAY),
    ];
    budgets.map(|(name, tokens, idle)| {
        RateLimiter::new(store.clone(), Quota::total(tokens, idle))
            .name(name)
            .reserve_lease(Duration::from_secs(15))
    })
}

/// Holds tokens for a call of the model. Add to the permit what the call uses.
async fn hold(budgets: &[RateLimiter; 3], ids: [&str; 3], tokens: u32) -> Result<Acquired, Error> {
    let levels = budgets.iter().zip(ids);
    let levels = levels.map(|(budget, id)| budget.level(id).cost(tokens));
    RateLimiter::try_acquire_all(levels).await
}
// page: end

/// A call of the model: whose it is, what it may use, and what it uses.
#[derive(serde::Deserialize, serde::Serialize)]
struct Call {
    ids: [String; 3],
    most: u32,
    used: u32,
}

/// Streams so many tokens, one a millisecond. If a budget is spent, answers which.
async fn call(
    State(budgets): State<[RateLimiter; 3]>,
    Json(call): Json<Call>,
) -> Result<Response, Rejection> {
    let ids = call.ids.each_ref().map(String::as_str);
    let mut permit = match hold(&budgets, ids, call.most).await?.or_reject() {
        Ok(permit) => permit,
        Err(refused) => {
            let status = match refused.retry_after() {
                Some(_) => StatusCode::TOO_MANY_REQUESTS,
                None => StatusCode::PAYMENT_REQUIRED,
            };
            return Ok((status, refused.limiter().to_owned()).into_response());
        }
    };
    permit.add(0);
    let answer = stream::unfold((permit, call.used), |(mut permit, left)| async move {
        tokio::time::sleep(Duration::from_millis(1)).await;
        let left = left.checked_sub(1)?;
        permit.add(1);
        Some((
            Ok::<_, Infallible>(Bytes::from_static(b"word ")),
            (permit, left),
        ))
    });
    Ok(Body::from_stream(answer).into_response())
}

struct Agents {
    url: String,
    budgets: [RateLimiter; 3],
}

impl Agents {
    async fn start(store: &(impl Store + Clone)) -> Self {
        let budgets = budgets(store);
        let app = Router::new().route("/call", post(call));
        let url = serve(app.with_state(budgets.clone())).await;
        Self {
            url: format!("{url}/call"),
            budgets,
        }
    }

    async fn call(&self, ids: [&str; 3], most: u32, used: u32) -> reqwest::Response {
        let ids = ids.map(str::to_owned);
        let call = Call { ids, most, used };
        let body = serde_json::to_string(&call).expect("JSON");
        let request = Client::new().post(&self.url);
        let request = request.header("content-type", "application/json");
        request.body(body).send().await.expect("an answer")
    }

    /// Calls the model, and expects that this budget is spent.
    async fn is_spent(&self, ids: [&str; 3], most: u32, budget: &str) {
        let answer = self.call(ids, most, 0).await;
        assert_eq!(answer.status(), StatusCode::PAYMENT_REQUIRED);
        assert_eq!(answer.text().await.expect("text"), budget);
    }

    /// Waits until a call is admitted.
    async fn until_admitted(&self, ids: [&str; 3], most: u32) {
        for _ in 0..1_000 {
            if self.call(ids, most, 0).await.status() == StatusCode::OK {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("what was held has not returned");
    }

    /// Charges usage that another process has reported.
    async fn charge(&self, budget: usize, id: &str, tokens: u32) {
        let charged = self.budgets[budget].charge(id, tokens).await;
        charged.expect("an answer");
    }

    async fn used(&self, ids: [&str; 3]) -> [u32; 3] {
        let mut used = [0; 3];
        for ((budget, id), used) in self.budgets.iter().zip(ids).zip(&mut used) {
            *used = budget.peek(id).await.expect("an answer").used();
        }
        used
    }

    /// Waits until so much is used: the store learns of a stream's end in the background.
    async fn until_used(&self, ids: [&str; 3], expected: [u32; 3]) {
        for _ in 0..1_000 {
            if self.used(ids).await == expected {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(self.used(ids).await, expected);
    }
}

async fn agents(server: &RedisServer) -> [Agents; 2] {
    let redis = RedisStore::open(&server.url()).expect("a URL");
    let redis = redis.deadline(Duration::from_secs(30));
    [
        Agents::start(&MemoryStore::new()).await,
        Agents::start(&redis).await,
    ]
}

const SEARCH: [&str; 3] = ["ada", "run-17", "run-17/search"];
const WRITE: [&str; 3] = ["ada", "run-17", "run-17/write"];
const OTHER_RUN: [&str; 3] = ["ada", "run-18", "run-18/search"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_holds_tokens_of_session_run_and_child_and_pays_for_what_it_used() {
    let server = RedisServer::start();
    for agents in agents(&server).await {
        let answer = agents.call(SEARCH, 4_000, 640).await;
        assert_eq!(answer.status(), 200);
        assert_eq!(agents.used(SEARCH).await, [4_000; 3]);
        let text = answer.text().await.expect("all of it");
        assert_eq!(text.split_whitespace().count(), 640);
        agents.until_used(SEARCH, [640; 3]).await;

        // A client that leaves in the middle pays for what was generated.
        let mut answer = agents.call(WRITE, 4_000, 60_000).await;
        answer.chunk().await.expect("no error").expect("a token");
        assert_eq!(agents.used(WRITE).await, [4_640, 4_640, 4_000]);
        drop(answer);
        let mut used = 4_000;
        for _ in 0..1_000 {
            if used < 4_000 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
            [_, _, used] = agents.used(WRITE).await;
        }
        assert!((1..4_000).contains(&used), "{used}");
        agents
            .until_used(WRITE, [640 + used, 640 + used, used])
            .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_budget_that_is_spent_refuses_its_own_and_charges_the_others_nothing() {
    let server = RedisServer::start();
    for agents in agents(&server).await {
        agents.charge(2, SEARCH[2], 49_500).await;
        agents.is_spent(SEARCH, 4_000, "child").await;
        assert_eq!(agents.used(SEARCH).await, [0, 0, 49_500]);
        assert_eq!(agents.call(WRITE, 4_000, 1).await.status(), 200);

        agents.charge(1, WRITE[1], 199_000).await;
        agents.is_spent(WRITE, 4_000, "run").await;
        assert_eq!(agents.call(OTHER_RUN, 4_000, 1).await.status(), 200);

        agents.charge(0, "ada", 999_000).await;
        agents.is_spent(OTHER_RUN, 4_000, "session").await;
        let bob = ["bob", "run-1", "run-1/search"];
        assert_eq!(agents.call(bob, 4_000, 1).await.status(), 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_that_running_calls_hold_are_worth_a_wait() {
    let server = RedisServer::start();
    for agents in agents(&server).await {
        let running = agents.call(SEARCH, 48_000, 60_000).await;
        assert_eq!(running.status(), 200);
        let refused = agents.call(SEARCH, 4_000, 1).await;
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(refused.text().await.expect("text"), "child");
        drop(running);
        agents.until_admitted(SEARCH, 4_000).await;
    }
}
