//! What each dialect writes, by the examples of the drafts; and that other parsers read it so.

mod parsed;

use std::time::Duration;

use http::{HeaderMap, HeaderName};

use super::dialect::{Headers, IetfDraft, whole_seconds};
use super::templates::{Place, Templates};
use super::x_ratelimit::since_epoch;
use crate::decision::{Answer, QuotaAnswer};
use crate::decision::{Decision, DecisionView, Source};
use crate::quota::{Algorithm, Quota, Quotas};

const DRAFTS: [IetfDraft; 4] = [
    IetfDraft::Draft03,
    IetfDraft::Draft06,
    IetfDraft::Draft07,
    IetfDraft::Draft11,
];

const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

pub(super) fn decide<const N: usize>(answers: [(Quota, QuotaAnswer); N]) -> DecisionView {
    let (quotas, answers): (Vec<_>, Vec<_>) = answers.into_iter().unzip();
    decided(&quotas.into(), answers)
}

pub(super) fn decided(quotas: &Quotas, answers: Vec<QuotaAnswer>) -> DecisionView {
    let answer = Answer::new(Source::Memory, answers);
    Decision::new(quotas, 1, answer).unwrap().into_view()
}

/// A quota of which so many units are left, until more are.
fn left(quota: Quota, remaining: u32, reset: Duration) -> (Quota, QuotaAnswer) {
    let used = quota.limit() - remaining;
    (quota, QuotaAnswer::admitted(used, reset))
}

/// A quota that is used up, for so long.
fn used_up(quota: Quota, wait: Duration) -> (Quota, QuotaAnswer) {
    let refused = QuotaAnswer::refused(quota.limit(), Some(wait), wait);
    (quota, refused)
}

fn burst() -> Quota {
    Quota::per_minute(100).named("burst")
}

fn daily() -> Quota {
    Quota::per_day(1_000).named("daily")
}

/// The answer of the examples: 42 of 100 are left for 17 s, 913 of 1 000 for 10 h.
fn admitted() -> DecisionView {
    decide([
        left(burst(), 42, 16 * SECOND + MILLISECOND),
        left(daily(), 913, 36_000 * SECOND),
    ])
}

/// The refusal of the examples: nothing is left of the burst, for 3 s.
fn refused() -> DecisionView {
    decide([
        used_up(burst(), 2 * SECOND + MILLISECOND),
        left(daily(), 913, 36_000 * SECOND),
    ])
}

/// Both families, without the clock of this machine.
fn both(draft: IetfDraft) -> Headers {
    Headers::x_ratelimit()
        .delta_reset()
        .and(Headers::ietf(draft))
}

fn write(headers: &Headers, decision: &DecisionView, place: Place, to: &mut HeaderMap) {
    let quotas = decision.quota_list().iter().cloned().collect();
    Templates::new(headers, &"search".into(), &quotas).write(decision, place, to);
}

fn lines(map: &HeaderMap) -> Vec<String> {
    let line = |(name, value): (&HeaderName, &http::HeaderValue)| {
        format!("{name}: {}", value.to_str().unwrap())
    };
    map.iter().map(line).collect()
}

fn written(headers: &Headers, decision: &DecisionView) -> Vec<String> {
    let mut map = HeaderMap::new();
    write(headers, decision, Place::Tightest, &mut map);
    lines(&map)
}

#[test]
fn seconds_are_rounded_up() {
    for (millis, seconds) in [
        (0, 0),
        (1, 1),
        (999, 1),
        (1_000, 1),
        (1_001, 2),
        (59_999, 60),
    ] {
        assert_eq!(whole_seconds(Duration::from_millis(millis)), seconds);
    }
    assert_eq!(whole_seconds(Duration::from_nanos(1)), 1);
    assert_eq!(whole_seconds(Duration::MAX), u64::MAX);
}

#[test]
fn draft_11_of_an_admitted_request_lists_all_policies() {
    assert_eq!(
        written(&Headers::ietf(IetfDraft::Draft11), &admitted()),
        [
            r#"ratelimit-policy: "burst";q=100;w=60, "daily";q=1000;w=86400"#,
            r#"ratelimit: "burst";r=42;t=17, "daily";r=913;t=36000"#,
        ]
    );
}

#[test]
fn draft_11_of_a_refused_request_lists_the_limits_that_refuse() {
    assert_eq!(
        written(&Headers::ietf(IetfDraft::Draft11), &refused()),
        [
            r#"ratelimit-policy: "burst";q=100;w=60, "daily";q=1000;w=86400"#,
            r#"ratelimit: "burst";r=0;t=3"#,
        ]
    );
}

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
    // The draft demands the numbers of the quota with the fewest units left.
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
fn draft_3_has_the_policies_after_the_limit() {
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
fn x_ratelimit_tells_limit_remaining_and_reset() {
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
fn an_epoch_reset_names_the_second() {
    let before = whole_seconds(since_epoch());
    let told = written(&Headers::x_ratelimit().epoch_reset(), &admitted());
    let told = told[2].strip_prefix("x-ratelimit-reset: ").unwrap();
    let told: u64 = told.parse().unwrap();
    assert!(
        (before + 16..=before + 19).contains(&told),
        "{told}, {before}"
    );
}

#[test]
fn by_default_x_ratelimit_with_an_epoch_is_written() {
    assert_eq!(Headers::default(), Headers::x_ratelimit());
    assert_eq!(Headers::default(), Headers::x_ratelimit().epoch_reset());
    let names = ["limit", "remaining", "reset"].map(|name| format!("x-ratelimit-{name}"));
    let told = written(&Headers::default(), &admitted());
    let told = told.iter().map(|line| line.split(':').next().unwrap());
    assert_eq!(told.collect::<Vec<_>>(), names);
}

#[test]
fn two_dialects_are_written_one_after_the_other() {
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
fn of_two_dialects_of_the_same_names_the_later_is_written() {
    let drafts = [IetfDraft::Draft03, IetfDraft::Draft07].map(Headers::ietf);
    assert_eq!(drafts[0].clone().and(drafts[1].clone()), drafts[1]);
    let x = Headers::x_ratelimit;
    assert_eq!(x().and(x().delta_reset()), x().delta_reset());
    assert_eq!(x().delta_reset().and(x().epoch_reset()), x());
    assert_eq!(x().delta_reset().epoch_reset(), x());
    assert_eq!(x().and(Headers::none()), x());
    assert_eq!(Headers::none().epoch_reset(), Headers::none());
    assert_eq!(Headers::none().delta_reset(), Headers::none());
}

#[test]
fn headers_can_be_left_out() {
    assert!(written(&Headers::none(), &admitted()).is_empty());
}

#[test]
fn where_nobody_counts_nothing_is_told() {
    let quotas = Quotas::from(burst());
    let answer = Answer::new(Source::None, [QuotaAnswer::admitted(0, Duration::ZERO)]);
    let uncounted = Decision::new(&quotas, 1, answer).unwrap();
    for decision in [decide([]), uncounted.into_view()] {
        for draft in DRAFTS {
            let headers = both(draft);
            assert!(written(&headers, &decision).is_empty(), "{decision:?}");
        }
    }
}

#[test]
fn no_wait_is_told_where_none_helps() {
    let never = |quota: Quota| (quota, QuotaAnswer::refused(0, None, Duration::ZERO));
    let decision = decide([never(Quota::per_minute(0)), used_up(daily(), SECOND)]);
    assert_eq!(
        written(&Headers::ietf(IetfDraft::Draft11), &decision),
        [
            r#"ratelimit-policy: "search-1m";q=0;w=60, "daily";q=1000;w=86400"#,
            r#"ratelimit: "search-1m";r=0, "daily";r=0;t=1"#,
        ]
    );
    // There is no reset to be told; drafts 3 to 7 demand one, and get the window.
    assert_eq!(
        written(&Headers::x_ratelimit().delta_reset(), &decision),
        ["x-ratelimit-limit: 0", "x-ratelimit-remaining: 0"]
    );
    let epoch = Headers::x_ratelimit().epoch_reset();
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
fn a_window_that_is_not_whole_seconds_is_left_out_or_rounded_up() {
    let windows = [1, 999, 1_000, 1_500].map(|millis| millis * MILLISECOND);
    let mut limits = 1..;
    let decision = decide(windows.map(|window| {
        let quota = Quota::new(limits.next().unwrap(), window);
        left(quota, 1, window)
    }));
    let policies = |draft| written(&Headers::ietf(draft), &decision)[0].clone();
    assert_eq!(
        policies(IetfDraft::Draft11),
        r#"ratelimit-policy: "search-1ms";q=1, "search-999ms";q=2, "search-1s";q=3;w=1, "search-1500ms";q=4"#
    );
    assert_eq!(
        policies(IetfDraft::Draft07),
        "ratelimit-policy: 1;w=1, 2;w=1, 3;w=1, 4;w=2"
    );
}

#[test]
fn before_draft_11_no_two_policies_have_the_same_limit() {
    let quotas = [
        Quota::per_second(10),
        Quota::per_minute(100),
        Quota::per_hour(10),
        Quota::per_hour(10).named("again"),
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
fn before_draft_11_the_limit_is_that_of_the_fewest_units_left() {
    // A request of ten units: three are left of the burst, five of the day, which takes longer.
    let short = |quota: Quota, left, wait| {
        let refused = QuotaAnswer::refused(quota.limit() - left, Some(wait), wait);
        (quota, refused)
    };
    let decision = decide([short(burst(), 3, SECOND), short(daily(), 5, 3_600 * SECOND)]);
    assert_eq!(
        written(&Headers::ietf(IetfDraft::Draft07), &decision)[1],
        "ratelimit: limit=100, remaining=3, reset=3600"
    );
}

#[test]
fn of_a_refusal_x_ratelimit_says_that_nothing_remains() {
    // A request of ten units, of which the quota has three: clients wait only where it says 0.
    let quota = Quota::per_minute(100).named("burst");
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
fn of_gcra_draft_11_tells_the_time_until_all_units_are_back() {
    let gcra = |used, reset| {
        let quota = burst().algorithm(Algorithm::Gcra);
        let decision = decide([(quota, QuotaAnswer::admitted(used, reset))]);
        written(&Headers::ietf(IetfDraft::Draft11), &decision)[1].clone()
    };
    // A unit is back every 600 ms: 7 of them in 4.2 s.
    assert_eq!(gcra(7, 100 * MILLISECOND), r#"ratelimit: "burst";r=93;t=5"#);
    assert_eq!(
        gcra(100, 600 * MILLISECOND),
        r#"ratelimit: "burst";r=0;t=60"#
    );
    let refused = used_up(burst().algorithm(Algorithm::Gcra), 300 * MILLISECOND);
    assert_eq!(
        written(&Headers::ietf(IetfDraft::Draft11), &decide([refused]))[1],
        r#"ratelimit: "burst";r=0;t=1"#
    );
}

#[test]
fn an_effective_window_of_no_seconds_is_left_out() {
    for algorithm in [Algorithm::Gcra, Algorithm::SlidingLog] {
        let untouched = left(burst().algorithm(algorithm), 100, Duration::ZERO);
        assert_eq!(
            written(&Headers::ietf(IetfDraft::Draft11), &decide([untouched]))[1],
            r#"ratelimit: "burst";r=100"#
        );
    }
}

#[test]
fn to_a_field_of_another_dialect_no_list_is_appended() {
    // As a service behind a gateway sets them: a draft-7 dictionary does not parse with a list.
    let of_service = [
        ("ratelimit", "limit=100, remaining=42, reset=17"),
        ("ratelimit-policy", "100;w=60"),
    ];
    let mut map = HeaderMap::new();
    for (name, value) in of_service {
        map.insert(name, value.parse().unwrap());
    }
    for place in [Place::Tightest, Place::Behind] {
        write(
            &Headers::ietf(IetfDraft::Draft11),
            &refused(),
            place,
            &mut map,
        );
        assert_eq!(
            lines(&map),
            of_service.map(|(name, value)| format!("{name}: {value}"))
        );
    }
    // Nor is a nameless policy to those that have names.
    let mut map = HeaderMap::new();
    write(
        &Headers::ietf(IetfDraft::Draft11),
        &admitted(),
        Place::Tightest,
        &mut map,
    );
    write(
        &Headers::ietf(IetfDraft::Draft06),
        &refused(),
        Place::Behind,
        &mut map,
    );
    assert_eq!(
        lines(&map),
        written(&Headers::ietf(IetfDraft::Draft11), &admitted())
    );
}

#[test]
fn quotas_that_were_not_prepared_are_told_as_they_are() {
    let prepared = Quotas::from(Quota::per_minute(100));
    let decision = decide([left(Quota::per_second(7), 6, SECOND)]);
    for draft in DRAFTS {
        let headers = Headers::ietf(draft);
        let mut map = HeaderMap::new();
        let wording = Templates::new(&headers, &"search".into(), &prepared);
        wording.write(&decision, Place::Tightest, &mut map);
        assert_eq!(lines(&map), written(&headers, &decision), "{draft:?}");
    }
}

/// A map in which a layer further in has written, and the service before it.
fn written_inside(headers: &Headers) -> HeaderMap {
    let mut map = HeaderMap::new();
    for name in ["x-ratelimit-limit", "ratelimit-limit"] {
        map.insert(name, "from the service".parse().unwrap());
    }
    let inside = decide([left(Quota::per_second(5), 4, SECOND)]);
    write(headers, &inside, Place::Tightest, &mut map);
    map
}

#[test]
fn a_tighter_layer_replaces_single_values_and_adds_to_lists() {
    for draft in DRAFTS {
        let headers = both(draft);
        let mut map = written_inside(&headers);
        let inside = map.clone();
        write(&headers, &refused(), Place::Tightest, &mut map);
        let alone = written(&headers, &refused());
        for name in map.keys() {
            let values: Vec<_> = map.get_all(name).iter().collect();
            let own = |value| alone.contains(&format!("{name}: {value}"));
            let [rest @ .., last] = &*values else {
                panic!("{name} has no value");
            };
            if is_list(name, draft) {
                let before: Vec<_> = inside.get_all(name).iter().collect();
                assert_eq!(rest, before, "{draft:?}, {name}");
            } else {
                // What the service sets by the name of another dialect is its own.
                assert!(rest.is_empty(), "{draft:?}, {name}: {values:?}");
            }
            let is_foreign = name == "ratelimit-limit"
                && matches!(draft, IetfDraft::Draft07 | IetfDraft::Draft11);
            assert_eq!(
                own(last.to_str().unwrap()),
                !is_foreign,
                "{draft:?}, {name}"
            );
        }
    }
}

#[test]
fn a_layer_behind_a_tighter_one_adds_to_lists_only() {
    for draft in DRAFTS {
        let headers = both(draft);
        let mut map = written_inside(&headers);
        let inside = map.clone();
        write(&headers, &admitted(), Place::Behind, &mut map);
        for name in map.keys() {
            let before = inside.get_all(name).iter().count();
            let lines = map.get_all(name).iter().count();
            let added = usize::from(is_list(name, draft));
            assert_eq!(lines, before + added, "{draft:?}, {name}");
            assert_eq!(map[name], inside[name], "{draft:?}, {name}");
        }
    }
}

fn is_list(name: &HeaderName, draft: IetfDraft) -> bool {
    name == "ratelimit-policy" || name == "ratelimit" && draft == IetfDraft::Draft11
}
