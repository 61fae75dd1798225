//! Clients that change counts: charges, settlements, refunds, credits and resets.
//!
//! Their charges to the limiters of sums are known, but for calls without an answer. Each change is recorded before it is
//! sent as one that may have happened, and after its answer as one that has.

use std::time::Duration;

use tollgate::{Algorithm, Decision, Error, Quota, Quotas, RateLimiter};

use super::client::Client;
use crate::world::record::ChargedUnits;

const KEYS: [&str; 2] = ["ada", "bob"];

/// Limiters of which an operator gives units of a key back.
const CREDITED: [&str; 10] = [
    "log", "pair", "set", "set", "buckets", "counter", "counter", "window", "gcra", "shared",
];

/// Makes changes until the world is over.
pub(super) async fn change(mut client: Client) {
    while let Some(sent) = client.pause(120).await {
        let key = client.random.pick(&KEYS);
        let sums = client.random.pick(&["sums", "window-sums"]);
        match client.random.below(12) {
            0 => charge(&client, sums, key, 5).await,
            1..=4 => check_and_settle(&mut client, sums, key).await,
            5 | 6 => give_credit(&mut client, sent).await,
            7 => look(&client, key).await,
            8 => change_row(&mut client, sent).await,
            _ => check_credited(&mut client, sent).await,
        }
    }
}

/// Checks a key to which an operator gives units back, and gives units of it back later. Rarely charges it beyond its limit.
async fn check_credited(client: &mut Client, sent: u64) {
    let limiter = client.random.pick(&CREDITED);
    let limits = client.limiters.get(limiter);
    if client.random.one_in(8) {
        let _ = limits.charge("cara", 14).await;
        return;
    }
    let mut level = limits.level("cara").cost(3);
    if limiter == "shared" {
        level = level.share("batch");
    }
    let outcome = RateLimiter::check_all([level]).await;
    let admitted = client.outcome(outcome, &[(limiter, "cara", 1)], sent);
    if let Some(decision) = admitted {
        client.give_back_later(decision, 2, 1_500);
    }
}

/// Checks a row of counters by two lists, and a limiter that admits nothing.
async fn change_row(client: &mut Client, sent: u64) {
    let closed = client.limiters.get("closed").check_n("dora", 0).await;
    client.outcome(closed, &[("closed", "dora", 0)], sent);
    let quotas = [Quota::per_hour(1_000), Quota::per_minute(1_000)];
    let quotas = quotas.map(|quota| quota.with_algorithm(Algorithm::Gcra));
    let mut level = client.limiters.get("row").level("dora").cost(3);
    if client.random.one_in(2) {
        level = level.quotas(Quotas::from(quotas));
    }
    let outcome = RateLimiter::check_all([level]).await;
    if let Some(decision) = client.outcome(outcome, &[("row", "dora", 3)], sent) {
        client.give_back_later(decision, 2, 300);
    }
}

/// Changes what was charged to a key.
fn record(client: &Client, sums: &'static str, key: &str, change: impl FnOnce(&mut ChargedUnits)) {
    let mut world = client.world.lock();
    change(world.record.charged(sums, key));
}

/// Returns the units that were certainly charged to a key.
fn charged_by_now(client: &Client, sums: &'static str, key: &str) -> i64 {
    client.world.lock().record.charged(sums, key).least
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
    let limiter = client.limiters.get(sums);
    let mut level = limiter.level(key).cost(cost as u32);
    let is_known = charged_by_now(client, sums, key) > 30;
    if sums == "sums" && client.random.one_in(3) && is_known {
        // Another list over the same log. It forgets nothing that the longer window counts, once that has charged: units that
        // only a shorter one has charged are gone after that, which an exact sum had forgotten.
        level = level.quotas(Quota::new(1_000, Duration::from_millis(300)));
    }
    let outcome = RateLimiter::check_all([level]).await;
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
    let settled = settle(client, decision, used as u32).await;
    match settled {
        Ok(()) => record(client, sums, key, |charged| {
            charged.most += difference.min(0);
            charged.least += difference.max(0);
        }),
        Err(error) => client.failed(&error, &[(sums, key, used as u32)]),
    }
}

/// Settles a check, by a refund if it cost less.
async fn settle(client: &mut Client, mut decision: Decision, used: u32) -> Result<(), Error> {
    let unused = decision.cost().saturating_sub(used);
    if unused > 0 && client.random.one_in(2) {
        decision.refund(unused).await
    } else {
        decision.settle(used).await
    }
}

/// Gives units of whoever has charged them back, or forgets them. They may be admitted once more from now on.
async fn give_credit(client: &mut Client, sent: u64) {
    let limiter = client.random.pick(&CREDITED);
    let units = client.random.below(5) as u32;
    // Without an answer, it may happen later: when a server goes on that hung.
    let latest = sent + 10_000;
    let index = client
        .world
        .lock()
        .record
        .begin_credit(limiter, "cara", sent, latest);
    let limits = client.limiters.get(limiter);
    let outcome = match units {
        0 => limits.admin().reset("cara").await,
        _ => limits.admin().credit("cara", units).await,
    };
    match outcome {
        Ok(()) => {
            let answered = client.now();
            client
                .world
                .lock()
                .record
                .end_credit(limiter, "cara", index, answered);
        }
        Err(error) => client.failed(&error, &[(limiter, "cara", units)]),
    }
}

/// Looks at a key as an operator does. Nothing is charged.
async fn look(client: &Client, key: &'static str) {
    let limiter = if key == "ada" { "slots" } else { "pair" };
    let key = if key == "ada" { "x" } else { "bob" };
    let looked = client.limiters.get(limiter).admin().status(key).await;
    if let Err(error) = looked {
        client.failed(&error, &[(limiter, key, 0)]);
    }
}
