//! Warnings about misconfigured layers: logged once, and none for a correct setup.

use std::env;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{Request, Response};
use axum::{Router, routing::get};
use http_body_util::Full;
use tollgate::key::{self, KeyError, PeerAddr, Reads};
use tollgate::{
    Algorithm, Key, KeyExtractor, MemoryStore, Quota, RateLimitLayer, RateLimiter, Store,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::calls::ok;
use crate::support::log;

/// Enough for whatever a layer waits to see.
const MANY: usize = 1_100;

fn layer(key: impl KeyExtractor) -> RateLimitLayer {
    limited(MemoryStore::new(), "search").key(key)
}

fn limited(store: impl Store, name: &str) -> RateLimitLayer {
    RateLimitLayer::new(store, Quota::per_hour(1_000_000)).name(name)
}

fn from(peer: &str, headers: &[(&str, &str)]) -> Request<()> {
    let address = SocketAddr::new(peer.parse().unwrap(), 5_000);
    let request = headers
        .iter()
        .fold(Request::get("/"), |request, (name, value)| {
            request.header(*name, *value)
        });
    request.extension(PeerAddr(address)).body(()).unwrap()
}

/// What is logged while these requests pass.
async fn said_of(
    layer: &RateLimitLayer,
    requests: impl Iterator<Item = Request<()>>,
) -> Vec<String> {
    let service = layer.layer(service_fn(ok::<()>));
    log::keep();
    for request in requests {
        let _ = service.clone().oneshot(request).await.unwrap();
    }
    log::kept()
}

/// One line, a warning that names the limiter and says this.
fn is_one_line(log: &[String], text: &str) {
    assert_eq!(log.len(), 1, "{log:?}");
    for text in ["WARN", "search", text] {
        assert!(log[0].contains(text), "{log:?}");
    }
}

const FORWARDED: [(&str, &str); 1] = [("x-forwarded-for", "203.0.113.7")];

#[tokio::test]
async fn a_proxy_before_peer_ip_is_said_once() {
    for headers in [
        FORWARDED,
        [("forwarded", "for=203.0.113.7")],
        [("x-real-ip", "203.0.113.7")],
    ] {
        for peer in ["10.0.0.7", "127.0.0.1", "::ffff:192.168.0.1", "fd00::7"] {
            let requests = (0..50).map(|_| from(peer, &headers));
            let log = said_of(&layer(key::peer_ip()), requests).await;
            let line = format!(
                "requests arrive from a private address with `{}`: a proxy is in front, and all its \
                 clients share one limit; use `key::client_ip`",
                headers[0].0
            );
            is_one_line(&log, &line);
        }
    }
    // Also where the address is a part of the key.
    let by_route = layer((key::peer_ip(), key::header("x-api-key")));
    let headers = [FORWARDED[0], ("x-api-key", "ada")];
    let log = said_of(&by_route, (0..50).map(|_| from("10.0.0.7", &headers))).await;
    is_one_line(&log, "x-forwarded-for");
}

/// An extractor of an application, which declares what it reads.
#[derive(Clone, Copy)]
struct Declares(Reads);

impl KeyExtractor for Declares {
    fn extract(&self, parts: &Parts) -> Result<Key, KeyError> {
        Ok(Key::from(parts.method.as_str()))
    }

    fn reads(&self) -> Reads {
        self.0
    }
}

#[tokio::test]
async fn an_own_extractor_that_declares_the_peer_address_is_warned_of_a_proxy() {
    let nothing = Declares(Reads::nothing());
    let address = Declares(Reads::nothing().and(Reads::peer_address()));
    for (key, lines) in [(nothing, 0), (address, 1)] {
        let requests = (0..50).map(|_| from("10.0.0.7", &FORWARDED));
        let log = said_of(&layer(key), requests).await;
        assert_eq!(log.len(), lines, "{log:?}");
        assert!(log.iter().all(|line| line.contains("a proxy is in front")));
    }
    // Also where another extractor holds it.
    let wrapped = (key::header("x-real-ip").or(address), key::global());
    let requests = (0..50).map(|_| from("10.0.0.7", &[("x-real-ip", "203.0.113.7")]));
    let log = said_of(&layer(wrapped), requests).await;
    is_one_line(&log, "a proxy is in front");
}

#[derive(Clone)]
struct User(&'static str);

impl std::fmt::Display for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

fn of_user() -> Request<()> {
    let mut request = from("203.0.113.9", &[]);
    request.extensions_mut().insert(User("ada"));
    request
}

/// What is logged while a layer is added to two routes.
fn said_at_the_start(layer: &RateLimitLayer) -> Vec<String> {
    log::keep();
    let _ = [0, 1].map(|_| layer.layer(service_fn(ok::<()>)));
    log::kept()
}

#[tokio::test]
async fn a_key_that_is_configured_wrongly_is_one_error_line_before_the_first_request() {
    let network = || key::client_ip().behind("10.0.0/8");
    let invalid = "invalid network \"10.0.0/8\" of trusted proxies: use an address, or a CIDR like 10.0.0.0/8";
    let empty =
        "the secret of a key is empty: pass another one to `.secret(..)`, or do not call it";
    let tenant = RateLimiter::new(MemoryStore::new(), Quota::per_hour(1)).name("tenant");
    let rows = [
        (layer(network()), invalid),
        (layer((key::global(), network())), invalid),
        (layer(key::header("x-api-key").or(network())), invalid),
        (layer(Box::new(Arc::new(network()))), invalid),
        (
            limited(MemoryStore::new(), "other").and(tenant.name("search"), network()),
            invalid,
        ),
        (
            layer(key::client_ip()),
            "`key::client_ip` has no trusted proxies: name their networks with `.behind([..])`",
        ),
        (
            layer(key::client_ip().hops(1).header("x ip")),
            "invalid header name `x ip`",
        ),
        (
            layer(key::header("x api")),
            "invalid header name `x api`: pass a valid one to key::header",
        ),
        (
            layer(key::cookie("a;b")),
            "invalid cookie name `a;b`: pass a valid one to key::cookie",
        ),
        (layer(key::header("x-api-key").secret("")), empty),
        (layer(key::cookie("session").secret("")), empty),
        (layer(key::authorization().secret("")), empty),
        (layer(key::extension::<User>().secret("")), empty),
    ];
    for (layer, error) in rows {
        let log = said_at_the_start(&layer);
        assert_eq!(log.len(), 1, "{error}: {log:?}");
        let line = format!("cannot extract a rate limit key, answering 500: {error}");
        for text in ["ERROR", "search", &line] {
            assert!(log[0].contains(text), "{log:?}");
        }
        // It is not repeated.
        let requests = (0..50).map(|_| of_user());
        assert_eq!(said_of(&layer, requests).await, [""; 0]);
    }
    let dry = said_at_the_start(&layer(network()).dry_run());
    assert!(dry[0].contains("letting it pass in a dry run"), "{dry:?}");
}

#[tokio::test]
async fn a_key_that_only_a_request_shows_to_be_wrong_is_no_line_at_the_start() {
    for layer in [
        layer(key::peer_ip()),
        layer(key::client_ip().behind("")).disable(),
        layer(key::client_ip().behind([""; 0])),
        layer((
            key::path(),
            key::header("x-api-key").plain(),
            key::cookie("session"),
        )),
    ] {
        assert_eq!(said_at_the_start(&layer), [""; 0]);
    }
    let layer = layer(key::peer_ip());
    let log = said_of(&layer, std::iter::repeat_n(Request::new(()), 3)).await;
    assert_eq!(log.len(), 1, "{log:?}");
    assert!(
        log[0].contains("cannot extract a rate limit key, answering 500: the peer"),
        "{log:?}"
    );
}

#[tokio::test]
async fn an_extension_that_no_request_has_is_said_once_after_a_few_rejections() {
    let by_user = || layer(key::extension::<User>());
    let by_part = || layer(key::extension_with(|user: &User| user.0));
    for layer in [
        by_user(),
        by_part(),
        layer((key::peer_ip(), key::extension::<User>())),
    ] {
        let without = |requests| (0..requests).map(|_| from("203.0.113.9", &[]));
        assert_eq!(said_of(&layer, without(2)).await, [""; 0]);
        let log = said_of(&layer, without(MANY)).await;
        is_one_line(
            &log,
            "none of the first 3 requests has the extension `layer::diagnostics::User`",
        );
        is_one_line(&log, "with `Router::layer`, add it after this one");
    }
    // Once a request has it, the others are clients without a user.
    let mixed = (0..MANY).map(|nth| {
        if nth == 2 {
            of_user()
        } else {
            from("203.0.113.9", &[])
        }
    });
    assert_eq!(said_of(&by_user(), mixed).await, [""; 0]);
}

#[tokio::test]
async fn an_extension_with_another_key_to_fall_back_on_is_said_after_many_requests() {
    let by_user = || layer(key::extension::<User>().or(key::peer_ip()));
    let without = (0..MANY).map(|_| from("203.0.113.9", &[]));
    let log = said_of(&by_user(), without).await;
    is_one_line(&log, "none of the first 1000 requests has the extension");
    let with = (0..MANY).map(|nth| {
        if nth == 900 {
            of_user()
        } else {
            from("203.0.113.9", &[])
        }
    });
    assert_eq!(said_of(&by_user(), with).await, [""; 0]);
}

#[tokio::test]
async fn what_is_never_admitted_is_said_once_at_the_first_request() {
    let costing = |cost| {
        let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_hour(50)).name("search");
        layer.key(key::global()).cost(move |_| cost)
    };
    let requests = |count| (0..count).map(|_| from("203.0.113.9", &[]));
    let above = costing(51);
    let log = said_of(&above, requests(1)).await;
    is_one_line(
        &log,
        "a request costs 51, more than its limit of 50, and is never admitted",
    );
    assert_eq!(said_of(&above, requests(MANY)).await, [""; 0]);
    let none = RateLimitLayer::new(MemoryStore::new(), Quota::per_hour(0)).key(key::global());
    let log = said_of(&none, requests(1)).await;
    let [line] = log.as_slice() else {
        panic!("{log:?}");
    };
    assert!(
        line.contains("INFO") && line.contains("a quota has the limit 0"),
        "{line}"
    );
    assert_eq!(said_of(&none, requests(MANY)).await, [""; 0]);
    // Others wait.
    assert_eq!(said_of(&costing(50), requests(MANY)).await, [""; 0]);
    // A total that is used up is meant to refuse.
    let day = Duration::from_secs(86_400);
    let total = RateLimitLayer::new(MemoryStore::new(), Quota::total(50, day)).key(key::global());
    assert_eq!(said_of(&total, requests(MANY)).await, [""; 0]);
}

/// Returns the warnings about quotas that may have the limit 0.
fn said_of_zeros(configure: impl FnOnce()) -> Vec<String> {
    log::keep();
    configure();
    let log = log::kept();
    for line in &log {
        let text = "the configured quota \"0/minute\" refuses every request";
        assert!(line.contains("WARN") && line.contains(text), "{line}");
    }
    log
}

#[test]
fn a_configured_limit_of_0_is_a_line_at_the_start() {
    let log = said_of_zeros(|| {
        let _ = RateLimitLayer::try_new(MemoryStore::new(), "9/second, 0/minute").unwrap();
        // Not what refuses nothing, and not code.
        let _ = RateLimitLayer::try_new(MemoryStore::new(), "0/minute soft, 9/second").unwrap();
        let _ = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(0));
    });
    assert_eq!(log.len(), 1, "{log:?}");
}

#[cfg(feature = "serde")]
#[test]
fn a_limit_of_0_from_a_file_is_a_line() {
    use tollgate::{Plan, Quotas};

    let log = said_of_zeros(|| {
        for json in [
            r#""9/second, 0/minute""#,
            r#"[{"limit": 0, "window": "minute"}]"#,
        ] {
            let _: Quotas = serde_json::from_str(json).unwrap();
        }
        // The plan of one client may have ended.
        let _: Plan = serde_json::from_str(r#""0/minute""#).unwrap();
    });
    assert_eq!(log.len(), 2, "{log:?}");
}

/// Requests of 1 200 clients that arrive by these proxies in turn, each with the header of its client.
fn behind<'a>(
    proxies: &'a [&'a str],
    header: &'a str,
    value: impl Fn(usize) -> String + 'a,
) -> impl Iterator<Item = Request<()>> + 'a {
    let proxies = proxies.iter().cycle();
    let clients = (0..1_200).zip(proxies);
    clients.map(move |(client, proxy)| from(proxy, &[(header, &value(client))]))
}

/// The address of a client.
fn address(client: usize) -> String {
    format!("198.51.{}.{}", client / 250, client % 250)
}

#[tokio::test]
async fn a_private_proxy_with_1_200_clients_is_one_line() {
    let requests = behind(&["10.0.0.7"], "x-forwarded-for", address);
    let log = said_of(&layer(key::peer_ip()), requests).await;
    is_one_line(&log, "arrive from a private address with `x-forwarded-for`");
}

#[tokio::test]
async fn clients_without_a_proxy_are_no_line_whatever_header_each_of_them_sends() {
    let direct = (0..1_200).map(|client| from(&address(client), &[]));
    assert_eq!(said_of(&layer(key::peer_ip()), direct).await, [""; 0]);
    // Each has one header: its own, which never changes.
    let own = |client: usize| [("x-forwarded-for", format!("192.168.0.{}", client % 90))];
    let own = (0..1_200).map(|client| {
        let [(name, value)] = own(client);
        from(&address(client % 90), &[(name, &value)])
    });
    assert_eq!(said_of(&layer(key::peer_ip()), own).await, [""; 0]);
    // A proxy of an office: few clients, which connect from many ports.
    let few = |client: usize| format!("for=\"192.0.2.{}:{client}\"", client % 9);
    let few = behind(&["203.0.113.9"], "forwarded", few);
    assert_eq!(said_of(&layer(key::peer_ip()), few).await, [""; 0]);
}

#[tokio::test]
async fn only_the_first_1_000_requests_are_looked_at_for_a_proxy() {
    let quiet = (0..1_000).map(|client| from(&address(client), &[]));
    let later = behind(&["10.0.0.7"], "x-forwarded-for", address);
    let log = said_of(&layer(key::peer_ip()), quiet.chain(later)).await;
    assert_eq!(log, [""; 0]);
}

#[tokio::test]
async fn a_configured_header_that_cannot_be_read_with_1_200_clients_is_one_line() {
    let trusted = || key::client_ip().behind(["203.0.113.9", "10.0.0.0/8"]);
    for proxy in ["203.0.113.9", "10.0.0.7"] {
        for (client, header, value) in [
            (trusted(), "x-forwarded-for", "client-"),
            (
                trusted().forwarded(),
                "forwarded",
                "for=2001:db8::1;by=client-",
            ),
            (trusted().header("x-real-ip"), "x-real-ip", "client-"),
            (key::client_ip().hops(1), "x-forwarded-for", "unknown-"),
            (
                key::client_ip().hops(1).header("x-real-ip"),
                "x-real-ip",
                "",
            ),
        ] {
            let unreadable = |client: usize| format!("{value}{client:04}");
            let proxies = [proxy];
            let requests = behind(&proxies, header, unreadable);
            let log = said_of(&layer(client), requests).await;
            assert_eq!(log.len(), 1, "{header}: {log:?}");
            let line = format!(
                "cannot read an address in `{header}` from a trusted proxy, so its clients are not told \
                 apart: configure the proxy to write IP addresses, or choose another header with \
                 `client_ip().header(name)` or `.forwarded()`"
            );
            assert!(log[0].contains("WARN") && log[0].contains(&line), "{log:?}");
        }
    }
}

#[tokio::test]
async fn a_header_that_need_not_be_read_is_no_line() {
    let trusted = || key::client_ip().behind(["203.0.113.9"]);
    let from_proxy = |value: &str| from("203.0.113.9", &[("x-forwarded-for", value)]);
    for (client, request) in [
        // What is left of the client, the client may have written.
        (trusted(), from_proxy("unknown, 198.51.100.1")),
        (key::client_ip().hops(1), from_proxy("-, 198.51.100.1")),
        (
            key::client_ip().hops(2),
            from_proxy("198.51.100.1, _hidden"),
        ),
        // A peer that is not trusted is the client.
        (trusted(), from("198.51.100.1", &[("x-forwarded-for", "-")])),
        // A check of the proxy's own has none.
        (trusted(), from("203.0.113.9", &[])),
        (trusted().header("x-real-ip"), from("203.0.113.9", &[])),
    ] {
        let log = said_of(&layer(client), [request].into_iter()).await;
        assert_eq!(log, [""; 0]);
    }
}

#[tokio::test]
async fn nothing_is_said_of_clients_that_make_up_headers_and_of_keys_that_are_no_addresses() {
    let requests = || (0..MANY).map(|_| from("203.0.113.9", &FORWARDED));
    assert_eq!(said_of(&layer(key::peer_ip()), requests()).await, [""; 0]);
    let headers = [FORWARDED[0], ("x-api-key", "ada")];
    for layer in [layer(key::global()), layer(key::header("x-api-key"))] {
        let requests = (0..MANY).map(|_| from("10.0.0.7", &headers));
        assert_eq!(said_of(&layer, requests).await, [""; 0]);
    }
}

/// What is logged while requests pass these layers, the first of which is the outermost.
async fn said_through<const N: usize>(layers: [RateLimitLayer; N]) -> Vec<String> {
    log::keep();
    for _ in 0..20 {
        let mut service = tower::util::BoxCloneSyncService::new(
            service_fn(ok::<()>)
                .map_response(|response: Response<Full<_>>| response.map(Body::new)),
        );
        for layer in layers.iter().rev() {
            let wrapped = layer.layer(service);
            service = tower::util::BoxCloneSyncService::new(
                wrapped.map_response(|response| response.map(Body::new)),
            );
        }
        let _ = service.oneshot(from("203.0.113.9", &[])).await.unwrap();
    }
    log::kept()
}

#[tokio::test]
async fn what_is_charged_twice_under_one_name_is_said_once() {
    let store = MemoryStore::new();
    let search = || limited(store.clone(), "search");
    let log = said_through([search(), search()]).await;
    for text in ["charged twice", "code=\"tollgate::W011\""] {
        is_one_line(&log, text);
    }
    let between = || limited(store.clone(), "between");
    is_one_line(
        &said_through([search(), between(), search()]).await,
        "charged twice",
    );
    // Also if the layer in between is a dry run without a header.
    let dry = RateLimitLayer::new(store.clone(), Quota::per_hour(0))
        .name("between")
        .dry_run();
    let log = said_through([search(), dry, search()]).await;
    let log: Vec<_> = log
        .into_iter()
        .filter(|line| !line.contains("INFO"))
        .collect();
    is_one_line(&log, "charged twice");
    // All windows of a log are one count.
    let per_day = RateLimitLayer::new(store.clone(), Quota::per_day(1_000_000)).name("search");
    let mut log = said_through([search(), per_day]).await;
    log.retain(|line| !line.contains("two limiters of this name"));
    is_one_line(&log, "charged twice");
}

#[tokio::test]
async fn layers_that_differ_in_name_key_store_or_algorithm_charge_nothing_twice() {
    let store = MemoryStore::new();
    let search = || limited(store.clone(), "search");
    let counted_otherwise = || {
        let quota = Quota::per_hour(1_000_000).with_algorithm(Algorithm::FixedWindow);
        RateLimitLayer::new(store.clone(), quota).name("search")
    };
    for other in [
        limited(store.clone(), "other"),
        search().key(key::global()),
        limited(MemoryStore::new(), "search"),
        counted_otherwise(),
        // This one charges nothing, so it charges nothing twice.
        search().cost(|_| 0),
        search().skip(|_| true),
    ] {
        for pair in [[search(), other.clone()], [other, search()]] {
            let mut log = said_through(pair).await;
            // That they share a name is told once.
            log.retain(|line| !line.contains("two limiters of this name"));
            assert_eq!(log, [""; 0]);
        }
    }
}

async fn said_by(app: Router) -> Vec<String> {
    log::keep();
    for _ in 0..MANY {
        let request = from("203.0.113.9", &[]).map(|()| Body::empty());
        let _ = app.clone().oneshot(request).await.unwrap();
    }
    log::kept()
}

#[tokio::test]
async fn a_layer_that_counts_by_a_route_where_there_is_none_says_so_once() {
    let routes = Router::new().route("/", get(|| async { "ok" }));
    // Around the router, before a route is known.
    let around = layer(key::path()).layer(routes.clone());
    let around = ServiceExt::<Request<Body>>::map_response(around, |response: Response<_>| {
        response.map(Body::new)
    });
    let log = said_by(Router::new().fallback_service(around)).await;
    is_one_line(&log, "none of the first 3 requests has a matched path");
    let declared = layer(Declares(Reads::matched_path())).layer(routes.clone());
    let declared = ServiceExt::<Request<Body>>::map_response(declared, |response: Response<_>| {
        response.map(Body::new)
    });
    let log = said_by(Router::new().fallback_service(declared)).await;
    is_one_line(&log, "none of the first 1000 requests has a matched path");

    assert_eq!(
        said_by(routes.clone().layer(layer(key::path()))).await,
        [""; 0]
    );
    assert_eq!(
        said_by(routes.route_layer(layer(key::path()))).await,
        [""; 0]
    );
}

/// A router that answers each path.
fn any_path() -> Router {
    Router::new().fallback(|| async { "ok" })
}

#[tokio::test]
async fn where_no_route_is_matched_the_remedy_is_the_path_of_the_uri() {
    // `Router::layer` was called already.
    let nested = Router::new()
        .nest_service("/api", any_path())
        .layer(layer(key::path()));
    log::keep();
    for _ in 0..MANY {
        let mut request = from("203.0.113.9", &[]).map(|()| Body::empty());
        *request.uri_mut() = "/api/users".parse().unwrap();
        let _ = nested.clone().oneshot(request).await.unwrap();
    }
    let nested = log::kept();
    for text in [
        "nest_service",
        "`key::from_fn` with the path of the URI",
        "`OriginalUri`",
    ] {
        is_one_line(&nested, text);
    }

    // Around the services of tonic, whose `Server` has no router.
    let calls = layer(key::path()).layer(tonic::service::Routes::default());
    log::keep();
    for _ in 0..MANY {
        let call = Request::post("/shop.Orders/Place").header("content-type", "application/grpc");
        let call = call.extension(PeerAddr(([203, 0, 113, 9], 5_000).into()));
        let call = call.body(Body::empty()).unwrap();
        let _ = calls.clone().oneshot(call).await.unwrap();
    }
    let calls = log::kept();
    for text in ["tonic", "`key::from_fn` with the path of the URI"] {
        is_one_line(&calls, text);
    }
}

#[tokio::test]
async fn one_route_that_is_known_is_enough_to_say_nothing_of_those_that_are_not() {
    let routes = Router::new()
        .route("/", get(|| async { "ok" }))
        .layer(layer(key::path()));
    log::keep();
    for nth in 0..MANY {
        let path = if nth == 1 { "/" } else { "/missing" };
        let mut request = from("203.0.113.9", &[]).map(|()| Body::empty());
        *request.uri_mut() = path.parse().unwrap();
        let _ = routes.clone().oneshot(request).await.unwrap();
    }
    assert_eq!(log::kept(), [""; 0]);
}

/// Set in the process that this test starts, where no other test makes layers.
const ALONE: &str = "TOLLGATE_TEST_ALONE";

/// Returns whether this process runs only this test. Otherwise, starts one that does.
fn is_alone(test: &str) -> bool {
    if env::var(ALONE).is_ok() {
        return true;
    }
    let mut alone = Command::new(env::current_exe().unwrap());
    let output = alone.args([test, "--exact"]).env(ALONE, "1").output();
    let text = String::from_utf8(output.unwrap().stdout).unwrap();
    assert!(text.contains("1 passed"), "{text}");
    false
}

#[test]
fn a_wrong_key_that_nobody_could_read_at_the_start_is_one_line_at_the_first_request() {
    let test = "diagnostics::a_wrong_key_that_nobody_could_read_at_the_start_is_one_line_at_the_first_request";
    if !is_alone(test) {
        return;
    }
    // The process has no subscriber yet.
    let layer = layer(key::client_ip().behind("10.0.0/8"));
    let _ = layer.layer(service_fn(ok::<()>));
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let requests = (0..3).map(|_| from("203.0.113.9", &[]));
    let log = runtime.unwrap().block_on(async {
        let service = layer.layer(service_fn(ok::<()>));
        log::keep();
        for request in requests {
            let _ = service.clone().oneshot(request).await.unwrap();
        }
        log::kept()
    });
    assert_eq!(log.len(), 1, "{log:?}");
    assert!(
        log[0].contains("ERROR") && log[0].contains("10.0.0/8"),
        "{log:?}"
    );
}
