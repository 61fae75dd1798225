//! Access control: a token is required, and requests of other sites by a user's browser are rejected.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, HOST, WWW_AUTHENTICATE};
use axum::http::uri::Authority;
use axum::http::{HeaderValue, StatusCode, response};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use http_body::SizeHint;
use tollgate::{DecisionView, Headers, MemoryStore, Quota, RateLimitLayer, Rejection};

/// Lets in who sends `Authorization: Bearer` with the token. From one address, 10 attempts a minute may
/// fail, then none is heard: each is charged before the token is looked at, and given back if it was right.
/// A request that is broken off in between keeps its charge.
///
/// Nor is the right token heard then, or a token that somebody chose could be guessed at any pace: who
/// guesses would be told of the right one. So all behind one proxy or NAT share the ten, and one of them can
/// keep the others out for a minute. Have the page reached directly, or by a tunnel of one's own.
///
/// It is asked by an address, as `localhost`, or by the name that is said here; by no other.
pub(crate) fn protect(router: Router, token: &str, host: Option<&str>) -> Router {
    // In this process, and so also while Redis is away.
    let attempts = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(10))
        .name("admin-login")
        .headers(Headers::none())
        .settle(failures);
    router
        .layer(from_fn_with_state(
            blake3::hash(token.trim().as_bytes()),
            authorize,
        ))
        .layer(attempts)
        .layer(from_fn(same_site))
        .layer(from_fn_with_state(host.map(Arc::from), known_host))
}

fn failures(_: &DecisionView, head: &response::Parts, _: SizeHint) -> u32 {
    // Nothing inside refuses today. A limit that somebody adds there must not make its refusals free.
    let is_rejected = head.extensions.get::<Rejection>().is_some();
    u32::from(is_rejected || head.status == StatusCode::UNAUTHORIZED)
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
    let (scheme, token) = credentials.as_bytes().split_at_checked(b"Bearer ".len())?;
    let is_bearer = scheme.eq_ignore_ascii_case(b"Bearer ");
    is_bearer.then(|| token.trim_ascii())
}

/// Refuses what asks by a name that is not ours: a site that points its own name to this machine is the
/// same site to its reader's browser.
async fn known_host(
    State(ours): State<Option<Arc<str>>>,
    request: Request,
    next: Next,
) -> Response {
    let told = request
        .headers()
        .get(HOST)
        .and_then(|host| host.to_str().ok());
    let told = told.and_then(|host| host.parse::<Authority>().ok());
    let told = told.as_ref().or_else(|| request.uri().authority());
    if told.is_some_and(|told| is_known(told.host(), ours.as_deref())) {
        next.run(request).await
    } else {
        (StatusCode::FORBIDDEN, "not by this name\n").into_response()
    }
}

fn is_known(host: &str, ours: Option<&str>) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    let is = |name: &str| host.eq_ignore_ascii_case(name);
    address.parse::<IpAddr>().is_ok() || is("localhost") || ours.is_some_and(is)
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
