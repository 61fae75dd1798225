//! The time to send again that the head of a response tells.

use std::time::Duration;

use http::header::DATE;
use http::{HeaderMap, StatusCode};

use super::reset::{self, BareNumber};
use crate::clock::system_time;
use crate::middleware::headers::field_names::GRPC_STATUS;
use crate::middleware::headers::split_outside_strings;
use crate::middleware::rejection::retry_delay;

/// One limit of the service, as its headers describe it.
struct Limit {
    /// Whether it has no units left.
    is_used_up: bool,
    /// Whether its status says that it refuses.
    is_rejecting: bool,
    /// The time until it has some. `None` if that makes no sense.
    reset: Option<Duration>,
}

/// The headers of a refusal that tell a wait, the most precise one first.
const WAITS: [(&str, WaitForm); 4] = [
    ("grpc-retry-pushback-ms", WaitForm::Pushback),
    ("grpc-status-details-bin", WaitForm::Details),
    ("retry-after-ms", WaitForm::Text(BareNumber::Millis)),
    ("retry-after", WaitForm::Text(BareNumber::Seconds)),
];

#[derive(Clone, Copy)]
enum WaitForm {
    Text(BareNumber),
    /// Milliseconds. A negative number forbids retries, which tells no time.
    Pushback,
    /// A `google.rpc.Status`, which may have no wait at all.
    Details,
}

/// The families of headers with the reset of a limit, and what a number says there. The `*` is the name of one limit of several,
/// such as `-tokens`, or nothing. The units left are in the header that has `remaining` in place of `reset`; instead, a header with
/// `status` may say that the limit refuses.
const RESETS: [(&str, BareNumber); 4] = [
    ("x-ratelimit-reset*", BareNumber::Seconds),
    ("x-rate-limit-reset*", BareNumber::Nothing),
    ("ratelimit-reset*", BareNumber::Seconds),
    ("anthropic-ratelimit*-reset", BareNumber::Nothing),
];

/// The header of OpenAI and Anthropic that forbids retries by `false`: `true` says nothing of when.
const SHOULD_RETRY: &str = "x-should-retry";

/// The statement of a response head about sending again.
pub(super) struct UpstreamAnswer {
    pub(super) outcome: UpstreamOutcome,
    pub(super) wait: UpstreamWait,
    /// Whether the head says that a retry is in vain, because the allowance is used up for long.
    pub(super) is_exhausted: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum UpstreamOutcome {
    /// The status itself says that too much was sent: the upstream refuses for a while, whether it tells the wait or not.
    TooMany,
    /// The upstream has not served the request, for this reason or another one.
    Refused,
    Served,
}

/// The time to send again that the head of a response tells.
pub(super) enum UpstreamWait {
    /// The head says nothing of that kind, or that it is possible to send now.
    Untold,
    /// The head tells a time that makes no sense.
    Senseless,
    Told(Duration),
}

pub(super) fn read(status: StatusCode, headers: &HeaderMap) -> UpstreamAnswer {
    // Dates follow the clock of the service.
    let now = header(headers, DATE.as_str())
        .text()
        .and_then(reset::http_date)
        .unwrap_or_else(|| Duration::from_micros(system_time()));
    // A gRPC call has the status 200, and one of its own: RESOURCE_EXHAUSTED is 8, UNAVAILABLE is 14.
    let grpc_status = header(headers, GRPC_STATUS.as_str()).text();
    let outcome = match status.as_u16() {
        // 420 is of Twitter's first API, 529 of Anthropic.
        420 | 429 | 529 => UpstreamOutcome::TooMany,
        // GitHub's secondary limits answer 403.
        403 | 408 | 413 | 500 | 502..=504 => UpstreamOutcome::Refused,
        _ if matches!(grpc_status, Some("8" | "14")) => UpstreamOutcome::Refused,
        _ => UpstreamOutcome::Served,
    };
    let mut waits = Vec::new();
    if outcome != UpstreamOutcome::Served {
        waits = refusal_waits(headers, now);
    }
    let mut limits = limits(headers, now);
    limits.sort_by_key(|limit| limit.reset);
    // A served request may be beyond a limit that rejects, as units above it are paid for.
    let is_rejected =
        outcome != UpstreamOutcome::Served && limits.iter().any(|limit| limit.is_rejecting);
    let mut resets: Vec<_> = limits
        .iter()
        .rev()
        .filter(|limit| limit.is_used_up || (is_rejected && limit.is_rejecting))
        .map(|limit| limit.reset)
        .collect();
    // A request may cost more than is left. The limit that has refused it is one of them.
    let is_limited = outcome == UpstreamOutcome::TooMany || grpc_status == Some("8");
    if is_limited && resets.is_empty() && waits.iter().all(Option::is_none) {
        resets.extend(limits.iter().map(|limit| limit.reset));
    }
    waits.append(&mut resets);
    let wait = match waits.iter().flatten().find(|wait| !wait.is_zero()) {
        Some(wait) => UpstreamWait::Told(*wait),
        None if waits.contains(&None) => UpstreamWait::Senseless,
        None => UpstreamWait::Untold,
    };
    let forbids_retries = header(headers, SHOULD_RETRY).text() == Some("false");
    UpstreamAnswer {
        outcome,
        wait,
        is_exhausted: is_rejected || (forbids_retries && outcome == UpstreamOutcome::TooMany),
    }
}

/// Reads the waits of a refusal, the most precise first. `None` is one that makes no sense.
fn refusal_waits(headers: &HeaderMap, now: Duration) -> Vec<Option<Duration>> {
    let mut waits = Vec::new();
    for (name, form) in WAITS {
        let text = match header(headers, name) {
            HeaderText::Absent => continue,
            HeaderText::Unreadable => None,
            HeaderText::Text(text) => Some(text),
        };
        let wait = text.and_then(|text| match form {
            WaitForm::Text(number) => reset::wait(text, number, now),
            WaitForm::Pushback if text.starts_with('-') => Some(Duration::ZERO),
            WaitForm::Pushback => reset::wait(text, BareNumber::Millis, now),
            WaitForm::Details => retry_delay(text),
        });
        let is_without_wait = wait == Some(Duration::ZERO) && matches!(form, WaitForm::Details);
        if !is_without_wait {
            waits.push(wait);
        }
    }
    waits
}

fn limits(headers: &HeaderMap, now: Duration) -> Vec<Limit> {
    let mut limits = Vec::new();
    for name in headers.keys().map(|name| name.as_str()) {
        for (pattern, number) in RESETS {
            if let Some(which) = starred(name, pattern) {
                let remaining = header(headers, &sibling(pattern, which, "remaining")).text();
                let status = header(headers, &sibling(pattern, which, "status")).text();
                let reset = header(headers, name).text();
                limits.push(Limit {
                    is_rejecting: status == Some("rejected"),
                    ..limit(remaining, reset, number, now)
                });
            }
        }
    }
    for line in headers.get_all("ratelimit") {
        let line = line.to_str().unwrap_or_default();
        limits.extend(draft_limits(line, now));
    }
    limits
}

fn limit(remaining: Option<&str>, reset: Option<&str>, number: BareNumber, now: Duration) -> Limit {
    Limit {
        is_used_up: remaining.and_then(reset::is_zero).unwrap_or(false),
        is_rejecting: false,
        reset: reset.and_then(|reset| reset::wait(reset, number, now)),
    }
}

/// The header about the same limit that has another word in place of `reset`.
fn sibling(pattern: &str, which: &str, word: &str) -> String {
    pattern.replace("reset", word).replace('*', which)
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
    Some(limit(remaining, reset, BareNumber::Seconds, now))
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

/// The tables of the guide's page are those of the code.
#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use http::HeaderName;

    use super::reset::{UNITS, wait};
    use super::*;

    const PAGE: &str = include_str!("../../guide/upstreams.md");

    /// 25 November 2026, 00:00:00.
    const DATE_LINE: (&str, &str) = ("date", "Wed, 25 Nov 2026 00:00:00 GMT");
    const NOW: Duration = Duration::from_secs(1_795_564_800);

    /// The cells of the table whose first line begins like this.
    fn rows(first_line: &str) -> Vec<Vec<&'static str>> {
        let (_, table) = PAGE.split_once(first_line).expect("the table");
        table
            .lines()
            .skip(2)
            .take_while(|line| line.starts_with('|'))
            .map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect())
            .collect()
    }

    /// The texts in backticks.
    fn quoted(cell: &str) -> impl Iterator<Item = &str> {
        cell.split('`').skip(1).step_by(2)
    }

    fn told(status: u16, lines: &[(&str, &str)]) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        for (name, value) in [&[DATE_LINE], lines].concat() {
            let name: HeaderName = name.to_ascii_lowercase().parse().unwrap();
            headers.append(name, value.parse().unwrap());
        }
        let status = StatusCode::from_u16(status).unwrap();
        match read(status, &headers).wait {
            UpstreamWait::Told(wait) => Some(wait),
            UpstreamWait::Senseless | UpstreamWait::Untold => None,
        }
    }

    #[test]
    fn each_header_of_the_page_is_read_as_the_page_says() {
        let rows = rows("| header | a number is |");
        assert!(rows.len() > 8, "{rows:?}");
        for row in &rows {
            let name = quoted(row[0]).next().unwrap();
            let number = row[1].split(';').next().unwrap();
            let expected = match number {
                "seconds" => Some(Duration::from_secs(30)),
                "milliseconds" => Some(Duration::from_millis(30)),
                "only a time since 1970" => None,
                // An example, or bytes.
                _ => {
                    let example = quoted(row[1]).next().unwrap();
                    let wait = example.contains('=').then_some(Duration::from_secs(30));
                    assert_eq!(told(200, &[(name, example)]), wait, "{name}");
                    assert!(wait.is_some() || name.ends_with("-bin"), "{row:?}");
                    continue;
                }
            };
            assert_eq!(told(429, &[(name, "30")]), expected, "{name}");
            let epoch = told(429, &[(name, "1795564830")]);
            let is_millis = number == "milliseconds";
            assert_eq!(
                epoch.is_some_and(|wait| wait.as_secs() == 30),
                !is_millis,
                "{name}"
            );
        }
    }

    #[test]
    fn each_header_that_is_read_is_on_the_page() {
        let names: Vec<_> = rows("| header | a number is |")
            .iter()
            .filter_map(|row| quoted(row[0]).next())
            .map(str::to_ascii_lowercase)
            .collect();
        for (name, _) in WAITS {
            assert!(names.iter().any(|listed| listed == name), "{name}");
        }
        for (pattern, _) in RESETS {
            let is_listed = names
                .iter()
                .any(|listed| starred(listed, pattern).is_some());
            assert!(is_listed, "{pattern}");
        }
        assert!(names.iter().any(|listed| listed == "ratelimit"));
    }

    #[test]
    fn each_form_of_the_page_is_understood_in_each_header_and_each_unit_is_on_it() {
        let examples: Vec<_> = rows("| form | example |")
            .iter()
            .flat_map(|row| quoted(row[1]))
            .collect();
        for number in [BareNumber::Seconds, BareNumber::Millis, BareNumber::Nothing] {
            for example in &examples {
                // A number of seconds since 1970 is a number of milliseconds elsewhere.
                let is_epoch = example.len() == 10 && number == BareNumber::Millis;
                let wait = wait(example, number, NOW);
                assert!(
                    wait.is_some_and(|wait| is_epoch || wait.as_secs() < 200_000),
                    "{example}"
                );
            }
        }
        for (unit, _) in UNITS {
            let names_unit = |example: &&str| {
                let words = example.split(|char: char| char.is_ascii_digit() || char == '.');
                words.into_iter().any(|word| word == unit)
            };
            assert!(examples.iter().any(names_unit), "{unit}");
        }
    }

    #[test]
    fn retry_after_counts_on_the_refusals_that_the_page_lists() {
        let (_, listed) = PAGE.split_once("- **`Retry-After` counts**").unwrap();
        let (listed, _) = listed.split_once(". So do").unwrap();
        let listed: BTreeSet<u16> = listed
            .split(|char: char| !char.is_ascii_digit())
            .filter_map(|number| number.parse().ok())
            .collect();
        let counts: BTreeSet<u16> = (100..600)
            .filter(|status| told(*status, &[("retry-after", "30")]).is_some())
            .collect();
        assert_eq!(listed, counts);
    }
}
