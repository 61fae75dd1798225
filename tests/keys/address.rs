//! The address of a client behind proxies, which an exemption depends on: a client cannot choose it, and a proxy has none.

use std::net::IpAddr;

use axum::http::request::Parts;
use proptest::prelude::*;
use tollgate::key::{CheckedClientIp, ClientIp, KeyErrorKind, KeyExtractor, client_ip};

use crate::support::log;
use crate::support::request::request;

const XFF: &str = "x-forwarded-for";

/// Proxies in a private network of IPv4 and one of IPv6.
fn behind() -> ClientIp {
    client_ip().behind(["10.0.0.0/8", "2001:db8:aa::/48"])
}

fn checked(clients: ClientIp) -> CheckedClientIp {
    clients.checked().expect("a valid configuration")
}

/// The address, or the kind of the error.
fn address(clients: &CheckedClientIp, parts: &Parts) -> String {
    let address = clients.address(parts);
    address.map_or_else(
        |error| format!("{:?}", error.kind()),
        |address| address.to_string(),
    )
}

/// The peer, the lines of the header, and the expected address.
type Row<'a> = (&'a str, &'a [&'a str], &'a str);

/// Compares each row with the address, and the address with the key.
fn holds(clients: ClientIp, header: &str, rows: &[Row<'_>]) {
    let clients = checked(clients);
    for (peer, lines, expected) in rows {
        let headers: Vec<_> = lines.iter().map(|line| (header, line)).collect();
        let parts = request(peer, &headers);
        let context = format!("{header} of {peer}: {lines:?}");
        assert_eq!(address(&clients, &parts), *expected, "{context}");
        if let Ok(address) = clients.address(&parts) {
            let key = clients.extract(&parts).expect("a key");
            assert_eq!(key, clients.of(address), "{context}");
        }
    }
}

#[rustfmt::skip]
#[test]
fn the_address_is_told_by_a_trusted_proxy_or_is_that_of_a_peer_that_is_none() {
    holds(behind(), XFF, &[
        ("10.0.0.1", &["203.0.113.9"],                                  "203.0.113.9"),
        ("10.0.0.1", &["1.1.1.1, 203.0.113.9, 10.0.0.2"],               "203.0.113.9"),
        // A client that sends the header itself.
        ("203.0.113.9", &["198.51.100.1"],                              "203.0.113.9"),
        ("203.0.113.9", &["198.51.100.1, 10.0.0.1"],                    "203.0.113.9"),
        ("203.0.113.9", &[],                                            "203.0.113.9"),
        // Compared with a network, an address is IPv4 if it is one. IPv6 is whole, not the prefix of the key.
        ("10.0.0.1", &["::ffff:203.0.113.9"],                           "203.0.113.9"),
        ("::ffff:203.0.113.9", &[],                                     "203.0.113.9"),
        ("2001:db8:aa::1", &["2001:db8:1:2:3:4:5:6"],                   "2001:db8:1:2:3:4:5:6"),
        ("2001:db8:1:2:3:4:5:6", &["1.1.1.1"],                          "2001:db8:1:2:3:4:5:6"),
        ("10.0.0.1", &["[fe80::1%eth0]:443"],                           "fe80::1"),
        ("unix", &["203.0.113.9"],                                      "Misconfigured"),
    ]);
    holds(behind().forwarded(), "forwarded", &[
        ("10.0.0.1", &["for=1.1.1.1, for=203.0.113.9"],                 "203.0.113.9"),
        ("203.0.113.9", &["for=1.1.1.1"],                               "203.0.113.9"),
    ]);
    holds(behind().header("x-real-ip"), "x-real-ip", &[
        ("10.0.0.1", &["203.0.113.9"],                                  "203.0.113.9"),
        ("203.0.113.9", &["1.1.1.1"],                                   "203.0.113.9"),
        ("10.0.0.1", &["1.1.1.1", "203.0.113.9"],                       "Ambiguous"),
        ("10.0.0.1", &["1.1.1.1, 203.0.113.9"],                         "Ambiguous"),
    ]);
    holds(client_ip().hops(1), XFF, &[
        ("192.0.2.1", &["1.1.1.1, 203.0.113.9"],                        "203.0.113.9"),
        ("unix", &["1.1.1.1, 203.0.113.9"],                             "203.0.113.9"),
    ]);
    // Without a proxy, it is the peer.
    for direct in [client_ip().hops(0), client_ip().behind([""; 0]), client_ip().hops(0).header("x-real-ip")] {
        for header in [XFF, "x-real-ip"] {
            holds(direct.clone(), header, &[
                ("203.0.113.9", &[],                                    "203.0.113.9"),
                ("203.0.113.9", &["1.1.1.1"],                           "203.0.113.9"),
            ]);
        }
    }
}

/// Who is behind it is not known, so its address exempts nobody, also where the network of the proxies is exempt.
#[rustfmt::skip]
#[test]
fn a_trusted_proxy_is_counted_and_is_never_the_client() {
    holds(behind(), XFF, &[
        // It sends no header, or the client made it drop the header (CVE-2024-45410).
        ("10.0.0.1", &[],                                               "Missing"),
        ("10.0.0.1", &[" , "],                                          "Missing"),
        ("2001:db8:aa::1", &[],                                         "Missing"),
        // The proxy before it did so.
        ("10.0.0.1", &["10.0.0.2"],                                     "Missing"),
        ("10.0.0.1", &["10.0.0.3, 10.0.0.2"],                           "Missing"),
        ("10.0.0.1", &["::ffff:10.0.0.2"],                              "Missing"),
        ("10.0.0.1", &[&["10.0.0.2"; 40].join(",")],                    "Missing"),
        // It sends what is no address.
        ("10.0.0.1", &["203.0.113.9, unknown"],                         "Missing"),
        ("10.0.0.1", &["203.0.113.9, unknown, 10.0.0.2"],               "Missing"),
    ]);
    holds(behind().forwarded(), "forwarded", &[
        ("10.0.0.1", &["proto=https"],                                  "Missing"),
        ("10.0.0.1", &["for=10.0.0.2"],                                 "Missing"),
    ]);
    holds(behind().header("x-real-ip"), "x-real-ip", &[
        ("10.0.0.1", &[],                                               "Missing"),
        ("10.0.0.1", &["10.0.0.2"],                                     "Missing"),
        ("10.0.0.1", &["unknown"],                                      "Missing"),
    ]);
    // Too few proxies: the peer may be the client, or one of them.
    holds(client_ip().hops(1), XFF, &[
        ("10.0.0.1", &[],                                               "Missing"),
        ("10.0.0.1", &["1.1.1.1, unknown"],                             "Missing"),
        ("unix", &[],                                                   "Missing"),
    ]);
    holds(client_ip().hops(2), XFF, &[
        ("10.0.0.1", &["10.0.0.2"],                                     "Missing"),
    ]);
    holds(client_ip().hops(1).header("x-real-ip"), "x-real-ip", &[
        ("10.0.0.1", &[],                                               "Missing"),
        ("unix", &[],                                                   "Missing"),
    ]);
    // With the number of proxies, a client may be in their network.
    holds(behind().hops(1), XFF, &[
        ("10.0.0.1", &["10.0.5.5"],                                     "10.0.5.5"),
        ("10.0.0.1", &["1.1.1.1, 10.0.5.5"],                            "10.0.5.5"),
        ("10.0.0.1", &[],                                               "Missing"),
        ("203.0.113.9", &["10.0.5.5"],                                  "203.0.113.9"),
    ]);
    holds(behind().hops(1).header("x-real-ip"), "x-real-ip", &[
        ("10.0.0.1", &["10.0.5.5"],                                     "10.0.5.5"),
        ("10.0.0.1", &[],                                               "Missing"),
    ]);
}

/// What a client may write into the header: addresses of the exempt network, of proxies, garbage.
fn written() -> impl Strategy<Value = String> {
    let entry = prop_oneof![
        Just("203.0.113.7".to_owned()),
        Just("10.0.0.2".to_owned()),
        Just("unknown".to_owned()),
        Just("for=203.0.113.7".to_owned()),
        "[ -~]{0,12}",
    ];
    prop::collection::vec(entry, 0..6).prop_map(|entries| entries.join(", "))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Each proxy appends the address that it saw. One may drop the header instead, as the client wishes.
    #[test]
    fn no_client_chooses_its_address(
        written in prop::collection::vec(written(), 0..3),
        proxies in 1_u8..4,
        dropping in prop::option::of(0_u8..3),
        is_counted in any::<bool>(),
    ) {
        let client = "198.51.100.66";
        let mut lines = written;
        let mut seen = client.to_owned();
        for proxy in 1..=proxies {
            if dropping == Some(proxy - 1) {
                lines.clear();
            } else {
                lines.push(seen);
            }
            seen = format!("10.0.0.{proxy}");
        }
        let headers: Vec<_> = lines.iter().map(|line| (XFF, line)).collect();
        let clients = if is_counted { client_ip().hops(proxies) } else { behind() };
        let told = checked(clients).address(&request(&seen, &headers));
        let own: IpAddr = client.parse().unwrap();
        match dropping.filter(|proxy| *proxy < proxies) {
            None => prop_assert_eq!(told.ok(), Some(own)),
            Some(_) => prop_assert!(told.is_err() || told == Ok(own), "{:?}", told),
        }
    }
}

/// What is logged while 100 requests of this kind are asked for their address.
fn said_of(clients: ClientIp, peer: &str, lines: &[&str]) -> Vec<String> {
    let clients = checked(clients);
    let headers: Vec<_> = lines.iter().map(|line| (XFF, line)).collect();
    log::keep();
    for _ in 0..100 {
        // All clones of an extractor have one line.
        let _ = clients.clone().address(&request(peer, &headers));
    }
    log::kept()
}

#[test]
fn an_address_that_is_not_known_is_one_line_in_the_log() {
    const UNNAMED: [&str; 3] = [
        "INFO",
        "tollgate::W024",
        "names no client in `x-forwarded-for`",
    ];
    const NO_PEER: [&str; 3] = ["ERROR", "tollgate::W024", "connect_info::<SocketAddr>()"];
    const FEWER: [&str; 3] = ["WARN", "tollgate::W003", "so its client is not known"];
    const UNREADABLE: [&str; 3] = ["WARN", "tollgate::W002", "its clients are not told apart"];
    for (clients, peer, lines, texts) in [
        (behind(), "10.0.0.1", &[][..], UNNAMED),
        (behind(), "10.0.0.1", &["10.0.0.2"], UNNAMED),
        (behind(), "unix", &[], NO_PEER),
        (client_ip().hops(1), "10.0.0.1", &[], FEWER),
        (behind(), "10.0.0.1", &["unknown"], UNREADABLE),
        (client_ip().hops(1), "unix", &["unknown"], UNREADABLE),
    ] {
        let log = said_of(clients, peer, lines);
        assert_eq!(log.len(), 1, "{peer} {lines:?}: {log:?}");
        for text in texts {
            assert!(log[0].contains(text), "{text}: {log:?}");
        }
    }
    for (peer, lines) in [("10.0.0.1", &["203.0.113.9"][..]), ("203.0.113.9", &[])] {
        assert_eq!(said_of(behind(), peer, lines), [""; 0]);
    }
}

#[test]
fn to_find_an_address_takes_no_allocation() {
    let headers = [
        (XFF, "1.1.1.1, 203.0.113.9:443, 10.0.0.2"),
        ("x-real-ip", "2001:db8::9"),
    ];
    let parts = request("10.0.0.1", &headers);
    for clients in [behind(), client_ip().hops(2), behind().header("x-real-ip")] {
        let clients = checked(clients);
        let mut address = None;
        let counted = allocation_counter::measure(|| address = clients.address(&parts).ok());
        assert!(address.is_some());
        assert_eq!(counted.count_total, 0, "{address:?}");
    }
}

#[test]
fn an_error_names_the_header_and_no_address() {
    let told = |clients: ClientIp, peer: &str| {
        let error = checked(clients).address(&request(peer, &[(XFF, "unknown")]));
        error.expect_err("no address")
    };
    let error = told(behind(), "10.0.0.1");
    assert_eq!(error.kind(), KeyErrorKind::Missing);
    assert_eq!(
        error.to_string(),
        "no trusted proxy names the client in `x-forwarded-for`"
    );
    let error = told(client_ip().hops(1).header("x-real-ip"), "10.0.0.1");
    assert!(error.to_string().ends_with("`x-real-ip`"), "{error}");
}
