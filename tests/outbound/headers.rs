//! Which headers of an upstream pause a key, and for how long.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use proptest::prelude::*;
use tollgate::store::TestClock;
use tollgate::{MemoryStore, Quota, RateLimiter, Source};
use tonic_types::{ErrorDetails, StatusExt};

use crate::support::block_on;

/// The `Date` of all answers here, as a time since 1970: 1 795 564 800.
const DATE: (&str, &str) = ("date", "Wed, 25 Nov 2026 00:00:00 GMT");

/// Pauses a key only for waits that a head tells.
fn limiter() -> RateLimiter {
    let store = MemoryStore::with_clock(TestClock::new());
    RateLimiter::new(store, Quota::per_minute(1_000)).default_pause(Duration::ZERO, Duration::ZERO)
}

fn head(status: u16, lines: &[(&str, &str)]) -> (StatusCode, HeaderMap) {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        let name: HeaderName = name.to_ascii_lowercase().parse().expect("a name");
        headers.append(name, value.parse().expect("a value"));
    }
    (StatusCode::from_u16(status).expect("a status"), headers)
}

/// What an answer does to its key, with the milliseconds of the pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    Nothing,
    Paused(u128),
    Exhausted(u128),
}

/// The effect of an answer, by the limiter's checks.
fn effect(limiter: &RateLimiter, status: u16, lines: &[(&str, &str)]) -> Effect {
    let (status, headers) = head(status, lines);
    let told = limiter.observe("ada", status, &headers);
    let decision = block_on(limiter.check("ada")).expect("a decision");
    assert_eq!(decision.retry_after(), told);
    assert_eq!(decision.is_allowed(), told.is_none());
    match (told, decision.source()) {
        (None, _) => Effect::Nothing,
        (Some(wait), Source::Paused) => Effect::Paused(wait.as_millis()),
        (Some(wait), Source::Exhausted) => Effect::Exhausted(wait.as_millis()),
        (_, source) => panic!("{source:?}"),
    }
}

/// For how many milliseconds an answer pauses its key, whose allowance is not used up.
fn paused(status: u16, lines: &[(&str, &str)]) -> Option<u128> {
    match effect(&limiter(), status, lines) {
        Effect::Nothing => None,
        Effect::Paused(millis) => Some(millis),
        exhausted @ Effect::Exhausted(_) => panic!("{exhausted:?}"),
    }
}

/// As the services publish them; the guide's page names the sources.
#[test]
fn the_published_headers_of_real_services_are_understood() {
    let openai = [
        ("x-ratelimit-limit-requests", "60"),
        ("x-ratelimit-limit-tokens", "150000"),
        ("x-ratelimit-remaining-requests", "59"),
        ("x-ratelimit-remaining-tokens", "149984"),
        ("x-ratelimit-reset-requests", "1s"),
        ("x-ratelimit-reset-tokens", "6m0s"),
    ];
    assert_eq!(paused(200, &openai), None);
    let mut refused = openai;
    refused[3].1 = "0";
    assert_eq!(
        paused(429, &refused),
        Some(360_000),
        "OpenAI, no tokens left"
    );
    assert_eq!(
        paused(200, &refused),
        Some(360_000),
        "OpenAI, the last token"
    );
    let of_azure = [("retry-after-ms", "2750"), ("retry-after", "3"), refused[3]];
    assert_eq!(paused(429, &of_azure), Some(2_750), "Azure OpenAI");
    let unknown = [
        ("x-ratelimit-remaining-tokens", "-1"),
        ("x-ratelimit-reset-tokens", "0"),
    ];
    assert_eq!(paused(200, &unknown), None, "Azure OpenAI, unknown numbers");

    let github = |status, remaining| {
        let lines = [
            DATE,
            ("x-ratelimit-limit", "60"),
            ("x-ratelimit-remaining", remaining),
            ("x-ratelimit-used", "60"),
            ("x-ratelimit-reset", "1795564920"),
        ];
        paused(status, &lines)
    };
    assert_eq!(github(200, "12"), None);
    assert_eq!(github(403, "0"), Some(120_000), "GitHub's primary limit");
    assert_eq!(github(200, "0"), Some(120_000), "GitHub's last request");
    let secondary = [DATE, ("retry-after", "60"), ("x-ratelimit-remaining", "12")];
    assert_eq!(
        paused(403, &secondary),
        Some(60_000),
        "GitHub's secondary limit"
    );

    let cloudflare = |status, lines: &[(&str, &str)]| {
        let policy = ("ratelimit-policy", r#""burst";q=100;w=60"#);
        paused(status, &[lines, &[policy]].concat())
    };
    let left = ("ratelimit", r#""default";r=50;t=30"#);
    let none = ("ratelimit", r#""default";r=0;t=30"#);
    assert_eq!(cloudflare(200, &[left]), None);
    assert_eq!(cloudflare(200, &[none]), Some(30_000), "Cloudflare");
    let refused = [none, ("retry-after", "31")];
    assert_eq!(cloudflare(429, &refused), Some(31_000), "Cloudflare");

    let gitlab = [
        DATE,
        ("ratelimit-limit", "60"),
        ("ratelimit-observed", "67"),
        ("ratelimit-remaining", "0"),
        ("ratelimit-reset", "1795564830"),
        ("ratelimit-resettime", "Wed, 25 Nov 2026 00:00:30 GMT"),
    ];
    assert_eq!(paused(429, &gitlab), Some(30_000), "GitLab");
    let gitlab = [&gitlab[..], &[("retry-after", "30")]].concat();
    assert_eq!(paused(429, &gitlab), Some(30_000), "GitLab");

    let discord = [
        DATE,
        ("x-ratelimit-limit", "5"),
        ("x-ratelimit-remaining", "0"),
        ("x-ratelimit-reset", "1795564801.250"),
        ("x-ratelimit-reset-after", "1.25"),
        ("x-ratelimit-bucket", "abcd1234"),
    ];
    assert_eq!(paused(200, &discord), Some(1_250), "Discord");
    let global = [("retry-after", "65"), ("x-ratelimit-global", "true")];
    assert_eq!(paused(429, &global), Some(65_000), "Discord");

    let reddit = [
        ("x-ratelimit-used", "600"),
        ("x-ratelimit-remaining", "0.0"),
        ("x-ratelimit-reset", "183"),
    ];
    assert_eq!(paused(200, &reddit), Some(183_000), "Reddit");
    assert_eq!(paused(429, &[("retry-after", "30")]), Some(30_000), "Slack");
    assert_eq!(
        paused(429, &[("retry-after", "2.0")]),
        Some(2_000),
        "Shopify"
    );
    let anthropic = [
        ("retry-after", "12"),
        ("anthropic-ratelimit-requests-remaining", "0"),
        ("anthropic-ratelimit-requests-reset", "2026-11-25T00:00:12Z"),
    ];
    assert_eq!(paused(429, &anthropic), Some(12_000), "Anthropic");
}

/// X and Okta tell the time of the reset. Others with these names tell seconds or milliseconds, which cannot be told apart.
#[test]
fn the_reset_of_x_and_okta_is_a_time() {
    let x = |status, remaining, reset| {
        let lines = [
            DATE,
            ("x-rate-limit-limit", "900"),
            ("x-rate-limit-remaining", remaining),
            ("x-rate-limit-reset", reset),
        ];
        paused(status, &lines)
    };
    assert_eq!(x(200, "1", "1795565700"), None);
    assert_eq!(x(200, "0", "1795565700"), Some(900_000), "the last request");
    assert_eq!(x(429, "0", "1795565700"), Some(900_000), "X");
    assert_eq!(x(429, "7", "1795564830"), Some(30_000), "a costly request");
    for reset in ["30", "30000", "soon"] {
        assert_eq!(x(429, "0", reset), None, "{reset}");
    }
    assert_eq!(x(429, "0", "30s"), Some(30_000), "a unit that is named");
}

#[test]
fn the_resets_of_anthropic_are_times_of_rfc_3339() {
    let lines = |tokens, reset| {
        [
            DATE,
            ("anthropic-ratelimit-requests-limit", "1000"),
            ("anthropic-ratelimit-requests-remaining", "999"),
            ("anthropic-ratelimit-requests-reset", "2026-11-24T23:59:59Z"),
            ("anthropic-ratelimit-input-tokens-remaining", tokens),
            ("anthropic-ratelimit-input-tokens-reset", reset),
            ("anthropic-ratelimit-tokens-remaining", "96000"),
            ("anthropic-ratelimit-tokens-reset", "2026-11-25T00:01:00Z"),
        ]
    };
    let reset = "2026-11-25T00:00:41Z";
    assert_eq!(paused(200, &lines("80000", reset)), None);
    assert_eq!(paused(200, &lines("0", reset)), Some(41_000));
    assert_eq!(paused(429, &lines("0", reset)), Some(41_000));
    assert_eq!(paused(429, &lines("7000", reset)), Some(41_000));
    let told = [&lines("0", reset)[..], &[("retry-after", "12")]].concat();
    assert_eq!(paused(429, &told), Some(12_000));
    assert_eq!(paused(429, &lines("0", "1795564841")), Some(41_000));
    assert_eq!(paused(200, &lines("0", "2026-11-25 00:00:41")), None);
}

/// A refusal by gRPC: the status 200, and another one among the headers.
fn paused_by_grpc(grpc_status: &str, lines: &[(&str, &str)]) -> Option<u128> {
    paused(200, &[&[("grpc-status", grpc_status)], lines].concat())
}

#[test]
fn a_refusal_by_grpc_is_understood() {
    let pushback = |text| [("grpc-retry-pushback-ms", text)];
    for (grpc_status, expected) in [
        ("8", Some(2_750)),
        ("14", Some(2_750)),
        ("0", None),
        ("10", None),
        ("16", None),
        ("x", None),
    ] {
        let paused = paused_by_grpc(grpc_status, &pushback("2750"));
        assert_eq!(paused, expected, "{grpc_status}");
    }
    // It forbids retries.
    assert_eq!(paused_by_grpc("8", &pushback("-1")), None);
    assert_eq!(paused_by_grpc("8", &pushback("soon")), None);
    assert_eq!(paused_by_grpc("8", &[]), None);
    assert_eq!(paused(200, &pushback("2750")), None);
    let less_precise = [pushback("2750")[0], ("retry-after", "3")];
    assert_eq!(paused_by_grpc("8", &less_precise), Some(2_750));
    assert_eq!(paused_by_grpc("8", &less_precise[1..]), Some(3_000));
}

/// As a client of tonic sees it, also if it came in trailers.
#[test]
fn the_details_of_a_grpc_status_are_understood() {
    let paused = |details| {
        let code = tonic::Code::ResourceExhausted;
        let status = tonic::Status::with_error_details(code, "slow down", details);
        let mut headers = HeaderMap::new();
        status.add_header(&mut headers).expect("headers");
        limiter().observe("ada", StatusCode::OK, &headers)
    };
    let wait = Duration::from_millis(1_250);
    let mut details = ErrorDetails::with_retry_info(Some(wait));
    assert_eq!(paused(details.clone()), Some(wait));
    details.add_quota_failure_violation("ada", "too many");
    assert_eq!(paused(details), Some(wait));
    assert_eq!(paused(ErrorDetails::with_retry_info(None)), None);
    let other = ErrorDetails::with_quota_failure_violation("ada", "too many");
    assert_eq!(paused(other), None);
    assert_eq!(paused(ErrorDetails::new()), None);
    // A client of tonic keeps the other trailers, too.
    let (_, trailers) = head(
        200,
        &[("grpc-status", "8"), ("grpc-retry-pushback-ms", "2750")],
    );
    let status = tonic::Status::from_header_map(&trailers).expect("a status");
    let mut headers = HeaderMap::new();
    status.add_header(&mut headers).expect("headers");
    let told = limiter().observe("ada", StatusCode::OK, &headers);
    assert_eq!(told, Some(Duration::from_millis(2_750)));
}

#[test]
fn details_of_a_grpc_status_without_a_wait_hide_no_other_header() {
    let paused = |details, name, value| {
        let code = tonic::Code::ResourceExhausted;
        let status = tonic::Status::with_error_details(code, "slow down", details);
        let mut headers = HeaderMap::new();
        status.add_header(&mut headers).expect("headers");
        headers.insert(name, HeaderValue::from_static(value));
        limiter().observe("ada", StatusCode::OK, &headers)
    };
    let ten_years = ErrorDetails::with_retry_info(Some(Duration::from_secs(315_360_000)));
    let wait = paused(ten_years, "retry-after", "20");
    assert_eq!(wait, Some(Duration::from_secs(3_600)));
    let other = ErrorDetails::with_quota_failure_violation("ada", "too many");
    let wait = paused(other, "ratelimit", "\"default\";r=3;t=30");
    assert_eq!(wait, Some(Duration::from_secs(30)));
}

#[test]
fn the_drafts_of_the_ietf_are_understood() {
    let until_06 = [
        ("ratelimit-limit", "100, 100;w=60"),
        ("ratelimit-remaining", "0"),
        ("ratelimit-reset", "50"),
    ];
    assert_eq!(paused(200, &until_06), Some(50_000));
    let draft_07 = |remaining| {
        let line = format!("limit=100, remaining={remaining}, reset=50");
        paused(200, &[("ratelimit", &line)])
    };
    assert_eq!(draft_07(0), Some(50_000));
    assert_eq!(draft_07(1), None);
    let since_08 = |line| paused(200, &[("ratelimit", line)]);
    assert_eq!(
        since_08(r#""day";r=7;t=900, "minute";r=0;t=12"#),
        Some(12_000)
    );
    // Names in quotes may contain anything.
    assert_eq!(since_08(r#""a,b;r=0;t=9,c";r=7;t=900"#), None);
    assert_eq!(since_08(r#""a\",b;r=0;t=9,c";r=7;t=900"#), None);
    assert_eq!(since_08(r#""day";r=0"#), None);
    let lines = [
        ("ratelimit", r#""a";r=0;t=5"#),
        ("ratelimit", r#""b";r=0;t=8"#),
    ];
    assert_eq!(paused(200, &lines), Some(8_000));
}

#[test]
fn a_date_counts_from_the_date_of_the_answer() {
    let date = ("retry-after", "Wed, 25 Nov 2026 00:02:00 GMT");
    assert_eq!(paused(503, &[DATE, date]), Some(120_000));
    // The clock of this machine says something else.
    let other = ("date", "Wed, 25 Nov 2026 00:01:00 GMT");
    assert_eq!(paused(503, &[other, date]), Some(60_000));
}

#[test]
fn a_refusal_without_retry_after_waits_for_an_exhausted_limit_or_else_for_the_first_reset() {
    let reset = [
        ("x-ratelimit-reset-requests", "90s"),
        ("x-ratelimit-reset-tokens", "20s"),
    ];
    let exhausted = [&reset[..], &[("x-ratelimit-remaining-requests", "0")]].concat();
    assert_eq!(paused(429, &exhausted), Some(90_000));
    // More tokens than are left were asked for.
    let left = [&reset[..], &[("x-ratelimit-remaining-tokens", "200")]].concat();
    assert_eq!(paused(429, &left), Some(20_000));
    for status in [200, 403, 500, 503] {
        assert_eq!(paused(status, &left), None, "{status}");
    }
}

#[test]
fn what_one_header_does_not_tell_another_one_does() {
    let exhausted = [
        ("x-ratelimit-remaining-tokens", "0"),
        ("x-ratelimit-reset-tokens", "6m0s"),
    ];
    for retry_after in [
        ("retry-after", "0"),
        ("retry-after", "soon"),
        ("retry-after", "2026-11-24T23:59:59Z"),
        ("retry-after-ms", "0"),
        ("retry-after-ms", "x"),
    ] {
        for status in [429, 503, 403] {
            let lines = [&[retry_after], &exhausted[..]].concat();
            assert_eq!(
                paused(status, &lines),
                Some(360_000),
                "{status} {retry_after:?}"
            );
        }
        assert_eq!(paused(429, &[retry_after]), None, "{retry_after:?}");
    }
    for millis in ["x", "-5", "0", ""] {
        let lines = [("retry-after-ms", millis), ("retry-after", "20")];
        assert_eq!(paused(429, &lines), Some(20_000), "{millis}");
    }
    let grpc = [
        ("grpc-retry-pushback-ms", "x"),
        ("grpc-status-details-bin", "!"),
        ("retry-after", "20"),
    ];
    assert_eq!(paused_by_grpc("8", &grpc), Some(20_000));
    // Of two resets, the one that makes sense.
    let twice = [
        ("x-ratelimit-remaining-requests", "0"),
        ("x-ratelimit-reset-requests", "soon"),
    ];
    assert_eq!(paused(200, &[twice, exhausted].concat()), Some(360_000));
    // It is possible to send now: what is not exhausted has not refused.
    let left = [
        ("retry-after", "0"),
        ("x-ratelimit-remaining-tokens", "200"),
        ("x-ratelimit-reset-tokens", "6m0s"),
    ];
    assert_eq!(paused(429, &left), None);
    let full = [
        ("x-ratelimit-reset-requests", "0s"),
        ("x-ratelimit-reset-tokens", "20s"),
    ];
    assert_eq!(paused(429, &full), Some(20_000));
}

#[test]
fn an_answer_without_headers_pauses_nothing() {
    for status in 200..600 {
        assert_eq!(paused(status, &[DATE]), None, "{status}");
    }
    // Headers that have another meaning there.
    assert_eq!(paused(301, &[("retry-after", "60")]), None);
    assert_eq!(paused(200, &[("retry-after", "60")]), None);
    assert_eq!(paused(429, &[("retry-after", "0")]), None);
}

#[test]
fn nonsense_changes_nothing() {
    for (status, lines) in [
        (429, &[("retry-after", "-1")][..]),
        (429, &[("retry-after", "soon")]),
        (429, &[("retry-after", "10"), ("retry-after", "20")]),
        (
            429,
            &[DATE, ("retry-after", "Tue, 24 Nov 2026 23:00:00 GMT")],
        ),
        (429, &[("retry-after-ms", "-5"), ("retry-after", "soon")]),
        (429, &[DATE, ("x-ratelimit-reset", "1795564000")]),
        (
            200,
            &[("x-ratelimit-remaining", "-0"), ("x-ratelimit-reset", "9")],
        ),
        (
            200,
            &[
                ("x-ratelimit-remaining", "0"),
                ("x-ratelimit-remaining", "7"),
                ("x-ratelimit-reset", "9"),
            ],
        ),
    ] {
        assert_eq!(paused(status, lines), None, "{status} {lines:?}");
    }
    // Once more is not another value.
    let twice = [("retry-after", "10"), ("retry-after", "10")];
    assert_eq!(paused(429, &twice), Some(10_000));
}

#[test]
fn a_wait_is_cut_to_the_longest_pause() {
    let none_left = ("x-ratelimit-remaining", "0");
    for (status, lines) in [
        (429, &[("retry-after", "2678401")][..]),
        (429, &[("retry-after", "99999999999999999999")]),
        (429, &[("retry-after-ms", "99999999999999999999")]),
        (429, &[("retry-after", "Thu, 25 Nov 2094 00:00:00 GMT")]),
        (200, &[none_left, ("x-ratelimit-reset", "32d")]),
        (200, &[none_left, ("x-ratelimit-reset", "3942259200")]),
        (
            200,
            &[none_left, ("x-ratelimit-reset", "2094-11-25T00:00:00Z")],
        ),
        (200, &[("ratelimit", r#""default";r=0;t=99999999999"#)]),
    ] {
        let effect = effect(&limiter(), status, lines);
        assert_eq!(effect, Effect::Exhausted(3_600_000), "{lines:?}");
    }
    let (status, headers) = head(429, &[("retry-after", "7200")]);
    let hour = Duration::from_secs(3_600);
    assert_eq!(limiter().observe("ada", status, &headers), Some(hour));
    let limiter = limiter().max_pause(2 * hour).name("patient");
    assert_eq!(limiter.observe("ada", status, &headers), Some(2 * hour));
}

/// Heads of services: the service, the status, the lines with a bar between, and the effect.
const HEADS: [(&str, u16, &str, Effect); 100] = [
    ("GitHub", 403, "retry-after: 60", Effect::Paused(60_000)),
    ("GitHub", 429, "retry-after: 1", Effect::Paused(1_000)),
    (
        "GitHub",
        403,
        "x-ratelimit-remaining: 0 | x-ratelimit-reset: 1795564920",
        Effect::Paused(120_000),
    ),
    (
        "GitHub",
        200,
        "x-ratelimit-remaining: 0 | x-ratelimit-reset: 1795564920",
        Effect::Paused(120_000),
    ),
    (
        "GitHub",
        200,
        "x-ratelimit-remaining: 1 | x-ratelimit-reset: 1795564920",
        Effect::Nothing,
    ),
    (
        "GitHub",
        403,
        "x-ratelimit-remaining: 12 | x-ratelimit-reset: 1795564920",
        Effect::Nothing,
    ),
    (
        "GitLab",
        429,
        "retry-after: 30 | ratelimit-remaining: 0 | ratelimit-reset: 1795564830",
        Effect::Paused(30_000),
    ),
    (
        "GitLab",
        200,
        "ratelimit-remaining: 0 | ratelimit-reset: 1795564830",
        Effect::Paused(30_000),
    ),
    (
        "GitLab",
        429,
        "ratelimit-resettime: Wed, 25 Nov 2026 00:00:30 GMT",
        Effect::Nothing,
    ),
    (
        "Mastodon",
        429,
        "x-ratelimit-remaining: 0 | x-ratelimit-reset: 2026-11-25T00:05:00.123456Z",
        Effect::Paused(300_123),
    ),
    (
        "Mastodon",
        200,
        "x-ratelimit-remaining: 299 | x-ratelimit-reset: 2026-11-25T00:05:00.123456Z",
        Effect::Nothing,
    ),
    (
        "Mastodon",
        429,
        "x-ratelimit-reset: 2026-11-25T00:05:00.123456Z",
        Effect::Paused(300_123),
    ),
    (
        "Discord",
        429,
        "retry-after: 65 | x-ratelimit-global: true",
        Effect::Paused(65_000),
    ),
    ("Discord", 429, "retry-after: 0.75", Effect::Paused(750)),
    (
        "Discord",
        200,
        "x-ratelimit-remaining: 0 | x-ratelimit-reset: 1795564801.250 | x-ratelimit-reset-after: 1.25",
        Effect::Paused(1_250),
    ),
    ("Slack", 429, "retry-after: 30", Effect::Paused(30_000)),
    ("Slack", 503, "retry-after: 5", Effect::Paused(5_000)),
    (
        "OpenAI",
        429,
        "retry-after-ms: 998 | retry-after: 1",
        Effect::Paused(998),
    ),
    (
        "OpenAI",
        200,
        "x-ratelimit-remaining-requests: 0 | x-ratelimit-reset-requests: 8.64s",
        Effect::Paused(8_640),
    ),
    (
        "OpenAI",
        200,
        "x-ratelimit-remaining-tokens: 0 | x-ratelimit-reset-tokens: 6m0s",
        Effect::Paused(360_000),
    ),
    (
        "OpenAI",
        200,
        "x-ratelimit-remaining-tokens: 150 | x-ratelimit-reset-tokens: 6m0s",
        Effect::Nothing,
    ),
    (
        "OpenAI",
        429,
        "x-ratelimit-remaining-tokens: 150 | x-ratelimit-reset-tokens: 92ms",
        Effect::Paused(92),
    ),
    ("OpenAI", 503, "retry-after: 2", Effect::Paused(2_000)),
    (
        "Azure OpenAI",
        429,
        "retry-after-ms: 2750 | retry-after: 3",
        Effect::Paused(2_750),
    ),
    (
        "Azure OpenAI",
        429,
        "retry-after: 86400",
        Effect::Exhausted(3_600_000),
    ),
    ("Azure OpenAI", 408, "retry-after: 4", Effect::Paused(4_000)),
    (
        "Anthropic",
        429,
        "retry-after: 12 | anthropic-ratelimit-requests-remaining: 0 | anthropic-ratelimit-requests-reset: 2026-11-25T00:00:12Z",
        Effect::Paused(12_000),
    ),
    (
        "Anthropic",
        200,
        "anthropic-ratelimit-input-tokens-remaining: 0 | anthropic-ratelimit-input-tokens-reset: 2026-11-25T00:00:41Z",
        Effect::Paused(41_000),
    ),
    (
        "Anthropic",
        429,
        "anthropic-ratelimit-tokens-reset: 2026-11-25T00:00:41Z",
        Effect::Paused(41_000),
    ),
    ("Anthropic", 529, "retry-after: 7", Effect::Paused(7_000)),
    ("Anthropic", 529, "x-should-retry: true", Effect::Nothing),
    (
        "Anthropic",
        429,
        "retry-after: 13262",
        Effect::Exhausted(3_600_000),
    ),
    (
        "Anthropic",
        429,
        "anthropic-ratelimit-unified-5h-status: rejected | anthropic-ratelimit-unified-5h-reset: 1795565400",
        Effect::Exhausted(600_000),
    ),
    (
        "Anthropic",
        200,
        "anthropic-ratelimit-unified-5h-status: allowed | anthropic-ratelimit-unified-5h-reset: 1795565400",
        Effect::Nothing,
    ),
    (
        "Anthropic",
        429,
        "anthropic-ratelimit-unified-5h-status: allowed | anthropic-ratelimit-unified-5h-reset: 1795564860 | anthropic-ratelimit-unified-7d-status: rejected | anthropic-ratelimit-unified-7d-reset: 1795565400",
        Effect::Exhausted(600_000),
    ),
    (
        "Anthropic",
        200,
        "anthropic-ratelimit-unified-5h-status: rejected | anthropic-ratelimit-unified-5h-utilization: 1.04 | anthropic-ratelimit-unified-5h-reset: 1795565400 | anthropic-ratelimit-unified-overage-status: allowed",
        Effect::Nothing,
    ),
    (
        "Anthropic",
        429,
        "retry-after: 13262 | anthropic-ratelimit-unified-status: rejected | anthropic-ratelimit-unified-reset: 1795578062",
        Effect::Exhausted(3_600_000),
    ),
    (
        "OpenAI",
        429,
        "retry-after: 20 | x-should-retry: false",
        Effect::Exhausted(20_000),
    ),
    (
        "OpenAI",
        503,
        "retry-after: 20 | x-should-retry: false",
        Effect::Paused(20_000),
    ),
    ("OpenAI", 400, "x-should-retry: false", Effect::Nothing),
    (
        "Groq",
        429,
        "retry-after: 2 | x-ratelimit-reset-tokens: 7.66s",
        Effect::Paused(2_000),
    ),
    (
        "Groq",
        200,
        "x-ratelimit-remaining-requests: 0 | x-ratelimit-reset-requests: 2m59.56s",
        Effect::Paused(179_560),
    ),
    (
        "X",
        429,
        "x-rate-limit-remaining: 0 | x-rate-limit-reset: 1795565700",
        Effect::Paused(900_000),
    ),
    (
        "X",
        200,
        "x-rate-limit-remaining: 0 | x-rate-limit-reset: 1795565700",
        Effect::Paused(900_000),
    ),
    ("X", 429, "x-rate-limit-reset: 30", Effect::Nothing),
    ("X", 420, "retry-after: 45", Effect::Paused(45_000)),
    (
        "Okta",
        429,
        "x-rate-limit-remaining: 0 | x-rate-limit-reset: 1795564860",
        Effect::Paused(60_000),
    ),
    (
        "Reddit",
        200,
        "x-ratelimit-remaining: 0.0 | x-ratelimit-reset: 183",
        Effect::Paused(183_000),
    ),
    (
        "Reddit",
        429,
        "x-ratelimit-reset: 183",
        Effect::Paused(183_000),
    ),
    ("Stripe", 429, "stripe-should-retry: true", Effect::Nothing),
    ("Stripe", 500, "stripe-should-retry: true", Effect::Nothing),
    ("Shopify", 429, "retry-after: 2.0", Effect::Paused(2_000)),
    ("Zendesk", 429, "retry-after: 93", Effect::Paused(93_000)),
    (
        "Zendesk",
        429,
        "ratelimit-remaining: 0 | ratelimit-reset: 41",
        Effect::Paused(41_000),
    ),
    ("Zendesk", 503, "retry-after: 10", Effect::Paused(10_000)),
    ("Notion", 429, "retry-after: 3", Effect::Paused(3_000)),
    ("Notion", 529, "retry-after: 3", Effect::Paused(3_000)),
    (
        "Spotify",
        429,
        "retry-after: 13262",
        Effect::Exhausted(3_600_000),
    ),
    ("Spotify", 502, "retry-after: 1", Effect::Paused(1_000)),
    (
        "Twitch",
        429,
        "ratelimit-remaining: 0 | ratelimit-reset: 1795564825",
        Effect::Paused(25_000),
    ),
    ("Dropbox", 429, "retry-after: 300", Effect::Paused(300_000)),
    ("Dropbox", 503, "retry-after: 15", Effect::Paused(15_000)),
    ("Box", 429, "retry-after: 100", Effect::Paused(100_000)),
    ("Box", 500, "retry-after: 8", Effect::Paused(8_000)),
    (
        "Microsoft Graph",
        429,
        "retry-after: 10",
        Effect::Paused(10_000),
    ),
    (
        "Microsoft Graph",
        503,
        "retry-after: Wed, 25 Nov 2026 00:00:20 GMT",
        Effect::Paused(20_000),
    ),
    (
        "Microsoft Graph",
        504,
        "retry-after: 20",
        Effect::Paused(20_000),
    ),
    (
        "Zoom",
        429,
        "retry-after: 2026-11-25T00:00:00Z | x-ratelimit-remaining: 0",
        Effect::Nothing,
    ),
    (
        "Zoom",
        429,
        "retry-after: 2026-11-25T08:00:00+07:30",
        Effect::Paused(1_800_000),
    ),
    (
        "Zoom",
        429,
        "retry-after: 2026-11-26T00:00:00Z",
        Effect::Exhausted(3_600_000),
    ),
    (
        "SendGrid",
        429,
        "x-ratelimit-remaining: 0 | x-ratelimit-reset: 1795564807",
        Effect::Paused(7_000),
    ),
    (
        "Vimeo",
        429,
        "x-ratelimit-remaining: 0 | x-ratelimit-reset: 2026-11-24T19:01:00-05:00",
        Effect::Paused(60_000),
    ),
    (
        "Cloudflare",
        429,
        "retry-after: 31 | ratelimit: \"default\";r=0;t=30",
        Effect::Paused(31_000),
    ),
    (
        "Cloudflare",
        200,
        "ratelimit: \"default\";r=0;t=30",
        Effect::Paused(30_000),
    ),
    (
        "Cloudflare",
        200,
        "ratelimit: \"default\";r=50;t=30",
        Effect::Nothing,
    ),
    (
        "Cloudflare",
        503,
        "retry-after: 120",
        Effect::Paused(120_000),
    ),
    ("nginx", 503, "retry-after: 5", Effect::Paused(5_000)),
    ("nginx", 413, "retry-after: 60", Effect::Paused(60_000)),
    ("nginx", 413, "content-length: 0", Effect::Nothing),
    (
        "IETF draft 06",
        200,
        "ratelimit-remaining: 0 | ratelimit-reset: 50",
        Effect::Paused(50_000),
    ),
    (
        "IETF draft 07",
        200,
        "ratelimit: limit=100, remaining=0, reset=50",
        Effect::Paused(50_000),
    ),
    (
        "IETF draft 08",
        429,
        "ratelimit: \"day\";r=7;t=900, \"minute\";r=0;t=12",
        Effect::Paused(12_000),
    ),
    (
        "IETF draft 08",
        200,
        "ratelimit: \"default\";r=0;t=99999999999999999999",
        Effect::Exhausted(3_600_000),
    ),
    (
        "gRPC",
        200,
        "grpc-status: 8 | grpc-retry-pushback-ms: 2750",
        Effect::Paused(2_750),
    ),
    (
        "gRPC",
        200,
        "grpc-status: 14 | grpc-retry-pushback-ms: 2750",
        Effect::Paused(2_750),
    ),
    (
        "gRPC",
        200,
        "grpc-status: 8 | grpc-retry-pushback-ms: -1",
        Effect::Nothing,
    ),
    (
        "gRPC",
        200,
        "grpc-status: 0 | grpc-retry-pushback-ms: 2750",
        Effect::Nothing,
    ),
    (
        "Any",
        429,
        "retry-after: 2678400",
        Effect::Exhausted(3_600_000),
    ),
    (
        "Any",
        429,
        "retry-after: 2678401",
        Effect::Exhausted(3_600_000),
    ),
    (
        "Any",
        429,
        "retry-after: 1795564830",
        Effect::Paused(30_000),
    ),
    (
        "Any",
        429,
        "retry-after: 1795564830250",
        Effect::Paused(30_250),
    ),
    ("Any", 429, "retry-after: 20ms", Effect::Paused(20)),
    ("Any", 200, "retry-after: 60", Effect::Nothing),
    ("Any", 301, "retry-after: 60", Effect::Nothing),
    ("Any", 404, "retry-after: 60", Effect::Nothing),
    ("Any", 409, "retry-after: 60", Effect::Nothing),
    ("Any", 429, "retry-after: 0", Effect::Nothing),
    ("Any", 429, "retry-after: -1", Effect::Nothing),
    ("Any", 429, "retry-after: soon", Effect::Nothing),
    (
        "Any",
        429,
        "retry-after: Tue, 24 Nov 2026 23:59:59 GMT",
        Effect::Nothing,
    ),
];

#[test]
fn each_head_of_a_service_pauses_its_key_for_as_long_as_it_says() {
    for (service, status, head, expected) in HEADS {
        let lines = head
            .split(" | ")
            .map(|line| line.split_once(": ").expect("a header"));
        let lines: Vec<_> = [DATE].into_iter().chain(lines).collect();
        let effect = effect(&limiter(), status, &lines);
        assert_eq!(effect, expected, "{service}: {status} {head}");
    }
}

/// The names that are read, and the characters that their values are made of.
const NAMES: [&str; 22] = [
    "x-should-retry",
    "anthropic-ratelimit-unified-5h-reset",
    "anthropic-ratelimit-unified-5h-status",
    "grpc-retry-pushback-ms",
    "grpc-status",
    "grpc-status-details-bin",
    "anthropic-ratelimit-tokens-remaining",
    "anthropic-ratelimit-tokens-reset",
    "x-rate-limit-remaining",
    "x-rate-limit-reset",
    "date",
    "retry-after",
    "retry-after-ms",
    "ratelimit",
    "ratelimit-remaining",
    "ratelimit-reset",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "x-ratelimit-remaining-tokens",
    "x-ratelimit-reset-tokens",
    "x-ratelimit-reset-",
    "x-ratelimit-reset\u{2d}after",
];

fn line() -> impl Strategy<Value = (&'static str, Vec<u8>)> {
    let value = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..40),
        "[-+0-9.,;=\"\\\\ hmsdrt]{0,40}".prop_map(String::into_bytes),
        "[0-9]{1,4}-[01][0-9]-[0-3][0-9][Tt ][0-9:.]{0,12}[-+Z][0-9:]{0,6}"
            .prop_map(String::into_bytes),
        "8|14|false|rejected|[A-Za-z0-9+/]{0,60}".prop_map(String::into_bytes),
        "[0-9]{1,25}(\\.[0-9]{0,60})?(ms|s|m|h|d)?".prop_map(String::into_bytes),
        "(\"[a-z\",;\\\\]{0,6}\";r=[0-9]{1,20};t=[0-9]{1,20},? ?){0,4}"
            .prop_map(String::into_bytes),
    ];
    (prop::sample::select(&NAMES[..]), value)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    /// Whatever a service sends: nothing panics, and no key is paused for longer than the bound.
    #[test]
    fn any_headers_are_read(
        status in prop::sample::select(&[200_u16, 403, 420, 429, 500, 503, 529][..]),
        lines in prop::collection::vec(line(), 0..8),
    ) {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            if let Ok(value) = HeaderValue::from_bytes(&value) {
                headers.append(name, value);
            }
        }
        let status = StatusCode::from_u16(status).expect("a status");
        for longest in [Duration::ZERO, Duration::from_secs(86_400)] {
            let limiter = limiter()
                .default_pause(Duration::from_secs(1), Duration::MAX)
                .max_exhausted_pause(longest);
            let paused = limiter.observe("ada", status, &headers);
            let longest = longest.max(Duration::from_secs(3_600));
            prop_assert!(paused.is_none_or(|paused| !paused.is_zero() && paused <= longest));
        }
    }

    /// Headers of other names change nothing.
    #[test]
    fn other_headers_pause_nothing(
        names in prop::collection::vec("[a-z-]{1,20}", 0..8),
        value in "[0-9]{1,4}",
    ) {
        let mut headers = HeaderMap::new();
        let is_read = |name: &str| name.contains("ratelimit") || name.contains("rate-limit");
        let is_other = |name: &&String| !is_read(name) && !name.starts_with("retry-after");
        for name in names.iter().filter(is_other) {
            let name: HeaderName = name.parse().expect("a name");
            headers.append(name, value.parse().expect("a value"));
        }
        let paused = limiter().observe("ada", StatusCode::TOO_MANY_REQUESTS, &headers);
        prop_assert_eq!(paused, None);
    }
}
