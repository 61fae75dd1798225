//! Behind nginx, each client has one count, whichever headers it forges.

use std::net::{IpAddr, SocketAddr};

use axum::{Router, routing::get};
use tokio::process::Command;
use tollgate::key::{self, ClientIp, KeyExtractor};
use tollgate::{Key, MemoryStore, Quota, RateLimitLayer, RateLimiter};

use crate::nginx::Nginx;
use crate::serve_on;

/// The addresses from which the two clients connect.
const CLIENTS: [&str; 2] = ["127.0.0.1", "127.0.0.2"];

/// The addresses of the proxies, and the network that holds them and no client.
const EDGE: &str = "127.0.0.10";
const INNER: &str = "127.0.0.11";
const PROXIES: &str = "127.0.0.8/29";

/// The usual setting of nginx: append the address of its client.
const APPENDS: &str = "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;";

/// The headers of one request each. What of them is passed on is up to nginx.
fn made_up() -> Vec<Vec<(&'static str, String)>> {
    let x_forwarded_for = |value: &str| ("x-forwarded-for", value.to_owned());
    vec![
        vec![],
        // Another address.
        vec![x_forwarded_for("203.0.113.1")],
        vec![x_forwarded_for("203.0.113.2, 198.51.100.7")],
        vec![x_forwarded_for("2001:db8::1")],
        vec![x_forwarded_for("[2001:db8::2]:4711, 203.0.113.3:80")],
        // On several lines.
        vec![
            x_forwarded_for("203.0.113.4"),
            x_forwarded_for("203.0.113.5"),
        ],
        vec![x_forwarded_for("203.0.113.6"), x_forwarded_for(EDGE)],
        // Those of the other client, of the proxies, of many.
        vec![x_forwarded_for(CLIENTS[0])],
        vec![x_forwarded_for(CLIENTS[1])],
        vec![x_forwarded_for(&format!("203.0.113.7, {EDGE}"))],
        vec![x_forwarded_for(&format!("203.0.113.8, {EDGE}, {INNER}"))],
        vec![x_forwarded_for(&["203.0.113.9"; 500].join(","))],
        // None at all.
        vec![x_forwarded_for("unknown")],
        vec![x_forwarded_for("_hidden, , \"\"")],
        vec![x_forwarded_for("")],
        vec![x_forwarded_for("127.0.0.1%lo, ::ffff:203.0.113.10")],
        // In another header, or its name written otherwise.
        vec![("x-real-ip", "203.0.113.11".to_owned())],
        vec![("x_forwarded_for", "203.0.113.12".to_owned())],
        vec![("x_real_ip", "203.0.113.13".to_owned())],
        vec![("true-client-ip", "203.0.113.14".to_owned())],
        vec![("cf-connecting-ip", "203.0.113.15".to_owned())],
        vec![("forwarded", "for=203.0.113.16".to_owned())],
        vec![(
            "forwarded",
            "for=203.0.113.17, for=\"[2001:db8::3]:80\"".to_owned(),
        )],
        vec![
            ("forwarded", "for=203.0.113.18".to_owned()),
            ("forwarded", "for=203.0.113.19".to_owned()),
        ],
        vec![("forwarded", "for=\"203.0.113.20".to_owned())],
        // With the wish that the proxy leave the header out (CVE-2024-45410).
        vec![
            x_forwarded_for("203.0.113.21"),
            (
                "connection",
                "x-forwarded-for, forwarded, x-real-ip".to_owned(),
            ),
        ],
    ]
}

/// A router with a limit that the test does not reach, and its limiter, to read the counts.
async fn limited_by(listen: &str, key: impl KeyExtractor) -> (SocketAddr, RateLimiter) {
    let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_day(1_000));
    let layer = RateLimitLayer::from(limiter.clone()).key(key);
    let app = Router::new()
        .route("/", get(|| async { "ok" }))
        .layer(layer);
    (serve_on(listen, app).await, limiter)
}

/// Sends a request from this address, with these headers.
async fn send(to: SocketAddr, from: &str, headers: &[(&str, String)]) {
    let from: IpAddr = from.parse().unwrap();
    let client = reqwest::Client::builder().local_address(from);
    let request = client.build().unwrap().get(format!("http://{to}/"));
    let request = headers.iter().fold(request, |request, (name, value)| {
        request.header(*name, value)
    });
    let response = request.send().await.unwrap();
    assert_eq!(response.status(), 200, "{headers:?}");
}

/// Sends one request of each kind from each client, by turns, and returns how many each has sent.
async fn send_made_up(to: SocketAddr) -> u32 {
    let mut sent = 0;
    for headers in made_up() {
        for client in CLIENTS {
            send(to, client, &headers).await;
        }
        sent += 1;
    }
    sent
}

/// The units charged to the client of this address.
async fn used(limiter: &RateLimiter, of: impl Fn(IpAddr) -> Key, client: &str) -> u32 {
    let key = of(client.parse().unwrap());
    limiter.peek(key).await.unwrap().used()
}

/// Asserts that each client is charged for its own requests only. `proxies` has the address and the settings
/// of each proxy, the last first.
async fn assert_one_count_each(key: ClientIp, proxies: &[(&str, &str)]) {
    let (mut way, limiter) = limited_by("127.0.0.1:0", key.clone()).await;
    let mut running = Vec::new();
    for (from, directives) in proxies {
        let nginx = Nginx::start(way, from, directives);
        way = nginx.address();
        running.push(nginx);
    }
    let sent = send_made_up(way).await;
    for client in CLIENTS {
        let used = used(&limiter, |client| key.of(client), client).await;
        assert_eq!(used, sent, "{client}");
    }
    for other in [EDGE, INNER, "203.0.113.1"] {
        let used = used(&limiter, |client| key.of(client), other).await;
        assert_eq!(used, 0, "{other}");
    }
}

#[tokio::test]
async fn by_trusted_networks_a_client_has_one_count_however_it_spoofs() {
    let key = key::client_ip().behind([PROXIES]);
    assert_one_count_each(key, &[(EDGE, APPENDS)]).await;
}

#[tokio::test]
async fn by_the_number_of_hops_a_client_has_one_count_however_it_spoofs() {
    let key = key::client_ip().hops(1);
    assert_one_count_each(key, &[(EDGE, APPENDS)]).await;
}

#[tokio::test]
async fn behind_two_proxies_by_trusted_networks_a_client_has_one_count() {
    let key = key::client_ip().behind([PROXIES]);
    assert_one_count_each(key, &[(INNER, APPENDS), (EDGE, APPENDS)]).await;
}

#[tokio::test]
async fn behind_two_proxies_by_the_number_of_hops_a_client_has_one_count() {
    let key = key::client_ip().hops(2);
    assert_one_count_each(key, &[(INNER, APPENDS), (EDGE, APPENDS)]).await;
}

#[tokio::test]
async fn by_forwarded_a_client_has_one_count_however_it_spoofs() {
    let key = key::client_ip().behind([PROXIES]).forwarded();
    // nginx has no variable that appends to it.
    let appends = "set $forwarded '$http_forwarded, ';
        if ($http_forwarded = '') { set $forwarded ''; }
        proxy_set_header Forwarded '${forwarded}for=$remote_addr;proto=http';";
    assert_one_count_each(key, &[(EDGE, appends)]).await;
}

#[tokio::test]
async fn by_a_header_that_the_proxy_sets_a_client_has_one_count_however_it_spoofs() {
    let key = key::client_ip().behind([PROXIES]).header("x-real-ip");
    let sets = "proxy_set_header X-Real-IP $remote_addr;";
    assert_one_count_each(key, &[(EDGE, sets)]).await;
}

#[tokio::test]
async fn who_goes_past_the_proxies_is_not_believed() {
    let key = key::client_ip().behind([PROXIES]);
    assert_one_count_each(key.clone(), &[]).await;
    assert_one_count_each(key.clone().forwarded(), &[]).await;
    assert_one_count_each(key.header("x-real-ip"), &[]).await;
}

#[tokio::test]
async fn what_a_proxy_appends_as_ipv6_is_the_address_of_ipv4_that_it_is() {
    let key = key::client_ip().behind([PROXIES]);
    // Sockets of IPv6 that take connections of IPv4, whose ends they call `::ffff:127.0.0.1`.
    let dual = "[::ffff:127.0.0.1]";
    let (app, limiter) = limited_by(&format!("{dual}:0"), key.clone()).await;
    let app = SocketAddr::from(([127, 0, 0, 1], app.port()));
    let nginx = Nginx::start_on(dual, app, EDGE, APPENDS);
    let sent = send_made_up(nginx.address()).await;
    for client in CLIENTS {
        let used = used(&limiter, |client| key.of(client), client).await;
        assert_eq!(used, sent, "{client}");
    }
}

/// Whatever stands to the left of it may have been made up.
#[tokio::test]
async fn a_proxy_that_tells_nothing_that_can_be_read_is_the_client() {
    let key = key::client_ip().behind([PROXIES]);
    let (app, limiter) = limited_by("127.0.0.1:0", key.clone()).await;
    let hides = "proxy_set_header X-Forwarded-For \"$http_x_forwarded_for, unknown\";";
    let nginx = Nginx::start(app, EDGE, hides);
    let sent = send_made_up(nginx.address()).await;
    let used = used(&limiter, |client| key.of(client), EDGE).await;
    assert_eq!(used, 2 * sent);
}

/// What `client_ip` is there for.
#[tokio::test]
async fn by_peer_alone_all_clients_of_a_proxy_share_one_count() {
    let key = key::peer_ip();
    let (app, limiter) = limited_by("127.0.0.1:0", key).await;
    let nginx = Nginx::start(app, EDGE, APPENDS);
    let sent = send_made_up(nginx.address()).await;
    let used = used(&limiter, |client| key.of(client), EDGE).await;
    assert_eq!(used, 2 * sent);
}

/// The first block of this language in the guide's recipe `nginx and curl on one machine`.
fn recipe(language: &str) -> &'static str {
    let page = include_str!("../../src/guide/keys.md");
    let (_, recipe) = page.split_once("**nginx and curl").expect("a recipe");
    assert!(recipe.contains("key::client_ip().behind([\"127.0.0.1\"])"));
    let (_, block) = recipe
        .split_once(&format!("```{language}\n"))
        .expect("a block");
    block.split_once("```").expect("its end").0
}

/// The recipe of the guide's page `keys`, as it stands there, on other ports.
#[tokio::test]
async fn the_recipe_for_one_machine_counts_the_client() {
    let key = key::client_ip().behind(["127.0.0.1"]);
    let (app, limiter) = limited_by("127.0.0.1:0", key.clone()).await;
    let nginx = Nginx::start_with(|port| {
        let server = recipe("nginx").replace("127.0.0.1:8080", &format!("127.0.0.1:{port}"));
        server.replace("127.0.0.1:3000", &app.to_string())
    });
    let command = recipe("sh").replace("127.0.0.1:8080", &nginx.address().to_string());
    let curl = Command::new("sh").args(["-c", &command]).output().await;
    let answer = String::from_utf8(curl.unwrap().stdout).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    for (client, units) in [("127.0.0.2", 1), ("127.0.0.1", 0), ("1.1.1.1", 0)] {
        let used = used(&limiter, |client| key.of(client), client).await;
        assert_eq!(used, units, "{client}");
    }
}

#[tokio::test]
async fn on_one_machine_a_client_needs_another_address_than_the_proxy() {
    let proxy = "127.0.0.1";
    let key = key::client_ip().behind([proxy]);
    let (app, limiter) = limited_by("127.0.0.1:0", key.clone()).await;
    let nginx = Nginx::start(app, proxy, APPENDS);
    let invented = [("x-forwarded-for", "1.1.1.1".to_owned())];
    let key_of = |client| key.of(client);
    send(nginx.address(), CLIENTS[1], &invented).await;
    assert_eq!(used(&limiter, key_of, CLIENTS[1]).await, 1);
    assert_eq!(used(&limiter, key_of, "1.1.1.1").await, 0);
    // From the address of the proxy, the client is taken for another proxy.
    send(nginx.address(), proxy, &invented).await;
    assert_eq!(used(&limiter, key_of, proxy).await, 0);
    assert_eq!(used(&limiter, key_of, "1.1.1.1").await, 1);
}
