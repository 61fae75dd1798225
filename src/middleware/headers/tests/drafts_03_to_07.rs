//! Tests of drafts 3, 6 and 7, with their examples.

use std::time::Duration;

use super::fixtures::{SECOND, admitted, burst, daily, decide, left, written};
use crate::decision::QuotaAnswer;
use crate::middleware::headers::{Headers, IetfDraft};
use crate::quota::Quota;

#[test]
fn draft_7_is_a_dictionary_and_a_list_of_limits() {
    let decision = decide([left(Quota::per_minute(100), 42, 17 * SECOND)]);
    assert_eq!(
        written(&Headers::ietf(IetfDraft::Draft07), &decision),
        [
            "ratelimit-policy: 100;w=60",
            "ratelimit: limit=100, remaining=42, reset=17",
        ]
    );
}

#[test]
fn draft_6_has_a_field_for_each_number() {
    // The draft requires the numbers of the quota with the fewest units left.
    let decision = decide([
        left(Quota::per_second(10), 9, SECOND),
        left(Quota::per_minute(100), 4, 17 * SECOND),
    ]);
    assert_eq!(
        written(&Headers::ietf(IetfDraft::Draft06), &decision),
        [
            "ratelimit-policy: 10;w=1, 100;w=60",
            "ratelimit-limit: 100",
            "ratelimit-remaining: 4",
            "ratelimit-reset: 17",
        ]
    );
}

#[test]
fn draft_3_lists_the_policies_after_the_limit() {
    assert_eq!(
        written(&Headers::ietf(IetfDraft::Draft03), &admitted()),
        [
            "ratelimit-limit: 100, 100;w=60, 1000;w=86400",
            "ratelimit-remaining: 42",
            "ratelimit-reset: 17",
        ]
    );
}

#[test]
fn before_draft_11_no_two_policies_have_the_same_limit() {
    let quotas = [
        Quota::per_second(10),
        Quota::per_minute(100),
        Quota::per_hour(10),
        Quota::per_hour(10).with_name("again"),
        Quota::per_second(100),
    ];
    let decision = decide(quotas.map(|quota| left(quota, 5, SECOND)));
    for (draft, expected) in [
        (
            IetfDraft::Draft03,
            "ratelimit-limit: 10, 100;w=60, 10;w=3600",
        ),
        (IetfDraft::Draft06, "ratelimit-policy: 100;w=60, 10;w=3600"),
        (IetfDraft::Draft07, "ratelimit-policy: 100;w=60, 10;w=3600"),
    ] {
        assert_eq!(written(&Headers::ietf(draft), &decision)[0], expected);
    }
}

#[test]
fn before_draft_11_the_limit_is_that_of_the_quota_with_the_fewest_units_left() {
    // A request costs ten units. The burst has 3 units left. The day has 5 units left and a longer wait.
    let decision = decide([
        too_few(burst(), 3, SECOND),
        too_few(daily(), 5, 3_600 * SECOND),
    ]);
    assert_eq!(
        written(&Headers::ietf(IetfDraft::Draft07), &decision)[1],
        "ratelimit: limit=100, remaining=3, reset=3600"
    );
}

fn too_few(quota: Quota, left: u32, wait: Duration) -> (Quota, QuotaAnswer) {
    let refused = QuotaAnswer::refused(quota.limit() - left, Some(wait), wait);
    (quota, refused)
}
