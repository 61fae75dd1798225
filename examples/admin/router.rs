//! Routes to peek at the keys of limiters, and to reset, credit and block them.
//!
//! To have this in a service of your own, copy this folder but for `main.rs`, and serve
//! [`router`] on a listener that the world does not reach.

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

/// How many of the keys that are refused most are told.
const BUSIEST: usize = 20;

/// Longer than any order.
const MOST_BYTES: usize = 4_096;

type Limiters = State<Arc<BTreeMap<String, Admin>>>;

/// The page for everybody, and what it asks for to those who know the token.
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
        .layer(DefaultBodyLimit::max(MOST_BYTES))
        .with_state(Arc::new(limiters));
    page::router().nest("/api", login::protect(api, token, host))
}

/// Which limiters there are.
async fn list(State(limiters): Limiters) -> Json<Value> {
    let limiters = limiters.iter().map(|(name, admin)| {
        let quotas = admin.limiter().quotas().iter().map(ToString::to_string);
        json!({ "name": name, "quotas": quotas.collect::<Vec<_>>() })
    });
    Json(limiters.collect())
}

/// Lists the keys that are blocked in all processes, and those that this process refuses most.
async fn overview(
    State(limiters): Limiters,
    Path(name): Path<String>,
) -> Result<Json<Value>, Refusal> {
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

/// A key, as somebody knows it. It comes in the body: addresses of requests end up in logs.
#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Whose {
    /// As `key::peer_ip` and `key::client_ip` count it.
    Address { value: String },
    /// As `key::header` counts its value: hashed.
    Header { name: String, value: String },
    /// As a job or a closure names it.
    Text { value: String },
    /// As a log shows it, or this page, or Redis.
    Stored { value: String },
}

impl Whose {
    fn key(&self) -> Result<Key, Refusal> {
        let wrong = |text: &str| Refusal(StatusCode::BAD_REQUEST, text.to_owned());
        match self {
            Self::Address { value } => {
                let address: IpAddr = value.parse().map_err(|_| wrong("this is no address"))?;
                Ok(key::peer_ip().of(address))
            }
            Self::Header { name, value } => {
                let name: HeaderName = name.parse().map_err(|_| wrong("no header is named so"))?;
                Ok(key::header(name.as_str()).of(value))
            }
            Self::Text { value } => Ok(Key::from(value.as_str())),
            Self::Stored { value } => {
                Key::from_stored(value).ok_or_else(|| wrong("no key is stored so"))
            }
        }
    }
}

#[derive(Deserialize)]
struct Question {
    key: Whose,
}

async fn peek(
    State(limiters): Limiters,
    Path(name): Path<String>,
    Json(question): Json<Question>,
) -> Result<Json<Value>, Refusal> {
    key_status(find(&limiters, &name)?, &question.key.key()?).await
}

#[derive(Deserialize)]
struct Order {
    key: Whose,
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

/// Does it, notes who had it done, and tells how the key stands then.
async fn change(
    State(limiters): Limiters,
    Path(name): Path<String>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    Json(Order { key, change }): Json<Order>,
) -> Result<Json<Value>, Refusal> {
    let (admin, key) = (find(&limiters, &name)?, key.key()?);
    let done = match change {
        Change::Reset => admin.reset(&key).await,
        Change::Credit { units } => admin.credit(&key, units).await,
        Change::Block { seconds } => admin.block(&key, Duration::from_secs(seconds)).await,
        Change::Unblock => admin.unblock(&key).await,
    };
    // A change that failed may have been made all the same.
    tracing::warn!(limiter = name, key = key.as_str(), ?change, %peer, ok = done.is_ok(), "changed");
    done?;
    key_status(admin, &key).await
}

async fn key_status(admin: &Admin, key: &Key) -> Result<Json<Value>, Refusal> {
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

fn find<'a>(limiters: &'a BTreeMap<String, Admin>, name: &str) -> Result<&'a Admin, Refusal> {
    let unknown = || {
        let text = format!("no limiter is called {name}");
        Refusal(StatusCode::NOT_FOUND, text)
    };
    limiters.get(name).ok_or_else(unknown)
}

/// How an order is answered that is not carried out, and why it is not.
struct Refusal(StatusCode, String);

impl From<Error> for Refusal {
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

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Self(status, why) = self;
        (status, why).into_response()
    }
}
