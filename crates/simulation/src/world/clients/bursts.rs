//! Clients that check a key with a lease in bursts.

use std::time::Duration;

use tokio::time::sleep;

use super::client::Client;

/// Checks a key in bursts, in all processes at the same times: what is left of a lease is used when the next burst begins.
pub(super) async fn check_in_bursts(mut client: Client) {
    while let Some(sent) = client.pause(4).await {
        let period = client.limits.burst + client.limits.pause;
        let is_pause = sent % period >= client.limits.burst;
        if is_pause {
            sleep(Duration::from_millis(period - sent % period)).await;
            continue;
        }
        // Every second burst leaves units unused, which the next one uses, if their lease has not ended.
        let is_light = sent / period % 2 == 0;
        if is_light && !client.random.one_in(4) {
            continue;
        }
        let cost = 1 + client.random.below(3) as u32;
        let unused = if client.limits.gives_back && client.random.one_in(3) {
            cost - 1
        } else {
            0
        };
        let outcome = client.limiters.get("leased").check_n("busy", cost).await;
        let decision = client.outcome(outcome, &[("leased", "busy", cost - unused)], sent);
        if let Some(decision) = decision.filter(|_| unused > 0) {
            let latest = client.limits.lease * 3 / 2;
            client.give_back_later(decision, unused, latest);
        }
    }
    let _ = client.limiters.get("leased").release().await;
}
