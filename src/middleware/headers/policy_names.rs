//! The names of a layer's policies, in headers and problem details.

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::decision::{QuotaDecision, Source};
use crate::limiter::DecisionView;
use crate::quota::{Algorithm, Quota};

/// The characters that are percent-encoded: all but printable ASCII, since a string of a structured field
/// allows no others. `%` is encoded too, so that two names never have the same encoding.
const ENCODED: &AsciiSet = &CONTROLS.add(b'%');

/// In the order of the quotas; see [`policy_names`].
pub(super) fn quota_names(decision: &DecisionView) -> Vec<String> {
    policy_names(
        decision
            .levels()
            .map(|level| (level.limiter(), level.quota_list())),
    )
}

/// Names all quotas of these limiters. No two names are equal, even without regard to case.
///
/// A policy has the name of its quota, or else of its limiter. If the limiter has several quotas, its name is
/// followed by the window, or by `total`.
pub(in crate::middleware) fn policy_names<'a>(
    limits: impl IntoIterator<Item = (&'a str, &'a [Quota])>,
) -> Vec<String> {
    let mut names = Vec::new();
    for (limiter, quotas) in limits {
        // A soft quota does not change the names of the others.
        let refusing = quotas.iter().filter(|quota| !quota.is_soft()).count();
        for quota in quotas {
            let is_only = if quota.is_soft() {
                quotas.len() == 1
            } else {
                refusing == 1
            };
            let name = match quota.name().filter(|name| !name.is_empty()) {
                Some(name) => encoded(name),
                None if is_only && !limiter.is_empty() => encoded(limiter),
                None if limiter.is_empty() => window_name(quota),
                None => format!("{}-{}", encoded(limiter), window_name(quota)),
            };
            names.push(made_unique(name, &names));
        }
    }
    names
}

/// The idle time of a total is no window, and may change.
fn window_name(quota: &Quota) -> String {
    if quota.is_total() {
        Algorithm::Total.to_string()
    } else {
        quota.short_window()
    }
}

/// Returns the quotas that counted a request, each with its name of [`quota_names`].
pub(super) fn named_quotas<'a>(
    decision: &'a DecisionView,
    names: &'a [String],
) -> impl Iterator<Item = (QuotaDecision<'a>, &'a String)> {
    let mut rest = names;
    decision.levels().flat_map(move |level| {
        let own;
        (own, rest) = rest.split_at(level.quota_list().len());
        let is_counted = level.source() != Source::None;
        level.quotas().zip(own).filter(move |_| is_counted)
    })
}

/// Leaves out hidden levels.
pub(in crate::middleware) fn violated_policies(decision: &DecisionView) -> Vec<String> {
    let decision = decision.visible();
    let names = quota_names(&decision);
    named_quotas(&decision, &names)
        .filter(|(quota, _)| !quota.is_allowed())
        .map(|(_, name)| name.clone())
        .collect()
}

fn encoded(name: &str) -> String {
    utf8_percent_encode(name, ENCODED).to_string()
}

fn made_unique(name: String, taken: &[String]) -> String {
    if !is_taken(&name, taken) {
        return name;
    }
    (2_u64..)
        .map(|number| format!("{name}-{number}"))
        .find(|name| !is_taken(name, taken))
        .unwrap_or(name)
}

fn is_taken(name: &str, taken: &[String]) -> bool {
    taken.iter().any(|other| other.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn names(limiter: &str, quotas: &[Quota]) -> Vec<String> {
        policy_names([(limiter, quotas)])
    }

    #[test]
    fn the_policies_of_several_limiters_have_different_names() {
        let minute = [Quota::per_minute(60)];
        let both = [
            Quota::per_second(5),
            Quota::per_day(1_000).with_name("User"),
        ];
        let limits = [
            ("user", &minute[..]),
            ("tenant", &both),
            ("tenant", &minute),
            ("tenant", &[]),
            ("Tenant-1s", &minute),
        ];
        assert_eq!(
            policy_names(limits),
            ["user", "tenant-1s", "User-2", "tenant", "Tenant-1s-2"]
        );
    }

    #[test]
    fn a_quota_has_its_own_name_or_the_name_of_the_limiter() {
        assert_eq!(names("search", &[Quota::per_second(5)]), ["search"]);
        assert_eq!(
            names("search", &[Quota::per_second(5).with_name("burst")]),
            ["burst"]
        );
    }

    #[test]
    fn several_quotas_are_named_by_their_windows() {
        let quotas = [
            Quota::per_second(5),
            Quota::new(9, Duration::from_secs(90)),
            Quota::per_day(2_000),
            Quota::per_hour(300).with_name("hourly"),
            Quota::new(1, Duration::from_micros(1_500)),
            Quota::total(5, Duration::from_secs(90)),
        ];
        assert_eq!(
            names("search", &quotas),
            [
                "search-1s",
                "search-90s",
                "search-1d",
                "hourly",
                "search-1500us",
                "search-total"
            ]
        );
    }

    #[test]
    fn names_are_unique_without_regard_to_case() {
        let quotas =
            ["burst", "Burst", "BURST-2", "burst"].map(|name| Quota::per_minute(1).with_name(name));
        assert_eq!(
            names("x", &quotas),
            ["burst", "Burst-2", "BURST-2-2", "burst-3"]
        );
        let same = [1, 2].map(Quota::per_minute);
        assert_eq!(names("x", &same), ["x-1m", "x-1m-2"]);
    }

    #[test]
    fn characters_other_than_printable_ascii_are_percent_encoded() {
        assert_eq!(
            names("straße\n", &[Quota::per_second(1)]),
            ["stra%C3%9Fe%0A"]
        );
        assert_eq!(names("100%", &[Quota::per_second(1)]), ["100%25"]);
        assert_eq!(
            names(r#"a "b" \c"#, &[Quota::per_second(1)]),
            [r#"a "b" \c"#]
        );
    }

    #[test]
    fn no_name_is_empty() {
        assert_eq!(names("", &[Quota::per_second(1).with_name("")]), ["1s"]);
        assert_eq!(names("", &[1, 2].map(Quota::per_day)), ["1d", "1d-2"]);
    }
}
