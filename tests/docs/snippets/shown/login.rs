//! A login that counts failures by account and by address, in one check of its handler.

use axum::body::Body;
use axum::http::Request;
use tollgate::MemoryStore;
use tollgate::key::PeerAddr;
use tower::ServiceExt;

// page: shown
use axum::extract::State;
use axum::http::{StatusCode, request::Parts};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, routing::post};
use tollgate::key::{self, KeyExtractor};
use tollgate::{FailurePolicy, Key, Quota, RateLimiter, Rejection, Store};

#[derive(serde::Deserialize)]
struct Login {
    account: String,
    password: String,
}

#[derive(Clone)]
struct Limits {
    account: RateLimiter,
    address: RateLimiter,
}

async fn login(
    State(limits): State<Limits>,
    parts: Parts,
    Json(login): Json<Login>,
) -> Result<Response, Rejection> {
    // Behind a proxy: `key::client_ip().behind(..)`.
    let Ok(client) = key::peer_ip().extract(&parts) else {
        return Ok(StatusCode::INTERNAL_SERVER_ERROR.into_response());
    };
    // `Ada` and `ada ` are one account, so they are one key.
    let account = Key::from(login.account.trim().to_lowercase());
    // Both keys are charged, or none.
    let levels = [
        limits.account.on(account.and(&client)),
        limits.address.on(client),
    ];
    // 429 with its headers if one of them refuses, 503 if the store fails and the policy is `closed`.
    let decision = RateLimiter::check_all(levels).await?.or_reject()?;
    if login.password != "hunter2" {
        return Ok(StatusCode::UNAUTHORIZED.into_response()); // stays charged
    }
    // A successful login is free, at both keys. If a refund fails, the attempt stays charged.
    let _ = limits.account.settle_all(decision, 0).await;
    Ok("welcome".into_response())
}

fn app(store: impl Store + Clone) -> Router {
    let limits = Limits {
        account: RateLimiter::new(store.clone(), Quota::per_hour(5))
            .name("login-account")
            .on_failure(FailurePolicy::fall_back()),
        address: RateLimiter::new(store, Quota::per_minute(20))
            .name("login-address")
            .on_failure(FailurePolicy::fall_back()),
    };
    Router::new()
        .route("/login", post(login))
        .with_state(limits)
}
// page: end

#[tokio::test]
async fn failures_count_by_address_and_by_account_from_it() {
    let app = app(MemoryStore::new());
    let attempt = async |host: u8, account: &str, password: &str| {
        let body = format!(r#"{{"account":"{account}","password":"{password}"}}"#);
        let request = Request::post("/login").header("content-type", "application/json");
        let request = request.extension(PeerAddr(([192, 0, 2, host], 4711).into()));
        let request = request.body(Body::from(body)).expect("a request");
        app.clone().oneshot(request).await.expect("a response")
    };
    for _ in 0..30 {
        assert_eq!(attempt(1, "Ada", "hunter2").await.status(), 200);
    }
    for _ in 0..5 {
        assert_eq!(attempt(1, "Ada", "guess").await.status(), 401);
    }
    let refused = attempt(1, "ada ", "hunter2").await;
    let wait = refused.headers()["retry-after"].to_str().expect("text");
    let wait: u32 = wait.parse().expect("seconds");
    assert!(
        refused.status() == 429 && (3_000..=3_600).contains(&wait),
        "{wait}"
    );
    assert_eq!(attempt(2, "ada", "hunter2").await.status(), 200);
    // The address was not charged for the refusal.
    for account in 0..15 {
        let account = account.to_string();
        assert_eq!(attempt(1, &account, "guess").await.status(), 401);
    }
    assert_eq!(attempt(1, "bob", "hunter2").await.status(), 429);
}
