//! The steps of all clients: they wait, ask, and record the answers.

use std::time::Duration;

use tokio::time::sleep;
use tollgate::{Decision, Error, ErrorKind, Source};

use crate::random::Random;
use crate::world::limits::{self, Limiters, Limits};
use crate::world::record::{Asked, Overtaken, Use};
use crate::world::shared::SharedWorld;

/// How long after the last fault a check may fail, in milliseconds: the circuit breaker has to find out.
const RECOVERY: u64 = 2_000;

/// How soon after a call its refusal is known where nothing fails, in milliseconds.
const REFUSED: u64 = 60;

/// How long a call may still wait after a later one had its permit, in milliseconds: calls of one round trip may change places.
const OVERTAKEN: u64 = 20;

/// A task of a process, with random numbers of its own.
pub(super) struct Client {
    pub(super) world: SharedWorld,
    pub(super) process: usize,
    pub(super) life: u64,
    pub(super) limiters: Limiters,
    pub(super) limits: Limits,
    pub(super) random: Random,
}

/// A check that is admitted or refused as a whole, and what it charges to each limiter and key.
pub(super) type Charge = (&'static str, &'static str, u32);

impl Client {
    /// Waits for a random time. Returns the time after that, or `None` if the world is over.
    pub(super) async fn pause(&mut self, most: u64) -> Option<u64> {
        sleep(Duration::from_millis(self.random.below(most))).await;
        let world = self.world.lock();
        (!world.is_over).then_some(world.now)
    }

    pub(super) fn now(&self) -> u64 {
        self.world.lock().now
    }

    /// Returns a cost: mostly 1 or 2, rarely a look.
    pub(super) fn cost(&mut self) -> u32 {
        if self.random.one_in(50) {
            // Above most limits.
            return 30;
        }
        self.random.pick(&[1, 1, 1, 2, 2, 2, 2, 0])
    }

    /// Records that a call asks for units or slots of a key, and may have to wait. Returns its number.
    pub(super) fn stand_in_line(
        &self,
        limiter: &'static str,
        key: &'static str,
        units: u32,
    ) -> u64 {
        let mut world = self.world.lock();
        let call = world.network.number();
        let at = world.now;
        let line = (self.process, limiter, key);
        world.record.lines.entry(line).or_default().push_back(call);
        let ran_at = world.record.ran_for(limiter, key, self.process);
        world.record.asked.insert(call, Asked { at, units, ran_at });
        world.log.note(format_args!(
            "process {}: call {call} asks for {units} of {limiter} {key}",
            self.process
        ));
        call
    }

    /// Records the end of a call. If it was admitted, it has overtaken the earlier calls that still wait.
    pub(super) fn leave_line(
        &self,
        (limiter, key): (&'static str, &'static str),
        (call, waits): (u64, bool),
        is_admitted: bool,
    ) {
        let mut world = self.world.lock();
        let now = world.now;
        let own = world.record.asked[&call];
        let line = (self.process, limiter, key);
        let line = world.record.lines.entry(line).or_default();
        let earlier = line.iter().copied().take_while(|other| *other != call);
        let mut earlier: Vec<u64> = earlier.collect();
        line.retain(|other| *other != call);
        world.record.overtaken.remove(&call);
        // A call that waits for a rate or a share lets later ones have its slots.
        let is_judged = match limiter {
            "slots" | "solo" => true,
            "jobs" | "lanes" => false,
            _ => self.limits.is_calm,
        };
        if !limits::SLOTS.iter().any(|(name, _)| *name == limiter) {
            // A call waits for units once it was refused. A later one may ask before that, which was forgotten.
            let asked = &world.record.asked;
            // A smaller call of the same round trip may pass if another process takes units in that moment.
            let is_contended =
                world.record.ran_for_others(limiter, key, self.process) + REFUSED >= now;
            earlier.retain(|other| {
                let is_smaller = own.units < asked[other].units;
                asked[other].at + REFUSED < own.at && !(is_smaller && is_contended)
            });
        }
        // A waiting call that is told to ask is in the next message. A try that came before that may be in the current one, since
        // both have room, and be answered that much earlier. If another process has taken the other slot since the command that
        // left both, the call goes on waiting, which was forgotten. When the try came, that command was under way at the earliest.
        let message = if waits { 0 } else { self.limits.deadline };
        let left_at = own.ran_at.max(own.at.saturating_sub(message));
        let life = (self.process, self.life);
        let is_excused = !waits && world.holders.have_others_taken(limiter, key, life, left_at);
        let is_judged = is_admitted && is_judged && !is_excused;
        for other in earlier.into_iter().filter(|_| is_judged) {
            let overtaken = Overtaken {
                until: now + OVERTAKEN + message,
                by: call,
                by_waiting: waits,
            };
            world.record.overtaken.entry(other).or_insert(overtaken);
        }
    }

    /// Gives units of a check back after some time: the charge may have left its window by then.
    pub(super) fn give_back_later(&mut self, mut decision: Decision, unused: u32, latest: u64) {
        let wait = Duration::from_millis(self.random.below(latest));
        drop(tokio::spawn(async move {
            sleep(wait).await;
            // One by one: the rest can still be given back.
            for _ in 0..unused {
                let _ = decision.refund(1).await;
            }
        }));
    }

    /// Takes in the outcome of a check. Returns the decision if it was admitted.
    pub(super) fn outcome(
        &self,
        outcome: Result<Decision, Error>,
        charges: &[Charge],
        sent: u64,
    ) -> Option<Decision> {
        let process = self.process;
        let decision = match outcome {
            Ok(decision) => decision,
            Err(error) => {
                self.failed(&error, charges);
                return None;
            }
        };
        let mut world = self.world.lock();
        let source = decision.source();
        let is_allowed = decision.is_allowed();
        world.log.count("checks");
        let verb = if is_allowed { "admitted" } else { "refused" };
        world.log.note(format_args!(
            "process {process} {verb} {charges:?} by {source:?}, sent at {sent}"
        ));
        if !is_allowed {
            world.log.count("refused");
            return None;
        }
        let answered = world.now;
        let units_of = |units| Use {
            units,
            sent,
            answered,
        };
        match source {
            Source::Redis | Source::Lease => {
                world.log.count(if source == Source::Lease {
                    "by a lease"
                } else {
                    "admitted"
                });
                for (limiter, key, units) in charges {
                    world
                        .record
                        .add_use(limiter, (*key).to_owned(), units_of(*units));
                }
            }
            Source::Fallback => {
                world.log.count("by fallback");
                for (limiter, key, units) in charges {
                    let key = format!("{key} in life {} of process {process}", self.life);
                    world.record.add_use(limiter, key, units_of(*units));
                }
            }
            _ => world.log.count("not counted"),
        }
        Some(decision)
    }

    /// Takes in an error. Long after the last fault, there are none.
    pub(super) fn failed(&self, error: &Error, charges: &[Charge]) {
        let mut world = self.world.lock();
        world.log.note(format_args!(
            "process {} fails {charges:?}: {error}",
            self.process
        ));
        let is_outage = !matches!(
            error.kind(),
            ErrorKind::CostExceedsLimit | ErrorKind::MaxWait
        );
        world.log.failed(error);
        if is_outage
            && world.now >= world.faults_end + self.limits.deadline + RECOVERY
            && !world.is_over
        {
            world.log.violated(format_args!(
                "a check of {charges:?} fails without a fault: {error}"
            ));
        }
    }
}
