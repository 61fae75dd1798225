//! The settings of a page, from the query of its requests. A person typed them, so all of them are
//! bounded.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use axum::Json;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use tollgate::{Algorithm, ConfigError, Key, Quotas};

/// The algorithms beside each other, in the order of the page.
pub(crate) const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::SlidingLog,
    Algorithm::SortedSetLog,
    Algorithm::SlidingBuckets(10),
    Algorithm::SlidingCounter,
    Algorithm::Gcra,
    Algorithm::FixedWindow,
];

/// The page's facts of each algorithm: its name, the README's promise for any span as long as the window,
/// and whether its windows begin at edges that all keys share.
const TOLD: [(&str, &str, bool); ALGORITHMS.len()] = [
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

/// The algorithms, for the page: the bits and lanes of reports are in this order.
pub(crate) fn algorithms() -> Value {
    let told = ALGORITHMS.iter().zip(TOLD);
    let told = told.map(|(algorithm, (name, promise, is_aligned))| {
        json!({
            "id": algorithm.to_string(),
            "name": name,
            "promise": promise,
            "isAligned": is_aligned,
        })
    });
    told.collect()
}

const MOST_QUOTAS: usize = 4;
/// A log keeps each unit, so that both of these are memory.
const HIGHEST_LIMIT: u32 = 1_000_000;
const MOST_COST: u32 = 100;
const LONGEST_KEY: usize = 100;

/// A limit, and who is counted against it.
pub(crate) struct Settings {
    pub(crate) key: Key,
    /// As they were typed, counted by the default algorithm.
    pub(crate) quotas: Quotas,
    /// The algorithm whose answers the page gets: an index into [`ALGORITHMS`].
    pub(crate) chosen: usize,
    pub(crate) cost: u32,
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
        if key.is_empty() || key.len() > LONGEST_KEY {
            let rule = format!("a key has from 1 to {LONGEST_KEY} bytes");
            return Err(Invalid::new("key", rule));
        }
        Ok(Self {
            key: Key::from(key),
            quotas,
            chosen: chosen.ok_or_else(|| Invalid::new("algorithm", "not one of the page's"))?,
            cost: query.number("cost", 1..=MOST_COST)?,
        })
    }

    /// The quotas, counted by an algorithm.
    pub(crate) fn counted_by(&self, algorithm: Algorithm) -> Quotas {
        let quotas = self.quotas.iter().cloned();
        quotas.map(|quota| quota.algorithm(algorithm)).collect()
    }
}

fn quotas(text: &str) -> Result<Quotas, Invalid> {
    let quotas: Quotas = text
        .parse()
        .map_err(|error: ConfigError| Invalid::new("quotas", error.to_string()))?;
    if quotas.len() > MOST_QUOTAS {
        let rule = format!("at most {MOST_QUOTAS} quotas");
        return Err(Invalid::new("quotas", rule));
    }
    if quotas
        .iter()
        .any(|quota| quota.counted_by() != Algorithm::default())
    {
        let rule = "the algorithm is chosen above: here only LIMIT/WINDOW";
        return Err(Invalid::new("quotas", rule));
    }
    if quotas.iter().any(|quota| quota.limit() > HIGHEST_LIMIT) {
        let rule = format!("a limit is at most {HIGHEST_LIMIT} here");
        return Err(Invalid::new("quotas", rule));
    }
    Ok(quotas)
}

/// The query of a request.
pub(crate) struct Query(HashMap<String, String>);

impl Query {
    pub(crate) fn of(uri: &Uri) -> Self {
        let query = uri.query().unwrap_or_default().as_bytes();
        Self(url::form_urlencoded::parse(query).into_owned().collect())
    }

    /// The text of a field; empty where there is none.
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
                Invalid::new(field, format!("a whole number from {from} to {to}"))
            })
    }
}

/// A field that cannot be used, and why.
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

    pub(crate) fn told(&self) -> Value {
        json!({ "field": self.field, "why": self.why })
    }
}

impl IntoResponse for Invalid {
    fn into_response(self) -> Response {
        (StatusCode::BAD_REQUEST, Json(self.told())).into_response()
    }
}
