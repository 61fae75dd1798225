//! Rejects requests that the page itself did not send.
//!
//! Any page that is open in a browser can send requests to a server on this machine. The `Origin` header
//! reveals it. If the site points its own name to this machine (DNS rebinding), the `Host` header reveals it.

use axum::extract::Request;
use axum::http::header::{HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

const NAMES: [&str; 3] = ["127.0.0.1", "[::1]", "localhost"];

pub(crate) async fn only(request: Request, next: Next) -> Response {
    if is_local(request.headers()) {
        next.run(request).await
    } else {
        (StatusCode::FORBIDDEN, "rejected: sent by another page\n").into_response()
    }
}

fn is_local(headers: &HeaderMap) -> bool {
    let text = |name: HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or(""));
    let Some(host) = text(HOST) else {
        return false;
    };
    let name = host.parse::<Authority>();
    name.is_ok_and(|name| NAMES.contains(&name.host()))
        && text(ORIGIN).is_none_or(|origin| origin == format!("http://{host}"))
}
