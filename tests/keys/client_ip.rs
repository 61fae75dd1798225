//! The rules of `key::client_ip`, row by row: which address counts for a request behind proxies.

use crate::support::log;
use crate::support::request::request;
use axum::http::request::Parts;
use tollgate::key::{self, ClientIp, KeyErrorKind, KeyExtractor, client_ip};

/// The counted address, without its tag, or the status of the rejection.
fn client(key: &impl KeyExtractor, parts: &Parts) -> String {
    match key.extract(parts) {
        Ok(key) => key.as_str().strip_prefix("ip=").unwrap().to_owned(),
        Err(error) => match error.kind() {
            KeyErrorKind::Misconfigured => "500".into(),
            _ => "400".into(),
        },
    }
}

/// The peer, the lines of the header, and the expected client.
type Row<'a> = (&'a str, &'a [&'a str], &'a str);

/// Compares each row with the extractor. Each address is a separate key.
fn holds(key: ClientIp, header: &str, rows: &[Row<'_>]) {
    let key = key.ipv6_prefix(128);
    for (peer, lines, expected) in rows {
        let headers: Vec<_> = lines.iter().map(|line| (header, line)).collect();
        assert_eq!(
            client(&key, &request(peer, &headers)),
            *expected,
            "{header} of {peer}: {lines:?}"
        );
    }
}

const XFF: &str = "x-forwarded-for";

/// Proxies in a private network of IPv4 and one of IPv6.
fn behind() -> ClientIp {
    client_ip().behind(["10.0.0.0/8", "2001:db8:aa::/48"])
}

#[rustfmt::skip]
#[test]
fn by_networks_the_first_hop_that_is_not_trusted_is_the_client() {
    holds(behind(), XFF, &[
        // Rule 2: a peer that is not trusted is the client, whatever it says.
        ("203.0.113.9", &[],                                            "203.0.113.9"),
        ("203.0.113.9", &["198.51.100.1"],                              "203.0.113.9"),
        ("203.0.113.9", &["198.51.100.1, 10.0.0.1"],                    "203.0.113.9"),
        ("11.0.0.0",    &["198.51.100.1"],                              "11.0.0.0"),
        ("2001:db8:ab::1", &["198.51.100.1"],                           "2001:db8:ab::1"),
        // Rule 4: the last entry is what the peer saw; what is left of it may be made up.
        ("10.0.0.1", &["203.0.113.9"],                                  "203.0.113.9"),
        ("10.0.0.1", &["1.1.1.1, 203.0.113.9"],                         "203.0.113.9"),
        ("10.0.0.1", &["10.0.0.9, 203.0.113.9"],                        "203.0.113.9"),
        ("10.0.0.1", &["1.1.1.1, 203.0.113.9, 10.0.0.2"],               "203.0.113.9"),
        ("10.0.0.1", &["1.1.1.1,203.0.113.9,10.0.0.2,10.255.255.255"],  "203.0.113.9"),
        ("2001:db8:aa::1", &["1.1.1.1, 2001:db8:9::9, 2001:db8:aa:ffff::2"], "2001:db8:9::9"),
        // Rule 3: all lines are one list.
        ("10.0.0.1", &["1.1.1.1", "203.0.113.9"],                       "203.0.113.9"),
        ("10.0.0.1", &["203.0.113.9", "10.0.0.2"],                      "203.0.113.9"),
        ("10.0.0.1", &["1.1.1.1, 203.0.113.9", "10.0.0.3", "10.0.0.2"], "203.0.113.9"),
        // Rule 4: all are trusted, so the first entry it is.
        ("10.0.0.1", &["10.0.0.3, 10.0.0.2"],                           "10.0.0.3"),
        ("10.0.0.1", &["10.0.0.4", "10.0.0.3, 10.0.0.2"],               "10.0.0.4"),
        // Without the header, only the peer is known.
        ("10.0.0.1", &[],                                               "10.0.0.1"),
        // Rule 1: without a peer, no proxy is trusted.
        ("unix", &["203.0.113.9"],                                      "500"),
    ]);
}

#[rustfmt::skip]
#[test]
fn an_address_is_read_however_it_is_written() {
    holds(behind(), XFF, &[
        // Rule 6: ports, brackets, zones, blanks.
        ("10.0.0.1", &["203.0.113.9:443"],                              "203.0.113.9"),
        ("10.0.0.1", &["203.0.113.9:65000, 10.0.0.2:80"],               "203.0.113.9"),
        ("10.0.0.1", &["[2001:db8::9]"],                                "2001:db8::9"),
        ("10.0.0.1", &["[2001:db8::9]:443"],                            "2001:db8::9"),
        ("10.0.0.1", &["2001:db8::9:443"],                              "2001:db8::9:443"),
        ("10.0.0.1", &["fe80::1%eth0"],                                 "fe80::1"),
        ("10.0.0.1", &["[fe80::1%25eth0]:80"],                          "fe80::1"),
        ("10.0.0.1", &["203.0.113.9, 2001:db8:aa::2%eth0"],             "203.0.113.9"),
        ("10.0.0.1", &[" \t 203.0.113.9 \t ,\t10.0.0.2  "],             "203.0.113.9"),
        // An address is known by its bits, not by its notation.
        ("10.0.0.1", &["2001:DB8::9"],                                  "2001:db8::9"),
        ("10.0.0.1", &["2001:0db8:0000:0000:0000:0000:0000:0009"],      "2001:db8::9"),
        ("10.0.0.1", &["2001:db8::0.0.0.9"],                            "2001:db8::9"),
        ("10.0.0.1", &["::ffff:203.0.113.9"],                           "203.0.113.9"),
        ("10.0.0.1", &["::FFFF:203.0.113.9"],                           "203.0.113.9"),
        ("10.0.0.1", &["::ffff:cb00:7109"],                             "203.0.113.9"),
        ("10.0.0.1", &["::FFFF:CB00:7109"],                             "203.0.113.9"),
        ("10.0.0.1", &["0:0:0:0:0:ffff:203.0.113.9"],                   "203.0.113.9"),
        ("10.0.0.1", &["0000:0000:0000:0000:0000:ffff:cb00:7109"],      "203.0.113.9"),
        ("10.0.0.1", &["[::ffff:203.0.113.9]:443"],                     "203.0.113.9"),
        ("10.0.0.1", &["::ffff:203.0.113.9%eth0"],                      "203.0.113.9"),
        // As is that of a proxy.
        ("::ffff:10.0.0.1", &["203.0.113.9"],                           "203.0.113.9"),
        ("::ffff:a00:1", &["203.0.113.9, ::ffff:10.0.0.2"],             "203.0.113.9"),
        // What embeds an IPv4 address and is not mapped stays what it is.
        ("10.0.0.1", &["64:ff9b::203.0.113.9"],                         "64:ff9b::cb00:7109"),
        ("10.0.0.1", &["64:ff9b::10.0.0.2"],                            "64:ff9b::a00:2"),
        ("10.0.0.1", &["::203.0.113.9"],                                "::cb00:7109"),
        ("10.0.0.1", &["2001:db8::ffff:203.0.113.9"],                   "2001:db8::ffff:cb00:7109"),
        ("10.0.0.1", &["::ffff:0:203.0.113.9"],                         "::ffff:0:cb00:7109"),
        ("10.0.0.1", &["2002:cb00:7109::1"],                            "2002:cb00:7109::1"),
    ]);
}

#[rustfmt::skip]
#[test]
fn an_entry_that_cannot_be_read_ends_the_walk_at_the_hop_that_supplied_it() {
    holds(behind(), XFF, &[
        // Rule 7, of the peer.
        ("10.0.0.1", &["unknown"],                                      "10.0.0.1"),
        ("10.0.0.1", &["1.1.1.1, unknown"],                             "10.0.0.1"),
        ("10.0.0.1", &["1.1.1.1, _hidden"],                             "10.0.0.1"),
        ("10.0.0.1", &["1.1.1.1, unix:"],                               "10.0.0.1"),
        ("10.0.0.1", &["1.1.1.1, localhost"],                           "10.0.0.1"),
        ("10.0.0.1", &["1.1.1.1, \"203.0.113.9\""],                     "10.0.0.1"),
        ("10.0.0.1", &["1.1.1.1, for=203.0.113.9"],                     "10.0.0.1"),
        ("10.0.0.1", &["1.1.1.1, 203.0.113.9 10.0.0.2"],                "10.0.0.1"),
        ("10.0.0.1", &["1.1.1.1, 203.0.113.9; 10.0.0.2"],               "10.0.0.1"),
        ("10.0.0.1", &["1.1.1.1, 203.0.113.256"],                       "10.0.0.1"),
        ("10.0.0.1", &["1.1.1.1, 203.0.113"],                           "10.0.0.1"),
        ("10.0.0.1", &["1.1.1.1, 0203.0.113.9"],                        "10.0.0.1"),
        ("10.0.0.1", &["1.1.1.1, 0xcb007109"],                          "10.0.0.1"),
        ("10.0.0.1", &["1.1.1.1, 3405803785"],                          "10.0.0.1"),
        ("10.0.0.1", &["1.1.1.1, 203.0.113.9:"],                        "10.0.0.1"),
        ("10.0.0.1", &["1.1.1.1, 203.0.113.9:x"],                       "10.0.0.1"),
        ("10.0.0.1", &["1.1.1.1, 203.0.113.9:123456"],                  "10.0.0.1"),
        ("10.0.0.1", &["1.1.1.1, 203.0.113.9%eth0"],                    "10.0.0.1"),
        ("10.0.0.1", &["1.1.1.1, [203.0.113.9]"],                       "10.0.0.1"),
        ("10.0.0.1", &["1.1.1.1, [2001:db8::9"],                        "10.0.0.1"),
        ("10.0.0.1", &["1.1.1.1, 2001:db8::9]"],                        "10.0.0.1"),
        ("10.0.0.1", &["1.1.1.1, [2001:db8::9]443"],                    "10.0.0.1"),
        ("10.0.0.1", &["1.1.1.1, [2001:db8::9]]"],                      "10.0.0.1"),
        ("10.0.0.1", &["1.1.1.1, []"],                                  "10.0.0.1"),
        ("10.0.0.1", &["1.1.1.1, 2001:db8:1:2:3:4:5:6:443"],            "10.0.0.1"),
        ("10.0.0.1", &["1.1.1.1, ２０３.0.113.9"],                       "10.0.0.1"),
        // And of a hop further on: what is left of it is not looked at.
        ("10.0.0.1", &["1.1.1.1, unknown, 10.0.0.2"],                   "10.0.0.2"),
        ("10.0.0.1", &["1.1.1.1, _x, 10.0.0.3", "10.0.0.2"],            "10.0.0.3"),
        // What a client made up and cannot be read is of no matter to it.
        ("10.0.0.1", &["garbage, 203.0.113.9, 10.0.0.2"],               "203.0.113.9"),
    ]);
}

/// RFC 9110, section 5.6.1.2: a recipient ignores empty elements of a list.
#[rustfmt::skip]
#[test]
fn empty_entries_of_a_list_count_for_nothing() {
    holds(behind(), XFF, &[
        ("10.0.0.1", &["203.0.113.9,"],                                 "203.0.113.9"),
        ("10.0.0.1", &["203.0.113.9, "],                                "203.0.113.9"),
        ("10.0.0.1", &["203.0.113.9", ""],                              "203.0.113.9"),
        ("10.0.0.1", &["", "203.0.113.9"],                              "203.0.113.9"),
        ("10.0.0.1", &[",,,", "203.0.113.9", " \t ", ",\t,"],           "203.0.113.9"),
        ("10.0.0.1", &[",203.0.113.9,, ,10.0.0.2,"],                    "203.0.113.9"),
        ("10.0.0.1", &["1.1.1.1, , 203.0.113.9", "", "10.0.0.2"],       "203.0.113.9"),
        ("10.0.0.1", &["1.1.1.1, unknown,"],                            "10.0.0.1"),
        ("10.0.0.1", &["203.0.113.9, ,unknown, ,10.0.0.2, "],           "10.0.0.2"),
        // A list without entries.
        ("10.0.0.1", &[""],                                             "10.0.0.1"),
        ("10.0.0.1", &["  "],                                           "10.0.0.1"),
        ("10.0.0.1", &[",", " , "],                                     "10.0.0.1"),
    ]);
    holds(client_ip().hops(1), XFF, &[
        ("192.0.2.1", &["1.1.1.1, 203.0.113.9,"],                       "203.0.113.9"),
        ("192.0.2.1", &["1.1.1.1, 203.0.113.9", ""],                    "203.0.113.9"),
        ("192.0.2.1", &[","],                                           "192.0.2.1"),
    ]);
    holds(client_ip().hops(2), XFF, &[
        ("192.0.2.1", &["203.0.113.9, , 198.51.100.2", ""],             "203.0.113.9"),
        ("192.0.2.1", &["203.0.113.9, , "],                             "192.0.2.1"),
    ]);
    holds(behind().forwarded(), "forwarded", &[
        ("10.0.0.1", &["for=203.0.113.9,"],                             "203.0.113.9"),
        ("10.0.0.1", &["for=203.0.113.9", ""],                          "203.0.113.9"),
        ("10.0.0.1", &["for=1.1.1.1, for=203.0.113.9, , for=10.0.0.2,"], "203.0.113.9"),
        ("10.0.0.1", &["for=203.0.113.9;host=\"a,\",", ","],            "203.0.113.9"),
        // An element without an address is none that is empty.
        ("10.0.0.1", &["for=1.1.1.1, ;"],                               "10.0.0.1"),
        ("10.0.0.1", &["for=1.1.1.1, for=\"\""],                        "10.0.0.1"),
    ]);
}

#[test]
fn bytes_that_are_no_text_cannot_be_read() {
    for bytes in [
        &b"1.1.1.1, \xff"[..],
        b"1.1.1.1, 203.0.113.9\xa0",
        b"1.1.1.1, \xe9\x80",
    ] {
        assert_eq!(
            client(&behind(), &request("10.0.0.1", &[(XFF, bytes)])),
            "10.0.0.1"
        );
    }
    let parts = request("10.0.0.1", &[(XFF, b"\xff\xfe, 203.0.113.9")]);
    assert_eq!(client(&behind(), &parts), "203.0.113.9");
}

/// Rule 8.
#[test]
fn the_walk_ends_after_32_hops_or_8_kib() {
    let of = |lines: &[String]| {
        let headers: Vec<_> = lines.iter().map(|line| (XFF, line)).collect();
        client(&behind(), &request("10.0.0.1", &headers))
    };
    let hops = |count: u32| -> Vec<_> {
        (1..=count)
            .rev()
            .map(|n| format!("10.1.{}.{}", n / 250, n % 250))
            .collect()
    };
    // 31 proxies besides the peer, and the client before them.
    assert_eq!(
        of(&[format!("203.0.113.9, {}", hops(31).join(", "))]),
        "203.0.113.9"
    );
    assert_eq!(
        of(&[format!("203.0.113.9, {}", hops(32).join(", "))]),
        "10.1.0.32"
    );
    assert_eq!(
        of(&[format!("203.0.113.9, {}", hops(1_000).join(", "))]),
        "10.1.0.32"
    );
    assert_eq!(of(&hops(1_000)), "10.1.0.32");
    // A thousand that are made up change nothing.
    assert_eq!(
        of(&[format!("{}, 203.0.113.9", hops(1_000).join(", "))]),
        "203.0.113.9"
    );

    let blanks = |count| " ".repeat(count);
    assert_eq!(
        of(&[format!("203.0.113.9,{}10.0.0.2", blanks(8_000))]),
        "203.0.113.9"
    );
    assert_eq!(
        of(&[format!("203.0.113.9,{}10.0.0.2", blanks(8_192))]),
        "10.0.0.1"
    );
    assert_eq!(
        of(&[format!("203.0.113.9, {}, 10.0.0.2", "x".repeat(1 << 20))]),
        "10.0.0.2"
    );
    assert_eq!(
        of(&[format!("{}, 203.0.113.9", "x".repeat(1 << 20))]),
        "203.0.113.9"
    );
    assert_eq!(
        of(&["203.0.113.9".into(), blanks(9_000), "10.0.0.2".into()]),
        "10.0.0.2"
    );
}

#[rustfmt::skip]
#[test]
fn by_number_the_client_is_the_entry_of_the_outermost_proxy() {
    // Rule 5.
    holds(client_ip().hops(0), XFF, &[
        ("203.0.113.9", &["1.1.1.1"],                                   "203.0.113.9"),
        ("unix", &["1.1.1.1"],                                          "500"),
    ]);
    holds(client_ip().hops(1), XFF, &[
        ("192.0.2.1", &["203.0.113.9"],                                 "203.0.113.9"),
        ("192.0.2.1", &["1.1.1.1, 203.0.113.9"],                        "203.0.113.9"),
        ("192.0.2.1", &["1.1.1.1", "203.0.113.9"],                      "203.0.113.9"),
        ("192.0.2.1", &["[2001:db8::9]:443"],                           "2001:db8::9"),
        ("192.0.2.1", &[],                                              "192.0.2.1"),
        ("192.0.2.1", &["1.1.1.1, unknown"],                            "192.0.2.1"),
        ("unix", &["1.1.1.1, 203.0.113.9"],                             "203.0.113.9"),
        ("unix", &[],                                                   "500"),
        ("unix", &["1.1.1.1, unix:"],                                   "500"),
    ]);
    holds(client_ip().hops(2), XFF, &[
        ("192.0.2.1", &["203.0.113.9, 198.51.100.2"],                   "203.0.113.9"),
        ("192.0.2.1", &["1.1.1.1, 203.0.113.9, 198.51.100.2"],          "203.0.113.9"),
        ("192.0.2.1", &["1.1.1.1, 203.0.113.9", "198.51.100.2"],        "203.0.113.9"),
        ("192.0.2.1", &["203.0.113.9"],                                 "192.0.2.1"),
        ("192.0.2.1", &[],                                              "192.0.2.1"),
        ("192.0.2.1", &["203.0.113.9, unknown"],                        "203.0.113.9"),
        ("192.0.2.1", &["1.1.1.1, unknown, 198.51.100.2"],              "198.51.100.2"),
        ("192.0.2.1", &["1.1.1.1, unknown, unknown"],                   "192.0.2.1"),
        ("unix", &["203.0.113.9"],                                      "500"),
    ]);
    // By number and networks, each hop on the way is in one of them.
    holds(behind().hops(2), XFF, &[
        ("10.0.0.1", &["203.0.113.9, 10.0.0.2"],                        "203.0.113.9"),
        ("10.0.0.1", &["1.1.1.1, 10.0.0.3, 10.0.0.2"],                  "10.0.0.3"),
        ("10.0.0.1", &["1.1.1.1, 203.0.113.9"],                         "203.0.113.9"),
        ("10.0.0.1", &["1.1.1.1, unknown"],                             "10.0.0.1"),
        ("10.0.0.1", &["10.0.0.2"],                                     "10.0.0.1"),
        ("203.0.113.9", &["1.1.1.1, 10.0.0.2"],                         "203.0.113.9"),
        ("unix", &["203.0.113.9, 10.0.0.2"],                            "500"),
    ]);
}

#[rustfmt::skip]
#[test]
fn forwarded_is_read_by_its_grammar() {
    holds(behind().forwarded(), "forwarded", &[
        ("203.0.113.9", &["for=1.1.1.1"],                               "203.0.113.9"),
        ("10.0.0.1", &["for=203.0.113.9"],                              "203.0.113.9"),
        ("10.0.0.1", &["for=1.1.1.1, for=203.0.113.9"],                 "203.0.113.9"),
        ("10.0.0.1", &["for=1.1.1.1", "for=203.0.113.9, for=10.0.0.2"], "203.0.113.9"),
        ("10.0.0.1", &["for=203.0.113.9;proto=https;by=10.0.0.1"],      "203.0.113.9"),
        ("10.0.0.1", &["by=10.0.0.1;proto=https;for=203.0.113.9"],      "203.0.113.9"),
        ("10.0.0.1", &["FOR=203.0.113.9;Proto=HTTP"],                   "203.0.113.9"),
        ("10.0.0.1", &["host=a.example; For=203.0.113.9 ; proto=http"], "203.0.113.9"),
        ("10.0.0.1", &[";for=203.0.113.9;;"],                           "203.0.113.9"),
        ("10.0.0.1", &["for=\"203.0.113.9\""],                          "203.0.113.9"),
        ("10.0.0.1", &["for=\"203.0.113.9:443\""],                      "203.0.113.9"),
        ("10.0.0.1", &["for=\"203.0.113.9:_port\""],                    "203.0.113.9"),
        ("10.0.0.1", &["for=\"[2001:db8:cafe::17]:4711\""],             "2001:db8:cafe::17"),
        ("10.0.0.1", &["For=\"[2001:DB8:CAFE::17]\""],                  "2001:db8:cafe::17"),
        ("10.0.0.1", &["for=\"[::ffff:203.0.113.9]\""],                 "203.0.113.9"),
        ("10.0.0.1", &["for=\"\\2\\03.0.113.9\""],                      "203.0.113.9"),
        ("10.0.0.1", &["for=203.0.113.9, for=\"[2001:db8:aa::2]:80\""], "203.0.113.9"),
        // What is quoted divides nothing.
        ("10.0.0.1", &["for=203.0.113.9;host=\"a, for=1.1.1.1\""],      "203.0.113.9"),
        ("10.0.0.1", &["for=203.0.113.9;host=\"a;for=1.1.1.1\""],       "203.0.113.9"),
        ("10.0.0.1", &["for=203.0.113.9;host=\"\\\", for=1.1.1.1;x=\\\"\""], "203.0.113.9"),
        ("10.0.0.1", &["for=203.0.113.9;host=\"\\\\\", for=10.0.0.2"],  "203.0.113.9"),
        ("10.0.0.1", &["host=\"for=1.1.1.1\";for=203.0.113.9"],         "203.0.113.9"),
        // What a client leaves open swallows nothing.
        ("10.0.0.1", &["for=\"1.1.1.1, for=203.0.113.9"],               "203.0.113.9"),
        ("10.0.0.1", &["for=\"1.1.1.1, for=203.0.113.9;host=\"a\""],    "203.0.113.9"),
        ("10.0.0.1", &["for=1.1.1.1;x=\"\\, for=\"203.0.113.9\""],      "203.0.113.9"),
        ("10.0.0.1", &["for=\"", "for=203.0.113.9"],                    "203.0.113.9"),
        // Rule 7.
        ("10.0.0.1", &["for=1.1.1.1, for=unknown"],                     "10.0.0.1"),
        ("10.0.0.1", &["for=1.1.1.1, for=_hidden"],                     "10.0.0.1"),
        ("10.0.0.1", &["for=1.1.1.1, for=\"_SEVKISEK\", for=10.0.0.2"], "10.0.0.2"),
        ("10.0.0.1", &["for=1.1.1.1, proto=https"],                     "10.0.0.1"),
        ("10.0.0.1", &["for=1.1.1.1, for=203.0.113.9;for=10.0.0.2"],    "10.0.0.1"),
        ("10.0.0.1", &["for=1.1.1.1, 203.0.113.9"],                     "10.0.0.1"),
        ("10.0.0.1", &["for=1.1.1.1, for=203.0.113.9:443"],             "10.0.0.1"),
        ("10.0.0.1", &["for=1.1.1.1, for=[2001:db8::9]"],               "10.0.0.1"),
        ("10.0.0.1", &["for=1.1.1.1, for=\"2001:db8::9\""],             "10.0.0.1"),
        ("10.0.0.1", &["for=1.1.1.1, for=\"203.0.113.9"],               "10.0.0.1"),
        ("10.0.0.1", &["for=1.1.1.1, for=203.0.113.9\""],               "10.0.0.1"),
        ("10.0.0.1", &["for=1.1.1.1, for=\"203.0.113.9\"x"],            "10.0.0.1"),
        ("10.0.0.1", &["for=1.1.1.1, for = 203.0.113.9"],               "10.0.0.1"),
        ("10.0.0.1", &["for=1.1.1.1, for=\"\\"],                        "10.0.0.1"),
        ("10.0.0.1", &["for=1.1.1.1, for="],                            "10.0.0.1"),
        ("10.0.0.1", &["for=1.1.1.1, é=203.0.113.9"],                   "10.0.0.1"),
    ]);
    holds(client_ip().hops(1).forwarded(), "forwarded", &[
        ("192.0.2.1", &["for=1.1.1.1, for=203.0.113.9;host=\"a,b\""],   "203.0.113.9"),
        ("unix", &["for=203.0.113.9"],                                  "203.0.113.9"),
    ]);
}

#[rustfmt::skip]
#[test]
fn a_single_header_is_believed_from_a_trusted_peer_and_only_if_it_is_one() {
    // Rule 9.
    holds(behind().header("cf-connecting-ip"), "CF-Connecting-IP", &[
        ("203.0.113.9", &["1.1.1.1"],                                   "203.0.113.9"),
        ("203.0.113.9", &["1.1.1.1", "2.2.2.2"],                        "203.0.113.9"),
        ("10.0.0.1", &["203.0.113.9"],                                  "203.0.113.9"),
        ("10.0.0.1", &[" [2001:db8::9]:443 "],                          "2001:db8::9"),
        ("10.0.0.1", &["10.0.0.2"],                                     "10.0.0.2"),
        ("10.0.0.1", &["1.1.1.1", "203.0.113.9"],                       "400"),
        ("10.0.0.1", &["203.0.113.9", "203.0.113.9"],                   "400"),
        ("10.0.0.1", &["1.1.1.1, 203.0.113.9"],                         "400"),
        ("10.0.0.1", &["203.0.113.9,"],                                 "400"),
        ("10.0.0.1", &[],                                               "10.0.0.1"),
        ("10.0.0.1", &[""],                                             "10.0.0.1"),
        ("10.0.0.1", &["unknown"],                                      "10.0.0.1"),
        ("unix", &["203.0.113.9"],                                      "500"),
    ]);
    holds(client_ip().hops(1).header("x-real-ip"), "X-Real-IP", &[
        ("192.0.2.1", &["203.0.113.9"],                                 "203.0.113.9"),
        ("unix", &["203.0.113.9"],                                      "203.0.113.9"),
        ("unix", &[],                                                   "500"),
    ]);
    holds(client_ip().hops(0).header("x-real-ip"), "X-Real-IP", &[
        ("192.0.2.1", &["203.0.113.9"],                                 "192.0.2.1"),
    ]);
    holds(behind().header("cloudfront-viewer-address"), "CloudFront-Viewer-Address", &[
        ("10.0.0.1", &["203.0.113.9:46532"],                            "203.0.113.9"),
        ("10.0.0.1", &["2001:db8::9:443"],                              "2001:db8::9"),
        ("10.0.0.1", &["2001:db8:0:0:0:0:0:9:443"],                     "2001:db8::9"),
        ("10.0.0.1", &["[2001:db8::9]:443"],                            "2001:db8::9"),
        ("10.0.0.1", &["::ffff:203.0.113.9:443"],                       "203.0.113.9"),
        ("10.0.0.1", &["203.0.113.9"],                                  "10.0.0.1"),
        ("10.0.0.1", &["203.0.113.9:1:2"],                              "10.0.0.1"),
        ("10.0.0.1", &["2001:db8::9:cafe"],                             "10.0.0.1"),
    ]);
}

/// Rule 3: one source, never a chain of them.
#[test]
fn no_other_header_is_ever_looked_at() {
    let all = [
        ("x-forwarded-for", "198.51.100.1"),
        ("forwarded", "for=198.51.100.2"),
        ("x-real-ip", "198.51.100.3"),
        ("true-client-ip", "198.51.100.4"),
        ("x_forwarded_for", "198.51.100.5"),
        ("client-ip", "198.51.100.6"),
    ];
    let sources = [
        (behind(), "x-forwarded-for", "198.51.100.1"),
        (behind().forwarded(), "forwarded", "198.51.100.2"),
        (behind().header("x-real-ip"), "x-real-ip", "198.51.100.3"),
        (
            behind().header("True-Client-IP"),
            "true-client-ip",
            "198.51.100.4",
        ),
    ];
    for (key, header, told) in sources {
        assert_eq!(client(&key, &request("10.0.0.1", &all)), told);
        let others: Vec<_> = all
            .into_iter()
            .filter(|(name, _)| *name != header)
            .collect();
        assert_eq!(
            client(&key, &request("10.0.0.1", &others)),
            "10.0.0.1",
            "{header}"
        );
    }
}

#[test]
fn of_an_ipv6_address_the_prefix_counts() {
    let parts = |address: &str| request("10.0.0.1", &[(XFF, address)]);
    for (bits, address, counted) in [
        (64, "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        (56, "2001:db8:1:2:3:4:5:6", "2001:db8:1::/56"),
        (0, "2001:db8:1:2:3:4:5:6", "2001:db8::/32"),
        (255, "2001:db8:1:2:3:4:5:6", "2001:db8:1:2:3:4:5:6"),
        (32, "::ffff:203.0.113.9", "203.0.113.9"),
        (32, "203.0.113.9", "203.0.113.9"),
        // NAT64 gives each client of IPv4 one address.
        (32, "64:ff9b::203.0.113.9", "64:ff9b::cb00:7109"),
        (64, "64:ff9b::203.0.113.9", "64:ff9b::cb00:7109"),
        (64, "64:ff9b::203.0.113.10", "64:ff9b::cb00:710a"),
        (64, "64:ff9b:1::203.0.113.9", "64:ff9b:1::/64"),
    ] {
        assert_eq!(
            client(&behind().ipv6_prefix(bits), &parts(address)),
            counted
        );
    }
    for (address, counted) in [
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("64:ff9b::203.0.113.9", "64:ff9b::cb00:7109"),
        // It is not the address of IPv4 itself, nor trusted as that would be.
        ("64:ff9b::10.0.0.2", "64:ff9b::a00:2"),
    ] {
        assert_eq!(client(&behind(), &parts(address)), counted);
    }
    let key = behind().of("2001:db8:1:2::".parse().unwrap());
    assert_eq!(
        key,
        behind().extract(&parts("2001:db8:1:2:3:4:5:6")).unwrap()
    );
    // A client that comes directly is the same one.
    assert_eq!(key, key::peer_ip().of("2001:db8:1:2::".parse().unwrap()));
}

#[test]
fn networks_are_cidrs_or_addresses_of_either_family() {
    let of = |network: &str, peer: &str| {
        client(
            &client_ip().behind([network]),
            &request(peer, &[(XFF, "203.0.113.9")]),
        ) == "203.0.113.9"
    };
    for (network, peer, trusted) in [
        ("192.0.2.1", "192.0.2.1", true),
        ("192.0.2.1", "192.0.2.2", false),
        ("192.0.2.128/25", "192.0.2.127", false),
        ("2001:db8::1", "2001:db8::1", true),
        ("2001:db8::/33", "2001:db8:7fff::1", true),
        ("2001:db8::/33", "2001:db8:8000::1", false),
        ("::ffff:192.0.2.0/120", "192.0.2.9", true),
        ("::ffff:c000:200/120", "::ffff:192.0.2.9", true),
        ("192.0.2.0/24", "::ffff:192.0.2.9", true),
        ("0.0.0.0/0", "2001:db8::1", false),
        ("::/0", "192.0.2.1", false),
    ] {
        assert_eq!(of(network, peer), trusted, "{peer} in {network}");
    }
    // Networks add up. An empty list trusts no proxy.
    let both = client_ip()
        .behind(["192.0.2.0/24"])
        .behind(["2001:db8::/32"]);
    for peer in ["192.0.2.1", "2001:db8::1"] {
        assert_eq!(
            client(&both, &request(peer, &[(XFF, "203.0.113.9")])),
            "203.0.113.9"
        );
    }
    let nobody = client_ip().behind([""; 0]);
    assert_eq!(
        client(&nobody, &request("192.0.2.1", &[(XFF, "203.0.113.9")])),
        "192.0.2.1"
    );
}

#[test]
fn what_cannot_be_set_up_says_so_at_the_start_or_is_a_fault_of_the_server() {
    let parts = request("10.0.0.1", &[(XFF, "203.0.113.9")]);
    for (key, text) in [
        (client_ip(), "has no trusted proxies: name their networks"),
        (
            client_ip().header("x-real-ip"),
            "has no trusted proxies: name their networks",
        ),
        (
            client_ip().behind(["10.0.0.0/8", "10.0.0.0/33"]),
            "10.0.0.0/33",
        ),
        (client_ip().behind(["loopback"]), "loopback"),
        (client_ip().behind([""]), "\"\""),
        (client_ip().behind(["first"]).behind(["second"]), "first"),
        (behind().header("x real ip"), "x real ip"),
        (behind().header("X-Forwarded-For"), "is a list"),
        (behind().header("forwarded"), ".forwarded()"),
    ] {
        let error = key.extract(&parts).unwrap_err();
        assert_eq!(error.kind(), KeyErrorKind::Misconfigured);
        assert!(error.to_string().contains(text), "{error}");
        let at_start = key.checked().unwrap_err();
        let coded = format!("{error} [{}]", at_start.code());
        assert_eq!(at_start.to_string(), coded);
    }
    assert!(behind().checked().is_ok() && client_ip().hops(1).checked().is_ok());
}

/// What is logged while `steps` run.
fn log_of(steps: impl FnOnce()) -> Vec<String> {
    log::keep();
    steps();
    log::kept()
}

#[test]
fn to_trust_everybody_is_one_line_in_the_log() {
    for everybody in ["0.0.0.0/0", "::/0", "::ffff:0:0/96", "10.1.2.3/0"] {
        let log = log_of(|| {
            let key = client_ip()
                .behind(["10.0.0.0/8", everybody])
                .behind(["192.0.2.1"]);
            for _ in 0..100 {
                let _ = key.extract(&request("192.0.2.1", &[(XFF, "203.0.113.9")]));
            }
        });
        assert_eq!(log.len(), 1, "{log:?}");
        assert!(
            log[0].contains("WARN") && log[0].contains("clients can send any address"),
            "{log:?}"
        );
    }
    let narrower = log_of(|| drop(client_ip().behind(["10.0.0.0/8", "2000::/3"])));
    assert!(narrower.is_empty(), "{narrower:?}");
}

#[test]
fn a_list_that_is_too_short_is_one_line_in_the_log() {
    let log = log_of(|| {
        let key = client_ip().hops(2);
        for _ in 0..100 {
            let _ = key
                .clone()
                .extract(&request("192.0.2.1", &[(XFF, "203.0.113.9")]));
        }
    });
    assert_eq!(log.len(), 1, "{log:?}");
    assert!(
        log[0].contains("WARN") && log[0].contains("hops=2"),
        "{log:?}"
    );
    let long_enough = log_of(|| {
        let parts = request("192.0.2.1", &[(XFF, "203.0.113.9")]);
        let _ = client_ip().hops(1).extract(&parts);
        let _ = behind().extract(&parts);
    });
    assert!(long_enough.is_empty(), "{long_enough:?}");
}
