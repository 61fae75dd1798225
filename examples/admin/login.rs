//! Access control: requires a token, and rejects requests that pages of other sites send.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL, HOST, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::uri::Authority;
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use tollgate::{Decision, Key, KeyExtractor, MemoryStore, Quota, RateLimiter, key};

use crate::failure::Failure;
use crate::token::Token;

/// Requires `Authorization: Bearer` with the token. 10 wrong tokens per minute and address may be sent; then every
/// request from that address gets 429. Requests with the token are not counted, however many arrive at once.
///
/// While an address is limited, a valid token gets 429 too: otherwise an attacker could keep guessing. All
/// clients behind one proxy or NAT share the ten attempts, so one of them can lock out the others for a
/// minute. Reach the page directly or through a tunnel instead.
///
/// The `Host` of a request must be an IP address, `localhost` or `host`.
pub(crate) fn protect(router: Router, token: &Token, host: Option<&str>) -> Router {
    let login = Login {
        token: blake3::hash(token.as_str().as_bytes()),
        // In memory, so that it works while Redis is unreachable.
        attempts: RateLimiter::new(MemoryStore::new(), Quota::per_minute(10)).name("admin-login"),
    };
    router
        .layer(from_fn_with_state(Arc::new(login), authorize))
        .layer(from_fn(same_site))
        .layer(from_fn_with_state(host.map(Arc::from), known_host))
}

struct Login {
    token: blake3::Hash,
    attempts: RateLimiter,
}

/// The answer to a token.
enum LoginOutcome {
    Valid,
    Wrong,
    Limited(Decision),
}

impl Login {
    /// Compares the token, and charges the address if it is wrong, in one check. So of any number of tokens that
    /// arrive at once, a valid one passes only if fewer than ten wrong ones were charged before it.
    async fn check(
        &self,
        address: Key,
        sent: Option<&[u8]>,
    ) -> Result<LoginOutcome, tollgate::Error> {
        // BLAKE3 hashes compare in constant time, so the response time reveals nothing about the token.
        let is_valid = sent.is_some_and(|sent| blake3::hash(sent) == self.token);
        let cost = u32::from(!is_valid);
        let decision = self.attempts.check_n(address, cost).await?;
        Ok(match is_valid {
            true if decision.remaining() > 0 => LoginOutcome::Valid,
            false if decision.is_allowed() => LoginOutcome::Wrong,
            _ => LoginOutcome::Limited(decision),
        })
    }
}

async fn authorize(
    State(login): State<Arc<Login>>,
    request: Request,
    next: Next,
) -> Result<Response, Failure> {
    let (parts, body) = request.into_parts();
    let address = key::peer_ip().extract(&parts);
    let address =
        address.map_err(|error| Failure(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    let sent = parts.headers.get(AUTHORIZATION).and_then(bearer);
    Ok(match login.check(address, sent).await? {
        LoginOutcome::Valid => {
            let mut response = next.run(Request::from_parts(parts, body)).await;
            let no_store = HeaderValue::from_static("no-store");
            response.headers_mut().insert(CACHE_CONTROL, no_store);
            response
        }
        LoginOutcome::Wrong => {
            let head = [(WWW_AUTHENTICATE, "Bearer")];
            (StatusCode::UNAUTHORIZED, head, "missing or wrong token\n").into_response()
        }
        LoginOutcome::Limited(decision) => {
            let wait = decision.reset_after().as_secs() + 1;
            let head = [(RETRY_AFTER, wait.to_string())];
            let text = format!("too many wrong tokens from this address: try again in {wait} s\n");
            (StatusCode::TOO_MANY_REQUESTS, head, text).into_response()
        }
    })
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
