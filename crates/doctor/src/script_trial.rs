//! Runs the script on scratch keys.

use std::time::Duration;

use tollgate::store::protocol::{Answer, Holding};
use tollgate::{__doctor as hooks, Algorithm, Error, Quota, Quotas};

use crate::coverage::coverage;
use crate::info::Node;
use crate::remedies::{error_code, remedy_for};
use crate::report::{Finding, Severity};
use crate::scratch_key::ScratchKey;
use crate::server;
use crate::session::Session;

/// The units that are charged and refunded.
const UNITS: u32 = 2;

/// Keys that are looked up in a cluster: enough that they are never all on one server by chance.
const SLOTS_TRIED: u32 = 24;

/// The window of the quotas on trial. Longer than the calls of the trial may take.
const WINDOW: Duration = Duration::from_secs(10);

/// The holder of the slots on trial: nobody else counts the scratch key.
const HOLDER: [u8; 16] = [1; 16];

const TOPIC: &str = "script";

/// The finding for a user who could not remove the keys of the trial.
pub(crate) fn would_leave_keys() -> Finding {
    Finding::problem(
        TOPIC,
        "not tried: the user may run none of unlink, del and pexpire, so the keys of the trial would stay",
    )
    .with_remedy("grant the right: ACL SETUSER <user> +unlink")
}

/// The finding if the script could not be tried.
pub(crate) fn not_tried(reason: &str) -> Finding {
    Finding::unknown(TOPIC, format!("not tried: {reason}"))
}

/// Checks, refunds, looks and resets, by all algorithms at once.
pub(crate) async fn script(session: &Session) -> Finding {
    match try_scripts(session).await {
        Ok(None) => Finding::ok(
            TOPIC,
            "a check, a refund and a reset succeeded with every algorithm",
        ),
        Ok(Some(problem)) => Finding::problem(TOPIC, problem).with_remedy(
            "remove the proxy in between, which changes commands or replies, or use a Redis server",
        ),
        Err(error) => {
            let problem = hooks::problem(&error).to_owned();
            Finding::problem(TOPIC, problem).with_remedy(remedy_for(&error))
        }
    }
}

/// Returns the first wrong result, if there is one.
async fn try_scripts(session: &Session) -> Result<Option<String>, Error> {
    let key = ScratchKey::new(quotas());
    let outcome = charge_and_refund(session, &key).await;
    // The reset runs in any case, to leave no key behind.
    let reset = session.reset(&key).await;
    if reset.is_err() {
        // If this fails too, the keys expire.
        session.remove(&key).await;
    }
    let problem = outcome?;
    reset?;
    let looked = session.check(key.subject().check(0)).await?;
    match problem.or_else(|| expect_used(&looked, 0, "a reset")) {
        Some(problem) => Ok(Some(problem)),
        None => try_slots(session).await,
    }
}

/// Takes slots in flight, and gives them back.
async fn try_slots(session: &Session) -> Result<Option<String>, Error> {
    let key = ScratchKey::new(Quota::in_flight(100).slot_lease(WINDOW));
    let answer_to = async |sequence, wanted| {
        let message = Holding::new(HOLDER, sequence, 0, wanted, WINDOW);
        session
            .check(key.subject().check(0).with_holding(&message))
            .await
    };
    let taken = answer_to(1, UNITS).await;
    let returned = answer_to(2, 0).await;
    // No reset removes slots.
    session.remove(&key).await;
    let problem = expect_used(&taken?, UNITS, "taking slots");
    Ok(problem.or(expect_used(&returned?, 0, "giving slots back")))
}

async fn charge_and_refund(session: &Session, key: &ScratchKey) -> Result<Option<String>, Error> {
    let charged = session.check(key.subject().check(UNITS)).await?;
    if let Some(problem) = expect_used(&charged, UNITS, "a check") {
        return Ok(Some(problem));
    }
    session.refund(key, &charged, UNITS).await?;
    let looked = session.check(key.subject().check(0)).await?;
    Ok(expect_used(&looked, 0, "a refund"))
}

/// All algorithms, the log first, with a short window: a key that is left behind expires after two windows.
fn quotas() -> Quotas {
    let algorithms = [
        Algorithm::SlidingLog,
        Algorithm::SortedSetLog,
        Algorithm::SlidingCounter,
        Algorithm::SlidingBuckets(6),
        Algorithm::FixedWindow,
        Algorithm::Gcra,
    ];
    let quotas = algorithms.map(|algorithm| Quota::new(100, WINDOW).with_algorithm(algorithm));
    Quotas::from(quotas)
}

/// Compares the units used in the log. The windows of other algorithms may have ended in between.
fn expect_used(answer: &Answer, units: u32, after: &str) -> Option<String> {
    let used = answer.quotas().first().map(|quota| quota.used());
    (used != Some(units)).then(|| {
        let used = used.unwrap_or_default();
        format!("after {after}, {used} units are used instead of {units}")
    })
}

/// The place of the slots that were tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slots {
    Reachable,
    /// On other nodes, to which this connection is not redirected.
    Elsewhere,
    Unknown,
}

/// Examines whether keys of all slots are reachable, if the server is in a cluster.
pub(crate) async fn slots(session: &Session, nodes: &[Node]) -> Option<(Finding, Slots)> {
    const TOPIC: &str = "cluster";
    if !nodes.iter().any(|node| server::is_in_cluster(&node.info)) {
        return None;
    }
    for _ in 0..SLOTS_TRIED {
        let key = ScratchKey::new(Quota::new(1, Duration::from_secs(1)));
        let replies = session.query_each(&key, "EXISTS", &[]).await;
        let Some(error) = replies.into_iter().find_map(Result::err) else {
            continue;
        };
        let problem = hooks::problem(&error);
        let code = error_code(&error);
        // The keys are random, so a few slots that no master serves may be among them or not.
        if code == Some("CLUSTERDOWN") {
            let coverage = coverage(session).await;
            if coverage.severity == Severity::Problem {
                return Some((coverage, Slots::Unknown));
            }
        }
        return Some(match code {
            Some("NOPERM") => (
                Finding::unknown(
                    TOPIC,
                    format!("a node of a cluster; its slots could not be tried: {problem}"),
                ),
                Slots::Unknown,
            ),
            Some("MOVED") if !session.settings().follows_redirects => (
                Finding::problem(
                    TOPIC,
                    format!(
                        "the URL names one node of a cluster, and checks of keys on other nodes fail: \
                         {problem}"
                    ),
                )
                .with_remedy(remedy_for(&error)),
                Slots::Elsewhere,
            ),
            _ => (
                Finding::problem(
                    TOPIC,
                    format!("a node of a cluster, and some keys cannot be reached: {problem}"),
                )
                .with_remedy(remedy_for(&error)),
                Slots::Unknown,
            ),
        });
    }
    Some((coverage(session).await, Slots::Reachable))
}
