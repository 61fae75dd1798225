//! Helpers that these tests share with those of tollgate.
#![allow(dead_code, reason = "each test uses a part")]

#[path = "../../../../../tests/support/cluster.rs"]
pub(crate) mod cluster;
#[path = "../../../../../tests/support/malformed_urls.rs"]
pub(crate) mod malformed_urls;
#[path = "../../../../../tests/support/node.rs"]
pub(crate) mod node;
#[path = "../../../../../tests/support/process.rs"]
pub(crate) mod process;
#[path = "../../../../../tests/support/redis_server.rs"]
pub(crate) mod redis_server;
#[path = "../../../../../tests/support/relay.rs"]
pub(crate) mod relay;
#[path = "../../../../../tests/support/reply_proxy.rs"]
pub(crate) mod reply_proxy;
#[path = "../../../../../tests/support/test_time.rs"]
pub(crate) mod test_time;
#[path = "../../../../../tests/support/timeless.rs"]
pub(crate) mod timeless;
#[cfg(feature = "tls")]
#[path = "../../../../../tests/support/tls.rs"]
pub(crate) mod tls;

use std::time::Duration;

use tollgate::RedisStore;
use tollgate_doctor::{Finding, Report, Severity};

/// A store on a server, patient with a slow machine.
pub(crate) fn store_on(server: &redis_server::RedisServer) -> RedisStore {
    store_at(&server.url())
}

/// The same by a URL.
pub(crate) fn store_at(url: &str) -> RedisStore {
    let store = RedisStore::open(url).expect("a URL");
    store.deadline(Duration::from_secs(10))
}

pub(crate) fn finding<'a>(report: &'a Report, topic: &str) -> &'a Finding {
    let mut findings = report.findings().iter();
    let found = findings.find(|finding| finding.topic == topic);
    found.unwrap_or_else(|| panic!("no finding of {topic}:\n{report}"))
}

/// The severity, and the text with the remedy.
pub(crate) fn severity_and_text(report: &Report, topic: &str) -> (Severity, String) {
    let finding = finding(report, topic);
    let remedy = finding.remedy.as_deref().unwrap_or_default();
    (finding.severity, format!("{} -> {remedy}", finding.text))
}

#[track_caller]
pub(crate) fn assert_finding(report: &Report, topic: &str, severity: Severity, words: &[&str]) {
    let (found, text) = severity_and_text(report, topic);
    assert_eq!(found, severity, "{topic}: {text}");
    for word in words {
        assert!(text.contains(word), "{word} is missing: {text}");
    }
}
