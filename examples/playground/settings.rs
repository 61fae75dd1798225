//! Parses the settings of the page from the query of a request. Each value has a maximum.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use axum::Json;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tollgate::{Algorithm, ConfigError, Key, Quota, Quotas};

use crate::lease::LEASES;
use crate::shares;

/// The algorithms, in the order of the page.
pub(crate) const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::SlidingLog,
    Algorithm::SortedSetLog,
    Algorithm::SlidingBuckets(10),
    Algorithm::SlidingCounter,
    Algorithm::Gcra,
    Algorithm::FixedWindow,
];

/// The name of each algorithm, its promise for any span as long as the window (as in the README), and whether
/// its windows are aligned.
const FACTS: [(&str, &str, bool); ALGORITHMS.len()] = [
    ("Sliding log", "never more than the limit", false),
    ("Sorted set log", "never more than the limit", false),
    (
        "Sliding buckets",
        "never more than the limit; a unit returns at most window/10 late",
        false,
    ),
    (
        "Sliding counter",
        "about the limit for steady traffic, below twice the limit at worst",
        true,
    ),
    (
        "GCRA",
        "the limit per window after a burst of at most the limit: below twice",
        false,
    ),
    (
        "Fixed window",
        "never more than the limit in one aligned window, up to twice across an edge",
        true,
    ),
];

/// The algorithms for the page. The bits and lanes of reports have this order.
pub(crate) fn algorithms() -> Value {
    let facts = ALGORITHMS.iter().zip(FACTS);
    let facts = facts.map(|(algorithm, (name, promise, is_aligned))| {
        let quota = Quota::per_second(10).with_algorithm(*algorithm);
        let has_shares = shares::divide(quota.clone()) != quota;
        json!({
            "id": algorithm.to_string(),
            "name": name,
            "promise": promise,
            "isAligned": is_aligned,
            "hasShares": has_shares,
        })
    });
    facts.collect()
}

const MAX_QUOTAS: usize = 4;
/// Bounds the memory: a log stores every unit.
const MAX_LIMIT: u32 = 1_000_000;
const MAX_COST: u32 = 100;
const MAX_KEY_BYTES: usize = 100;

/// The limit, and the key and cost of a request.
pub(crate) struct Settings {
    pub(crate) key: Key,
    /// The quotas as typed, with the default algorithm.
    pub(crate) quotas: Quotas,
    /// The selected algorithm: an index into [`ALGORITHMS`].
    pub(crate) chosen: usize,
    pub(crate) cost: u32,
    /// The selected lease: an index into [`LEASES`].
    pub(crate) lease: usize,
    /// Whether the limit has shares.
    pub(crate) shares: bool,
}

impl Settings {
    pub(crate) fn of(query: &Query) -> Result<Self, Invalid> {
        let quotas = quotas(query.text("quotas"))?;
        let algorithm: Algorithm = query
            .text("algorithm")
            .parse()
            .map_err(|error: ConfigError| Invalid::new("algorithm", error.to_string()))?;
        let chosen = ALGORITHMS.iter().position(|each| *each == algorithm);
        let key = query.text("key");
        if key.is_empty() || key.len() > MAX_KEY_BYTES {
            let rule = format!("enter 1 to {MAX_KEY_BYTES} bytes");
            return Err(Invalid::new("key", rule));
        }
        Ok(Self {
            key: Key::from(key),
            shares: has_shares(query.text("shares"), &quotas)?,
            quotas,
            chosen: chosen
                .ok_or_else(|| Invalid::new("algorithm", "not an algorithm of this page"))?,
            cost: query.number("cost", 1..=MAX_COST)?,
            lease: lease(query.text("lease"))?,
        })
    }

    /// Returns the quotas with an algorithm.
    pub(crate) fn counted_by(&self, algorithm: Algorithm) -> Quotas {
        let quotas = self.quotas.iter().cloned();
        quotas
            .map(|quota| quota.with_algorithm(algorithm))
            .map(|quota| match self.shares {
                true => shares::divide(quota),
                false => quota,
            })
            .collect()
    }
}

fn quotas(text: &str) -> Result<Quotas, Invalid> {
    let quotas: Quotas = text
        .parse()
        .map_err(|error: ConfigError| Invalid::new("quotas", error.to_string()))?;
    if quotas.len() > MAX_QUOTAS {
        let rule = format!("enter at most {MAX_QUOTAS} quotas");
        return Err(Invalid::new("quotas", rule));
    }
    // Not every algorithm can count a quota with more, such as shares.
    if quotas
        .iter()
        .any(|quota| *quota != Quota::new(quota.limit(), quota.window()))
    {
        let rule =
            "select the algorithm above and the shares beside it, and enter only LIMIT/WINDOW here";
        return Err(Invalid::new("quotas", rule));
    }
    if quotas.iter().any(|quota| quota.limit() > MAX_LIMIT) {
        let rule = format!("the highest limit on this page is {MAX_LIMIT}");
        return Err(Invalid::new("quotas", rule));
    }
    Ok(quotas)
}

/// Returns the index of a lease. Without one, leases are off.
fn lease(text: &str) -> Result<usize, Invalid> {
    let lease = LEASES.iter().position(|(id, _)| *id == text);
    match lease {
        None if text.is_empty() => Ok(0),
        None => Err(Invalid::new("lease", "not a lease of this page")),
        Some(lease) => Ok(lease),
    }
}

/// Returns whether the limit has shares. Their reserves and bounds are drawn for one quota.
fn has_shares(text: &str, quotas: &Quotas) -> Result<bool, Invalid> {
    match text {
        "" | "off" => Ok(false),
        "on" if quotas.len() == 1 => Ok(true),
        "on" => Err(Invalid::new(
            "quotas",
            "enter one quota to divide into shares",
        )),
        _ => Err(Invalid::new("shares", "select on or off")),
    }
}

/// The query of a request.
pub(crate) struct Query(HashMap<String, String>);

impl Query {
    pub(crate) fn of(uri: &Uri) -> Self {
        let query = uri.query().unwrap_or_default().as_bytes();
        Self(url::form_urlencoded::parse(query).into_owned().collect())
    }

    /// Returns the text of a field, or an empty text if it is missing.
    pub(crate) fn text(&self, field: &str) -> &str {
        self.0.get(field).map_or("", String::as_str)
    }

    pub(crate) fn number(
        &self,
        field: &'static str,
        range: RangeInclusive<u32>,
    ) -> Result<u32, Invalid> {
        let number = self.text(field).parse().ok();
        number
            .filter(|number| range.contains(number))
            .ok_or_else(|| {
                let (from, to) = (range.start(), range.end());
                Invalid::new(field, format!("enter a whole number from {from} to {to}"))
            })
    }
}

/// An invalid field, and the rule that it breaks.
pub(crate) struct Invalid {
    field: &'static str,
    why: String,
}

impl Invalid {
    pub(crate) fn new(field: &'static str, why: impl Into<String>) -> Self {
        Self {
            field,
            why: why.into(),
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({ "field": self.field, "why": self.why })
    }
}

impl IntoResponse for Invalid {
    fn into_response(self) -> Response {
        (StatusCode::BAD_REQUEST, Json(self.to_json())).into_response()
    }
}
