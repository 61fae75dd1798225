//! The names of a limiter's policies, in headers and problem details.

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::decision::DecisionView;
use crate::quota::Quota;

/// The characters that are percent-encoded: all but printable ASCII, since a string of a structured field
/// allows no others. `%` is encoded too, so that two names never have the same encoding.
const ENCODED: &AsciiSet = &CONTROLS.add(b'%');

/// Returns the names of quotas, in their order. No two names are equal, even without regard to case.
///
/// A name is that of the quota, or else that of the limiter. With several quotas, the limiter's name is
/// followed by the window.
pub(in crate::middleware) fn policy_names(limiter: &str, quotas: &[&Quota]) -> Vec<String> {
    let is_only = quotas.len() == 1;
    let mut names = Vec::with_capacity(quotas.len());
    for quota in quotas {
        let name = match quota.name().filter(|name| !name.is_empty()) {
            Some(name) => encoded(name),
            None if is_only && !limiter.is_empty() => encoded(limiter),
            None if limiter.is_empty() => quota.short_window(),
            None => format!("{}-{}", encoded(limiter), quota.short_window()),
        };
        let name = made_unique(name, &names);
        names.push(name);
    }
    names
}

/// Returns the names of the quotas that refuse.
pub(in crate::middleware) fn violated_policies(
    limiter: &str,
    decision: &DecisionView,
) -> impl Iterator<Item = String> {
    let quotas: Vec<_> = decision.quotas().map(|quota| quota.quota()).collect();
    let names = policy_names(limiter, &quotas);
    let named = decision.quotas().zip(names);
    named.filter_map(|(quota, name)| (!quota.is_allowed()).then_some(name))
}

/// Percent-encodes all characters of a name other than printable ASCII.
pub(in crate::middleware) fn encoded(name: &str) -> String {
    utf8_percent_encode(name, ENCODED).to_string()
}

fn made_unique(name: String, taken: &[String]) -> String {
    let is_taken = |name: &str| taken.iter().any(|other| other.eq_ignore_ascii_case(name));
    if !is_taken(&name) {
        return name;
    }
    let numbered = (2..).map(|number: u64| format!("{name}-{number}"));
    let mut free = numbered.filter(|name| !is_taken(name));
    free.next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn names(limiter: &str, quotas: &[Quota]) -> Vec<String> {
        let quotas: Vec<_> = quotas.iter().collect();
        policy_names(limiter, &quotas)
    }

    #[test]
    fn a_quota_has_its_own_name_or_the_name_of_the_limiter() {
        assert_eq!(names("search", &[Quota::per_second(5)]), ["search"]);
        assert_eq!(
            names("search", &[Quota::per_second(5).named("burst")]),
            ["burst"]
        );
    }

    #[test]
    fn several_quotas_are_named_by_their_windows() {
        let quotas = [
            Quota::per_second(5),
            Quota::new(9, Duration::from_secs(90)),
            Quota::per_day(2_000),
            Quota::per_hour(300).named("hourly"),
            Quota::new(1, Duration::from_micros(1_500)),
        ];
        assert_eq!(
            names("search", &quotas),
            [
                "search-1s",
                "search-90s",
                "search-1d",
                "hourly",
                "search-1500us"
            ]
        );
    }

    #[test]
    fn names_are_unique_without_regard_to_case() {
        let named = |name: &str| Quota::per_minute(1).named(name);
        assert_eq!(
            names("x", &["burst", "Burst", "BURST-2", "burst"].map(named)),
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
        assert_eq!(names("", &[Quota::per_second(1).named("")]), ["1s"]);
        assert_eq!(names("", &[1, 2].map(Quota::per_day)), ["1d", "1d-2"]);
    }
}
