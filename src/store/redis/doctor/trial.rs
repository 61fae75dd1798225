//! Whether the script works, by running it.

use std::time::Duration;

use super::doctor::Asking;
use super::info::Node;
use super::report::Finding;
use super::scratch::Scratch;
use super::trouble::{advice, code_of};
use crate::decision::Answer;
use crate::error::Error;
use crate::quota::{Algorithm, Quota, Quotas};
use crate::store::redis::connection::KEYLESS;
use crate::store::redis::doctor::server;
use crate::store::redis::protocol::{BatchEntry, EntryReply, unexpected};
use crate::store::requests::Refund;

/// What is charged and given back.
const UNITS: u32 = 2;

/// In a cluster, so many keys are looked for: that one server has the slots of all of them by chance
/// does not happen.
const SLOTS_TRIED: u32 = 24;

const TOPIC: &str = "script";

/// For a user who could not remove what the script charges.
pub(crate) fn would_leave_keys() -> Finding {
    Finding::problem(
        TOPIC,
        "not tried: the user may neither remove a key nor have it end",
    )
}

/// For one of whom it is not known.
pub(crate) fn not_tried() -> Finding {
    Finding::unknown(
        TOPIC,
        "not tried: whether its keys could be removed is not known",
    )
}

/// Checks, gives back, looks and resets, by all algorithms at once.
pub(crate) async fn script(asking: &Asking) -> Finding {
    match try_it(asking).await {
        Ok(None) => Finding::ok(
            TOPIC,
            "a check, a refund and a reset by every algorithm came out right",
        ),
        Ok(Some(wrong)) => Finding::problem(TOPIC, wrong).with_remedy(
            "something between here and Redis changes commands or answers, or this is no Redis",
        ),
        Err(error) => Finding::problem(TOPIC, error.to_string()).with_remedy(advice(&error)),
    }
}

/// What came out wrong, if anything.
async fn try_it(asking: &Asking) -> Result<Option<String>, Error> {
    let scratch = Scratch::new(quotas());
    let tried = charge_and_give_back(asking, &scratch).await;
    // Whatever came of that, nothing is to be left; and if this fails, the keys have a time to live.
    let reset = asking.within(asking.client.reset(scratch.reset())).await;
    let wrong = tried?;
    reset?;
    let left = check(asking, &scratch, 0).await?;
    Ok(wrong.or_else(|| expect_used(&left, 0, "a reset")))
}

async fn charge_and_give_back(asking: &Asking, scratch: &Scratch) -> Result<Option<String>, Error> {
    let charged = check(asking, scratch, UNITS).await?;
    if let Some(wrong) = expect_used(&charged, UNITS, "a check") {
        return Ok(Some(wrong));
    }
    let refund = Refund {
        subject: scratch.subject(),
        units: UNITS,
        cost: UNITS,
        held: 0,
        answer: &charged,
    };
    asking.within(asking.client.refund(&refund)).await?;
    let left = check(asking, scratch, 0).await?;
    Ok(expect_used(&left, 0, "a refund"))
}

/// All algorithms, the log first. A minute: what is left behind, if anything is, goes after two.
fn quotas() -> Quotas {
    let algorithms = Algorithm::ALL.iter().map(|facts| facts.with_buckets(6));
    let quotas = algorithms.map(|algorithm| Quota::per_minute(100).algorithm(algorithm));
    quotas.collect()
}

/// Asks for one check, past what the store does to spare Redis calls.
pub(crate) async fn check(asking: &Asking, scratch: &Scratch, cost: u32) -> Result<Answer, Error> {
    let entries = [BatchEntry {
        check: scratch.check(cost),
        count: 1,
    }];
    let decided = async {
        let live = asking.client.acquire(KEYLESS).await?;
        asking.client.decide(&live, &entries).await
    };
    let granted = asking.within(decided).await?;
    let granted = granted.into_iter().next().transpose()?;
    let answer = granted.and_then(EntryReply::into_last);
    answer.ok_or_else(|| unexpected("nothing"))
}

/// The log alone is held to its number: the windows of others may have ended in between.
fn expect_used(answer: &Answer, units: u32, after: &str) -> Option<String> {
    let used = answer.quotas().first().map(|quota| quota.used());
    (used != Some(units)).then(|| {
        let used = used.unwrap_or_default();
        format!("after {after} there should be {units} units used, and there are {used}")
    })
}

/// Whether keys of all slots can be reached, where the server is one of a cluster.
pub(crate) async fn slots(asking: &Asking, nodes: &[Node]) -> Option<Finding> {
    const TOPIC: &str = "cluster";
    if !nodes.iter().any(|node| server::is_of_cluster(&node.info)) {
        return None;
    }
    for _ in 0..SLOTS_TRIED {
        let scratch = Scratch::new(Quota::new(1, Duration::from_secs(1)));
        let get = scratch.command(&asking.client.names, "EXISTS", &[]);
        let Err(error) = asking.ask(&get).await else {
            continue;
        };
        return Some(match code_of(&error).as_deref() {
            Some("NOPERM") => Finding::unknown(TOPIC, format!("one of a cluster; {error}")),
            _ => Finding::problem(
                TOPIC,
                format!("one of a cluster, and keys cannot be reached: {error}"),
            )
            .with_remedy(advice(&error)),
        });
    }
    Some(Finding::ok(
        TOPIC,
        "one of a cluster, of which all slots that were tried answer",
    ))
}
