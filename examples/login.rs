//! A login that counts failures only, by address and by account: `cargo run --example login`
//!
//! Each attempt is charged before the password is looked at, so that many at once cannot slip through,
//! and given back if it was right. From one address 5 attempts a minute may fail, against one account
//! 10 an hour, from wherever. Then type what the first lines say.

mod support;

use std::error::Error;
use std::fmt;
use std::io;
use std::net::SocketAddr;

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::http::{StatusCode, response};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router, routing::post};
use http_body::SizeHint;
use tollgate::{DecisionView, Headers, MemoryStore, Quota, RateLimitLayer, Rejection, key};
use tower::ServiceBuilder;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_writer(io::stderr).init();
    let store = MemoryStore::new();

    let by_address = RateLimitLayer::new(store.clone(), Quota::per_minute(5))
        .name("login-address")
        .settle(failures);

    // By what was typed, whether there is such an account or not: else the limit would tell which there
    // are. Its headers would tell anybody how often others try to get in, so it has none.
    let by_account = RateLimitLayer::new(store, Quota::per_hour(10))
        .name("login-account")
        .key(key::extension::<Account>().named("account"))
        .headers(Headers::none())
        .settle(failures);

    let stack = ServiceBuilder::new()
        .layer(by_address) // outermost: who is refused here has no body read, and makes up no accounts
        .layer(from_fn(read_form)) // a key sees the head of a request, and the account is in its body
        .layer(by_account);
    let app = Router::new().route("/login", post(login).layer(stack));

    let listener = support::listen().await?;
    let address = listener.local_addr()?;
    println!("Listening on {address}. Try: (the password is hunter2)");
    println!("  curl -i -d 'account=ada&password=guess' http://{address}/login");
    println!(
        "  curl -i -d 'account=ada&password=guess' --interface 127.0.0.2 http://{address}/login"
    );
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}

/// Returns the final cost of an attempt: 0 if it succeeded, or failed by our own fault.
fn failures(_: &DecisionView, head: &response::Parts, _: SizeHint) -> u32 {
    // A refusal of the limit inside is a failure, whatever its status.
    let is_rejected = head.extensions.get::<Rejection>().is_some();
    u32::from(is_rejected || head.status.is_client_error())
}

async fn login(
    Extension(Account(account)): Extension<Account>,
    Extension(Password(password)): Extension<Password>,
) -> Response {
    match (account.as_str(), password.as_str()) {
        ("ada", "hunter2") => "welcome\n".into_response(),
        _ => (StatusCode::UNAUTHORIZED, "wrong account or password\n").into_response(),
    }
}

#[derive(Clone)]
struct Account(String);

#[derive(Clone)]
struct Password(String);

/// As it is counted.
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
            // `Ada` and `ada` are one account, so they are one key.
            "account" => drop(
                parts
                    .extensions
                    .insert(Account(value.trim().to_lowercase())),
            ),
            "password" => drop(parts.extensions.insert(Password(value.into_owned()))),
            _ => {}
        }
    }
    next.run(Request::from_parts(parts, Body::empty())).await
}
