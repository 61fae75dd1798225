//! A login that limits failed attempts per address, and per account and address: `cargo run --example login`
//!
//! 10 attempts per minute may fail from one address, and 5 per quarter of an hour for one account from one
//! address. A limit per account alone would let anyone lock its owner out. So the account from all addresses has a
//! soft limit of 50: it refuses nobody, but above it the login asks for a second factor. Each attempt is charged
//! before the password is verified, so that parallel attempts cannot exceed the limit. A successful login gets its
//! charge back.

mod support;

use std::error::Error;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{StatusCode, response};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router, routing::post};
use http_body::SizeHint;
use tollgate::{
    DecisionView, Headers, MemoryStore, Quota, RateLimitLayer, RateLimiter, Rejection, key,
};
use tower::ServiceBuilder;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_writer(io::stderr).init();
    let store = MemoryStore::new();

    let by_address = RateLimitLayer::new(store.clone(), Quota::per_minute(10))
        .name("login-address")
        .settle(failures);

    // The account is the one in the form, even if no such account exists: otherwise the limit would reveal which
    // accounts exist. No headers, because they would reveal attempts by others behind the same address.
    let account = key::extension::<Account>().name("account");
    let quarter_hour = Duration::from_secs(15 * 60);
    let anywhere = RateLimiter::new(store.clone(), Quota::new(50, quarter_hour).soft());
    let by_account = RateLimitLayer::new(store, Quota::new(5, quarter_hour))
        .name("login-account")
        .key((key::peer_ip(), account.clone()))
        .and(anywhere.name("login-anywhere"), account)
        .headers(Headers::none())
        .settle(failures);

    let stack = ServiceBuilder::new()
        // Outermost, so that a refused client does not have its body read or create keys of accounts.
        .layer(by_address)
        // A key is made from the request head, but the account is in the body.
        .layer(from_fn(read_form))
        .layer(by_account);
    let app = Router::new().route("/login", post(login).layer(stack));

    let listener = support::listen().await?;
    let address = listener.local_addr()?;
    println!("Listening on {address}. Try (the right password is hunter2):");
    println!("  curl -i -d 'account=ada&password=guess' http://{address}/login");
    println!(
        "  curl -i -d 'account=ada&password=guess' --interface 127.0.0.2 http://{address}/login"
    );
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}

/// Returns the final cost of an attempt: 0 if it succeeded, or failed with a server error.
fn failures(_: &DecisionView, head: &response::Parts, _: SizeHint) -> u32 {
    // A rejection by the inner limit counts as a failure, whatever its status.
    let is_rejected = head.extensions.get::<Rejection>().is_some();
    u32::from(is_rejected || head.status.is_client_error())
}

async fn login(
    Extension(decision): Extension<DecisionView>,
    Extension(Account(account)): Extension<Account>,
    Extension(Password(password)): Extension<Password>,
    code: Option<Extension<Code>>,
) -> Response {
    // Many addresses try this account. Asked before the password is verified: otherwise the answer would tell a guesser
    // that it is right.
    let has_second_factor = code.is_some_and(|Extension(Code(code))| code == "314159");
    if decision.is_exceeded() && !has_second_factor {
        return (StatusCode::UNAUTHORIZED, "second factor required\n").into_response();
    }
    match (account.as_str(), password.as_str()) {
        ("ada", "hunter2") => "welcome\n".into_response(),
        _ => (StatusCode::UNAUTHORIZED, "wrong account or password\n").into_response(),
    }
}

#[derive(Clone)]
struct Account(String);

#[derive(Clone)]
struct Password(String);

/// The second factor, such as a code by mail.
#[derive(Clone)]
struct Code(String);

/// Writes the value that becomes the key.
impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

async fn read_form(request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let Ok(body) = to_bytes(body, 1_024).await else {
        return StatusCode::PAYLOAD_TOO_LARGE.into_response();
    };
    for (name, value) in url::form_urlencoded::parse(&body) {
        match &*name {
            // `Ada` and `ada` are the same account, so they share a key.
            "account" => drop(
                parts
                    .extensions
                    .insert(Account(value.trim().to_lowercase())),
            ),
            "password" => drop(parts.extensions.insert(Password(value.into_owned()))),
            "code" => drop(parts.extensions.insert(Code(value.into_owned()))),
            _ => {}
        }
    }
    next.run(Request::from_parts(parts, Body::empty())).await
}
