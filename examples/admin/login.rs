//! Access control: requires a token, and rejects requests that pages of other sites send.

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

/// Requires `Authorization: Bearer` with the token. 10 attempts per minute and address may fail; then every
/// request from that address gets 429. Each attempt is charged before the token is compared. A valid token gets
/// its charge back; a request that is cancelled in between does not.
///
/// While an address is limited, a valid token gets 429 too: otherwise an attacker could keep guessing. All
/// clients behind one proxy or NAT share the ten attempts, so one of them can lock out the others for a
/// minute. Reach the page directly or through a tunnel instead.
///
/// The `Host` of a request must be an IP address, `localhost` or `host`.
pub(crate) fn protect(router: Router, token: &str, host: Option<&str>) -> Router {
    // In memory, so that it works while Redis is unreachable.
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
    // No inner layer rejects requests today. If you add one, its rejections must not get their charge back.
    let is_rejected = head.extensions.get::<Rejection>().is_some();
    u32::from(is_rejected || head.status == StatusCode::UNAUTHORIZED)
}

async fn authorize(State(token): State<blake3::Hash>, request: Request, next: Next) -> Response {
    // BLAKE3 hashes compare in constant time, so the response time reveals nothing about the token.
    let sent = request.headers().get(AUTHORIZATION).and_then(bearer);
    if sent.is_none_or(|sent| blake3::hash(sent) != token) {
        let head = [(WWW_AUTHENTICATE, "Bearer")];
        return (StatusCode::UNAUTHORIZED, head, "missing or wrong token\n").into_response();
    }
    let mut response = next.run(request).await;
    let no_store = HeaderValue::from_static("no-store");
    response.headers_mut().insert(CACHE_CONTROL, no_store);
    response
}

fn bearer(credentials: &HeaderValue) -> Option<&[u8]> {
    let (scheme, token) = credentials.as_bytes().split_at_checked(b"Bearer ".len())?;
    let is_bearer = scheme.eq_ignore_ascii_case(b"Bearer ");
    is_bearer.then(|| token.trim_ascii())
}

/// Rejects requests for unknown host names. Otherwise a site could point its own name to this machine (DNS
/// rebinding), and a browser would treat its requests as same-origin.
async fn known_host(
    State(allowed): State<Option<Arc<str>>>,
    request: Request,
    next: Next,
) -> Response {
    let header = request
        .headers()
        .get(HOST)
        .and_then(|host| host.to_str().ok());
    let header = header.and_then(|host| host.parse::<Authority>().ok());
    let host = header.as_ref().or_else(|| request.uri().authority());
    if host.is_some_and(|host| is_known(host.host(), allowed.as_deref())) {
        next.run(request).await
    } else {
        let text = "unknown host name: set TOLLGATE_ADMIN_HOST to allow it\n";
        (StatusCode::FORBIDDEN, text).into_response()
    }
}

fn is_known(host: &str, allowed: Option<&str>) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    let is = |name: &str| host.eq_ignore_ascii_case(name);
    address.parse::<IpAddr>().is_ok() || is("localhost") || allowed.is_some_and(is)
}

/// Rejects requests that a page of another site sends through a browser. Such a page does not know the token,
/// but it could use up the attempts of the address.
async fn same_site(request: Request, next: Next) -> Response {
    match request
        .headers()
        .get("sec-fetch-site")
        .map(HeaderValue::as_bytes)
    {
        // Another program than a browser, or this page.
        None | Some(b"same-origin" | b"none") => next.run(request).await,
        Some(_) => (
            StatusCode::FORBIDDEN,
            "rejected: sent by a page of another site\n",
        )
            .into_response(),
    }
}
