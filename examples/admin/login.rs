//! Who may: those who know a token, and not another site by their browser.

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, StatusCode, response};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use tollgate::{DecisionView, Headers, MemoryStore, Quota, RateLimitLayer};

/// Lets in who sends `Authorization: Bearer` with the token. From one address, 10 attempts a minute may
/// fail, then none is heard: each is charged before the token is looked at, and given back if it was right.
pub(crate) fn protect(router: Router, token: &str) -> Router {
    // In this process, and so also while Redis is away.
    let attempts = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(10))
        .name("admin-login")
        .headers(Headers::none())
        .settle(failures);
    router
        .layer(from_fn_with_state(
            blake3::hash(token.as_bytes()),
            authorize,
        ))
        .layer(attempts)
        .layer(from_fn(same_site))
}

fn failures(_: &DecisionView, answer: &response::Parts) -> u32 {
    u32::from(answer.status == StatusCode::UNAUTHORIZED)
}

async fn authorize(State(token): State<blake3::Hash>, request: Request, next: Next) -> Response {
    // Hashes of BLAKE3 are compared in constant time: how long it takes tells nothing of the token.
    let told = request.headers().get(AUTHORIZATION).and_then(bearer);
    if told.is_none_or(|told| blake3::hash(told) != token) {
        let head = [(WWW_AUTHENTICATE, "Bearer")];
        return (StatusCode::UNAUTHORIZED, head, "this is not the token\n").into_response();
    }
    let mut answer = next.run(request).await;
    let none = HeaderValue::from_static("no-store");
    answer.headers_mut().insert(CACHE_CONTROL, none);
    answer
}

fn bearer(credentials: &HeaderValue) -> Option<&[u8]> {
    credentials.as_bytes().strip_prefix(b"Bearer ")
}

/// Refuses what a page of another site has its reader's browser send. It cannot send the token either,
/// which no browser adds by itself; this also keeps it from using up the attempts.
async fn same_site(request: Request, next: Next) -> Response {
    match request
        .headers()
        .get("sec-fetch-site")
        .map(HeaderValue::as_bytes)
    {
        // Not a browser, or this page.
        None | Some(b"same-origin" | b"none") => next.run(request).await,
        Some(_) => (StatusCode::FORBIDDEN, "not for other sites\n").into_response(),
    }
}
