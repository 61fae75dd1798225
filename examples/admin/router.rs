//! Routes to look up the keys of limiters, and to reset, credit and block them.
//!
//! To use the page in your service, copy this folder without `main.rs`, and serve [`router`] on a listener
//! that is not public.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{ConnectInfo, DefaultBodyLimit, FromRequest, Path, Request, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tollgate::{Admin, DecisionView, Key, KeyStatus};

use crate::blocks::PageRequest;
use crate::failure::Failure;
use crate::limiter::{KeyInput, Limiter, TOP_REJECTED};
use crate::token::Token;
use crate::{login, page};

/// The largest request body. A longer value of a key can be named by its stored key, which is short.
const MAX_BYTES: usize = 4_096;

type Limiters = State<Arc<[Limiter]>>;

/// Serves the page without a token, and the API behind the token.
pub(crate) fn router(
    limiters: impl IntoIterator<Item = Limiter>,
    token: &Token,
    host: Option<&str>,
) -> Router {
    let limiters: Arc<[Limiter]> = limiters.into_iter().collect();
    let api = Router::new()
        .route("/limiters", get(list))
        .route("/limiters/{name}/view", post(view))
        .route("/limiters/{name}/peek", post(peek))
        .route("/limiters/{name}/change", post(change))
        .layer(DefaultBodyLimit::max(MAX_BYTES))
        .with_state(limiters);
    page::router().nest("/api", login::protect(api, token, host))
}

/// Lists the limiters.
async fn list(State(limiters): Limiters) -> Json<Value> {
    Json(limiters.iter().map(Limiter::describe).collect())
}

/// A request body in JSON. If it is too long, the page shows what the operator can do instead.
struct Body<T>(T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Failure;

    async fn from_request(req: Request, state: &S) -> Result<Self, Failure> {
        match Json::from_request(req, state).await {
            Ok(Json(body)) => Ok(Self(body)),
            Err(rejection) => {
                let status = rejection.status();
                let text = match status {
                    StatusCode::PAYLOAD_TOO_LARGE => format!(
                        "the value is too long: a request may have {MAX_BYTES} bytes; enter the stored key, as a \
                         log shows it"
                    ),
                    _ => rejection.body_text(),
                };
                Err(Failure(status, text))
            }
        }
    }
}

/// A request for all that the page shows of a limiter.
#[derive(Deserialize)]
struct ViewRequest {
    #[serde(default)]
    blocked: PageRequest,
    /// The key that the operator looks at.
    key: Option<KeyInput>,
}

/// Returns all that changes while an operator looks at the page, in one response: a page of the keys that are
/// blocked in all processes, the keys that this process refuses most, and the status of a key.
async fn view(
    State(limiters): Limiters,
    Path(name): Path<String>,
    Body(request): Body<ViewRequest>,
) -> Result<Json<Value>, Failure> {
    let limiter = find(&limiters, &name)?;
    let admin = &limiter.admin;
    let status = match &request.key {
        None => None,
        Some(key) => match limiter.key(key).await {
            Ok(key) => Some(key_status(admin, &key).await?),
            // A key of another extractor that was listed, and is not any more.
            Err(Failure(StatusCode::BAD_REQUEST, _)) => None,
            Err(failure) => return Err(failure),
        },
    };
    let blocked = request.blocked.of(admin).await?;
    let top_rejected = admin.top_rejected_keys(TOP_REJECTED);
    let top_rejected = top_rejected.iter().map(
        |busy| json!({ "key": busy.key.as_str(), "refused": busy.refused, "error": busy.error }),
    );
    Ok(Json(json!({
        "blocked": blocked,
        "top_rejected": top_rejected.collect::<Vec<_>>(),
        "key": status,
    })))
}

#[derive(Deserialize)]
struct PeekRequest {
    key: KeyInput,
}

async fn peek(
    State(limiters): Limiters,
    Path(name): Path<String>,
    Body(request): Body<PeekRequest>,
) -> Result<Json<Value>, Failure> {
    let limiter = find(&limiters, &name)?;
    let key = limiter.key(&request.key).await?;
    Ok(Json(key_status(&limiter.admin, &key).await?))
}

#[derive(Deserialize)]
struct ChangeRequest {
    key: KeyInput,
    #[serde(flatten)]
    change: Change,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase")]
enum Change {
    Reset,
    Credit { units: u32 },
    Block { seconds: u64 },
    Unblock,
}

/// Makes the change, logs the peer that requested it, and returns the new status of the key.
async fn change(
    State(limiters): Limiters,
    Path(name): Path<String>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    Body(ChangeRequest { key, change }): Body<ChangeRequest>,
) -> Result<Json<Value>, Failure> {
    let limiter = find(&limiters, &name)?;
    let (admin, key) = (&limiter.admin, limiter.key(&key).await?);
    let done = match change {
        Change::Reset => admin.reset(&key).await,
        Change::Credit { units } => admin.credit(&key, units).await,
        Change::Block { seconds } => admin.block(&key, Duration::from_secs(seconds)).await,
        Change::Unblock => admin.unblock(&key).await,
    };
    // Failures are logged too: the store may have made the change before the error.
    tracing::warn!(limiter = name, key = key.as_str(), ?change, %peer, ok = done.is_ok(), "operator changed a key");
    done?;
    Ok(Json(key_status(admin, &key).await?))
}

async fn key_status(admin: &Admin, key: &Key) -> Result<Value, Failure> {
    let status = admin.status(key).await?;
    Ok(json!({
        "key": key.as_str(),
        "blocked_seconds": status.blocked_for.map(|left| left.as_secs_f64()),
        "source": format!("{:?}", status.view.source()),
        "quotas": quotas(&status.view),
        "holders": holders(&status),
    }))
}

/// Returns which processes hold slots of the key.
fn holders(status: &KeyStatus) -> Value {
    let holders = status.holders.iter().map(|of| {
        let holder = u128::from_be_bytes(of.holder);
        json!({
            "holder": format!("{holder:032x}"),
            "slots": of.held,
            "lease_left_seconds": of.lease.as_secs_f64(),
            "is_this_process": status.own_holder == Some(of.holder),
        })
    });
    holders.collect()
}

fn quotas(decision: &DecisionView) -> Value {
    let quotas = decision.quotas().map(|of| {
        json!({
            "quota": of.quota().to_string(),
            "used": of.used(),
            "remaining": of.remaining(),
            "returns_in_seconds": of.reset_after().as_secs_f64(),
        })
    });
    quotas.collect()
}

fn find<'a>(limiters: &'a [Limiter], name: &str) -> Result<&'a Limiter, Failure> {
    let unknown = || {
        let text = format!("no limiter is named {name}");
        Failure(StatusCode::NOT_FOUND, text)
    };
    let mut limiters = limiters.iter();
    limiters
        .find(|limiter| limiter.name == name)
        .ok_or_else(unknown)
}
