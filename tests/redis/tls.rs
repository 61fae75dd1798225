//! TLS connections.

use std::time::{Duration, Instant};

use tollgate::{ErrorKind, Quota, RateLimiter, RedisStore};

use crate::support::tls::TlsServer;
use crate::support::{decided, log};

fn limiter(url: &str) -> RateLimiter {
    let store = RedisStore::open(url).unwrap();
    let store = store.deadline(Duration::from_secs(10));
    RateLimiter::new(store, Quota::per_hour(1_000))
}

#[tokio::test]
async fn a_private_authority_is_trusted_only_if_configured() {
    let server = TlsServer::start(false);
    let trusting = format!("{}?ca={}", server.url(), server.path("ca.pem").display());
    assert_eq!(limiter(&trusting).check("ada").await.unwrap().used(), 1);
    let error = limiter(&server.url()).check("ada").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    assert!(error.to_string().contains("certificate"), "{error}");
}

#[tokio::test]
async fn a_client_presents_its_certificate_on_request() {
    let server = TlsServer::start(true);
    let trusting = format!("{}?ca={}", server.url(), server.path("ca.pem").display());
    let error = limiter(&trusting).check("ada").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    let (cert, key) = (server.path("client.pem"), server.path("client.key"));
    let url = format!("{trusting}&cert={}&key={}", cert.display(), key.display());
    assert_eq!(limiter(&url).check("ada").await.unwrap().used(), 1);
}

#[test]
fn a_certificate_without_its_key_is_a_malformed_url() {
    let server = TlsServer::start(false);
    let url = format!(
        "{}?cert={}",
        server.url(),
        server.path("client.pem").display()
    );
    let error = RedisStore::open(&url).unwrap_err();
    assert!(error.to_string().contains("need each other"), "{error}");
    let url = format!(
        "{}?ca={}",
        server.url(),
        server.path("client.key").display()
    );
    let error = RedisStore::open(&url).unwrap_err();
    assert!(error.to_string().contains("no certificate"), "{error}");
}

/// Waits until the store is connected again, which it is without a check.
async fn reconnected(server: &TlsServer) {
    let patience = Instant::now() + Duration::from_secs(10);
    let clients = || {
        let list: String = server.node.ask(&["CLIENT", "LIST", "TYPE", "normal"]);
        // One of them asks.
        list.lines().count() - 1
    };
    while clients() == 0 {
        assert!(Instant::now() < patience, "no connection");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_new_connection_presents_and_trusts_the_renewed_files() {
    let server = TlsServer::start(true);
    let limiter = limiter(&format!("{}?{}", server.url(), server.files()));
    for used in 1..=3 {
        assert_eq!(limiter.check("ada").await.unwrap().used(), used);
        server.renew();
        reconnected(&server).await;
    }
}

#[tokio::test]
async fn the_connections_of_a_cluster_present_and_trust_the_renewed_files() {
    let server = TlsServer::start_cluster();
    let url = server.url().replace("rediss", "rediss+cluster");
    let limiter = limiter(&format!("{url}?{}", server.files()));
    for _ in 0..3 {
        let _ = decided(&limiter, "ada").await;
        server.renew();
    }
}

#[tokio::test]
async fn a_renewal_that_is_half_written_is_logged_once_and_the_last_good_files_are_used() {
    log::keep();
    let server = TlsServer::start(true);
    let limiter = limiter(&format!("{}?{}", server.url(), server.files()));
    assert_eq!(limiter.check("ada").await.unwrap().used(), 1);
    let mut used = 1;
    for (name, broken, cause) in [
        ("ca.pem", None, "failed to read `ca`"),
        ("ca.pem", Some(0), "has no certificate"),
        ("ca.pem", Some(200), "is not PEM"),
        ("client.pem", Some(200), "is not PEM"),
        ("client.key", Some(100), "is not PEM"),
    ] {
        let path = server.path(name);
        let good = std::fs::read(&path).unwrap();
        match broken {
            Some(length) => std::fs::write(&path, &good[..length]).unwrap(),
            None => std::fs::remove_file(&path).unwrap(),
        }
        for _ in 0..3 {
            server.hang_up();
            reconnected(&server).await;
            used += 1;
            assert_eq!(limiter.check("ada").await.unwrap().used(), used, "{name}");
        }
        std::fs::write(&path, &good).unwrap();
        server.hang_up();
        reconnected(&server).await;
        used += 1;
        assert_eq!(limiter.check("ada").await.unwrap().used(), used, "{name}");
        let lines = log::kept();
        assert_eq!(lines.len(), 2, "{lines:?}");
        let is_named = lines[0].contains(cause) && lines[0].contains(&path.display().to_string());
        assert!(lines[0].contains("WARN") && is_named, "{lines:?}");
        assert!(lines[1].contains("TLS files are good again"), "{lines:?}");
    }
}

#[tokio::test]
async fn a_certificate_without_its_renewed_key_is_not_used() {
    log::keep();
    let server = TlsServer::start(true);
    let other = TlsServer::start(true);
    let limiter = limiter(&format!("{}?{}", server.url(), server.files()));
    assert_eq!(limiter.check("ada").await.unwrap().used(), 1);
    std::fs::copy(other.path("client.pem"), server.path("client.pem")).unwrap();
    server.hang_up();
    reconnected(&server).await;
    assert_eq!(limiter.check("ada").await.unwrap().used(), 2);
    let lines = log::kept();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("do not match"), "{lines:?}");
}
