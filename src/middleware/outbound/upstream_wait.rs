//! The time to send again that the head of a response tells.

use std::time::Duration;

use http::header::DATE;
use http::{HeaderMap, StatusCode};

use super::reset::{self, Form};
use crate::clock::system_time;
use crate::middleware::headers::field_names::GRPC_STATUS;
use crate::middleware::headers::split_outside_strings;
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

/// The time to send again that the head of a response tells.
pub(super) enum UpstreamWait {
    /// The head says nothing of that kind, or that it is possible to send now.
    Untold,
    /// The head tells a time that makes no sense.
    Senseless,
    Told(Duration),
}

pub(super) fn read(status: StatusCode, headers: &HeaderMap) -> UpstreamWait {
    // Dates follow the clock of the service.
    let now = header(headers, DATE.as_str())
        .text()
        .and_then(reset::http_date)
        .unwrap_or_else(|| Duration::from_micros(system_time()));
    // A gRPC call has the status 200, and one of its own: RESOURCE_EXHAUSTED is 8, UNAVAILABLE is 14.
    let grpc_status = header(headers, GRPC_STATUS.as_str()).text();
    let is_limited = status == StatusCode::TOO_MANY_REQUESTS || grpc_status == Some("8");
    // GitHub's secondary limits answer 403.
    let is_refused =
        is_limited || matches!(status.as_u16(), 403 | 503) || grpc_status == Some("14");

    let mut waits = Vec::new();
    if is_refused {
        waits = refusal_waits(headers, now);
    }
    let mut limits = limits(headers, now);
    limits.sort_by_key(|limit| limit.reset);
    let mut resets: Vec<_> = limits
        .iter()
        .rev()
        .filter(|limit| limit.is_exhausted)
        .map(|limit| limit.reset)
        .collect();
    // A request may cost more than is left. The limit that has refused it is one of them.
    if is_limited && resets.is_empty() && waits.iter().all(Option::is_none) {
        resets.extend(limits.iter().map(|limit| limit.reset));
    }
    waits.append(&mut resets);
    match waits.iter().flatten().find(|wait| !wait.is_zero()) {
        Some(wait) => UpstreamWait::Told(*wait),
        None if waits.contains(&None) => UpstreamWait::Senseless,
        None => UpstreamWait::Untold,
    }
}

/// Reads the waits of a refusal, the most precise first. `None` is one that makes no sense.
fn refusal_waits(headers: &HeaderMap, now: Duration) -> Vec<Option<Duration>> {
    let mut waits = Vec::new();
    for (name, form) in WAITS {
        let wait = match header(headers, name) {
            HeaderText::Absent => continue,
            HeaderText::Unreadable => None,
            HeaderText::Text(text) => form(text, now).and_then(reset::plausible),
        };
        // Details may have no wait at all.
        if name != DETAILS || wait != Some(Duration::ZERO) {
            waits.push(wait);
        }
    }
    waits
}

fn limits(headers: &HeaderMap, now: Duration) -> Vec<Limit> {
    let mut limits = Vec::new();
    for name in headers.keys().map(|name| name.as_str()) {
        for (pattern, form) in RESETS {
            if let Some(which) = starred(name, pattern) {
                let remaining = pattern.replace("reset", "remaining").replace('*', which);
                let remaining = header(headers, &remaining).text();
                let reset = header(headers, name).text();
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

/// Finds what the `*` of a pattern stands for in a name.
fn starred<'a>(name: &'a str, pattern: &str) -> Option<&'a str> {
    let (start, end) = pattern.split_once('*')?;
    let starred = name.strip_prefix(start)?.strip_suffix(end)?;
    (starred.is_empty() || starred.starts_with('-')).then_some(starred)
}

/// Reads a line of the field `RateLimit`: a list such as `"burst";r=0;t=30, "day";r=7` since draft 08, or a dictionary
/// such as `limit=100, remaining=0, reset=30` in draft 07.
fn draft_limits(line: &str, now: Duration) -> Vec<Limit> {
    let dictionary = draft_limit(
        split_outside_strings(line, &[',']),
        "remaining",
        "reset",
        now,
    );
    let list = split_outside_strings(line, &[',']).filter_map(|item| {
        let parameters = split_outside_strings(item, &[';']);
        draft_limit(parameters, "r", "t", now)
    });
    dictionary.into_iter().chain(list).collect()
}

fn draft_limit<'a>(
    parameters: impl Iterator<Item = &'a str>,
    remaining_name: &str,
    reset_name: &str,
    now: Duration,
) -> Option<Limit> {
    let mut remaining = None;
    let mut reset = None;
    for (name, value) in parameters.filter_map(|parameter| parameter.split_once('=')) {
        // The first of several counts.
        let name = name.trim();
        if name == remaining_name && remaining.is_none() {
            remaining = Some(value.trim());
        } else if name == reset_name && reset.is_none() {
            reset = Some(value.trim());
        }
    }
    // Without a reset, the limit says nothing about when.
    reset?;
    Some(limit(remaining, reset, reset::wait, now))
}

/// The text of a header.
enum HeaderText<'a> {
    Absent,
    /// It is no text, or there are several that differ.
    Unreadable,
    Text(&'a str),
}

impl<'a> HeaderText<'a> {
    fn text(self) -> Option<&'a str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Absent | Self::Unreadable => None,
        }
    }
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> HeaderText<'a> {
    let mut values = headers.get_all(name).iter();
    let Some(first) = values.next() else {
        return HeaderText::Absent;
    };
    match first.to_str() {
        Ok(text) if values.all(|other| other == first) => HeaderText::Text(text.trim()),
        _ => HeaderText::Unreadable,
    }
}
