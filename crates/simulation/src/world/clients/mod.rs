//! The clients of a process, each a task of its runtime.

mod blocks;
mod bursts;
mod changes;
mod checks;
mod client;
mod reservations;
mod slots;

use super::limits::{Limiters, Limits};
use super::plan::{Cast, ClientKind, Plan};
use super::shared::SharedWorld;
use crate::random::Random;
use client::Client;
pub(crate) use reservations::plain_key;

/// Starts the clients of a process in the runtime of the caller.
pub(crate) fn spawn(
    world: &SharedWorld,
    plan: &Plan,
    (process, life): (usize, u64),
    limiters: &Limiters,
    random: &mut Random,
) {
    let cast = plan.cast();
    for kind in &plan.clients {
        for number in 0..count(*kind, cast) {
            let client = Client {
                world: world.clone(),
                process,
                life,
                limiters: limiters.clone(),
                limits: Limits::draw(plan),
                random: random.split(),
            };
            match kind {
                ClientKind::Checks => drop(tokio::spawn(checks::check(client))),
                ClientKind::Leases if cast == Cast::LeasesAlone => {
                    drop(tokio::spawn(bursts::check_in_bursts(client)));
                }
                ClientKind::Leases => drop(tokio::spawn(checks::check_busy_key(client))),
                ClientKind::Levels => drop(tokio::spawn(checks::check_levels(client))),
                ClientKind::Waits => drop(tokio::spawn(checks::wait_for_units(client))),
                ClientKind::Policies => drop(tokio::spawn(checks::check_with_policy(client))),
                ClientKind::Slots => {
                    let care = slots::Care::new(number, cast);
                    drop(tokio::spawn(slots::hold(client, "slots", care)));
                }
                ClientKind::Jobs => {
                    let limiter = ["jobs", "lanes", "solo"][number];
                    drop(tokio::spawn(slots::hold(
                        client,
                        limiter,
                        slots::Care::Attentive,
                    )));
                }
                ClientKind::Reservations if number == 0 => {
                    drop(tokio::spawn(reservations::check_budgets(client)));
                }
                ClientKind::Reservations => {
                    let is_watched = number % 2 == 1;
                    drop(tokio::spawn(reservations::reserve(client, is_watched)));
                }
                ClientKind::Changes => drop(tokio::spawn(changes::change(client))),
                ClientKind::Blocks => drop(tokio::spawn(blocks::block(client, number))),
                ClientKind::Upstreams => drop(tokio::spawn(blocks::be_paused(client))),
            }
        }
    }
}

/// Returns how many clients of a kind a process has.
fn count(kind: ClientKind, cast: Cast) -> usize {
    match kind {
        ClientKind::Slots if cast == Cast::SlotsAlone => 6,
        ClientKind::Leases if cast == Cast::LeasesAlone => 4,
        ClientKind::Reservations if cast == Cast::ReservationsAlone => 9,
        ClientKind::Checks | ClientKind::Slots | ClientKind::Jobs | ClientKind::Waits => 3,
        ClientKind::Blocks | ClientKind::Reservations => 2,
        _ => 1,
    }
}
