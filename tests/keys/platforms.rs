//! The table of platforms in the guide: what each sends finds the client, whatever the client sends.

use tollgate::key::{KeyExtractor, client_ip, peer_ip};

use crate::support::request::request;

const CLIENT: &str = "203.0.113.9";
const XFF: &str = "x-forwarded-for";

/// A platform as the table names it, and its code there.
struct Platform {
    name: &'static str,
    code: &'static str,
    key: Box<dyn KeyExtractor>,
    /// The peer of the service.
    peer: &'static str,
    /// The headers that the platform sends for a client, and for one that has sent each of them itself.
    sent: &'static [(&'static str, &'static str)],
    spoofed: &'static [(&'static str, &'static str)],
}

macro_rules! platform {
    ($name:literal, $key:expr, from $peer:literal, $sent:expr, $spoofed:expr) => {
        Platform {
            name: $name,
            code: stringify!($key),
            key: Box::new($key),
            peer: $peer,
            sent: &$sent,
            spoofed: &$spoofed,
        }
    };
}

const APPENDED: [(&str, &str); 1] = [(XFF, "6.6.6.6, 203.0.113.9")];
const ALONE: [(&str, &str); 1] = [(XFF, CLIENT)];

#[rustfmt::skip]
fn platforms() -> Vec<Platform> {
    vec![
        platform!("nothing", peer_ip(), from "203.0.113.9", [], [(XFF, "6.6.6.6")]),
        platform!("nginx", client_ip().behind(["127.0.0.1", "::1"]), from "127.0.0.1", ALONE, APPENDED),
        // Both ignore what a client sends unless it is trusted.
        platform!("Caddy", client_ip().behind(["10.0.0.0/8"]), from "10.0.0.2", ALONE, ALONE),
        // It sends a line of its own.
        platform!("HAProxy", client_ip().behind(["10.0.0.0/8"]), from "10.0.0.2", ALONE, [(XFF, "6.6.6.6"), (XFF, CLIENT)]),
        platform!("Envoy", client_ip().hops(1), from "127.0.0.6", ALONE, APPENDED),
        platform!("Cloudflare", client_ip().behind(["173.245.48.0/20"]).header("cf-connecting-ip"), from "173.245.48.9",
            [(XFF, CLIENT), ("cf-connecting-ip", CLIENT)], [(XFF, "6.6.6.6, 203.0.113.9"), ("cf-connecting-ip", CLIENT)]),
        platform!("Fastly", client_ip().behind(["151.101.0.0/16"]).header("fastly-client-ip"), from "151.101.1.1",
            [(XFF, CLIENT), ("fastly-client-ip", CLIENT)], [(XFF, "6.6.6.6, 203.0.113.9"), ("fastly-client-ip", CLIENT)]),
        platform!("CloudFront", client_ip().hops(1), from "130.176.0.9", ALONE, APPENDED),
        platform!("AWS ALB", client_ip().hops(1), from "10.0.0.2", ALONE, APPENDED),
        platform!("CloudFront, then an ALB", client_ip().hops(2), from "10.0.0.2",
            [(XFF, "203.0.113.9, 130.176.0.9")], [(XFF, "6.6.6.6, 203.0.113.9, 130.176.0.9")]),
        platform!("AWS NLB", peer_ip(), from "203.0.113.9", [], [(XFF, "6.6.6.6")]),
        platform!("Google Cloud", client_ip().hops(2), from "35.191.0.1",
            [(XFF, "203.0.113.9, 34.120.0.1")], [(XFF, "6.6.6.6, 203.0.113.9, 34.120.0.1")]),
        platform!("Azure Front Door", client_ip().hops(1).header("x-azure-socketip"), from "147.243.0.1",
            [(XFF, CLIENT), ("x-azure-clientip", CLIENT), ("x-azure-socketip", CLIENT)],
            [(XFF, "6.6.6.6, 203.0.113.9"), ("x-azure-clientip", "6.6.6.6"), ("x-azure-socketip", CLIENT)]),
        platform!("Azure App Service", client_ip().hops(1), from "169.254.130.1",
            [(XFF, "203.0.113.9:51234")], [(XFF, "6.6.6.6, 203.0.113.9:51234")]),
        platform!("Fly", client_ip().hops(1).header("fly-client-ip"), from "172.16.0.1",
            [("fly-client-ip", CLIENT)], [(XFF, "6.6.6.6, 203.0.113.9"), ("fly-client-ip", CLIENT)]),
        platform!("Render", client_ip().hops(2), from "10.21.157.68",
            [(XFF, "203.0.113.9, 104.22.17.40")], [(XFF, "6.6.6.6, 203.0.113.9, 104.22.17.40")]),
        platform!("Railway", client_ip().hops(1).header("x-real-ip"), from "100.64.0.2",
            [("x-real-ip", CLIENT)], [(XFF, "6.6.6.6"), ("x-real-ip", CLIENT)]),
        platform!("Heroku", client_ip().hops(1), from "10.1.45.23", ALONE, APPENDED),
    ]
}

#[test]
fn the_client_behind_each_platform_is_counted_whatever_it_sends() {
    for Platform {
        name,
        key,
        peer,
        sent,
        spoofed,
        ..
    } in platforms()
    {
        for headers in [sent, spoofed] {
            let found = key.extract(&request(peer, headers));
            let found = found.expect(name).as_str().to_owned();
            assert_eq!(found, format!("ip={CLIENT}"), "{name}: {headers:?}");
        }
    }
}

#[test]
fn the_guide_has_the_code_of_each_platform() {
    let page = include_str!("../../src/guide/keys.md");
    let (_, table) = page
        .split_once("| the service is behind |")
        .expect("a table");
    let rows = table
        .lines()
        .skip(2)
        .take_while(|line| line.starts_with("| "));
    let rows: Vec<_> = rows.collect();
    let platforms = platforms();
    assert_eq!(rows.len(), platforms.len());
    for (row, Platform { name, code, .. }) in rows.iter().zip(platforms) {
        assert!(row.starts_with(&format!("| {name}")), "{row}: {name}");
        assert!(row.contains(&format!("| `{code}` |")), "{row}: {code}");
    }
}
