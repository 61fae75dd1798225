//! Tests of `X-RateLimit-*`.

use super::fixtures::{
    SECOND, admitted, both, burst, daily, decide, left, refused, used_up, written,
};
use crate::decision::QuotaAnswer;
use crate::limiter::DecisionView;
use crate::middleware::headers::x_ratelimit::since_epoch;
use crate::middleware::headers::{Headers, IetfDraft, whole_seconds};
use crate::quota::Quota;

#[test]
fn x_ratelimit_reports_limit_remaining_and_reset() {
    let headers = Headers::x_ratelimit().delta_reset();
    assert_eq!(
        written(&headers, &admitted()),
        [
            "x-ratelimit-limit: 100",
            "x-ratelimit-remaining: 42",
            "x-ratelimit-reset: 17",
        ]
    );
    assert_eq!(
        written(&headers, &refused()),
        [
            "x-ratelimit-limit: 100",
            "x-ratelimit-remaining: 0",
            "x-ratelimit-reset: 3",
        ]
    );
}

#[test]
fn an_epoch_reset_is_the_unix_time_of_the_reset() {
    let before = whole_seconds(since_epoch());
    let fields = written(&Headers::x_ratelimit(), &admitted());
    let reset = fields[2].strip_prefix("x-ratelimit-reset: ").unwrap();
    let reset: u64 = reset.parse().unwrap();
    assert!(
        (before + 16..=before + 19).contains(&reset),
        "{reset}, {before}"
    );
}

#[test]
fn the_default_is_x_ratelimit_with_an_epoch_reset() {
    assert_eq!(Headers::default(), Headers::x_ratelimit());
    assert_eq!(Headers::default(), Headers::x_ratelimit());
    let names = ["limit", "remaining", "reset"].map(|name| format!("x-ratelimit-{name}"));
    let fields = written(&Headers::default(), &admitted());
    let written_names = fields.iter().map(|line| line.split(':').next().unwrap());
    assert_eq!(written_names.collect::<Vec<_>>(), names);
}

#[test]
fn x_ratelimit_reports_0_remaining_units_on_a_refusal() {
    // A request costs ten units, and the quota has three left. Clients wait only at 0.
    let quota = Quota::per_minute(100).with_name("burst");
    let refused = QuotaAnswer::refused(97, Some(SECOND), SECOND);
    let decision = decide([(quota, refused)]);
    assert_eq!(
        written(&both(IetfDraft::Draft11), &decision),
        [
            "x-ratelimit-limit: 100",
            "x-ratelimit-remaining: 0",
            "x-ratelimit-reset: 1",
            r#"ratelimit-policy: "burst";q=100;w=60"#,
            r#"ratelimit: "burst";r=3;t=1"#,
        ]
    );
}

#[test]
fn an_admission_tells_the_rate_with_the_fewest_units_and_slots_only_without_one() {
    assert_eq!(
        sent(&decide([slots(), day(), minute()])),
        [
            "x-ratelimit-limit: 100",
            "x-ratelimit-remaining: 42",
            "x-ratelimit-reset: 1",
        ]
    );
    let one_slot = ["x-ratelimit-limit: 4", "x-ratelimit-remaining: 1"];
    assert_eq!(sent(&decide([slots()])), one_slot);
    // A soft rate refuses nothing.
    let soft = left(burst().soft(), 42, SECOND);
    assert_eq!(sent(&decide([slots(), soft])), one_slot);
    // Slots that refuse are shown.
    let decision = decide([used_up(Quota::in_flight(4), SECOND), day(), minute()]);
    assert_eq!(
        sent(&decision),
        ["x-ratelimit-limit: 4", "x-ratelimit-remaining: 0"]
    );
    // A rate that refuses is shown, whatever slots are left.
    let decision = decide([slots(), day(), used_up(burst(), 3 * SECOND)]);
    assert_eq!(
        sent(&decision),
        [
            "x-ratelimit-limit: 100",
            "x-ratelimit-remaining: 0",
            "x-ratelimit-reset: 3",
        ]
    );
}

fn sent(decision: &DecisionView) -> Vec<String> {
    written(&Headers::x_ratelimit().delta_reset(), decision)
}

fn slots() -> (Quota, QuotaAnswer) {
    left(Quota::in_flight(4), 1, SECOND)
}

fn day() -> (Quota, QuotaAnswer) {
    left(daily(), 913, 9 * SECOND)
}

fn minute() -> (Quota, QuotaAnswer) {
    left(burst(), 42, SECOND)
}

#[test]
fn the_reported_quota_of_a_decision_may_still_be_slots() {
    let slots = left(Quota::in_flight(4), 1, SECOND);
    let decision = decide([slots, left(burst(), 42, SECOND)]);
    assert_eq!((decision.limit(), decision.remaining()), (4, 1));
    let draft = written(&Headers::ietf(IetfDraft::Draft11), &decision);
    assert!(
        draft[1].starts_with("ratelimit: \"search-15s\";r=1"),
        "{draft:?}"
    );
}
