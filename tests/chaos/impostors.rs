//! The server is not Redis, or its replies are truncated.

use std::time::Duration;

use axum::Router;
use axum::routing::get;
use tokio::net::TcpListener;
use tollgate::{Quota, RedisStore, Rejection, RejectionReason};

use crate::drive::{Answer, Drive, ask, by_path};
use crate::suite::{PATIENCE, beside_others, closed, panics, report, short_or_long, until};
use crate::support::log;
use crate::support::proxy::{Proxy, Wire};
use crate::support::redis_server::RedisServer;

/// Drives a load at what the URL leads to. Every answer is the policy's, and the log says once what
/// is wrong.
async fn refused_by_policy(url: &str, name: &str) {
    let _ = log::kept();
    let store = RedisStore::open(url).expect("a URL");
    let layer = closed(by_path(store, Quota::per_hour(1_000_000)));
    let drive = Drive::start(&layer, |turn| format!("/{}", turn % 10));
    drive
        .goes_on_for(Duration::from_millis(short_or_long(500, 5_000)))
        .await;
    let response = ask(&layer, "/ada").await;
    let answers = drive.end().await;
    assert_eq!(answers.of_status(503), answers.len(), "{name}");
    let Some(RejectionReason::Failed(error)) = response.extensions().get().map(Rejection::reason)
    else {
        panic!("{name}: {response:?}");
    };
    println!("{name}: {:?}: {error}", error.kind());
    assert!(!error.to_string().contains('\n'), "{name}: {error}");
    let lines = log::kept();
    assert_eq!(lines.len(), 1, "{name}: {lines:#?}");
}

#[test]
fn what_is_not_redis_is_a_clear_error_and_no_panic() {
    beside_others(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let web = format!("redis://{}", listener.local_addr().expect("an address"));
        let router = Router::new().route("/", get(async || "welcome"));
        let web_server = tokio::spawn(async move { axum::serve(listener, router).await });
        refused_by_policy(&web, "a web server").await;
        web_server.abort();

        let rubbish = Proxy::before(0).await;
        for (name, text) in [
            ("zeros", [0_u8; 64].as_slice()),
            ("a greeting of SMTP", b"220 mail.example ESMTP\r\n"),
            ("text without an end", b"rubbish"),
            (
                "a reply of RESP that nobody asked for",
                b"*2\r\n:1\r\n:2\r\n",
            ),
            ("a length that cannot be", b"$99999999999999999999\r\n"),
        ] {
            rubbish.set(Wire::Answers(text));
            refused_by_policy(&rubbish.url(), name).await;
        }
        assert_eq!(panics(), [""; 0]);
        report(
            13,
            "a URL that is a web server, a port that talks rubbish",
            "six impostors: each a clear error, every answer the policy's, no panic",
            "clear error, policy applies, no panic",
        );
    });
}

#[test]
fn a_truncated_reply_is_an_error_of_one_call_and_no_panic() {
    beside_others(async {
        let server = RedisServer::start();
        let proxy = Proxy::before(server.port()).await;
        let store = RedisStore::open(&proxy.url()).expect("a URL");
        let layer = closed(by_path(store, Quota::per_hour(1_000_000)));
        let drive = Drive::start(&layer, |turn| format!("/{}", turn % 10));
        let span = Duration::from_secs(short_or_long(2, 10));
        drive.goes_on_for(span / 4).await;
        proxy.set(Wire::Truncate {
            every: 50,
            bytes: 7,
        });
        drive.goes_on_for(span / 2).await;
        until(PATIENCE, "replies are truncated", async || proxy.cuts() > 2).await;
        let whole = drive.now();
        proxy.set(Wire::Whole);
        drive.goes_on_for(span / 2 + Duration::from_secs(1)).await;
        let answers = drive.end().await;

        let cut = answers.of_status(503);
        assert!(cut > 0 && proxy.cuts() > 0);
        assert_eq!(answers.of_status(200) + cut, answers.len());
        let exact = answers.recovery(whole);
        exact.assert_within(Duration::from_secs(1));
        let is_ours = |answer: &Answer| answer.status == 503;
        assert!(answers.first(Duration::ZERO, is_ours) < whole);
        assert_eq!(panics(), [""; 0]);
        report(
            13,
            "truncated replies",
            &format!(
                "{} replies truncated: {cut} answers are the policy's; exact {:.0?} after the last",
                proxy.cuts(),
                exact.after
            ),
            "clear error, policy applies, no panic",
        );
    });
}
