//! Routes to look up the keys of limiters, and to reset, credit and block them.
//!
//! To use the page in your service, copy this folder without `main.rs`, and serve [`router`] on a listener
//! that is not public.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{ConnectInfo, DefaultBodyLimit, Path, State};
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde_json::{Value, json};
use tollgate::{Admin, DecisionView, Error, ErrorKind, Key, key};

use crate::{login, page};

/// How many of the keys that are refused most the page lists.
const BUSIEST: usize = 20;

/// The largest request body. Valid ones are shorter.
const MAX_BYTES: usize = 4_096;

type Limiters = State<Arc<BTreeMap<String, Admin>>>;

/// Serves the page without a token, and the API behind the token.
pub(crate) fn router(
    limiters: impl IntoIterator<Item = (String, Admin)>,
    token: &str,
    host: Option<&str>,
) -> Router {
    let limiters: BTreeMap<_, _> = limiters.into_iter().collect();
    let api = Router::new()
        .route("/limiters", get(list))
        .route("/limiters/{name}", get(overview))
        .route("/limiters/{name}/peek", post(peek))
        .route("/limiters/{name}/change", post(change))
        .layer(DefaultBodyLimit::max(MAX_BYTES))
        .with_state(Arc::new(limiters));
    page::router().nest("/api", login::protect(api, token, host))
}

/// Lists the limiters.
async fn list(State(limiters): Limiters) -> Json<Value> {
    let limiters = limiters.iter().map(|(name, admin)| {
        let quotas = admin.limiter().quotas().iter().map(ToString::to_string);
        json!({ "name": name, "quotas": quotas.collect::<Vec<_>>() })
    });
    Json(limiters.collect())
}

/// Lists the keys that are blocked in all processes, and the keys that this process refuses most.
async fn overview(
    State(limiters): Limiters,
    Path(name): Path<String>,
) -> Result<Json<Value>, Failure> {
    let admin = find(&limiters, &name)?;
    let blocked = admin.blocked().await?;
    let blocked = blocked
        .iter()
        .map(|(key, left)| json!({ "key": key.as_str(), "seconds": left.as_secs_f64() }));
    let busiest = admin.busiest_refused(BUSIEST);
    let busiest = busiest.iter().map(
        |busy| json!({ "key": busy.key.as_str(), "refused": busy.refused, "error": busy.error }),
    );
    Ok(Json(json!({
        "blocked": blocked.collect::<Vec<_>>(),
        "busiest": busiest.collect::<Vec<_>>(),
    })))
}

/// A key as the operator enters it. It is in the body, because URLs end up in logs.
#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum KeyInput {
    /// The key of `key::peer_ip` and `key::client_ip`.
    Address { value: String },
    /// The key of `key::header`: the value is hashed.
    Header { name: String, value: String },
    /// The key of a job or a closure.
    Text { value: String },
    /// The key as logs, Redis and this page show it.
    Stored { value: String },
}

impl KeyInput {
    fn key(&self) -> Result<Key, Failure> {
        let invalid = |text: &str| Failure(StatusCode::BAD_REQUEST, text.to_owned());
        match self {
            Self::Address { value } => {
                let address: IpAddr = value.parse().map_err(|_| invalid("not an IP address"))?;
                Ok(key::peer_ip().of(address))
            }
            Self::Header { name, value } => {
                let name: HeaderName = name.parse().map_err(|_| invalid("not a header name"))?;
                Ok(key::header(name.as_str()).of(value))
            }
            Self::Text { value } => Ok(Key::from(value.as_str())),
            Self::Stored { value } => {
                Key::from_stored(value).ok_or_else(|| invalid("not a stored key"))
            }
        }
    }
}

#[derive(Deserialize)]
struct PeekRequest {
    key: KeyInput,
}

async fn peek(
    State(limiters): Limiters,
    Path(name): Path<String>,
    Json(request): Json<PeekRequest>,
) -> Result<Json<Value>, Failure> {
    key_status(find(&limiters, &name)?, &request.key.key()?).await
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
    Json(ChangeRequest { key, change }): Json<ChangeRequest>,
) -> Result<Json<Value>, Failure> {
    let (admin, key) = (find(&limiters, &name)?, key.key()?);
    let done = match change {
        Change::Reset => admin.reset(&key).await,
        Change::Credit { units } => admin.credit(&key, units).await,
        Change::Block { seconds } => admin.block(&key, Duration::from_secs(seconds)).await,
        Change::Unblock => admin.unblock(&key).await,
    };
    // Failures are logged too: the store may have made the change before the error.
    tracing::warn!(limiter = name, key = key.as_str(), ?change, %peer, ok = done.is_ok(), "operator changed a key");
    done?;
    key_status(admin, &key).await
}

async fn key_status(admin: &Admin, key: &Key) -> Result<Json<Value>, Failure> {
    let status = admin.peek(key).await?;
    Ok(Json(json!({
        "key": key.as_str(),
        "blocked_seconds": status.blocked_for().map(|left| left.as_secs_f64()),
        "source": format!("{:?}", status.source()),
        "quotas": quotas(status.view()),
    })))
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

fn find<'a>(limiters: &'a BTreeMap<String, Admin>, name: &str) -> Result<&'a Admin, Failure> {
    let unknown = || {
        let text = format!("no limiter is named {name}");
        Failure(StatusCode::NOT_FOUND, text)
    };
    limiters.get(name).ok_or_else(unknown)
}

/// The response to a request that failed: status and cause.
struct Failure(StatusCode, String);

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let status = match error.kind() {
            ErrorKind::CostTooLarge => StatusCode::BAD_REQUEST,
            ErrorKind::Unsupported => StatusCode::NOT_IMPLEMENTED,
            ErrorKind::Full => StatusCode::INSUFFICIENT_STORAGE,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        Self(status, error.to_string())
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let Self(status, cause) = self;
        (status, cause).into_response()
    }
}
