//! Clients that hold slots.

use std::time::Duration;

use tokio::time::sleep;
use tollgate::{Acquired, Error, Permit, RateLimiter};

use super::client::Client;
use crate::world::record::{HeldPermit, Overtaken};

const KEYS: [&str; 2] = ["x", "y"];

/// How a client looks after its permit.
#[derive(Clone, Copy)]
pub(super) enum Care {
    /// Ends its work as soon as the permit is lost.
    Attentive,
    /// Goes on until its work is done, and looks then whether the permit was lost. That is final, so a permit that is not
    /// lost then was held all the time.
    Careless,
}

impl Care {
    pub(super) fn of(number: usize, has_slots_alone: bool) -> Self {
        if has_slots_alone && number % 2 == 1 {
            Self::Careless
        } else {
            Self::Attentive
        }
    }
}

/// Takes slots, holds them for a time, and gives them back.
pub(super) async fn hold(mut client: Client, limiter: &'static str, care: Care) {
    while client.pause(300).await.is_some() {
        let key = client.random.of(&KEYS);
        let call = stand_in_line(&client, limiter, key);
        let waits = !client.random.one_in(4);
        let outcome = take(&mut client, limiter, key, waits).await;
        let permit = leave_line(&client, (limiter, key), (call, waits), outcome);
        let millis = match client.random.below(6) {
            0 => 3_000 + client.random.below(9_000),
            _ => 5 + client.random.below(250),
        };
        if let Some(permit) = permit {
            let work = Duration::from_millis(millis);
            keep(&client, (limiter, key), permit, call, work, care).await;
        }
    }
}

async fn take(
    client: &mut Client,
    limiter: &str,
    key: &str,
    waits: bool,
) -> Result<Option<Permit>, Error> {
    let share = client.random.of(&["critical", "batch", "none"]);
    let limits = client.limiters.get(limiter);
    let level = match limiter {
        "lanes" => limits.on(key).share(share),
        _ => limits.on(key),
    };
    if waits {
        return RateLimiter::acquire_all([level]).await.map(Some);
    }
    match RateLimiter::try_acquire_all([level]).await? {
        Acquired::Permit(permit) => Ok(Some(permit)),
        Acquired::Refused(_) => Ok(None),
    }
}

fn stand_in_line(client: &Client, limiter: &'static str, key: &'static str) -> u64 {
    let mut world = client.world.lock();
    let call = world.network.number();
    let line = (client.process, limiter, key);
    world.record.lines.entry(line).or_default().push_back(call);
    world.log.note(format_args!(
        "process {}: call {call} asks for {limiter} {key}",
        client.process
    ));
    call
}

/// Takes in the end of a call. Its permit counts from now on, and overtakes the earlier calls that still wait.
fn leave_line(
    client: &Client,
    (limiter, key): (&'static str, &'static str),
    (call, waits): (u64, bool),
    outcome: Result<Option<Permit>, Error>,
) -> Option<Permit> {
    let process = client.process;
    let mut world = client.world.lock();
    let now = world.now;
    let line = world
        .record
        .lines
        .entry((process, limiter, key))
        .or_default();
    let earlier = line.iter().copied().take_while(|other| *other != call);
    let earlier: Vec<u64> = earlier.collect();
    line.retain(|other| *other != call);
    world.record.overtaken.remove(&call);
    let permit = match outcome {
        Ok(permit) => permit,
        Err(error) => {
            drop(world);
            client.failed(&error, &[(limiter, key, 1)]);
            return None;
        }
    };
    let verb = if permit.is_some() { "gets" } else { "gets no" };
    world.log.note(format_args!(
        "process {process}: call {call} {verb} permit of {limiter} {key}"
    ));
    world.log.count(if permit.is_some() {
        "permits"
    } else {
        "no permit"
    });
    if permit.is_some() {
        // A call that waits for a rate lets later ones have its slots.
        let overtaken = earlier.into_iter().filter(|_| limiter == "slots");
        for other in overtaken {
            let overtaken = Overtaken {
                at: now,
                by: call,
                by_waiting: waits,
            };
            world.record.overtaken.entry(other).or_insert(overtaken);
        }
        let held = HeldPermit {
            process,
            limiter,
            key,
            from: now,
        };
        world.record.held.insert(call, held);
    }
    permit
}

/// Holds a permit until the work is done, and gives it back.
async fn keep(
    client: &Client,
    (limiter, key): (&str, &str),
    permit: Permit,
    call: u64,
    work: Duration,
    care: Care,
) {
    let is_lost = match care {
        Care::Attentive => tokio::select! {
            biased;
            () = permit.lost() => true,
            () = sleep(work) => false,
        },
        Care::Careless => {
            sleep(work).await;
            tokio::select! {
                biased;
                () = permit.lost() => true,
                () = std::future::ready(()) => false,
            }
        }
    };
    let mut world = client.world.lock();
    match (is_lost, care) {
        // The process may have stood still when it was lost.
        (true, Care::Attentive) => {
            let seen_at = world.seen_at[client.process];
            world.record.end_permit(call, seen_at);
        }
        // Lost at an unknown time: what was held of it does not count.
        (true, Care::Careless) => drop(world.record.held.remove(&call)),
        (false, _) => {
            let now = world.now;
            world.record.end_permit(call, now);
        }
    }
    let how = if is_lost { "loses" } else { "gives back" };
    world.log.count(if is_lost {
        "lost permits"
    } else {
        "returned permits"
    });
    world.log.note(format_args!(
        "process {}: call {call} {how} its permit of {limiter} {key}",
        client.process
    ));
    // The permit takes locks of its own when it is dropped.
    drop(world);
    drop(permit);
}
