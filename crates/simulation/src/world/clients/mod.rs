//! The clients of a process, each a task of its runtime.

mod blocks;
mod changes;
mod checks;
mod client;
mod slots;

use super::limits::Limiters;
use super::plan::{ClientKind, Plan};
use super::shared::SharedWorld;
use crate::random::Random;
use client::Client;

/// Starts the clients of a process in the runtime of the caller.
pub(crate) fn spawn(
    world: &SharedWorld,
    plan: &Plan,
    (process, life): (usize, u64),
    limiters: &Limiters,
    random: &mut Random,
) {
    let has_slots_alone = !plan.clients.contains(&ClientKind::Checks);
    for kind in &plan.clients {
        for number in 0..count(*kind, has_slots_alone) {
            let client = Client {
                world: world.clone(),
                process,
                life,
                limiters: limiters.clone(),
                random: random.split(),
            };
            match kind {
                ClientKind::Checks => drop(tokio::spawn(checks::check(client))),
                ClientKind::Leases => drop(tokio::spawn(checks::check_busy_key(client))),
                ClientKind::Levels => drop(tokio::spawn(checks::check_levels(client))),
                ClientKind::Waits => drop(tokio::spawn(checks::wait_for_units(client))),
                ClientKind::Policies => drop(tokio::spawn(checks::check_with_policy(client))),
                ClientKind::Slots => {
                    let care = slots::Care::of(number, has_slots_alone);
                    drop(tokio::spawn(slots::hold(client, "slots", care)));
                }
                ClientKind::Jobs => {
                    let limiter = if number == 0 { "jobs" } else { "lanes" };
                    drop(tokio::spawn(slots::hold(
                        client,
                        limiter,
                        slots::Care::Attentive,
                    )));
                }
                ClientKind::Changes => drop(tokio::spawn(changes::change(client))),
                ClientKind::Blocks => drop(tokio::spawn(blocks::block(client, number))),
                ClientKind::Upstreams => drop(tokio::spawn(blocks::be_held_back(client))),
            }
        }
    }
}

/// Returns how many clients of a kind a process has.
fn count(kind: ClientKind, has_slots_alone: bool) -> usize {
    match kind {
        ClientKind::Slots if has_slots_alone => 6,
        ClientKind::Checks | ClientKind::Slots => 3,
        ClientKind::Jobs | ClientKind::Blocks => 2,
        _ => 1,
    }
}
