//! TLS connections.

use std::time::{Duration, Instant};

use tollgate::{Error, ErrorKind, Quota, RateLimiter, RedisStore};

use crate::support::decided;
use crate::support::tls::TlsServer;

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
async fn a_self_signed_certificate_is_trusted_as_its_own_authority_unless_it_is_one_of_an_authority()
 {
    let server = TlsServer::start_self_signed(false);
    let trusting = format!("{}?ca={}", server.url(), server.path("ca.pem").display());
    assert_eq!(limiter(&trusting).check("ada").await.unwrap().used(), 1);
    let server = TlsServer::start_self_signed(true);
    let trusting = format!("{}?ca={}", server.url(), server.path("ca.pem").display());
    let error = limiter(&trusting).check("ada").await.unwrap_err();
    assert_eq!(error.code(), "tollgate::E103", "{error}");
    assert!(error.to_string().contains("CA:FALSE"), "{error}");
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

/// Checks until a new connection has failed by its files. A busy machine may also read them too late.
async fn failure_of_a_new_connection(limiter: &RateLimiter) -> Error {
    let patience = Instant::now() + Duration::from_secs(10);
    let is_late = |error: &Error| error.to_string().contains("within 100ms");
    loop {
        match limiter.check("ada").await {
            Err(error) if error.kind() == ErrorKind::Misconfigured && !is_late(&error) => {
                return error;
            }
            outcome => assert!(Instant::now() < patience, "{outcome:?}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_renewal_that_is_half_written_is_said_and_over_when_the_files_are_whole() {
    let server = TlsServer::start(true);
    let limiter = limiter(&format!("{}?{}", server.url(), server.files()));
    let _ = limiter.check("ada").await.unwrap();
    let at = format!(
        "failed to set up TLS with Redis at {}",
        server.url().replace("rediss://", "")
    );
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
        server.hang_up();
        let error = failure_of_a_new_connection(&limiter).await.to_string();
        for words in [&at, cause, &path.display().to_string(), "correct the files"] {
            assert!(error.contains(words), "{words}: {error}");
        }
        std::fs::write(&path, &good).unwrap();
        let _ = decided(&limiter, "ada").await;
    }
}

#[tokio::test]
async fn a_certificate_without_its_renewed_key_is_not_used() {
    let server = TlsServer::start(true);
    let other = TlsServer::start(true);
    let limiter = limiter(&format!("{}?{}", server.url(), server.files()));
    let _ = limiter.check("ada").await.unwrap();
    std::fs::copy(other.path("client.pem"), server.path("client.pem")).unwrap();
    server.hang_up();
    let error = failure_of_a_new_connection(&limiter).await.to_string();
    assert!(error.contains("do not match"), "{error}");
}
