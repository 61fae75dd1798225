//! Clients that check keys.

use std::time::Duration;

use tollgate::{Decision, Error, RateLimiter};

use super::client::Client;
use crate::world::limits::CHECKED;

const KEYS: [&str; 2] = ["ada", "bob"];

/// Checks keys by each algorithm, and settles some of the checks.
pub(super) async fn check(mut client: Client) {
    while let Some(sent) = client.pause(60).await {
        let limiter = client.random.pick(&CHECKED);
        let key = client.random.pick(&KEYS);
        let cost = client.cost();
        let limits = client.limiters.get(limiter);
        let outcome = limits.check_n(key, cost).await;
        if cost == 2 && client.random.one_in(5) {
            settle(&mut client, outcome, (limiter, key), sent).await;
        } else {
            client.outcome(outcome, &[(limiter, key, cost)], sent);
        }
    }
}

/// Gives a unit of two back, at once or later: it may be admitted to somebody else, so only one was certainly used.
async fn settle(
    client: &mut Client,
    outcome: Result<Decision, Error>,
    (limiter, key): (&'static str, &'static str),
    sent: u64,
) {
    let Some(decision) = client.outcome(outcome, &[(limiter, key, 1)], sent) else {
        return;
    };
    if client.random.one_in(2) {
        client.give_back_later(decision, 1, 1_500);
        return;
    }
    let settled = decision.settle(1).await;
    if let Err(error) = settled {
        client.failed(&error, &[(limiter, key, 1)]);
    }
}

/// Checks one key so often that its units are leased.
pub(super) async fn check_busy_key(mut client: Client) {
    while let Some(sent) = client.pause(6).await {
        // Leases of a key that is idle at times end and are given back.
        if client.random.one_in(400) && client.pause(600).await.is_none() {
            return;
        }
        let cost = 1 + client.random.below(3) as u32;
        let outcome = client.limiters.get("leased").check_n("busy", cost).await;
        client.outcome(outcome, &[("leased", "busy", cost)], sent);
    }
    // What is left of the leases is given back at the end.
    let _ = client.limiters.get("leased").release().await;
}

/// Checks a user and its tenant at once, or a key with shares.
pub(super) async fn check_levels(mut client: Client) {
    while let Some(sent) = client.pause(60).await {
        let key = client.random.pick(&KEYS);
        let cost = client.cost();
        if client.random.one_in(3) {
            let share = client.random.pick(&["critical", "batch", "none"]);
            let name = client.random.pick(&["shared", "shared", "long-shared"]);
            let limiter = client.limiters.get(name);
            let level = limiter.level(key).cost(cost).share(share);
            let outcome = RateLimiter::check_all([level]).await;
            if cost == 2 {
                settle(&mut client, outcome, (name, key), sent).await;
            } else {
                client.outcome(outcome, &[(name, key, cost)], sent);
            }
        } else {
            let user = client.limiters.get("user").level(key).cost(cost);
            let tenant = client.limiters.get("tenant").level("all").cost(1);
            let outcome = RateLimiter::check_all([user, tenant]).await;
            let charges = [("user", key, cost), ("tenant", "all", 1)];
            client.outcome(outcome, &charges, sent);
        }
    }
}

/// Waits for units of keys that others check, too.
pub(super) async fn wait_for_units(mut client: Client) {
    while let Some(sent) = client.pause(60).await {
        let limiter = client
            .random
            .pick(&["log", "log", "pair", "gcra", "buckets"]);
        let key = client.random.pick(&KEYS);
        let cost = 1 + client.random.below(3) as u32;
        let call = client.stand_in_line(limiter, key, cost);
        let limits = client.limiters.get(limiter);
        let outcome = limits.until_ready(key, cost, Duration::from_secs(1)).await;
        let is_admitted = outcome.as_ref().is_ok_and(|decision| decision.is_allowed());
        client.leave_line((limiter, key), (call, true), is_admitted);
        client.outcome(outcome, &[(limiter, key, cost)], sent);
    }
}

/// Checks by limiters that go on while the store fails.
pub(super) async fn check_with_policy(mut client: Client) {
    while let Some(sent) = client.pause(50).await {
        let outcome = client.limiters.get("fallback").check("ada").await;
        client.outcome(outcome, &[("fallback", "ada", 1)], sent);
    }
}
