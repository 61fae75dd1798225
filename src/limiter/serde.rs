//! Serializes the status of keys to what a customer may see, and reads failure policies of a configuration.

use std::num::NonZeroU32;

use serde::de::{Error, Unexpected};
use serde::ser::SerializeStruct;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::failure_policy::FailurePolicy;
use super::key_status::KeyStatus;
use crate::decision::{QuotaDecision, Source};
use crate::quota::parse_number;

/// Serializes the quotas that [customers see](KeyStatus#what-customers-see), and the seconds until the keys are unblocked.
#[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
impl Serialize for KeyStatus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let quotas: Vec<QuotaDecision<'_>> = self
            .view
            .levels()
            .filter(|level| !level.is_hidden() && level.source() != Source::None)
            .flat_map(|level| level.quotas())
            .filter(|quota| !quota.quota().is_soft())
            .collect();
        let blocked_for = self.blocked_for.map(|left| left.as_secs_f64());
        let mut status = serializer.serialize_struct("KeyStatus", 2)?;
        status.serialize_field("quotas", &quotas)?;
        status.serialize_field("blocked_for", &blocked_for)?;
        status.end()
    }
}

/// Deserializes `"fall-back"`, `"open"` or `"closed"`, and `"fall-back:4"` with the number of
/// [replicas](FailurePolicy::replicas).
#[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
impl<'de> Deserialize<'de> for FailurePolicy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_policy(&text).ok_or_else(|| {
            let rule = "`fall-back`, `fall-back:4` with the number of replicas, `open` or `closed`";
            D::Error::invalid_value(Unexpected::Str(&text), &rule)
        })
    }
}

fn parse_policy(text: &str) -> Option<FailurePolicy> {
    match text {
        "fall-back" => Some(FailurePolicy::fall_back()),
        "open" => Some(FailurePolicy::open()),
        "closed" => Some(FailurePolicy::closed()),
        _ => {
            let replicas: NonZeroU32 = parse_number(text.strip_prefix("fall-back:")?)?;
            Some(FailurePolicy::fall_back().replicas(replicas.get()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_policy_is_read_from_its_name() {
        for (text, expected) in [
            ("fall-back", FailurePolicy::fall_back()),
            ("fall-back:4", FailurePolicy::fall_back().replicas(4)),
            ("open", FailurePolicy::open()),
            ("closed", FailurePolicy::closed()),
        ] {
            let json = format!("{text:?}");
            assert_eq!(
                serde_json::from_str::<FailurePolicy>(&json).unwrap(),
                expected,
                "{text}"
            );
        }
    }

    #[test]
    fn the_error_of_another_policy_shows_it_and_those_that_exist() {
        for text in [
            "",
            "Open",
            "fall_back",
            "fall-back:",
            "fall-back:0",
            "fall-back:+4",
            "open:4",
        ] {
            let json = format!("{text:?}");
            let error = serde_json::from_str::<FailurePolicy>(&json)
                .unwrap_err()
                .to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
            assert!(error.contains("`open` or `closed`"), "{error}");
        }
    }
}
