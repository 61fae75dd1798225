//! TLS connections.

use std::time::Duration;

use tollgate::{ErrorKind, Quota, RateLimiter, RedisStore};

use crate::support::tls::TlsServer;

fn limiter(url: &str) -> RateLimiter {
    let store = RedisStore::open(url).unwrap();
    let store = store.deadline(Duration::from_secs(10));
    RateLimiter::new(store, Quota::per_hour(9))
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
