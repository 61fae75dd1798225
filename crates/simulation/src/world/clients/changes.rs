//! Clients that change counts: charges, settlements, refunds, credits and resets.
//!
//! What they charge to the limiters of sums is known, but for calls without an answer. Each change is recorded before it is
//! sent as one that may have happened, and after its answer as one that has.

use tollgate::{Decision, Error};

use super::client::Client;
use crate::world::record::ChargedUnits;

const KEYS: [&str; 2] = ["ada", "bob"];

/// Makes changes until the world is over.
pub(super) async fn change(mut client: Client) {
    while let Some(sent) = client.pause(120).await {
        let key = client.random.of(&KEYS);
        let sums = client.random.of(&["sums", "window-sums"]);
        match client.random.below(8) {
            0 => charge(&client, sums, key, 5).await,
            1..=4 => check_and_settle(&mut client, sums, key).await,
            5 => give_credit(&client, key, sent).await,
            6 => look(&client, key).await,
            _ => {
                let outcome = client.limiters.get("credited").check_n(key, 2).await;
                client.outcome(outcome, &[("credited", key, 2)], sent);
            }
        }
    }
}

/// Changes what was charged to a key.
fn record(client: &Client, sums: &'static str, key: &str, change: impl FnOnce(&mut ChargedUnits)) {
    let mut world = client.world.lock();
    change(world.record.charged(sums, key));
}

async fn charge(client: &Client, sums: &'static str, key: &'static str, units: i64) {
    record(client, sums, key, |charged| charged.most += units);
    match client.limiters.get(sums).charge(key, units as u32).await {
        Ok(()) => record(client, sums, key, |charged| charged.least += units),
        Err(error) => client.failed(&error, &[(sums, key, units as u32)]),
    }
}

async fn check_and_settle(client: &mut Client, sums: &'static str, key: &'static str) {
    let cost = 1 + client.random.below(4) as i64;
    record(client, sums, key, |charged| charged.most += cost);
    let outcome = client.limiters.get(sums).check_n(key, cost as u32).await;
    let decision = match outcome {
        Ok(decision) if decision.is_allowed() => decision,
        Ok(_) => {
            record(client, sums, key, |charged| charged.most -= cost);
            return;
        }
        Err(error) => return client.failed(&error, &[(sums, key, cost as u32)]),
    };
    record(client, sums, key, |charged| charged.least += cost);
    let used = client.random.below(7) as i64;
    let difference = used - cost;
    record(client, sums, key, |charged| {
        charged.most += difference.max(0);
        charged.least += difference.min(0);
    });
    let settled = settle(client, sums, decision, used as u32).await;
    match settled {
        Ok(()) => record(client, sums, key, |charged| {
            charged.most += difference.min(0);
            charged.least += difference.max(0);
        }),
        Err(error) => client.failed(&error, &[(sums, key, used as u32)]),
    }
}

/// Settles a check, by a refund if it cost less.
async fn settle(
    client: &mut Client,
    sums: &str,
    mut decision: Decision,
    used: u32,
) -> Result<(), Error> {
    let limiter = client.limiters.get(sums);
    let unused = decision.cost().saturating_sub(used);
    if unused > 0 && client.random.one_in(2) {
        limiter.refund(&mut decision, unused).await
    } else {
        limiter.settle(decision, used).await
    }
}

/// Gives a key units of whoever has charged them. They may be admitted once more from now on.
async fn give_credit(client: &Client, key: &'static str, sent: u64) {
    // Without an answer, it may happen later: when a server goes on that hung.
    let latest = sent + 10_000;
    let index = client
        .world
        .lock()
        .record
        .begin_credit("credited", key, sent, latest);
    let limiter = client.limiters.get("credited");
    let outcome = if key == "ada" {
        limiter.admin().credit(key, 3).await
    } else {
        limiter.reset(key).await
    };
    match outcome {
        Ok(()) => {
            let answered = client.now();
            client
                .world
                .lock()
                .record
                .end_credit("credited", key, index, answered);
        }
        Err(error) => client.failed(&error, &[("credited", key, 3)]),
    }
}

/// Looks at a key as an operator does. Nothing is charged.
async fn look(client: &Client, key: &'static str) {
    let limiter = if key == "ada" { "slots" } else { "pair" };
    let key = if key == "ada" { "x" } else { "bob" };
    let looked = client.limiters.get(limiter).admin().peek(key).await;
    if let Err(error) = looked {
        client.failed(&error, &[(limiter, key, 0)]);
    }
}
