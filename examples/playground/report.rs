//! The reports for the page, as JSON. Times are in microseconds.

use std::time::Duration;

use axum::response::Response;
use serde_json::{Value, json};
use tollgate::{DecisionView, Quotas, Rejection, RejectionReason};

use crate::settings::Settings;
use crate::traffic::Seen;

/// Reports requests, and each algorithm's decision on the last of them.
pub(crate) fn of(seen: &[Seen], answers: &[Response], settings: &Settings, now: u64) -> Value {
    let requests = seen.iter().map(|seen| {
        let took = seen.ended - seen.began;
        json!([seen.began, took, seen.admitted])
    });
    let lanes = answers.iter().map(decision);
    json!({
        "now": now,
        "cost": settings.cost,
        "requests": requests.collect::<Vec<_>>(),
        "lanes": lanes.collect::<Vec<_>>(),
        "answer": answers.get(settings.chosen).map(answer),
    })
}

pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The response as a client sees it.
fn answer(answer: &Response) -> Value {
    let headers = answer
        .headers()
        .iter()
        .map(|(name, value)| json!([name.as_str(), String::from_utf8_lossy(value.as_bytes())]));
    json!({
        "status": answer.status().as_u16(),
        "headers": headers.collect::<Vec<_>>(),
    })
}

pub(crate) fn quotas(quotas: &Quotas) -> Value {
    let quotas = quotas.iter().map(|quota| {
        json!({
            "text": quota.to_string(),
            "limit": quota.limit(),
            "window": micros(quota.window()),
        })
    });
    quotas.collect()
}

/// The decision of one algorithm, or null if the store failed.
fn decision(answer: &Response) -> Value {
    let rejection = answer.extensions().get().map(Rejection::reason);
    let decision = match rejection {
        Some(RejectionReason::Refused(decision)) => Some(decision),
        Some(_) => None,
        None => answer.extensions().get::<DecisionView>(),
    };
    decision.map_or(Value::Null, |decision| {
        let used = decision.quotas().map(|quota| quota.used());
        json!({
            "used": used.collect::<Vec<_>>(),
            "remaining": decision.remaining(),
            "retry_after": decision.retry_after().map(micros),
            "reset_after": micros(decision.reset_after()),
            "source": format!("{:?}", decision.source()),
        })
    })
}
