//! The time to send again that the head of a response tells.

use std::time::Duration;

use http::header::DATE;
use http::{HeaderMap, StatusCode};

use super::reset::{self, Form};
use crate::clock::system_time;
use crate::middleware::headers::field_names::GRPC_STATUS;
use crate::middleware::rejection::retry_delay;

/// One limit of the service, as its headers describe it.
struct Limit {
    /// Whether it has no units left.
    is_exhausted: bool,
    /// The time until it has some. `None` if that makes no sense.
    reset: Option<Duration>,
}

/// The header with the `google.rpc.Status` of a gRPC call.
const DETAILS: &str = "grpc-status-details-bin";

/// The headers of a refusal that tell a wait, and their forms. The most precise one comes first.
const WAITS: [(&str, Form); 4] = [
    ("grpc-retry-pushback-ms", reset::pushback),
    (DETAILS, retry_delay),
    ("retry-after-ms", reset::millis),
    ("retry-after", reset::wait),
];

/// The families of headers with the reset of a limit, and their forms. The `*` is the name of one limit of several, such
/// as `-tokens`, or nothing. The units left are in the header that has `remaining` in place of `reset`.
const RESETS: [(&str, Form); 4] = [
    ("x-ratelimit-reset*", reset::wait),
    ("x-rate-limit-reset*", reset::time),
    ("ratelimit-reset*", reset::wait),
    ("anthropic-ratelimit*-reset", reset::time),
];

/// Reads how long to wait from the head of a response. `None` if it says nothing of that kind, or that it is possible to
/// send now. `Some(None)` if it makes no sense.
pub(super) fn read(status: StatusCode, headers: &HeaderMap) -> Option<Option<Duration>> {
    // Dates follow the clock of the service.
    let date = value(headers, DATE.as_str()).and_then(|date| reset::http_date(date?));
    let now = date.unwrap_or_else(|| Duration::from_micros(system_time()));
    // A gRPC call has the status 200, and one of its own: RESOURCE_EXHAUSTED is 8, UNAVAILABLE is 14.
    let grpc_status = value(headers, GRPC_STATUS.as_str()).flatten();
    let is_limited = status == StatusCode::TOO_MANY_REQUESTS || grpc_status == Some("8");
    // GitHub's secondary limits answer 403.
    let is_refused =
        is_limited || matches!(status.as_u16(), 403 | 503) || grpc_status == Some("14");

    let mut waits = Vec::new();
    for (name, form) in WAITS.into_iter().filter(|_| is_refused) {
        let wait = value(headers, name).map(|text| form(text?, now).and_then(reset::plausible));
        // Details may have no wait at all.
        waits.extend(wait.filter(|wait| name != DETAILS || *wait != Some(Duration::ZERO)));
    }
    let mut limits = limits(headers, now);
    limits.sort_by_key(|limit| limit.reset);
    let exhausted = limits.iter().rev().filter(|limit| limit.is_exhausted);
    let mut resets: Vec<_> = exhausted.map(|limit| limit.reset).collect();
    // A request may cost more than is left. The limit that has refused it is one of them.
    if is_limited && resets.is_empty() && waits.iter().all(Option::is_none) {
        resets.extend(limits.iter().map(|limit| limit.reset));
    }
    waits.append(&mut resets);
    let wait = waits.iter().flatten().find(|wait| !wait.is_zero());
    (wait.is_some() || waits.contains(&None)).then_some(wait.copied())
}

/// Returns the limits that the headers describe.
fn limits(headers: &HeaderMap, now: Duration) -> Vec<Limit> {
    let mut limits = Vec::new();
    for name in headers.keys().map(|name| name.as_str()) {
        for (pattern, form) in RESETS {
            if let (Some(which), Some(reset)) = (starred(name, pattern), value(headers, name)) {
                let remaining = pattern.replace("reset", "remaining").replace('*', which);
                let remaining = value(headers, &remaining).flatten();
                limits.push(limit(remaining, reset, form, now));
            }
        }
    }
    for line in headers.get_all("ratelimit") {
        let line = line.to_str().unwrap_or_default();
        limits.extend(draft_limits(line, now));
    }
    limits
}

fn limit(remaining: Option<&str>, reset: Option<&str>, form: Form, now: Duration) -> Limit {
    Limit {
        is_exhausted: remaining.and_then(reset::is_zero).unwrap_or(false),
        reset: reset.and_then(|reset| form(reset, now)),
    }
}

/// Returns what the `*` of a pattern stands for in a name.
fn starred<'a>(name: &'a str, pattern: &str) -> Option<&'a str> {
    let (start, end) = pattern.split_once('*')?;
    let starred = name.strip_prefix(start)?.strip_suffix(end)?;
    (starred.is_empty() || starred.starts_with('-')).then_some(starred)
}

/// Reads a line of the field `RateLimit`: a list such as `"burst";r=0;t=30, "day";r=7` since draft 08, or a dictionary
/// such as `limit=100, remaining=0, reset=30` in draft 07.
fn draft_limits(line: &str, now: Duration) -> Vec<Limit> {
    let parameters = |item: &str, names: [&str; 2]| {
        let parameters = split(item, if names == ["r", "t"] { ';' } else { ',' });
        names.map(|name| {
            let mut values = parameters.iter().filter_map(|one| one.split_once('='));
            values.find_map(|(one, value)| (one.trim() == name).then(|| value.trim().to_owned()))
        })
    };
    let described = |[remaining, reset]: [Option<String>; 2]| {
        // Without a reset, the limit says nothing about when.
        Some(limit(remaining.as_deref(), Some(&reset?), reset::wait, now))
    };
    let dictionary = described(parameters(line, ["remaining", "reset"]));
    let items = split(line, ',').into_iter();
    let items = items.filter_map(|item| described(parameters(item, ["r", "t"])));
    dictionary.into_iter().chain(items).collect()
}

/// Splits a text at a delimiter, but not within quotes.
fn split(text: &str, delimiter: char) -> Vec<&str> {
    let (mut is_quoted, mut is_escaped) = (false, false);
    let parts = text.split(|char| {
        let splits = char == delimiter && !is_quoted;
        is_quoted ^= char == '"' && !is_escaped;
        is_escaped = char == '\\' && is_quoted && !is_escaped;
        splits
    });
    parts.collect()
}

/// Returns the value of a header: `None` if there is none, `Some(None)` if it is no text or if it has several.
fn value<'a>(headers: &'a HeaderMap, name: &str) -> Option<Option<&'a str>> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?;
    if values.any(|other| other != first) {
        return Some(None);
    }
    Some(first.to_str().ok().map(str::trim))
}
