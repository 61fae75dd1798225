//! What the head of a response says about when to send again.

use std::time::Duration;

use http::header::{DATE, RETRY_AFTER};
use http::{HeaderMap, StatusCode};

use super::reset;
use crate::clock::system_time;

/// What a response says about when to send again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told {
    /// Nothing, or that it is possible now.
    Nothing,
    Wait(Duration),
    /// Something that makes no sense.
    Nonsense,
}

/// One limit of the service, as its headers describe it.
struct Limit {
    /// Whether it has no units left.
    is_exhausted: bool,
    /// The time until it has some. `None` if that makes no sense.
    reset: Option<Duration>,
}

/// Reads the head of a response.
pub(super) fn read(status: StatusCode, headers: &HeaderMap) -> Told {
    // Dates are told by the clock of the service.
    let date = value(headers, DATE.as_str()).and_then(|date| reset::since_1970(date?));
    let now = date.unwrap_or_else(|| Duration::from_micros(system_time()));
    if let Some(wait) = retry_after(status, headers, now) {
        return told(wait);
    }
    let limits = limits(headers, now);
    let exhausted = limits.iter().filter(|limit| limit.is_exhausted);
    let mut waits: Vec<_> = exhausted.map(|limit| limit.reset).collect();
    // A request may cost more than is left. The limit that has refused it is one of them.
    if waits.is_empty() && status == StatusCode::TOO_MANY_REQUESTS {
        let first = limits.iter().map(|limit| limit.reset);
        waits.extend(first.min_by_key(|wait| wait.unwrap_or(Duration::MAX)));
    }
    match waits.iter().flatten().max() {
        Some(wait) => told(Some(*wait)),
        None if waits.is_empty() => Told::Nothing,
        None => Told::Nonsense,
    }
}

fn told(wait: Option<Duration>) -> Told {
    match wait {
        None => Told::Nonsense,
        Some(Duration::ZERO) => Told::Nothing,
        Some(wait) => Told::Wait(wait),
    }
}

/// Returns the wait that `Retry-After` tells, where it tells when a limit admits. `None` if there is none.
fn retry_after(status: StatusCode, headers: &HeaderMap, now: Duration) -> Option<Option<Duration>> {
    let has_meaning = matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS
            | StatusCode::SERVICE_UNAVAILABLE
            // GitHub's secondary limits.
            | StatusCode::FORBIDDEN
    );
    if !has_meaning {
        return None;
    }
    if let Some(millis) = value(headers, "retry-after-ms") {
        return Some(millis.and_then(reset::millis));
    }
    let seconds = value(headers, RETRY_AFTER.as_str())?;
    Some(seconds.and_then(|text| reset::wait(text, now)))
}

/// Returns the limits that the headers describe.
fn limits(headers: &HeaderMap, now: Duration) -> Vec<Limit> {
    let mut limits = Vec::new();
    for name in headers.keys().map(|name| name.as_str()) {
        // GitHub has one limit, OpenAI has one of requests and one of tokens.
        for (reset, remaining) in [
            ("x-ratelimit-reset", "x-ratelimit-remaining"),
            ("ratelimit-reset", "ratelimit-remaining"),
        ] {
            let suffix = name.strip_prefix(reset);
            let suffix = suffix.filter(|suffix| suffix.is_empty() || suffix.starts_with('-'));
            if let (Some(suffix), Some(reset)) = (suffix, value(headers, name)) {
                let remaining = value(headers, &format!("{remaining}{suffix}")).flatten();
                limits.push(limit(remaining, reset, now));
            }
        }
    }
    for line in headers.get_all("ratelimit") {
        let line = line.to_str().unwrap_or_default();
        limits.extend(draft_limits(line, now));
    }
    limits
}

fn limit(remaining: Option<&str>, reset: Option<&str>, now: Duration) -> Limit {
    Limit {
        is_exhausted: remaining.and_then(reset::is_zero).unwrap_or(false),
        reset: reset.and_then(|reset| reset::wait(reset, now)),
    }
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
        let reset = reset?;
        Some(limit(remaining.as_deref(), Some(&reset), now))
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
