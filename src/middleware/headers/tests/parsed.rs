//! Tests of the fields of the drafts for any decision, with another parser.

use std::time::Duration;

use http::{HeaderMap, HeaderValue};
use proptest::prelude::*;
use sfv::{BareItem, Dictionary, FieldType, Item, List, ListEntry, Parser};

use super::fixtures::decided;
use crate::decision::{QuotaAnswer, QuotaDecision};
use crate::limiter::DecisionView;
use crate::middleware::headers::{Headers, IetfDraft, policy_names, whole_seconds};
use crate::quota::{Algorithm, Quota};

/// A text of any characters, including control characters.
const ANY_TEXT: &str = "(?s).*";

fn any_quota() -> impl Strategy<Value = (Quota, QuotaAnswer)> {
    let name = proptest::option::of(prop_oneof![ANY_TEXT, "[aA]{1,2}(-2)?"]);
    let micros = prop_oneof![
        1_000..366 * 86_400_000_000_u64,
        (1..1_000_000_u64).prop_map(|s| s * 1_000_000)
    ];
    let answer = (any::<u32>(), any::<Option<u64>>(), any::<u64>());
    let limit = prop_oneof![any::<u32>(), 0..4_u32];
    let algorithm = prop_oneof![Just(Algorithm::SlidingLog), Just(Algorithm::Gcra)];
    let quota = (limit, micros, name, answer, any::<bool>(), algorithm);
    quota.prop_map(
        |(limit, micros, name, (used, wait, reset), is_admitted, algorithm)| {
            let quota = Quota::new(limit, Duration::from_micros(micros)).with_algorithm(algorithm);
            let quota = match name {
                Some(name) => quota.with_name(name),
                None => quota,
            };
            let reset = Duration::from_micros(reset);
            let wait = wait.map(Duration::from_micros);
            let answer = if is_admitted {
                QuotaAnswer::admitted(used, reset)
            } else {
                QuotaAnswer::refused(used, wait, reset)
            };
            (quota, answer)
        },
    )
}

fn any_decision_by(limiter: String) -> impl Strategy<Value = DecisionView> {
    let quotas = proptest::collection::vec(any_quota(), 1..5);
    quotas.prop_map(move |quotas| {
        let (quotas, answers): (Vec<_>, _) = quotas.into_iter().unzip();
        decided(&limiter, &quotas.into(), answers)
    })
}

fn any_decision() -> impl Strategy<Value = (String, DecisionView)> {
    ANY_TEXT.prop_flat_map(|limiter| (Just(limiter.clone()), any_decision_by(limiter)))
}

fn fields(draft: IetfDraft, decision: &DecisionView) -> HeaderMap {
    let mut map = HeaderMap::new();
    Headers::ietf(draft).write(decision, &mut map);
    map
}

fn items(map: &HeaderMap, name: &str) -> Vec<Item> {
    let mut list: Vec<ListEntry> = Vec::new();
    for line in map.get_all(name) {
        let parsed: List = Parser::new(line.as_bytes()).parse().unwrap();
        assert_round_trip(line, parsed.serialize().as_deref());
        list.extend(parsed);
    }
    list.into_iter().map(item).collect()
}

fn item(entry: ListEntry) -> Item {
    match entry {
        ListEntry::Item(item) => item,
        ListEntry::InnerList(list) => panic!("{list:?}"),
    }
}

fn assert_round_trip(line: &HeaderValue, serialized: Option<&str>) {
    assert_eq!(serialized, line.to_str().ok());
}

fn integer(item: &BareItem) -> u64 {
    let BareItem::Integer(integer) = item else {
        panic!("not an integer: {item:?}");
    };
    u64::try_from(i64::from(*integer)).unwrap()
}

fn number(fields: &HeaderMap, name: &str) -> u64 {
    let item: Item = Parser::new(fields[name].as_bytes()).parse().unwrap();
    assert_round_trip(&fields[name], Some(&item.serialize()));
    integer(&item.bare_item)
}

fn parameter(item: &Item, key: &str) -> Option<u64> {
    item.params.get(key).map(integer)
}

fn name(item: &Item) -> String {
    let BareItem::String(name) = &item.bare_item else {
        panic!("not a string: {item:?}");
    };
    name.as_str().to_owned()
}

fn effective_window(quota: &QuotaDecision<'_>) -> Option<Duration> {
    let limit = u128::from(quota.limit());
    match quota.quota().algorithm() {
        _ if !quota.is_allowed() => quota.retry_after(),
        Algorithm::Gcra if limit > 0 => {
            let all = quota.quota().window().as_micros() * u128::from(quota.used());
            Some(Duration::from_micros(
                all.div_ceil(limit).try_into().unwrap_or(u64::MAX),
            ))
        }
        Algorithm::Gcra => None,
        _ => Some(quota.reset_after()),
    }
}

fn quota_list(decision: &DecisionView) -> &[Quota] {
    decision.levels().next().unwrap().quota_list()
}

fn covers(seconds: u64, exact: Duration) -> bool {
    let seconds = Duration::from_secs(seconds);
    seconds >= exact && seconds < exact + Duration::from_secs(1)
}

proptest! {
    #[test]
    fn draft_11_lists_each_policy_with_its_numbers((limiter, decision) in any_decision()) {
        let fields = fields(IetfDraft::Draft11, &decision);
        let quotas: Vec<_> = decision.quotas().map(|quota| quota.quota()).collect();
        let names = policy_names([(&*limiter, quota_list(&decision))]);

        let policies = items(&fields, "ratelimit-policy");
        prop_assert_eq!(policies.len(), quotas.len());
        for ((policy, quota), expected) in policies.iter().zip(&quotas).zip(&names) {
            prop_assert_eq!(&name(policy), expected);
            prop_assert_eq!(parameter(policy, "q"), Some(quota.limit().into()));
            match parameter(policy, "w") {
                Some(window) => prop_assert_eq!(Duration::from_secs(window), quota.window()),
                None => prop_assert!(quota.window().subsec_micros() > 0),
            }
        }

        let limits = items(&fields, "ratelimit");
        let mut listed = decision
            .quotas()
            .zip(&names)
            .filter(|(quota, _)| decision.is_allowed() || !quota.is_allowed());
        for limit in limits {
            let (quota, expected) = listed.next().unwrap();
            prop_assert_eq!(&name(&limit), expected);
            prop_assert_eq!(parameter(&limit, "r"), Some(quota.remaining().into()));
            match parameter(&limit, "t") {
                None => prop_assert!(effective_window(&quota).is_none_or(|wait| wait.is_zero())),
                Some(seconds) => {
                    let wait = effective_window(&quota).unwrap();
                    prop_assert!(covers(seconds, wait), "{seconds} for {wait:?}");
                    // `Retry-After` is never earlier.
                    let longest = decision.retry_after();
                    prop_assert!(longest.is_none_or(|longest| seconds <= whole_seconds(longest)));
                }
            }
        }
        prop_assert!(listed.next().is_none());
    }

    #[test]
    fn names_are_printable_and_unique((limiter, decision) in any_decision()) {
        let quotas: Vec<_> = decision.quotas().map(|quota| quota.quota()).collect();
        let mut names = policy_names([(&*limiter, quota_list(&decision))]);
        for name in &mut names {
            prop_assert!(name.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
            prop_assert!(!name.is_empty());
            name.make_ascii_lowercase();
        }
        names.sort_unstable();
        names.dedup();
        prop_assert_eq!(names.len(), quotas.len());
    }

    #[test]
    fn older_drafts_list_each_limit_once_and_report_the_numbers_of_one_quota((_, decision) in any_decision()) {
        for draft in [IetfDraft::Draft03, IetfDraft::Draft06, IetfDraft::Draft07] {
            let fields = fields(draft, &decision);
            let (numbers, policies) = match draft {
                IetfDraft::Draft07 => {
                    let members: Dictionary = Parser::new(fields["ratelimit"].as_bytes()).parse().unwrap();
                    assert_round_trip(&fields["ratelimit"], members.serialize().as_deref());
                    let keys = ["limit", "remaining", "reset"];
                    prop_assert_eq!(members.len(), keys.len());
                    let numbers = keys.map(|key| integer(&item(members[key].clone()).bare_item));
                    (numbers, items(&fields, "ratelimit-policy"))
                }
                IetfDraft::Draft06 => {
                    let names = ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"];
                    (names.map(|name| number(&fields, name)), items(&fields, "ratelimit-policy"))
                }
                _ => {
                    let mut policies = items(&fields, "ratelimit-limit");
                    let limit = policies.remove(0);
                    prop_assert!(limit.params.is_empty());
                    let limit = integer(&limit.bare_item);
                    let remaining = number(&fields, "ratelimit-remaining");
                    let reset = number(&fields, "ratelimit-reset");
                    ([limit, remaining, reset], policies)
                }
            };
            let [limit, remaining, reset] = numbers;
            let is_one = decision.quotas().any(|quota| {
                (u64::from(quota.limit()), u64::from(quota.remaining())) == (limit, remaining)
            });
            prop_assert!(is_one, "{numbers:?}");
            prop_assert_eq!(remaining, u64::from(decision.remaining()));
            let wait = if decision.is_allowed() {
                decision.reset_after()
            } else {
                let window = decision.reported().unwrap().quota().window();
                decision.retry_after().unwrap_or(window)
            };
            prop_assert!(covers(reset, wait), "{reset} for {wait:?}");

            let mut listed: Vec<_> = policies.iter().map(|policy| integer(&policy.bare_item)).collect();
            for quota in decision.quotas() {
                let policy = policies.iter().find(|policy| integer(&policy.bare_item) == u64::from(quota.limit()));
                let window = parameter(policy.unwrap(), "w").unwrap();
                prop_assert!(window > 0 && Duration::from_secs(window) >= quota.quota().window());
            }
            let count = listed.len();
            listed.sort_unstable();
            listed.dedup();
            prop_assert_eq!(listed.len(), count);
        }
    }
}
