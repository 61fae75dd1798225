//! The files of the page, compiled into the program.

use axum::Router;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::routing::get;
use serde_json::json;

use crate::{lease, settings, shares::SHARES};

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SVG: &str = "image/svg+xml";
pub(crate) const SCRIPT: &str = "text/javascript; charset=utf-8";

/// The path of a file, its type, and its text.
pub(crate) type File = (&'static str, &'static str, String);

const FILES: [(&str, &str, &str); 16] = [
    ("/", HTML, include_str!("page/index.html")),
    ("/style.css", CSS, include_str!("page/style.css")),
    ("/favicon.svg", SVG, include_str!("page/favicon.svg")),
    ("/main.js", SCRIPT, include_str!("page/main.js")),
    ("/settings.js", SCRIPT, include_str!("page/settings.js")),
    ("/lease.js", SCRIPT, include_str!("page/lease.js")),
    ("/server.js", SCRIPT, include_str!("page/server.js")),
    ("/session.js", SCRIPT, include_str!("page/session.js")),
    ("/history.js", SCRIPT, include_str!("page/history.js")),
    ("/trailing.js", SCRIPT, include_str!("page/trailing.js")),
    ("/text.js", SCRIPT, include_str!("page/text.js")),
    ("/lane.js", SCRIPT, include_str!("page/lane.js")),
    ("/chart.js", SCRIPT, include_str!("page/chart.js")),
    ("/readout.js", SCRIPT, include_str!("page/readout.js")),
    ("/edge.js", SCRIPT, include_str!("page/edge.js")),
    // Only in a page that is recorded.
    ("/recorded.js", SCRIPT, include_str!("page/recorded.js")),
];

/// Allows only these files: no inline scripts or styles, and no embedding in other pages.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub(crate) fn router() -> Router {
    files()
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

/// Returns all files, with those that the program makes.
pub(crate) fn files() -> Vec<File> {
    let files = FILES.map(|(path, kind, text)| (path, kind, text.to_owned()));
    let algorithms = format!("export const ALGORITHMS = {};\n", settings::algorithms());
    let leases = format!("export const LEASES = {};\n", lease::leases());
    let shares = format!("export const SHARES = {};\n", json!(SHARES));
    let made = [
        ("/algorithms.js", SCRIPT, algorithms),
        ("/leases.js", SCRIPT, leases),
        ("/shares.js", SCRIPT, shares),
    ];
    files.into_iter().chain(made).collect()
}
