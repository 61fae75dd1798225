//! Tests of properties that several dialects have.

use std::time::Duration;

use super::fixtures::{
    DRAFTS, MILLISECOND, SECOND, admitted, both, burst, daily, decide, left, used_up, written,
};
use crate::decision::{Answer, QuotaAnswer, Source};
use crate::limiter::Decision;
use crate::middleware::headers::{Headers, IetfDraft};
use crate::quota::{Quota, Quotas};

#[test]
fn both_of_two_dialects_are_written() {
    let x_ratelimit = Headers::x_ratelimit().delta_reset();
    let draft_11 = Headers::ietf(IetfDraft::Draft11);
    assert_eq!(
        written(&x_ratelimit.clone().and(draft_11.clone()), &admitted()),
        [
            written(&x_ratelimit, &admitted()),
            written(&draft_11, &admitted())
        ]
        .concat()
    );
}

#[test]
fn the_later_of_two_dialects_with_the_same_names_is_written() {
    let drafts = [IetfDraft::Draft03, IetfDraft::Draft07].map(Headers::ietf);
    assert_eq!(drafts[0].clone().and(drafts[1].clone()), drafts[1]);
    let x = Headers::x_ratelimit;
    assert_eq!(x().and(x().delta_reset()), x().delta_reset());
    assert_eq!(x().delta_reset().and(x()), x());
    assert_eq!(x().and(Headers::none()), x());
    assert_eq!(Headers::none().delta_reset(), Headers::none());
}

#[test]
fn none_writes_no_headers() {
    assert!(written(&Headers::none(), &admitted()).is_empty());
}

#[test]
fn a_decision_without_a_count_gets_no_headers() {
    let quotas = Quotas::from(burst());
    let answer = Answer::new(Source::None, [QuotaAnswer::admitted(0, Duration::ZERO)]);
    let uncounted = Decision::new(&quotas, 1, answer);
    for decision in [decide([]), uncounted.into_view()] {
        for draft in DRAFTS {
            let headers = both(draft);
            assert!(written(&headers, &decision).is_empty(), "{decision:?}");
        }
    }
}

#[test]
fn no_wait_is_reported_if_no_wait_helps() {
    let never = QuotaAnswer::refused(0, None, Duration::ZERO);
    let decision = decide([(Quota::per_minute(0), never), used_up(daily(), SECOND)]);
    assert_eq!(
        written(&Headers::ietf(IetfDraft::Draft11), &decision),
        [
            r#"ratelimit-policy: "search-1m";q=0;w=60, "daily";q=1000;w=86400"#,
            r#"ratelimit: "search-1m";r=0, "daily";r=0;t=1"#,
        ]
    );
    // There is no reset. Drafts 3 to 7 require one, so it is the window.
    assert_eq!(
        written(&Headers::x_ratelimit().delta_reset(), &decision),
        ["x-ratelimit-limit: 0", "x-ratelimit-remaining: 0"]
    );
    let epoch = Headers::x_ratelimit();
    assert_eq!(written(&epoch, &decision).len(), 2);
    assert_eq!(
        written(&Headers::ietf(IetfDraft::Draft07), &decision)[1],
        "ratelimit: limit=0, remaining=0, reset=60"
    );
    for draft in [IetfDraft::Draft03, IetfDraft::Draft06] {
        let fields = written(&Headers::ietf(draft), &decision);
        assert!(
            fields.contains(&"ratelimit-reset: 60".to_owned()),
            "{fields:?}"
        );
    }
}

#[test]
fn a_window_that_is_not_whole_seconds_is_omitted_or_rounded_up() {
    let windows = [1, 999, 1_000, 1_500].map(|millis| millis * MILLISECOND);
    let mut limits = 1..;
    let decision = decide(windows.map(|window| {
        let quota = Quota::new(limits.next().unwrap(), window);
        left(quota, 1, window)
    }));
    let draft_11 = written(&Headers::ietf(IetfDraft::Draft11), &decision);
    assert_eq!(
        draft_11[0],
        r#"ratelimit-policy: "search-1ms";q=1, "search-999ms";q=2, "search-1s";q=3;w=1, "search-1500ms";q=4"#
    );
    let draft_07 = written(&Headers::ietf(IetfDraft::Draft07), &decision);
    assert_eq!(draft_07[0], "ratelimit-policy: 1;w=1, 2;w=1, 3;w=1, 4;w=2");
}
