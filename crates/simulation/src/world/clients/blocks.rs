//! Clients that block a key, and clients that an upstream pauses.

use std::time::Duration;

use tokio::time::sleep;
use tollgate::Source;

use super::client::Client;
use crate::world::limits::BLOCK;
use crate::world::record::{BlockedSpan, Use};

/// How long an upstream pauses a key, in milliseconds.
const PAUSE: u64 = 400;

/// Blocks a key from time to time, if this is the operator; else checks it, and a key that is blocked by a rule.
pub(super) async fn block(mut client: Client, number: usize) {
    let is_operator = client.process == 0 && number == 0;
    while client
        .pause(if is_operator { 6_000 } else { 100 })
        .await
        .is_some()
    {
        if is_operator {
            block_once(&mut client).await;
        } else {
            check_blocked(&client).await;
            let sent = client.now();
            let outcome = client.limiters.get("ruled").check("mallory").await;
            client.outcome(outcome, &[("ruled", "mallory", 1)], sent);
        }
    }
}

async fn block_once(client: &mut Client) {
    let admin = client.limiters.get("blocked").admin();
    let sent = client.now();
    if let Err(error) = admin.block("eve", Duration::from_millis(BLOCK)).await {
        return client.failed(&error, &[("blocked", "eve", 0)]);
    }
    let block = BlockedSpan {
        from: client.now(),
        to: sent + BLOCK,
    };
    client.world.lock().record.blocks.push(block);
    if client.random.one_in(3) {
        // Not while the block has to be seen everywhere.
        sleep(Duration::from_millis(1_500)).await;
        client.world.lock().end_blocks();
        if let Err(error) = admin.unblock("eve").await {
            client.failed(&error, &[("blocked", "eve", 0)]);
        }
    }
}

async fn check_blocked(client: &Client) {
    let sent = client.now();
    let outcome = client.limiters.get("blocked").check("eve").await;
    let is_blocked = matches!(&outcome, Ok(decision) if decision.source() == Source::Block);
    client.outcome(outcome, &[("blocked", "eve", 1)], sent);
    if !is_blocked {
        let mut world = client.world.lock();
        let answered = world.now;
        let used = Use {
            units: 1,
            sent,
            answered,
        };
        world.record.unblocked_uses.push(used);
    }
}

/// Is paused by an upstream from time to time, and obeys at once.
pub(super) async fn be_paused(mut client: Client) {
    while client.pause(4_000).await.is_some() {
        let key = client.random.pick(&["ann", "ben"]);
        let limiter = client.limiters.get("blocked");
        let since = client.now();
        limiter.pause(key, Duration::from_millis(PAUSE));
        // By a clock that is up to 5 % wrong. The time that is returned may be longer: it had been forgotten that this is the
        // pause of another process, which ends by the server's clock.
        let until = client.now() + PAUSE / 10 * 9;
        while obey(&client, key, since, until).await {
            sleep(Duration::from_millis(30)).await;
        }
    }
}

/// Checks a paused key. Returns whether it still is.
///
/// A list that was lost and written again by others has the pause no longer, as if an operator had ended it.
async fn obey(client: &Client, key: &'static str, since: u64, until: u64) -> bool {
    let sent = client.now();
    let outcome = client.limiters.get("blocked").check(key).await;
    let admitted = client.outcome(outcome, &[("blocked", key, 1)], sent);
    let mut world = client.world.lock();
    let is_paused = world.now < until && !world.is_over;
    let is_excused = world.record.has_lost_since(since);
    if is_paused && admitted.is_some() && !is_excused {
        world.log.violated(format_args!(
            "a check of {key} is admitted, but it is paused"
        ));
    }
    is_paused
}
