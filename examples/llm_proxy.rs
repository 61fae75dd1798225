//! A proxy of a language model, with plans of tokens, money and streams in flight: `cargo run --example llm_proxy`
//!
//! - Each tenant has tokens per minute and per day, and four streams at the same time. Its plan changes while the proxy runs.
//! - Batch jobs use at most half of the tokens. A fifth is kept for interactive requests.
//! - A request reserves what its JSON body may use, or less if the plan is smaller. All that the answer uses is charged when
//!   its stream ends, also if the client disconnects.
//! - What the tokens cost counts against five prepaid dollars, in units of 1/100 cent. A request holds what it may cost, so that
//!   the money of a proxy that crashes returns. When all is spent, the answer is 402.
//! - `GET /rate_limit` shows a tenant what is left.
//!
//! With a Redis, several processes share the limits: `TOLLGATE_STORE=redis://127.0.0.1:6379 cargo run --example llm_proxy`

#[path = "support/store.rs"]
mod store;
mod support;

use std::collections::HashMap;
use std::convert::Infallible;
use std::error::Error;
use std::io;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{FromRequestParts, MatchedPath, Path, Request, State};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::{get, post, put};
use axum::{Json, Router};
use futures_util::stream::unfold;
use http::StatusCode;
use http::request::Parts;
use serde::Deserialize;
use tokio::signal::ctrl_c;
use tokio::time::sleep;
use tollgate::{
    KeyStatus, Level, Quota, Quotas, RateLimitLayer, RateLimiter, Rejection, Reservation, key,
};

/// The header that names the tenant. In a service, it comes from authentication, not from the client.
const TENANT: &str = "x-tenant-id";

/// The plan of tenants without one of their own. Buckets store a count for each second or hour, not for each request.
const PLAN: &str = "10000/minute sliding-buckets:60 interactive>=20% batch<=50%, \
    100000/day sliding-buckets:24 interactive>=20% batch<=50%, \
    4 in-flight";

/// The tokens of an answer, unless the prompt is another number.
const ANSWER: u32 = 640;

/// The price of a million tokens, in units of 1/100 cent: 10 dollars.
const PRICE: u64 = 100_000;

/// Five dollars, in units of 1/100 cent. They are forgotten a year after the last request.
const BUDGET: Quota = Quota::total(50_000, Duration::from_secs(365 * 86_400));

/// The lease of the money that requests hold. Tokens are charged in advance instead, because their quotas have shares: what a
/// crash leaves of them is back after a day.
const LEASE: Duration = Duration::from_secs(15);

/// Returns what tokens cost, in units of 1/100 cent, rounded up.
fn price(tokens: u32) -> u32 {
    let units = (u64::from(tokens) * PRICE).div_ceil(1_000_000);
    u32::try_from(units).unwrap_or(u32::MAX)
}

#[derive(Clone)]
struct Proxy {
    tokens: RateLimiter,
    budget: RateLimiter,
    plans: Plans,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_writer(io::stderr).init();

    let store = store::open(|redis| redis.prefix("llm_proxy"))?;
    let plans = Plans::new(PLAN.parse()?);
    let tenant = key::header(TENANT).plain();
    let budget = RateLimiter::new(store.clone(), BUDGET)
        .name("budget")
        .reserve_lease(LEASE);
    // The headers report tokens, so the level of the money is hidden from them.
    let budget_level = Level::new(budget.clone(), tenant.clone())
        .cost(|parts| price(estimated(parts)))
        .hidden();
    let own_plans = plans.clone();
    let limit = RateLimitLayer::new(store, plans.of(""))
        .name("tokens")
        .key(tenant)
        .cost(estimated)
        .clamp_cost()
        .share(share)
        .quotas_for(move |_, parts| {
            let plan = own_plans.of(tenant_of(parts).unwrap_or_default());
            async move { plan }
        })
        .and_level(budget_level)
        .reserve()
        // A wait helps while other requests only hold the money, and not when it is spent.
        .responder(|rejection| {
            let is_spent = rejection.limiter() == "budget" && rejection.retry_after().is_none();
            is_spent.then_some((StatusCode::PAYMENT_REQUIRED, "the budget is used up\n"))
        });
    let proxy = Proxy {
        tokens: limit.limiter().clone(),
        budget,
        plans,
    };
    let limiter = proxy.tokens.clone();
    let app = Router::new()
        .route("/complete", post(complete))
        .route("/batch", post(complete))
        .layer(limit)
        .layer(from_fn(estimate))
        // The layers are only around the routes above.
        .route("/rate_limit", get(rate_limit))
        // In a service, only operators may change plans.
        .route("/plans/{tenant}", put(change_plan))
        .with_state(proxy);

    let listener = support::listen().await?;
    let address = listener.local_addr()?;
    println!("Listening on {address}. Try, and press Ctrl-C before an answer ends:");
    let body = r#"{"prompt": "Tell me a story.", "max_tokens": 1000}"#;
    println!("  curl -N -H 'x-tenant-id: acme' --json '{body}' http://{address}/complete");
    println!("  curl -H 'x-tenant-id: acme' http://{address}/rate_limit");
    println!(
        "  curl -X PUT -d '500/minute sliding-buckets:60, 4 in-flight' http://{address}/plans/acme"
    );
    let stop = async { ctrl_c().await.unwrap_or_default() };
    axum::serve(listener, app)
        .with_graceful_shutdown(stop)
        .await?;
    limiter.release().await?;
    Ok(())
}

#[derive(Deserialize)]
struct Prompt {
    prompt: String,
    /// A real model gets this bound, too. This one shows what happens if it is not obeyed.
    max_tokens: u32,
}

/// The most tokens that a request may use, as far as its body tells.
#[derive(Clone, Copy)]
struct Estimate(u32);

/// Reads the body in front of the limit: a token for four bytes, and the bound of the answer.
async fn estimate(mut parts: Parts, body: Bytes, next: Next) -> Result<Response, StatusCode> {
    let prompt: Prompt = serde_json::from_slice(&body).map_err(|_| StatusCode::BAD_REQUEST)?;
    let read = u32::try_from(body.len() / 4).unwrap_or(u32::MAX);
    let tokens = read.saturating_add(prompt.max_tokens);
    parts.extensions.insert(Estimate(tokens));
    Ok(next.run(Request::from_parts(parts, body.into())).await)
}

fn estimated(parts: &Parts) -> u32 {
    let estimate = parts.extensions.get::<Estimate>();
    estimate.map_or(1, |Estimate(tokens)| *tokens)
}

/// Returns the share of a request by its route, because a client can spell the path in many ways.
fn share(parts: &Parts) -> Option<&'static str> {
    let route = parts.extensions.get::<MatchedPath>()?;
    Some(match route.as_str() {
        "/batch" => "batch",
        _ => "interactive",
    })
}

/// Streams the answer. The stream owns the guard that settles, so that it settles whatever ends the stream.
async fn complete(
    State(proxy): State<Proxy>,
    reservation: Reservation,
    Json(prompt): Json<Prompt>,
) -> Body {
    let tokens = prompt.prompt.parse().unwrap_or(ANSWER);
    let usage = Usage {
        reservation,
        budget: proxy.budget,
        tokens: 0,
    };
    let answer = unfold(usage, move |mut usage| async move {
        if usage.tokens == tokens {
            return None;
        }
        let token = next_token().await;
        // From here on, the token has to be paid for, whether the client gets it or not.
        usage.add_token();
        Some((Ok::<_, Infallible>(token), usage))
    });
    Body::from_stream(answer)
}

/// Generates a token, one per millisecond.
async fn next_token() -> Bytes {
    sleep(Duration::from_millis(1)).await;
    Bytes::from_static(b"word ")
}

/// Settles a request to the tokens used, when its stream ends or is dropped.
struct Usage {
    reservation: Reservation,
    budget: RateLimiter,
    tokens: u32,
}

impl Usage {
    fn add_token(&mut self) {
        let paid = price(self.tokens);
        self.tokens += 1;
        let due = price(self.tokens) - paid;
        self.reservation.add_level(&self.budget, due);
    }
}

impl Drop for Usage {
    fn drop(&mut self) {
        if self.tokens == 0 {
            // A client that disconnects at once must not be free.
            self.add_token();
        }
        let used = self.tokens;
        // All of it is charged, also what is above the reservation and above the limit.
        self.reservation.settle(used);
        let mut levels = self.reservation.decision().levels();
        let reserved = levels.next().map_or(0, |level| level.cost());
        println!("{reserved} reserved, {used} used");
    }
}

/// Shows a tenant what is left of its tokens, its streams and its money.
async fn rate_limit(
    State(proxy): State<Proxy>,
    Tenant(tenant): Tenant,
) -> Result<Json<KeyStatus>, Rejection> {
    let key = key::header(TENANT).plain().of(&tenant);
    let tokens = proxy.tokens.level(&key).quotas(proxy.plans.of(&tenant));
    let levels = [tokens.share("interactive"), proxy.budget.level(&key)];
    let status = RateLimiter::peek_all(levels).await?;
    Ok(Json(status))
}

/// Replaces the plan of a tenant from its next request on. Used tokens stay used.
async fn change_plan(
    State(proxy): State<Proxy>,
    Path(tenant): Path<String>,
    plan: String,
) -> (StatusCode, String) {
    match plan.parse() {
        Ok(plan) => {
            proxy.plans.change(tenant, plan);
            (StatusCode::NO_CONTENT, String::new())
        }
        Err(error) => (StatusCode::BAD_REQUEST, format!("{error}\n")),
    }
}

/// The tenant of a request.
struct Tenant(String);

fn tenant_of(parts: &Parts) -> Option<&str> {
    parts.headers.get(TENANT)?.to_str().ok()
}

impl<S: Sync> FromRequestParts<S> for Tenant {
    type Rejection = (StatusCode, &'static str);

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Self::Rejection> {
        let tenant = tenant_of(parts).map(|tenant| Self(tenant.to_owned()));
        tenant.ok_or((StatusCode::BAD_REQUEST, "no `x-tenant-id`\n"))
    }
}

/// The plans of all tenants, which change at runtime. A service keeps them in a database, with a cache in front of it.
#[derive(Clone)]
struct Plans {
    default: Quotas,
    changed: Arc<RwLock<HashMap<String, Quotas>>>,
}

impl Plans {
    fn new(default: Quotas) -> Self {
        Self {
            default,
            changed: Arc::default(),
        }
    }

    fn of(&self, tenant: &str) -> Quotas {
        let changed = self.changed.read().unwrap_or_else(PoisonError::into_inner);
        changed.get(tenant).unwrap_or(&self.default).clone()
    }

    fn change(&self, tenant: String, plan: Quotas) {
        let mut changed = self.changed.write().unwrap_or_else(PoisonError::into_inner);
        changed.insert(tenant, plan);
    }
}
