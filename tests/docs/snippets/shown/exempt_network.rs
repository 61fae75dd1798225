//! A network that is not limited, behind proxies.

use std::net::IpAddr;

use reqwest::Client;
use tollgate::MemoryStore;

use crate::support::served::serve;

// page: shown
use axum::{Router, routing::get};
use ipnet::IpNet;
use tollgate::{ConfigError, Quota, RateLimitLayer, Store, key};

/// `proxies` is a setting such as `10.0.0.0/8, fd00::/8`.
fn app(store: impl Store, proxies: &str, exempt: Vec<IpNet>) -> Result<Router, ConfigError> {
    // An error if a network is malformed, or if no proxy is trusted.
    let clients = key::client_ip().behind(proxies).checked()?;
    let limit = RateLimitLayer::new(store, Quota::per_minute(2))
        .name("site")
        .key(clients.clone())
        .skip(move |parts| {
            // An error if the client is not known: then it is counted.
            let Ok(address) = clients.address(parts) else {
                return false;
            };
            exempt.iter().any(|network| network.contains(&address))
        });
    Ok(Router::new()
        .route("/", get(|| async { "ok" }))
        .layer(limit))
}
// page: end

/// The statuses of six requests from an address of this machine.
async fn statuses(url: &str, from: [u8; 4], header: Option<&str>) -> Vec<u16> {
    let client = Client::builder().local_address(IpAddr::from(from)).build();
    let client = client.expect("a client");
    let mut statuses = Vec::new();
    for _ in 0..6 {
        let request = client.get(url);
        let request = match header {
            Some(value) => request.header("x-forwarded-for", value),
            None => request,
        };
        let response = request.send().await.expect("an answer");
        statuses.push(response.status().as_u16());
    }
    statuses
}

#[tokio::test]
async fn a_network_is_exempt_behind_the_proxy_and_no_client_makes_itself_a_part_of_it() {
    let exempt = ["203.0.113.0/24", "2001:db8::/32", "127.0.0.0/30"];
    let exempt = exempt.map(|network| network.parse().expect("a network"));
    // 127.0.0.1 is the proxy. Its network is exempt, too.
    let app = app(MemoryStore::new(), "127.0.0.1", exempt.to_vec());
    let url = serve(app.expect("a valid configuration")).await;
    let proxy = [127, 0, 0, 1];
    let refused = [200, 200, 429, 429, 429, 429];
    for (from, header, expected) in [
        (proxy, Some("203.0.113.7"), [200; 6]),
        (proxy, Some("6.6.6.6, 203.0.113.7"), [200; 6]),
        (proxy, Some("2001:db8:1:2:3:4:5:6"), [200; 6]),
        (proxy, Some("::ffff:203.0.113.8"), [200; 6]),
        (proxy, Some("127.0.0.2"), [200; 6]),
        ([127, 0, 0, 3], None, [200; 6]),
        // What a client has written itself.
        (proxy, Some("203.0.113.7, 198.51.100.1"), refused),
        ([127, 0, 0, 9], Some("203.0.113.7"), refused),
        ([127, 0, 0, 10], Some("203.0.113.7, 127.0.0.1"), refused),
        // The proxy names no client: who is behind it is not known.
        (proxy, None, refused),
    ] {
        let statuses = statuses(&url, from, header).await;
        assert_eq!(statuses, expected, "{from:?} {header:?}");
    }
}

#[test]
fn an_exemption_that_no_proxy_can_vouch_for_is_an_error_at_the_start() {
    for proxies in ["", "10.0.0/8", "loopback"] {
        let error = app(MemoryStore::new(), proxies, Vec::new()).expect_err(proxies);
        assert!(error.to_string().contains("trusted proxies"), "{error}");
    }
    let by_header = key::client_ip().header("x-real-ip").checked();
    let error = by_header.expect_err("no proxy").to_string();
    assert!(error.contains("has no trusted proxies"), "{error}");
}
