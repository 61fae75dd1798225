//! Clients that hold slots.

use std::time::Duration;

use tokio::time::{sleep, timeout};
use tollgate::{Acquired, Error, Permit, RateLimiter};

use super::client::Client;
use crate::world::plan::Cast;
use crate::world::record::HeldPermit;

const KEYS: [&str; 2] = ["x", "y"];

/// How a client looks after its permit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Care {
    /// Ends its work as soon as the permit is lost.
    Attentive,
    /// Goes on until its work is done, and looks then whether the permit was lost. That is final, so a permit that is not
    /// lost then was held all the time.
    Careless,
}

impl Care {
    pub(super) fn new(number: usize, cast: Cast) -> Self {
        if cast == Cast::SlotsAlone && number % 2 == 1 {
            Self::Careless
        } else {
            Self::Attentive
        }
    }
}

/// Takes slots, holds them for a time, and gives them back.
pub(super) async fn hold(mut client: Client, limiter: &'static str, care: Care) {
    while client.pause(300).await.is_some() {
        let key = client.random.pick(&KEYS);
        let call = client.stand_in_line(limiter, key, 1);
        let waits = !client.random.one_in(4);
        let gives_up = client.random.one_in(8);
        let outcome = if gives_up {
            // The future is dropped.
            let given_up = timeout(
                Duration::from_millis(100),
                take(&mut client, limiter, key, waits),
            );
            given_up.await.unwrap_or(Ok(None))
        } else {
            take(&mut client, limiter, key, waits).await
        };
        let has_permit = matches!(outcome, Ok(Some(_)));
        client.leave_line((limiter, key), (call, waits), has_permit);
        let permit = begin_permit(&client, (limiter, key), call, care, outcome);
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
    let share = client.random.pick(&["critical", "batch", "none"]);
    let limits = client.limiters.get(limiter);
    let level = match limiter {
        "lanes" => limits.level(key).share(share),
        _ => limits.level(key),
    };
    if waits {
        return RateLimiter::acquire_all([level]).await.map(Some);
    }
    match RateLimiter::try_acquire_all([level]).await? {
        Acquired::Permit(permit) => Ok(Some(permit)),
        Acquired::Refused(_) => Ok(None),
    }
}

/// Takes in the end of a call. Its permit counts from now on.
fn begin_permit(
    client: &Client,
    (limiter, key): (&'static str, &'static str),
    call: u64,
    care: Care,
    outcome: Result<Option<Permit>, Error>,
) -> Option<Permit> {
    let process = client.process;
    let permit = match outcome {
        Ok(permit) => permit,
        Err(error) => {
            client.failed(&error, &[(limiter, key, 1)]);
            return None;
        }
    };
    let mut world = client.world.lock();
    let now = world.now;
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
        let held = HeldPermit {
            process,
            limiter,
            key,
            from: now,
            is_watched: care == Care::Attentive,
        };
        world.record.held.insert(call, held);
        world.record.changed_at.insert((limiter, key), now);
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
        (true, Care::Careless) => world.record.forget_permit(call),
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
