//! Clients that reserve units, use some of them, and settle.

use std::future::ready;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tollgate::{Acquired, Error, Permit, RateLimiter, Source};

use super::client::Client;
use crate::world::budgets::{BUDGET, BUDGETS};
use crate::world::ledger::BudgetKeys;

/// How long all processes reserve units of one key, in milliseconds, until it is used up.
const BUSY: u64 = 2_000;

/// The keys that an operator credits, so that they last.
const CREDITED: [&str; 2] = ["x", "y"];

/// A limiter, and a key of it.
type BudgetKey = (&'static str, String);

/// Reserves units, uses some of them, and gives the rest back.
pub(super) async fn reserve(mut client: Client, is_watched: bool) {
    while client.pause(200).await.is_some() {
        let levels = pick_levels(&mut client);
        let units = client.random.pick(&[1, 3, 8, 20, 20, 35]);
        let call = client.world.lock().network.number();
        let gives_up = client.random.one_in(10);
        let outcome = if gives_up {
            let patience = Duration::from_millis(1 + client.random.below(100));
            let asked = timeout(patience, take(&mut client, &levels, units)).await;
            asked.unwrap_or(Ok(None))
        } else {
            take(&mut client, &levels, units).await
        };
        match outcome {
            Err(error) => client.failed(&error, &[(levels[0].0, "budget", units)]),
            Ok(None) => client.world.lock().log.count("reservations refused"),
            Ok(Some(permit)) => {
                let reserved = (levels.as_slice(), units);
                stream(&mut client, call, reserved, permit, is_watched).await;
            }
        }
    }
}

fn pick_levels(client: &mut Client) -> Vec<BudgetKey> {
    let first = pick_budget(client);
    let second = pick_budget(client);
    let is_pair = client.random.one_in(6) && first.0 != second.0;
    let mut levels = vec![first];
    levels.extend(is_pair.then_some(second));
    levels
}

/// Three budgets of a world are busy, so that their keys are used up.
fn pick_budget(client: &mut Client) -> BudgetKey {
    let seed = client.limits.seed as usize;
    let number = client.random.below(3) as usize;
    let limiter = BUDGETS[(seed + seed / 8 + 3 * number) % BUDGETS.len()];
    let others = (client.process + 1) % 3;
    let key = match client.random.below(8) {
        0 | 1 => client.random.pick(&CREDITED).to_owned(),
        // This process never checks it without a permit.
        2 => plain_key(others),
        _ => format!("r{}", client.now() / BUSY),
    };
    (limiter, key)
}

/// The key that a process checks without a permit, and never with one.
pub(crate) fn plain_key(process: usize) -> String {
    format!("plain{process}")
}

async fn take(
    client: &mut Client,
    levels: &[BudgetKey],
    units: u32,
) -> Result<Option<Permit>, Error> {
    let waits = client.random.one_in(3);
    let levels = levels
        .iter()
        .map(|(limiter, key)| client.limiters.get(limiter).level(key.as_str()).cost(units));
    if waits {
        return match RateLimiter::acquire_all(levels).await {
            Err(error) if error.kind() == tollgate::ErrorKind::MaxWait => Ok(None),
            acquired => acquired.map(Some),
        };
    }
    match RateLimiter::try_acquire_all(levels).await? {
        Acquired::Permit(permit) => Ok(Some(permit)),
        Acquired::Refused(_) => Ok(None),
    }
}

/// Uses units in parts, and ends the permit.
async fn stream(
    client: &mut Client,
    call: u64,
    (levels, units): (&[BudgetKey], u32),
    mut permit: Permit,
    is_watched: bool,
) {
    let keys: BudgetKeys = levels
        .iter()
        .map(|(limiter, key)| format!("{limiter},{key}"))
        .collect();
    let is_own_decision = permit.decision().source() != Source::Redis;
    begin(client, call, (keys, units), is_watched, is_own_decision);
    let is_wordless = client.random.one_in(8);
    let parts = 1 + client.random.below(4);
    let is_long = client.random.one_in(5);
    let mut is_lost = false;
    for _ in 0..parts {
        let longest = if is_long { 2_500 } else { 150 };
        let work = Duration::from_millis(client.random.below(longest));
        if is_watched {
            tokio::select! {
                biased;
                () = permit.lost() => {}
                () = sleep(work) => {}
            }
        } else {
            sleep(work).await;
        }
        is_lost = see_loss(client, call, &permit).await;
        if is_lost && is_watched {
            break;
        }
        if !is_wordless {
            let part = draw_part(client, units, parts);
            client.world.lock().ledger.use_units(call, part);
            permit.add(part);
        }
    }
    end(client, call, permit, is_lost).await;
}

fn begin(
    client: &Client,
    call: u64,
    reserved: (BudgetKeys, u32),
    is_watched: bool,
    is_own_decision: bool,
) {
    let process = client.process;
    let mut world = client.world.lock();
    world.log.count("reservations");
    world.log.note(format_args!(
        "process {process}: call {call} reserves {reserved:?}, by itself: {is_own_decision}"
    ));
    let life = (process, client.life);
    world
        .ledger
        .begin(call, life, reserved, is_watched, is_own_decision);
}

/// Most parts fit into what is reserved. One in ten does not.
fn draw_part(client: &mut Client, units: u32, parts: u64) -> u32 {
    if client.random.one_in(30) {
        units
    } else {
        client.random.below(u64::from(units) / parts + 1) as u32
    }
}

/// Returns whether a permit is lost. That is final.
async fn see_loss(client: &Client, call: u64, permit: &Permit) -> bool {
    let is_lost = tokio::select! {
        biased;
        () = permit.lost() => true,
        () = ready(()) => false,
    };
    if is_lost {
        let mut world = client.world.lock();
        let seen_at = world.seen_at[client.process];
        world.log.count("reservations lost");
        world.ledger.lose(call, seen_at);
    }
    is_lost
}

/// Gives the rest back: dropped after parts, settled, dropped without a word, or released.
async fn end(client: &mut Client, call: u64, permit: Permit, was_lost: bool) {
    let is_lost = was_lost || see_loss(client, call, &permit).await;
    let settles = client.random.one_in(4);
    let used = record_end(client, call, settles, is_lost);
    if settles {
        permit.settle(used);
    } else if client.random.one_in(6) {
        let _ = permit.release().await;
    } else {
        drop(permit);
    }
}

/// Returns all that a permit has used when it ends.
fn record_end(client: &mut Client, call: u64, settles: bool, is_lost: bool) -> u32 {
    let mut world = client.world.lock();
    let (left, has_spoken) = world.ledger.left(call);
    let rest = match (settles, has_spoken) {
        (true, _) => client.random.below(u64::from(left) / 2 + 1) as u32,
        (false, true) => 0,
        (false, false) => left,
    };
    let used = world.ledger.use_units(call, rest);
    world.log.note(format_args!(
        "process {}: call {call} ends, with {rest} of {left} units, lost: {is_lost}",
        client.process
    ));
    world.ledger.end(call);
    used
}

/// Checks keys of budgets without a permit, beside what others have reserved; as an operator, credits used units.
pub(super) async fn check_budgets(mut client: Client) {
    while let Some(sent) = client.pause(300).await {
        let (limiter, _) = pick_budget(&mut client);
        let key = plain_key(client.process);
        let limits = client.limiters.get(limiter).clone();
        match client.random.below(8) {
            0 => {
                let account = format!("{limiter},{key}");
                client.world.lock().ledger.charge_beyond(account, 2);
                if let Err(error) = limits.charge(key.as_str(), 2).await {
                    client.failed(&error, &[(limiter, "plain", 2)]);
                }
            }
            1 | 2 => {
                let used = client.random.below(u64::from(BUDGET)) as u32;
                let key = client
                    .random
                    .pick(&[CREDITED[0], CREDITED[1], &key])
                    .to_owned();
                if let Err(error) = limits.admin().credit(key.as_str(), 1 + used).await {
                    client.failed(&error, &[(limiter, "credited", used)]);
                }
            }
            _ => {
                let cost = client.cost();
                let outcome = limits.check_n(key.as_str(), cost).await;
                let admitted = client.outcome(outcome, &[(limiter, "plain", cost)], sent);
                if let Some(decision) = admitted.filter(|_| cost == 2) {
                    client.give_back_later(decision, 1, 300);
                }
            }
        }
    }
}
