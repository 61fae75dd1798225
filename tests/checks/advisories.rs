//! Security advisories and bugs of other limiters: each is a test with its name.

use std::collections::HashSet;

use crate::support::redis_server::RedisServer;
use crate::support::request::request;
use crate::support::store_on;
use axum::http::request::Parts;
use tokio::task::JoinSet;
use tollgate::key::{self, KeyErrorKind, KeyExtractor, client_ip};
use tollgate::{Key, MemoryStore, Quota, RateLimiter};

const XFF: &str = "x-forwarded-for";

fn text(key: &impl KeyExtractor, parts: &Parts) -> String {
    key.extract(parts).unwrap().as_str().to_owned()
}

/// From a proxy that is trusted in all of these tests.
fn proxied(headers: &[(&str, &str)]) -> Parts {
    request("10.0.0.1", headers)
}

fn behind() -> key::ClientIp {
    client_ip().behind(["10.0.0.0/8"])
}

/// express-rate-limit masked mapped addresses before it unmapped them: all of IPv4 was one client.
#[test]
fn cve_2026_30827_ghsa_46wh_pxpv_q5gq_mapped_addresses_are_not_one_client() {
    for bits in [32, 48, 56, 64] {
        let direct = key::peer_ip().ipv6_prefix(bits);
        let told = behind().ipv6_prefix(bits);
        let mut keys = HashSet::new();
        for last in 1..=250 {
            let mapped = format!("::ffff:203.0.113.{last}");
            let key = text(&direct, &request::<&str>(&mapped, &[]));
            assert_eq!(key, format!("ip=203.0.113.{last}"));
            assert_eq!(text(&told, &proxied(&[(XFF, &mapped)])), key);
            keys.insert(key);
        }
        assert_eq!(keys.len(), 250);
    }
}

/// Its correction went by notation: a mapped address in hexadecimal was missed, and one that is not
/// mapped but ends in dotted form was taken for IPv4.
#[test]
fn express_rate_limit_8_6_2_mapped_is_a_matter_of_bits_and_not_of_notation() {
    let of = |address: &str| text(&behind(), &proxied(&[(XFF, address)]));
    for mapped in [
        "::ffff:102:304",
        "::ffff:1.2.3.4",
        "0:0:0:0:0:FFFF:0102:0304",
        "::FFFF:1.2.3.4",
    ] {
        assert_eq!(of(mapped), "ip=1.2.3.4", "{mapped}");
    }
    for not_mapped in [
        "2001:db8::1.2.3.4",
        "64:ff9b::1.2.3.4",
        "::1.2.3.4",
        "::fffe:1.2.3.4",
    ] {
        assert_ne!(of(not_mapped), "ip=1.2.3.4", "{not_mapped}");
    }
    assert_eq!(of("2001:db8::1.2.3.4"), "ip=2001:db8::/64");
}

/// Of the npm package `ip-address`, with which express-rate-limit reads addresses. They are read here by
/// the standard library, which takes none of the notations that others read in their own way.
#[test]
fn ghsa_v2v4_37r5_5v8g_odd_notations_are_not_addresses() {
    for odd in [
        "0203.0.113.9",
        "203.0.113.09",
        "0xcb.0.113.9",
        "0xcb007109",
        "3405803785",
        "203.0.28937",
        "203.0.113.9/24",
        "203.0.113.9\\",
        "+203.0.113.9",
        "\u{ff12}03.0.113.9",
        "2001:db8::00009",
        "2001:db8::9::",
        ":2001:db8::9",
        "2001:db8::9/64",
        "2001:db8::g",
        "::ffff:203.0.113.09",
        "<b>::9</b>",
    ] {
        let parts = request("10.0.0.1", &[(XFF, odd.as_bytes())]);
        assert_eq!(text(&behind(), &parts), "ip=10.0.0.1", "{odd}");
        let error = client_ip()
            .behind([odd.split('/').next().unwrap()])
            .checked();
        assert_eq!(
            error.is_err(),
            !odd.contains("/24") && !odd.contains("/64"),
            "{odd}"
        );
    }
}

/// better-auth counted by the text of the first address: by each of 2^64 in a network, by each
/// spelling of one, and by what the client sent.
#[test]
fn cve_2026_45364_ghsa_p6v2_xcpg_h6xw_an_address_is_bits_and_a_network_is_one_client() {
    let of = |line: &str| text(&behind(), &proxied(&[(XFF, line)]));
    let client = of("2001:db8:1:2::1");
    for same in [
        "2001:db8:1:2:ffff:ffff:ffff:ffff",
        "2001:DB8:1:2::1",
        "2001:0db8:0001:0002:0000:0000:0000:0001",
        "2001:db8:1:2::0.0.0.1",
        "[2001:db8:1:2::1]:443",
        "2001:db8:1:2::1%eth0",
        "198.51.100.1, 2001:db8:1:2::1",
    ] {
        assert_eq!(of(same), client, "{same}");
    }
    assert_eq!(of("203.0.113.9"), of("::ffff:203.0.113.9"));
}

/// Litestar believed X-Forwarded-For of anybody.
#[test]
fn cve_2025_59152_ghsa_hm36_ffrh_c77c_a_header_is_not_believed_unless_asked_for() {
    let forged = [
        (XFF, "1.1.1.1"),
        ("forwarded", "for=1.1.1.1"),
        ("x-real-ip", "1.1.1.1"),
    ];
    let from = request("203.0.113.9", &forged);
    assert_eq!(text(&key::peer_ip(), &from), "ip=203.0.113.9");
    assert_eq!(text(&behind(), &from), "ip=203.0.113.9");
    // Without configured proxies, none is trusted.
    let untold = client_ip().extract(&from).unwrap_err();
    assert_eq!(untold.kind(), KeyErrorKind::Misconfigured);
}

/// chi's `RealIP` took the first of X-Forwarded-For, else True-Client-IP, else X-Real-IP.
#[test]
fn ghsa_3fxj_6jh8_hvhx_ghsa_rjr7_jggh_pgcp_ghsa_9g5q_2w5x_hmxf_there_is_one_source_read_from_its_end()
 {
    for forged in ["1.1.1.1", "2.2.2.2"] {
        let parts = proxied(&[
            ("true-client-ip", forged),
            ("x-real-ip", forged),
            (XFF, forged),
            (XFF, "203.0.113.9"),
        ]);
        assert_eq!(text(&behind(), &parts), "ip=203.0.113.9");
        // Finding the client does not rewrite the peer for others.
        assert_eq!(text(&key::peer_ip(), &parts), "ip=10.0.0.1");
    }
    let absent = proxied(&[("true-client-ip", "1.1.1.1"), ("x-real-ip", "1.1.1.1")]);
    assert_eq!(text(&behind(), &absent), "ip=10.0.0.1");
}

/// gin trusted all proxies by default.
#[test]
fn cve_2020_28483_nobody_is_trusted_by_default() {
    let from = |peer: &str| request(peer, &[(XFF, "1.1.1.1")]);
    for peer in ["127.0.0.1", "10.0.0.1", "192.168.0.1", "::1", "fd00::1"] {
        let error = client_ip().extract(&from(peer)).unwrap_err();
        assert_eq!(error.kind(), KeyErrorKind::Misconfigured);
        let none = client_ip().behind([""; 0]);
        assert_eq!(text(&none, &from(peer)), text(&key::peer_ip(), &from(peer)));
    }
}

/// axum-client-ip took the last entry that could be read, which a client wrote where the proxy had
/// hidden him.
#[test]
fn axum_client_ip_32_an_entry_that_cannot_be_read_is_not_skipped() {
    for hidden in ["_hidden", "unknown", "\"_gazonk\""] {
        let line = format!("for=1.1.1.1, for={hidden}");
        let parts = proxied(&[("forwarded", &line)]);
        assert_eq!(text(&behind().forwarded(), &parts), "ip=10.0.0.1");
    }
}

/// Strapi's key had a field of the body in it, on routes that have no such field: a client that
/// varied it was never limited. What a client adds is in a key here only where it was asked for.
#[test]
fn cve_2025_64526_ghsa_7mqx_wwh4_f9fw_what_a_client_adds_is_not_in_the_key() {
    let key = (behind(), key::authorization());
    let of = |n: u32| {
        let mut parts = proxied(&[
            (XFF, "203.0.113.9"),
            ("authorization", "Bearer a"),
            ("x-email", &n.to_string()),
        ]);
        parts.uri = format!("/login?email={n}@example.org").parse().unwrap();
        text(&key, &parts)
    };
    let keys: HashSet<_> = (0..100).map(of).collect();
    assert_eq!(keys.len(), 1, "{keys:?}");
}

/// Traefik took off X-Forwarded-For where the client named it in Connection. What is then missing
/// must not make anything else believed.
#[test]
fn cve_2024_45410_ghsa_62c8_mh53_4cqv_a_header_that_is_taken_off_widens_no_trust() {
    let stripped = [
        ("connection", "x-forwarded-for, x-real-ip"),
        ("x-real-ip", "1.1.1.1"),
        ("forwarded", "for=1.1.1.1"),
    ];
    assert_eq!(text(&behind(), &proxied(&stripped)), "ip=10.0.0.1");
    assert_eq!(
        text(&client_ip().hops(1), &proxied(&stripped)),
        "ip=10.0.0.1"
    );
    assert_eq!(
        text(&behind().header("cf-connecting-ip"), &proxied(&stripped)),
        "ip=10.0.0.1"
    );
    // Which names are listed there changes nothing here: the proxy has done with it.
    let kept = proxied(&[("connection", "x-forwarded-for"), (XFF, "203.0.113.9")]);
    assert_eq!(text(&behind(), &kept), "ip=203.0.113.9");
}

/// Traefik let `X_Forwarded_For` pass, which some servers read as X-Forwarded-For.
#[test]
fn ghsa_5m6w_wvh7_57vm_a_name_with_underscores_is_another_header() {
    let alias = ("x_forwarded_for", "1.1.1.1");
    assert_eq!(text(&behind(), &proxied(&[alias])), "ip=10.0.0.1");
    assert_eq!(
        text(&behind(), &proxied(&[(XFF, "203.0.113.9"), alias])),
        "ip=203.0.113.9"
    );
    let parts = proxied(&[("cf_connecting_ip", "1.1.1.1")]);
    assert_eq!(
        text(&behind().header("cf-connecting-ip"), &parts),
        "ip=10.0.0.1"
    );
}

/// Traefik passed on X-Forwarded-Prefix as the client sent it: no header of the family has a say but
/// the one that was asked for.
#[test]
fn ghsa_6384_m2mw_rf54_no_other_forwarded_header_has_a_say() {
    for (name, value) in [
        ("x-forwarded-prefix", "/admin"),
        ("x-forwarded-host", "1.1.1.1"),
        ("x-forwarded-proto", "for=1.1.1.1"),
        ("x-forwarded", "for=1.1.1.1"),
        ("forwarded-for", "1.1.1.1"),
    ] {
        let parts = proxied(&[(name, value)]);
        assert_eq!(text(&behind(), &parts), "ip=10.0.0.1");
        assert_eq!(text(&behind().forwarded(), &parts), "ip=10.0.0.1");
    }
}

/// Spring HATEOAS read forwarded headers without a trusted proxy.
#[test]
fn cve_2023_34036_forwarded_is_believed_from_trusted_proxies_only() {
    let line = [("forwarded", "for=1.1.1.1;host=evil.example")];
    assert_eq!(
        text(&behind().forwarded(), &request("203.0.113.9", &line)),
        "ip=203.0.113.9"
    );
    assert_eq!(
        text(&key::peer_ip(), &request("203.0.113.9", &line)),
        "ip=203.0.113.9"
    );
}

/// The slot of a cluster in which a stored key lives, by the tag that it has to have.
fn slot(stored: &str) -> u16 {
    let (_, rest) = stored.split_once('{').unwrap();
    let (tag, _) = rest.split_once('}').unwrap();
    assert!(!tag.is_empty());
    crc16::State::<crc16::XMODEM>::calculate(tag.as_bytes()) % 16_384
}

/// zae-limiter had all keys of a tenant in one partition of its store. Here each key has a slot of
/// its own, and no user can choose it.
#[tokio::test]
async fn cve_2026_27695_ghsa_76rv_2r9v_c5m6_keys_are_spread_whatever_users_are_called() {
    let server = RedisServer::start();
    let limiter = RateLimiter::new(store_on(&server), Quota::per_hour(10)).name("search");
    for user in 0..64 {
        for name in [
            format!("user:{user}"),
            format!("{{hot}}{user}"),
            format!("}}{{hot}}:{user}"),
        ] {
            assert!(limiter.check(name).await.unwrap().is_allowed());
        }
    }
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_connection().unwrap();
    let stored: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
    assert_eq!(stored.len(), 192);
    let slots: HashSet<_> = stored.iter().map(|key| slot(key)).collect();
    assert!(slots.len() > 180, "{} slots", slots.len());
}

/// Litestar's file store made names by compatible characters and without separators.
#[test]
fn cve_2026_25480_no_two_keys_are_folded_into_one() {
    let alike = [
        "ff",
        "\u{fb00}",
        "FF",
        "\u{ff46}f",
        "f\u{200b}f",
        "f f",
        "f/f",
        "f_f",
        "f-f",
        "f.f",
        "f\0f",
        " ff",
        "ff ",
    ];
    let keys: HashSet<_> = alike.into_iter().map(Key::from).collect();
    assert_eq!(keys.len(), alike.len());
    let key = (key::header("a").plain(), key::header("b").plain());
    let of = |a, b| text(&key, &proxied(&[("a", a), ("b", b)]));
    assert_ne!(of("ab", "c"), of("a", "bc"));
    assert_ne!(of("a,header:b=b", "c"), of("a", "b,header:b=c"));
}

/// `Rack::Static` compared a path as it was sent with one decoded. A route has one key,
/// however it is reached; and what reaches no route has none.
#[cfg(feature = "axum-08")]
#[tokio::test]
async fn cve_2026_34786_a_route_has_one_key_however_its_path_is_written() {
    use axum::body::Body;
    use axum::http::Request;
    use axum::{Router, routing::get};
    use tollgate::RateLimitLayer;
    use tower::ServiceExt;

    let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_hour(1)).key(key::path());
    let app = Router::new()
        .route("/items/{id}", get(|| async {}))
        .layer(layer);
    let status = async |path: &str| {
        let request = Request::get(path).body(Body::empty()).unwrap();
        app.clone()
            .oneshot(request)
            .await
            .unwrap()
            .status()
            .as_u16()
    };
    assert_eq!(status("/items/1").await, 200);
    for other in [
        "/items/1",
        "/items/2",
        "/items/%31",
        "/items/1?x=1",
        "/items/A",
        "/items/%2E%2E",
    ] {
        assert_eq!(status(other).await, 429, "{other}");
    }
    for no_route in [
        "//items/1",
        "/items/1/",
        "/%69tems/1",
        "/Items/1",
        "/items//1",
    ] {
        assert_eq!(status(no_route).await, 400, "{no_route}");
    }
}

/// Sends a check per key at once, and returns how many are admitted.
async fn admitted_at_once(limiter: &RateLimiter, keys: impl IntoIterator<Item = Key>) -> usize {
    let mut checks = JoinSet::new();
    for key in keys {
        let limiter = limiter.clone();
        checks.spawn(async move { limiter.check(key).await.unwrap().is_allowed() });
    }
    let admitted = checks.join_all().await;
    admitted.into_iter().filter(|admitted| *admitted).count()
}

/// archestra read a count and wrote it back: what came at once was admitted all.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn archestra_3725_checks_at_once_are_admitted_up_to_the_limit() {
    let server = RedisServer::start();
    for limiter in [
        RateLimiter::new(MemoryStore::new(), Quota::per_hour(10)),
        RateLimiter::new(store_on(&server), Quota::per_hour(10)),
    ] {
        let keys = (0..200).map(|_| Key::from("one"));
        assert_eq!(admitted_at_once(&limiter, keys).await, 10);
    }
}

/// everruns, and status-list-server by way of `tower_governor`, counted by the first of
/// X-Forwarded-For and kept each one that was made up: no limit, and memory without end.
#[tokio::test]
async fn everruns_2643_adorsys_262_made_up_addresses_are_one_client_and_memory_has_a_bound() {
    let store = MemoryStore::with_max_keys(1_000);
    let limiter = RateLimiter::new(store.clone(), Quota::per_hour(3));
    let forged = (0..10_000_u32).map(|n| {
        let line = format!("{}, 203.0.113.9", std::net::Ipv4Addr::from(n));
        behind().extract(&proxied(&[(XFF, &line)])).unwrap()
    });
    let keys: HashSet<_> = forged.clone().collect();
    assert_eq!(keys.len(), 1);
    assert_eq!(admitted_at_once(&limiter, forged.take(1_000)).await, 3);
    assert_eq!(store.len(), 1);
    // With a new key per request, such as an unverified header, the number of keys stays bounded.
    let made_up = (0..10_000_u32).map(|n| key::header("x-api-key").of(n.to_be_bytes()));
    for key in made_up {
        let _ = limiter.check(key).await.unwrap();
    }
    assert!((1..=1_000).contains(&store.len()), "{}", store.len());
}

/// Spring Cloud Gateway reads nothing where there are several lines, Traefik the first of them: with
/// one line of his own, a client chooses there how he is counted.
#[test]
fn several_lines_are_one_list_whoever_wrote_them() {
    let lines = proxied(&[
        (XFF, "1.1.1.1"),
        (XFF, "2.2.2.2, 203.0.113.9"),
        (XFF, "10.0.0.2"),
    ]);
    assert_eq!(text(&behind(), &lines), "ip=203.0.113.9");
    assert_eq!(text(&client_ip().hops(2), &lines), "ip=203.0.113.9");
}
