//! Tests of draft 11, with its examples.

use std::time::Duration;

use super::fixtures::{MILLISECOND, admitted, burst, decide, left, refused, used_up, written};
use crate::decision::QuotaAnswer;
use crate::middleware::headers::{Headers, IetfDraft};
use crate::quota::Algorithm;

#[test]
fn draft_11_lists_all_policies_of_an_admitted_request() {
    assert_eq!(
        written(&Headers::ietf(IetfDraft::Draft11), &admitted()),
        [
            r#"ratelimit-policy: "burst";q=100;w=60, "daily";q=1000;w=86400"#,
            r#"ratelimit: "burst";r=42;t=17, "daily";r=913;t=36000"#,
        ]
    );
}

#[test]
fn draft_11_lists_the_refusing_policies_of_a_refused_request() {
    assert_eq!(
        written(&Headers::ietf(IetfDraft::Draft11), &refused()),
        [
            r#"ratelimit-policy: "burst";q=100;w=60, "daily";q=1000;w=86400"#,
            r#"ratelimit: "burst";r=0;t=3"#,
        ]
    );
}

#[test]
fn draft_11_reports_the_time_until_all_units_of_gcra_are_back() {
    // One unit returns every 600 ms, so 7 units return in 4.2 s.
    for (used, reset, expected) in [
        (7, 100 * MILLISECOND, r#"ratelimit: "burst";r=93;t=5"#),
        (100, 600 * MILLISECOND, r#"ratelimit: "burst";r=0;t=60"#),
    ] {
        let quota = burst().with_algorithm(Algorithm::Gcra);
        let decision = decide([(quota, QuotaAnswer::admitted(used, reset))]);
        assert_eq!(
            written(&Headers::ietf(IetfDraft::Draft11), &decision)[1],
            expected
        );
    }
    let refused = used_up(burst().with_algorithm(Algorithm::Gcra), 300 * MILLISECOND);
    assert_eq!(
        written(&Headers::ietf(IetfDraft::Draft11), &decide([refused]))[1],
        r#"ratelimit: "burst";r=0;t=1"#
    );
}

#[test]
fn an_effective_window_of_0_seconds_is_omitted() {
    for algorithm in [Algorithm::Gcra, Algorithm::SlidingLog] {
        let untouched = left(burst().with_algorithm(algorithm), 100, Duration::ZERO);
        assert_eq!(
            written(&Headers::ietf(IetfDraft::Draft11), &decide([untouched]))[1],
            r#"ratelimit: "burst";r=100"#
        );
    }
}
