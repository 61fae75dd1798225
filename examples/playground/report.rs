//! The reports for the page, as JSON. Times are in microseconds.

use std::time::Duration;

use axum::response::Response;
use serde_json::{Value, json};
use tollgate::{DecisionView, Quotas, Rejection, RejectionReason, Source};

use crate::counted::Count;
use crate::settings::Settings;
use crate::traffic::{Kept, Now, Seen};

/// Reports requests, each algorithm's counts, and its response to the last of the requests.
pub(crate) fn of(
    seen: &[Seen],
    lanes: &[Response],
    answers: &[Response],
    settings: &Settings,
    now: Now,
) -> Value {
    let requests = seen.iter().map(|seen| {
        let took = seen.ended - seen.began;
        json!([
            seen.began,
            took,
            seen.admitted,
            seen.from_memory,
            seen.alone,
            seen.share
        ])
    });
    let lanes = lanes.iter().map(lane);
    json!({
        "now": now.time,
        "started_at": now.started_at,
        "cost": settings.cost,
        "requests": requests.collect::<Vec<_>>(),
        "lanes": lanes.collect::<Vec<_>>(),
        "answers": answers.iter().map(answer).collect::<Vec<_>>(),
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
        "retry_after": decision_of(answer).and_then(|decision| decision.retry_after().map(micros)),
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

/// Returns the decision in a response, or `None` if the store failed.
pub(crate) fn decision_of(answer: &Response) -> Option<&DecisionView> {
    match answer.extensions().get().map(Rejection::reason) {
        Some(RejectionReason::Refused(decision)) => Some(decision),
        Some(_) => None,
        None => answer.extensions().get(),
    }
}

/// The decision and the counts of one algorithm, or null if the store failed.
///
/// The store counts held units as used. A decision from memory does not. Here, they are separate in both. So are the
/// units that are kept for a share, as `held`: a limit with shares has no lease.
fn lane(answer: &Response) -> Value {
    let count = answer.extensions().get().copied();
    let count: Count = count.unwrap_or_default();
    let kept = answer.extensions().get().copied();
    let Kept(kept) = kept.unwrap_or_default();
    decision_of(answer).map_or(Value::Null, |decision| {
        let held = count.held();
        let in_store = match decision.source() {
            Source::Redis | Source::RefusalCache => held,
            _ => 0,
        };
        let used = decision
            .quotas()
            .map(|quota| u64::from(quota.used()).saturating_sub(in_store + u64::from(kept)));
        json!({
            "used": used.collect::<Vec<_>>(),
            "held": held + u64::from(kept),
            "sent": count.sent,
            "used_here": count.used,
            "remaining": u64::from(decision.remaining()) + in_store,
            "reset_after": micros(decision.reset_after()),
            "source": format!("{:?}", decision.source()),
        })
    })
}
