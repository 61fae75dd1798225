//! Serializes quotas as the text that [`FromStr`](std::str::FromStr) parses, or as a map.

use std::fmt;

use std::str::FromStr;

use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Error, MapAccess, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::algorithm::Algorithm;
use super::plan::{DEFAULT, EXEMPT, Plan};
use super::quota::Quota;
use super::quotas::{Quotas, warn_if_zero};
use super::shares::Share;
use super::text::{QuotaParts, parse_shares};
use crate::error::ConfigError;

/// A quota as a map. The window and the algorithm have the same form as in the text of a quota.
#[derive(Deserialize, Serialize)]
#[serde(rename = "Quota", deny_unknown_fields)]
struct QuotaMap {
    limit: u32,
    /// That of slots is their lease, which may be left out; that of a total is its idle time.
    #[serde(
        default,
        deserialize_with = "window_text",
        skip_serializing_if = "Option::is_none"
    )]
    window: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    algorithm: Option<Algorithm>,
    /// The units of a token bucket, with the limit and the window of its rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    burst: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    soft: bool,
    /// In percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    warn_at: Option<u8>,
    /// As in the text of a quota.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    shares: String,
}

impl QuotaMap {
    fn into_quota(self) -> Result<Quota, ConfigError> {
        let parts = QuotaParts {
            limit: self.limit,
            windows: 1,
            window: self.window.as_deref(),
            algorithm: self.algorithm,
            burst: self.burst,
            shares: parse_shares(&self.shares, self.limit)?,
            is_soft: self.soft,
            warn_percent: self.warn_at,
        };
        let window = self.window.as_deref().unwrap_or("in-flight");
        let quota = parts.into_quota(&format!("{}/{window}", self.limit))?;
        Ok(match self.name {
            Some(name) => quota.with_name(name),
            None => quota,
        })
    }
}

/// Reads the text of a window. A number has no unit, so the error of a number asks for one.
fn window_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    struct WindowVisitor;

    impl Visitor<'_> for WindowVisitor {
        type Value = String;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("text with a unit, such as \"60s\" or \"minute\"")
        }

        fn visit_str<E: Error>(self, v: &str) -> Result<String, E> {
            Ok(v.to_owned())
        }
    }

    deserializer.deserialize_any(WindowVisitor).map(Some)
}

/// Deserializes text like `"100/minute"` or `"5/10s gcra"`, or a map: `{"limit": 5, "window": "10s",
/// "algorithm": "sliding-buckets:60", "name": "burst"}`. The window may follow a calendar:
/// `"month@Europe/Berlin"`.
///
/// In a map, `limit` and `window` are required. `algorithm`, `burst` (in units), `name`, `shares`, `soft` (`true` or `false`) and
/// `warn_at` (in percent) are optional, and any other field is an error. [Shares](Quota::shares) have the same form as in
/// text: `"critical>=200 batch<=50%"`. A quota [in flight](Quota::in_flight) is `{"limit": 5, "algorithm": "in-flight"}`; its `window` is the lease
/// of its slots, and optional. A [total](Quota::total) is `{"limit": 200000, "algorithm": "total", "window": "7d"}`; its `window`
/// is the idle time. The format must be self-describing, as JSON, TOML and YAML are.
impl<'de> Deserialize<'de> for Quota {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Forms {
            expecting: "a quota, as text like \"100/minute\" or as a map with limit and window",
            from_quota: |quota| quota,
            from_list: None,
        })
    }
}

/// Reads quotas in each of their forms: as text, as a map of one quota, or as a list.
struct Forms<T> {
    expecting: &'static str,
    from_quota: fn(Quota) -> T,
    /// `None` if a list is an error.
    from_list: Option<fn(Quotas) -> T>,
}

impl<'de, T: FromStr<Err = ConfigError>> Visitor<'de> for Forms<T> {
    type Value = T;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.expecting)
    }

    fn visit_str<E: Error>(self, v: &str) -> Result<T, E> {
        v.parse().map_err(E::custom)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        let map = QuotaMap::deserialize(MapAccessDeserializer::new(map))?;
        if map.window.is_none() && map.algorithm != Some(Algorithm::InFlight) {
            return Err(Error::missing_field("window"));
        }
        map.into_quota().map(self.from_quota).map_err(Error::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<T, A::Error> {
        let Some(from_list) = self.from_list else {
            return Err(Error::invalid_type(Unexpected::Seq, &self));
        };
        let quotas = Vec::<Quota>::deserialize(SeqAccessDeserializer::new(seq))?;
        if quotas.is_empty() {
            return Err(Error::custom(
                "an empty list of quotas would admit every check; list at least one quota",
            ));
        }
        Ok(from_list(quotas.into()))
    }
}

/// Serializes to text, or to a map if the quota has a name.
impl Serialize for Quota {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Some(name) = self.name() else {
            return serializer.collect_str(self);
        };
        let has_window = !self.is_in_flight() || !self.has_default_slot_lease();
        let has_algorithm = self.calendar().is_none() && self.algorithm() != Algorithm::default();
        let shares: Vec<_> = self.share_list().iter().map(Share::to_string).collect();
        let rate = self.written_rate();
        let written = rate.as_ref().unwrap_or(self);
        let map = QuotaMap {
            limit: written.limit(),
            window: has_window.then(|| written.window_text()),
            algorithm: (has_algorithm && rate.is_none()).then(|| self.algorithm()),
            burst: rate.is_some().then(|| self.limit()),
            name: Some(name.into()),
            soft: self.is_soft(),
            warn_at: self.warn_percent(),
            shares: shares.join(" "),
        };
        map.serialize(serializer)
    }
}

/// Deserializes one quota, a list of quotas, or text with several: `"100/minute, 5/10s"`.
///
/// Empty text and an empty list are errors, because a missing setting would disable the limiter. A limit of 0 is logged,
/// because it refuses every check.
impl<'de> Deserialize<'de> for Quotas {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let quotas: Self = deserializer.deserialize_any(Forms {
            expecting: "a quota or a list of quotas",
            from_quota: Self::from,
            from_list: Some(|quotas| quotas),
        })?;
        warn_if_zero(&quotas);
        Ok(quotas)
    }
}

/// Serializes to a list of quotas.
impl Serialize for Quotas {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

/// Deserializes `"default"`, `"exempt"`, or quotas in any form that [`Quotas`] deserialize from.
impl<'de> Deserialize<'de> for Plan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Forms {
            expecting: "\"default\", \"exempt\", a quota or a list of quotas",
            from_quota: |quota| Self::Quotas(quota.into()),
            from_list: Some(Self::Quotas),
        })
    }
}

/// Serializes to `"default"`, `"exempt"`, or a list of quotas.
impl Serialize for Plan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Default => serializer.serialize_str(DEFAULT),
            Self::Exempt => serializer.serialize_str(EXEMPT),
            Self::Quotas(quotas) => quotas.serialize(serializer),
        }
    }
}

/// Deserializes the name of an algorithm: `"gcra"`, `"sliding-buckets:60"`.
impl<'de> Deserialize<'de> for Algorithm {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        name.parse().map_err(Error::custom)
    }
}

/// Serializes to the name of the algorithm.
impl Serialize for Algorithm {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use serde_json::{from_str, json, to_value};

    use super::*;

    const TEN_SECONDS: Duration = Duration::from_secs(10);

    #[test]
    fn a_quota_is_text_or_a_map() {
        let five = Quota::new(5, TEN_SECONDS);
        for (json, quota) in [
            (r#""5/10s""#, five.clone()),
            (
                r#""5/10s gcra""#,
                five.clone().with_algorithm(Algorithm::Gcra),
            ),
            (r#"{"limit": 5, "window": "10s"}"#, five.clone()),
            (r#"{"window": "minute", "limit": 5}"#, Quota::per_minute(5)),
            (
                r#"{"limit": 5, "window": "10s", "algorithm": "sliding-buckets:60", "name": "burst"}"#,
                five.clone()
                    .with_algorithm(Algorithm::SlidingBuckets(60))
                    .with_name("burst"),
            ),
            (r#"{"limit": 5, "window": "10s", "name": null}"#, five),
        ] {
            assert_eq!(from_str::<Quota>(json).unwrap(), quota, "{json}");
            assert_eq!(
                from_str::<Quotas>(json).unwrap(),
                Quotas::from(quota),
                "{json}"
            );
        }
    }

    #[test]
    fn a_quota_in_flight_is_text_or_a_map() {
        let slots = Quota::in_flight(5);
        let lease = Duration::from_secs(60);
        let named = slots.clone().with_name("streams");
        for (written, quota) in [
            (json!("5 in-flight"), slots.clone()),
            (json!("5 in-flight:1m"), slots.clone().slot_lease(lease)),
            (
                json!({"limit": 5, "algorithm": "in-flight", "name": "streams"}),
                named.clone(),
            ),
            (
                json!({"limit": 5, "window": "minute", "algorithm": "in-flight", "name": "streams"}),
                named.slot_lease(lease),
            ),
        ] {
            assert_eq!(to_value(&quota).unwrap(), written);
            let read = serde_json::from_value::<Quota>(written.clone()).unwrap();
            assert_eq!(read, quota);
            let read = serde_json::from_value::<Plan>(written).unwrap();
            assert_eq!(read, Plan::Quotas(quota.into()));
        }
        let read = from_str::<Quota>(r#"{"limit": 5, "window": "15s", "algorithm": "in-flight"}"#);
        assert_eq!(read.unwrap(), slots);
        for (json, text) in [
            (
                r#"{"limit": 5, "window": "1s", "algorithm": "in-flight"}"#,
                "from 5s to 10m",
            ),
            (
                r#"{"limit": 5, "algorithm": "gcra"}"#,
                "missing field `window`",
            ),
            (
                r#"{"limit": 5, "window": "day@UTC", "algorithm": "in-flight"}"#,
                "from 5s to 10m",
            ),
        ] {
            let error = from_str::<Quota>(json).unwrap_err().to_string();
            assert!(error.contains(text), "{json}: {error}");
        }
    }

    #[test]
    fn a_map_may_have_marks() {
        let quota = Quota::new(5, TEN_SECONDS).soft().warn_at(80);
        assert_eq!(to_value(&quota).unwrap(), json!("5/10s soft warn:80%"));
        let named = quota.with_name("plan");
        let written =
            json!({"limit": 5, "window": "10s", "name": "plan", "soft": true, "warn_at": 80});
        assert_eq!(to_value(&named).unwrap(), written);
        assert_eq!(serde_json::from_value::<Quota>(written).unwrap(), named);
        for (json, rule) in [
            (
                r#"{"limit": 5, "window": "10s", "warn_at": 0}"#,
                "from 1% to 100%",
            ),
            (
                r#"{"limit": 5, "window": "10s", "warn_at": 101}"#,
                "from 1% to 100%",
            ),
            (
                r#"{"limit": 5, "algorithm": "in-flight", "soft": true}"#,
                "unless it is in flight",
            ),
        ] {
            let error = from_str::<Quota>(json).unwrap_err().to_string();
            assert!(error.contains(rule), "{json}: {error}");
        }
    }

    #[test]
    fn a_map_may_have_a_burst_and_shares_in_percent() {
        let json = r#"{"limit": 10, "window": "second", "burst": 50, "name": "api"}"#;
        let bucket = Quota::per_second(10).burst(50).with_name("api");
        assert_eq!(from_str::<Quota>(json).unwrap(), bucket);
        let written = json!({"limit": 10, "window": "second", "burst": 50, "name": "api"});
        assert_eq!(to_value(&bucket).unwrap(), written);
        assert_eq!(serde_json::from_value::<Quota>(written).unwrap(), bucket);
        let json = r#"{"limit": 10, "window": "minute", "shares": "live>=25% batch<=50%"}"#;
        let shared = "10/minute live>=2 batch<=5".parse().unwrap();
        assert_eq!(from_str::<Quota>(json).unwrap(), shared);
        for (json, rule) in [
            (
                r#"{"limit": 5, "window": "10s", "burst": 0}"#,
                "refilled within 1 ms",
            ),
            (
                r#"{"limit": 5, "window": "10s", "burst": 7, "algorithm": "fixed-window"}"#,
                "token bucket",
            ),
            (
                r#"{"limit": 5, "algorithm": "in-flight", "burst": 7}"#,
                "token bucket",
            ),
            (
                r#"{"limit": 5, "window": "10s", "shares": "batch<=500%"}"#,
                "a share is one word",
            ),
        ] {
            let error = from_str::<Quota>(json).unwrap_err().to_string();
            assert!(error.contains(rule), "{json}: {error}");
        }
    }

    #[cfg(feature = "calendar")]
    #[test]
    fn the_window_of_a_map_may_be_one_of_a_calendar() {
        let quota = Quota::per_calendar_month(5, "Europe/Berlin")
            .unwrap()
            .with_name("plan");
        let written = json!({"limit": 5, "window": "month@Europe/Berlin", "name": "plan"});
        assert_eq!(to_value(&quota).unwrap(), written);
        assert_eq!(serde_json::from_value::<Quota>(written).unwrap(), quota);
        let error = from_str::<Quota>(r#"{"limit": 5, "window": "day@UTC", "algorithm": "gcra"}"#);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("counted as a fixed-window"), "{error}");
    }

    #[test]
    fn quotas_are_text_a_map_or_a_list() {
        let list = from_str::<Quotas>(r#"["5/second", {"limit": 2000, "window": "day"}]"#);
        assert_eq!(
            list.unwrap(),
            Quotas::from([Quota::per_second(5), Quota::per_day(2_000)])
        );
    }

    #[test]
    fn an_empty_list_is_an_error() {
        let error = from_str::<Quotas>("[]").unwrap_err().to_string();
        assert!(error.contains("list at least one quota"), "{error}");
    }

    #[test]
    fn an_empty_list_in_a_file_is_an_error_like_empty_text() {
        #[derive(Debug, Deserialize)]
        #[expect(dead_code, reason = "only its errors are read")]
        struct Config {
            q: Quotas,
        }
        for (toml, text) in [
            ("q = []", "list at least one quota"),
            ("q = ''", "a quota is LIMIT/WINDOW"),
            ("", "missing field `q`"),
        ] {
            let error = toml::from_str::<Config>(toml).unwrap_err().to_string();
            assert!(error.contains(text), "{toml:?}: {error}");
        }
        for (json, text) in [("[]", "list at least one quota"), (r#""""#, "a plan is")] {
            let error = from_str::<Plan>(json).unwrap_err().to_string();
            assert!(error.contains(text), "{json}: {error}");
        }
    }

    #[test]
    fn a_plan_is_a_word_or_quotas_in_any_form() {
        let burst = Quota::new(5, TEN_SECONDS).with_name("burst");
        for (written, plan) in [
            (json!("default"), Plan::Default),
            (json!("exempt"), Plan::Exempt),
            (
                json!("5/10s"),
                Plan::Quotas(Quota::new(5, TEN_SECONDS).into()),
            ),
            (
                json!(["5/second", "2000/day"]),
                Plan::Quotas([Quota::per_second(5), Quota::per_day(2_000)].into()),
            ),
            (
                json!({"limit": 5, "window": "10s", "name": "burst"}),
                Plan::Quotas(burst.into()),
            ),
        ] {
            let read: Plan = serde_json::from_value(written).unwrap();
            assert_eq!(read, plan);
            let again: Plan = serde_json::from_value(to_value(&plan).unwrap()).unwrap();
            assert_eq!(again, plan);
        }
        let error = from_str::<Plan>(r#""gold""#).unwrap_err().to_string();
        assert!(error.contains("a plan is default, exempt"), "{error}");
        let error = from_str::<Plan>("100").unwrap_err().to_string();
        assert!(error.contains("exempt"), "{error}");
    }

    #[test]
    fn the_error_of_a_malformed_value_names_the_broken_rule() {
        for (json, texts) in [
            (r#""5/fortnight""#, ["5/fortnight", "the window is"]),
            (
                r#"{"limit": 5, "window": "fortnight"}"#,
                ["fortnight", "the window is"],
            ),
            (
                r#"{"limit": 5, "window": "367d"}"#,
                ["31708800s", "from 1 ms to 366 days"],
            ),
            (
                r#"{"limit": 5, "window": 10}"#,
                ["10", r#"expected text with a unit, such as "60s""#],
            ),
            (r#"{"limit": -5, "window": "10s"}"#, ["-5", "u32"]),
            (
                r#"{"limit": 5, "window": "10s", "bursts": 7}"#,
                ["bursts", "unknown field"],
            ),
            (r#"{"limit": 5}"#, ["window", "missing field"]),
            (
                r#"{"limit": 5, "window": "10s", "algorithm": "leaky"}"#,
                ["leaky", "the algorithm is"],
            ),
            (
                r#"{"limit": 5, "window": "10s", "algorithm": "sliding-buckets:0"}"#,
                ["sliding-buckets:0", "from 1 to 1000"],
            ),
            ("100", ["100", "a quota"]),
        ] {
            for error in [
                from_str::<Quota>(json).unwrap_err(),
                from_str::<Quotas>(json).unwrap_err(),
            ] {
                let error = error.to_string();
                assert!(
                    texts.iter().all(|text| error.contains(text)),
                    "{json}: {error}"
                );
            }
        }
    }

    #[test]
    fn a_total_is_a_map_with_its_idle_time() {
        let map = json!({"limit": 200_000, "algorithm": "total", "window": "7d"});
        let total = Quota::total(200_000, Duration::from_secs(7 * 86_400));
        assert_eq!(serde_json::from_value::<Quota>(map).unwrap(), total);
        assert_eq!(to_value(&total).unwrap(), json!("200000 total:7d"));
        assert_eq!(
            to_value(total.with_name("run")).unwrap(),
            json!({"limit": 200_000, "algorithm": "total", "window": "7d", "name": "run"})
        );
        let error = from_str::<Quota>(r#"{"limit": 5, "algorithm": "total"}"#).unwrap_err();
        assert!(error.to_string().contains("missing field"), "{error}");
    }

    #[test]
    fn quotas_without_a_name_are_serialized_as_text() {
        assert_eq!(
            to_value(Quota::per_minute(100)).unwrap(),
            json!("100/minute")
        );
        let named = Quota::per_second(5).with_name("burst");
        assert_eq!(
            to_value(Quotas::from([named, Quota::per_day(9)])).unwrap(),
            json!([{"limit": 5, "window": "second", "name": "burst"}, "9/day"]),
        );
    }

    proptest! {
        #[test]
        fn serialized_quotas_deserialize_to_the_same_value(
            limit: u32,
            micros in 1_000_u64..=366 * 86_400_000_000,
            buckets in 1..=1_000_u16,
            algorithm in prop::sample::select(Algorithm::ALL),
            lease in prop::option::of(5_000_000_u64..=600_000_000),
            is_total: bool,
            name in prop::option::of("\\PC{0,9}"),
            is_soft: bool,
            warn in prop::option::of(1..=100_u8),
        ) {
            let algorithm = algorithm.with_buckets(buckets);
            let quota = match lease {
                Some(lease) => Quota::in_flight(limit).slot_lease(Duration::from_micros(lease)),
                None if is_total => Quota::total(limit, Duration::from_micros(micros)),
                None => Quota::new(limit, Duration::from_micros(micros)).with_algorithm(algorithm),
            };
            let quota = match name {
                Some(name) => quota.with_name(name),
                None => quota,
            };
            let quota = if is_soft && lease.is_none() {
                quota.soft()
            } else {
                quota
            };
            let quota = match warn {
                Some(percent) => quota.warn_at(percent),
                None => quota,
            };
            let written = serde_json::to_string(&quota).unwrap();
            prop_assert_eq!(&from_str::<Quota>(&written).unwrap(), &quota);
            let quotas = Quotas::from(quota);
            let written = serde_json::to_string(&quotas).unwrap();
            prop_assert_eq!(from_str::<Quotas>(&written).unwrap(), quotas);
        }
    }
}
