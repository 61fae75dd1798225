//! The files of the page, compiled into the program.

use axum::Router;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::routing::get;

const FILES: [(&str, &str, &str); 4] = [
    (
        "/",
        "text/html; charset=utf-8",
        include_str!("page/index.html"),
    ),
    (
        "/style.css",
        "text/css; charset=utf-8",
        include_str!("page/style.css"),
    ),
    (
        "/admin.js",
        "text/javascript; charset=utf-8",
        include_str!("page/admin.js"),
    ),
    (
        "/favicon.svg",
        "image/svg+xml",
        include_str!("page/favicon.svg"),
    ),
];

/// Allows only these files: no inline scripts or styles, and no embedding in other pages.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub(crate) fn router() -> Router {
    FILES
        .into_iter()
        .fold(Router::new(), |router, (path, kind, text)| {
            let headers = [
                (CONTENT_TYPE, kind),
                (CONTENT_SECURITY_POLICY, POLICY),
                (X_CONTENT_TYPE_OPTIONS, "nosniff"),
                (REFERRER_POLICY, "no-referrer"),
                (CACHE_CONTROL, "no-cache"),
            ];
            router.route(path, get(move || async move { (headers, text) }))
        })
}
