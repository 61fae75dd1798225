//! Properties of keys, for any bytes that a client may send.

use std::sync::LazyLock;

use crate::support::request::request;
use axum::http::request::Parts;
use proptest::prelude::*;
use tollgate::Key;
use tollgate::key::{self, ClientIp, KeyExtractor, client_ip};

const HEADERS: [&str; 9] = [
    "x-forwarded-for",
    "forwarded",
    "x-real-ip",
    "cloudfront-viewer-address",
    "authorization",
    "cookie",
    "x-api-key",
    "x_forwarded_for",
    "connection",
];

fn behind() -> ClientIp {
    client_ip().behind(["10.0.0.0/8", "2001:db8:aa::/48"])
}

/// Each way to find a client behind proxies, with the headers that it reads.
fn ways() -> Vec<ClientIp> {
    let ways = [
        behind(),
        client_ip().hops(1),
        client_ip().hops(3),
        behind().hops(2),
    ];
    let each = ways.into_iter().flat_map(|way| {
        let cloudfront = way.clone().header("cloudfront-viewer-address");
        [
            way.clone(),
            way.clone().forwarded(),
            way.header("x-real-ip"),
            cloudfront,
        ]
    });
    each.collect()
}

fn extractors() -> Vec<Box<dyn KeyExtractor>> {
    let mut all: Vec<Box<dyn KeyExtractor>> = vec![
        Box::new(key::peer_ip()),
        Box::new(key::authorization()),
        Box::new(key::authorization().secret("s")),
        Box::new(key::cookie("sid")),
        Box::new(key::header("x-api-key")),
        Box::new(key::header("x-api-key").plain()),
        Box::new((key::cookie("sid").or(key::authorization()), behind())),
    ];
    all.extend(
        ways()
            .into_iter()
            .map(|way| Box::new(way) as Box<dyn KeyExtractor>),
    );
    all
}

static EXTRACTORS: LazyLock<Vec<Box<dyn KeyExtractor>>> = LazyLock::new(extractors);

/// Bytes that may stand in a header, half of them with a meaning in one or the other.
fn value() -> impl Strategy<Value = Vec<u8>> {
    let meant = prop::sample::select(b"\",;=\\:[]%. \tfor_0a1\xff".as_slice());
    let piece = prop_oneof![
        prop::collection::vec(meant, 0..12),
        prop::collection::vec(
            prop_oneof![Just(b'\t'), 0x20..0x7f_u8, 0x80..=0xff_u8],
            0..40
        ),
        prop::sample::select(vec![
            "10.0.0.2",
            "203.0.113.9",
            "for=10.0.0.2",
            "for=\"[2001:db8:aa::2]:80\"",
            "for=\"",
            ", ",
            "unknown",
            "::ffff:10.0.0.2",
            "[2001:db8:aa::1]:443",
            "sid=",
            "sid=\"a\"",
            "Bearer ",
            "%73id=%61",
            ";host=\"a\\\"",
            "\\",
            "fe80::1%eth0",
        ])
        .prop_map(|text| text.as_bytes().to_vec()),
    ];
    prop::collection::vec(piece, 0..8).prop_map(|pieces| pieces.concat())
}

fn peer() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "10.0.0.1",
        "::ffff:10.0.0.1",
        "2001:db8:aa::1",
        "203.0.113.9",
        "unix",
    ])
}

/// The part of the header that a client forges: lines before those of the proxies, and the beginning of the
/// first line of a proxy.
fn forged() -> impl Strategy<Value = (Vec<Vec<u8>>, Option<Vec<u8>>)> {
    (
        prop::collection::vec(value(), 0..4),
        prop::option::of(value()),
    )
}

/// The lines that arrive of `header`: the client's, to which the proxies append theirs.
fn arrived(
    header: &'static str,
    (lines, beginning): &(Vec<Vec<u8>>, Option<Vec<u8>>),
    appended: &[String],
) -> Vec<(&'static str, Vec<u8>)> {
    let mut arrived: Vec<_> = lines.iter().map(|line| (header, line.clone())).collect();
    for (index, line) in appended.iter().enumerate() {
        let line = match beginning {
            Some(beginning) if index == 0 => [beginning, &b", "[..], line.as_bytes()].concat(),
            _ => line.clone().into_bytes(),
        };
        arrived.push((header, line));
    }
    arrived
}

/// A parameter of RFC 7239 that holds what a client wrote elsewhere, quoted as it must be.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

fn counted(key: &ClientIp, parts: &Parts) -> String {
    key.extract(parts).unwrap().as_str().to_owned()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn no_bytes_panic_and_every_key_is_short_and_printable(
        peer in peer(),
        lines in prop::collection::vec((prop::sample::select(HEADERS.to_vec()), value()), 0..6),
    ) {
        let parts = request(peer, &lines);
        for extractor in EXTRACTORS.iter() {
            if let Ok(key) = extractor.extract(&parts) {
                let printable = |byte: u8| byte.is_ascii_graphic() && !b"{}".contains(&byte);
                prop_assert!(key.as_str().len() <= 64);
                prop_assert!(key.as_str().bytes().all(printable));
            }
        }
    }

    #[test]
    fn what_a_client_forges_in_x_forwarded_for_does_not_change_its_key(
        forged in forged(),
        proxies in 0_u8..4,
        split in any::<bool>(),
    ) {
        // The peer is a proxy; others are before it, and the outermost saw the client.
        let mut hops = vec!["203.0.113.9".to_owned()];
        hops.extend((0..proxies).map(|n| format!("10.0.1.{n}")));
        let appended = if split { hops.clone() } else { vec![hops.join(", ")] };
        let parts = request("10.0.0.1", &arrived("x-forwarded-for", &forged, &appended));
        for key in [behind(), client_ip().hops(proxies + 1), behind().hops(proxies + 1)] {
            prop_assert_eq!(counted(&key, &parts), "ip=203.0.113.9", "{:?}", key);
        }
    }

    #[test]
    fn what_a_client_forges_in_forwarded_does_not_change_its_key(
        forged in forged(),
        host in "[ -~]{0,20}|(, ?for=1\\.1\\.1\\.1|[\"\\\\;,]){0,4}",
        proxies in 0_u8..4,
        split in any::<bool>(),
    ) {
        let mut hops = vec![format!("for=203.0.113.9;host={}", quoted(&host))];
        hops.extend((0..proxies).map(|n| format!("host={};for=\"[2001:db8:aa::{n:x}]:80\"", quoted(&host))));
        let appended = if split { hops.clone() } else { vec![hops.join(", ")] };
        let parts = request("10.0.0.1", &arrived("forwarded", &forged, &appended));
        for key in [behind(), client_ip().hops(proxies + 1), behind().hops(proxies + 1)] {
            let key = key.forwarded();
            prop_assert_eq!(counted(&key, &parts), "ip=203.0.113.9", "{:?}", key);
        }
    }

    #[test]
    fn a_peer_that_is_not_trusted_is_the_client_whatever_it_sends(
        lines in prop::collection::vec((prop::sample::select(HEADERS.to_vec()), value()), 0..6),
    ) {
        let parts = request("203.0.113.9", &lines);
        for way in [behind(), behind().forwarded(), behind().header("x-real-ip"), behind().hops(2)] {
            prop_assert_eq!(way.extract(&parts).unwrap(), key::peer_ip().extract(&parts).unwrap());
        }
    }

    #[test]
    fn what_cannot_be_read_is_the_key_of_the_hop_that_supplied_it(
        forged in forged(),
        unreadable in "unknown|_[a-z]{1,5}|[a-z]{1,9}",
    ) {
        let appended = [format!("{unreadable}, 10.0.0.2")];
        let parts = request("10.0.0.1", &arrived("x-forwarded-for", &forged, &appended));
        prop_assert_eq!(counted(&behind(), &parts), "ip=10.0.0.2");
    }
}

#[test]
fn to_find_a_key_takes_no_allocation() {
    let headers = [
        ("x-forwarded-for", "1.1.1.1, 203.0.113.9:443"),
        ("x-forwarded-for", "[2001:db8:aa::2]:80, 10.0.0.2"),
        (
            "forwarded",
            "for=203.0.113.9;host=\"a, b\", for=\"[2001:db8:aa::2]:80\"",
        ),
        ("x-real-ip", "203.0.113.9"),
        ("cloudfront-viewer-address", "2001:db8::9:443"),
        (
            "authorization",
            "Bearer eyJhbGciOiJIUzI1NiJ9.e30.XmNK3GpH3Ys_7wsYBfq4C3M6goz71I7dTgUkuIa5lyQ",
        ),
        ("cookie", "theme=dark; sid=1f0c; lang=en"),
        ("x-api-key", "1f0c"),
    ];
    let parts = request("10.0.0.1", &headers);
    for (index, extractor) in EXTRACTORS.iter().enumerate() {
        let mut key = None;
        let counted = allocation_counter::measure(|| key = extractor.extract(&parts).ok());
        assert!(key.is_some(), "extractor {index}");
        assert_eq!(counted.count_total, 0, "extractor {index}: {key:?}");
    }
}

/// Where a value is found, and the key of it there.
const PLACES: [fn(&[u8]) -> Key; 13] = [
    |value| Key::new(value),
    |value| key::header("a").of(value),
    |value| key::header("a").secret("s").of(value),
    |value| key::header("a").secret("t").of(value),
    |value| key::header("a").plain().of(value),
    |value| key::header("b").plain().of(value),
    |value| key::header("authorization").plain().of(value),
    |value| key::cookie("a").of(value),
    |value| key::cookie("A").of(value),
    |value| key::cookie("a").secret("s").of(value),
    |value| key::authorization().of([b"x ", value].concat()),
    |value| key::authorization().of([b"y ", value].concat()),
    |value| key::extension::<String>().name("a").of(&hex(value)),
];

fn hex(value: &[u8]) -> String {
    value.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Values that a careless encoding would confuse, the texts of other keys among them. Without blanks
/// at their ends, which credentials do not have.
fn confusing() -> impl Strategy<Value = Vec<u8>> {
    let any_bytes = prop::collection::vec(any::<u8>(), 0..80);
    let meant = prop::collection::vec(prop::sample::select(b"a=,~#*%:x2\n".as_slice()), 0..6);
    let plain = prop_oneof![any_bytes, meant];
    let of_others = (0..PLACES.len(), plain.clone())
        .prop_map(|(place, value)| PLACES[place](&value).as_str().as_bytes().to_vec());
    prop_oneof![plain, of_others].prop_map(|value| value.trim_ascii().to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_024))]

    #[test]
    fn no_two_values_and_no_two_places_have_one_key(
        a in (0..PLACES.len(), confusing()),
        b in (0..PLACES.len(), confusing()),
        same_value in any::<bool>(),
        same_place in any::<bool>(),
    ) {
        let b = (if same_place { a.0 } else { b.0 }, if same_value { a.1.clone() } else { b.1 });
        let [of_a, of_b] = [&a, &b].map(|(place, value)| PLACES[*place](value));
        prop_assert_eq!(a == b, of_a == of_b, "{:?} {:?}", of_a, of_b);
        // Nor has an address the key of anything else.
        let address = key::peer_ip().of("2001:db8::1".parse().unwrap());
        prop_assert_ne!(&of_a, &address);
        // Nor do parts.
        prop_assert_ne!(&of_a.and(&of_b), &of_a);
        prop_assert_eq!(of_a.and(&of_b) == of_b.and(&of_a), a == b);
    }

    #[test]
    fn a_cookie_is_found_whatever_stands_beside_it(
        value in "[!#-+\\--:<-\\[\\]-~&&[^%]]{1,40}",
        others in prop::collection::vec("[a-z]{1,2}=[ -:<-~]{0,9}", 0..4),
        quoted in any::<bool>(),
    ) {
        let written = if quoted { format!("sid=\"{value}\"") } else { format!("sid={value}") };
        let mut pairs = others;
        pairs.insert(pairs.len() / 2, written);
        let parts = request("10.0.0.1", &[("cookie", pairs.join("; "))]);
        let sid = key::cookie("sid");
        prop_assert_eq!(sid.extract(&parts).unwrap(), sid.of(&value));
        let apart: Vec<_> = pairs.iter().map(|pair| ("cookie", pair)).collect();
        prop_assert_eq!(sid.extract(&request("10.0.0.1", &apart)).unwrap(), sid.of(&value));
    }
}
