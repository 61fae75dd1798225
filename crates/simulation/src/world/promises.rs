//! The promises of each world.
//!
//! A promise that turned out to be wrong is told here, with what it forgot. Each has a planted fault that breaks it: see
//! `planted.rs`.

use std::collections::BTreeMap;

use super::limits::{Bound, Limits, SLOT_LEASE, SLOTS, Spans};
use super::plan::{FaultKind, Plan};
use super::record::{HeldSpan, Overtaken, Use};
use super::shared::World;
use super::stored::stored_units;
use crate::clocks::BEGIN;
use crate::server::Keyspace;

/// The time from a block to the next look at the list, a round trip, and the time between two checks, in milliseconds.
const BLOCK_SEEN: u64 = 1_300;

/// Judges what can be judged at any time.
pub(crate) fn judge_now(world: &mut World, plan: &Plan, keys: &Keyspace) {
    judge_order(world, plan);
    if plan.faults.is_empty() {
        judge_waits(world);
    }
    if world.now.is_multiple_of(1_000) {
        let lasting = keys.keys().filter(|key| key.lives.is_none());
        let lasting: Vec<String> = lasting.map(|key| text(key.name)).collect();
        for name in lasting {
            world
                .log
                .violated(format_args!("{name} has no time to live"));
        }
    }
}

/// Calls of a process get the slots of a key in the order of their arrival.
///
/// Not judged where processes stop: a line lets others pass a task that stands still.
fn judge_order(world: &mut World, plan: &Plan) {
    let late: Vec<(u64, Overtaken)> = world
        .record
        .overtaken
        .iter()
        .filter(|(_, overtaken)| overtaken.until < world.now)
        .map(|(call, overtaken)| (*call, *overtaken))
        .collect();
    for (call, overtaken) in late {
        world.record.overtaken.remove(&call);
        let Overtaken { by, by_waiting, .. } = overtaken;
        let how = if by_waiting { "waited" } else { "tried" };
        if !plan.has(FaultKind::Stop) {
            world.log.violated(format_args!(
                "call {call} waits, and the later {by} that {how} has a permit"
            ));
        }
    }
}

/// How long a slot may be free while a call waits for it, in milliseconds.
const FREE: u64 = 1_500;

/// A call does not wait for a slot that is free. Judged where nothing fails, for slots without a rate or shares: these may
/// keep a call waiting beside free slots, which this promise had forgotten.
fn judge_waits(world: &mut World) {
    let since = world.now.saturating_sub(FREE);
    let lines = world.record.lines.iter();
    let first = lines.filter_map(|((_, limiter, key), line)| {
        let call = *line.front()?;
        let asked_at = world.record.asked.get(&call)?.at;
        let changed_at = world.record.changed_at.get(&(*limiter, *key))?;
        let is_quiet = asked_at.max(*changed_at) == since;
        let is_plain = matches!(*limiter, "slots" | "solo");
        (is_quiet && is_plain).then_some((call, *limiter, *key))
    });
    let first: Vec<_> = first.collect();
    for (call, limiter, key) in first {
        let held = world
            .record
            .held
            .values()
            .filter(|permit| permit.limiter == limiter && permit.key == key)
            .count();
        if (held as u32) < slot_limit(limiter) {
            world.log.violated(format_args!(
                "call {call} waits for a slot of {limiter} {key}, which is free"
            ));
        }
    }
}

/// Returns the slots of a limiter.
fn slot_limit(limiter: &str) -> u32 {
    let slots = SLOTS.iter().find(|(name, _)| *name == limiter);
    slots.map_or(0, |(_, slots)| *slots)
}

/// Judges what can be judged at the end, two leases of slots after the last fault.
pub(crate) fn judge_end(world: &mut World, plan: &Plan, keys: &Keyspace) {
    judge_windows(world, plan);
    judge_slots(world);
    judge_sums(world, plan, keys);
    judge_blocks(world, plan);
    judge_rest(world, keys);
    let World {
        ledger,
        holders,
        log,
        ..
    } = world;
    for text in ledger.judge(holders) {
        log.violated(format_args!("{text}"));
    }
}

/// No span as long as a window has more units than the bound.
///
/// Counts the checks that were sent after its begin and answered before its end. This needs no knowledge of the server's time, so it
/// is right for any delay. Where data was lost or the clock stepped, the limit may be granted once more.
fn judge_windows(world: &mut World, plan: &Plan) {
    let bounds = Limits::draw(plan).bounds();
    let uses = std::mem::take(&mut world.record.uses);
    for ((limiter, key), mut uses) in uses {
        uses.sort_by_key(|used| used.sent);
        let bounds = bounds.iter().filter(|bound| bound.limiter == limiter);
        for bound in bounds {
            let found = match bound.spans {
                Spans::All => widest(world, &key, &uses, *bound),
                Spans::Aligned if plan.has(FaultKind::ClockStep) => None,
                Spans::Aligned => fullest(world, &key, &uses, *bound),
            };
            if let Some((units, allowed, from)) = found {
                world.log.violated(format_args!(
                    "{units} of {allowed} units of {limiter} {key} in {} ms from {from} ms",
                    bound.window
                ));
            }
        }
    }
}

/// Returns a window with more units than are allowed: both numbers, and its begin.
fn widest(world: &World, key: &str, uses: &[Use], bound: Bound) -> Option<(u32, u32, u64)> {
    let is_fallback = key.contains("in life");
    // Of a process that falls back: the part of one of two replicas, by a clock that may be 5 % fast.
    let (limit, window) = if is_fallback {
        (bound.units / 2, bound.window / 10 * 9)
    } else {
        (bound.units, bound.window)
    };
    uses.iter().enumerate().find_map(|(index, first)| {
        let from = first.sent;
        let to = from + window - 1;
        let later = uses[index..].iter().take_while(|used| used.sent <= to);
        let units: u32 = later
            .filter(|used| used.answered <= to)
            .map(|used| used.units)
            .sum();
        if units <= limit {
            return None;
        }
        // A step is told when it happens, and what it does to a window may show for two of them.
        let excuses = world
            .record
            .excuses(from.saturating_sub(2 * bound.counted), to);
        let credits = credits_within(world, (bound.limiter, key), from, to);
        let allowed = limit * (1 + excuses + credits);
        (units > allowed).then_some((units, allowed, from))
    })
}

/// Returns an aligned window with more units than are allowed: both numbers, and its begin. The server's clock has not stepped.
fn fullest(world: &World, key: &str, uses: &[Use], bound: Bound) -> Option<(u32, u32, u64)> {
    let number_of = |millis: u64| (BEGIN * 1_000 + millis) / bound.window;
    let mut units: BTreeMap<u64, u32> = BTreeMap::new();
    // A reply takes its time, and the clock of a process may be 5 % wrong.
    for used in uses {
        if number_of(used.sent) == number_of(used.answered) {
            *units.entry(number_of(used.sent)).or_default() += used.units;
        }
    }
    units.into_iter().find_map(|(number, units)| {
        let from = (number * bound.window).saturating_sub(BEGIN * 1_000);
        let to = from + bound.window;
        let excuses = world.record.excuses(from, to);
        let credits = credits_within(world, (bound.limiter, key), from, to);
        let allowed = bound.units * (1 + excuses + credits);
        (units > allowed).then_some((units, allowed, from))
    })
}

/// Returns how often an operator may have given units back in this time.
fn credits_within(world: &World, (limiter, key): (&'static str, &str), from: u64, to: u64) -> u32 {
    let credits = world.record.credits.get(&(limiter, key.to_owned()));
    let credits = credits.into_iter().flatten();
    let within = credits.filter(|span| span.from <= to && span.to >= from);
    within.count() as u32
}

/// Permits that are held and not lost are never more than the slots.
///
/// That a process stands still does not matter: what it holds is lost when it goes on, or was held all the time. Where data was
/// lost or the clock stepped, every slot may be granted once more, for two leases.
fn judge_slots(world: &mut World) {
    let held: Vec<u64> = world.record.held.keys().copied().collect();
    let now = world.now;
    for call in held {
        world
            .log
            .violated(format_args!("the permit of call {call} is held at the end"));
        world.record.end_permit(call, now);
    }
    let spans = std::mem::take(&mut world.record.spans);
    for ((limiter, key), spans) in spans {
        let slots = slot_limit(limiter);
        for (at, held) in held_counts(&spans) {
            let excuses = world.record.excuses(at.saturating_sub(2 * SLOT_LEASE), at);
            if held > slots * (1 + excuses) {
                world.log.violated(format_args!(
                    "{held} permits of {slots} for {limiter} {key} from {at} ms"
                ));
                break;
            }
        }
    }
}

/// Returns how many permits are held from each time on.
fn held_counts(spans: &[HeldSpan]) -> Vec<(u64, u32)> {
    let begins = spans.iter().map(|span| span.from);
    let counts = begins.map(|at| {
        let held = spans.iter().filter(|span| span.from <= at && at < span.to);
        (at, held.count() as u32)
    });
    let mut counts: Vec<_> = counts.collect();
    counts.sort_unstable();
    counts
}

/// The value of a key has the units that were charged to it, but for calls without an answer.
fn judge_sums(world: &mut World, plan: &Plan, keys: &Keyspace) {
    let forget = [
        FaultKind::ClockStep,
        FaultKind::DataLoss,
        FaultKind::Stranger,
    ];
    if forget.iter().any(|fault| plan.has(*fault)) {
        return;
    }
    let charged = std::mem::take(&mut world.record.charged);
    for ((limiter, key), charged) in charged {
        let name = format!("{{{limiter},{key}}}");
        let of_key = keys.keys().find(|stored| text(stored.name).contains(&name));
        let units = of_key.map_or_else(Vec::new, |stored| stored_units(&stored));
        let units = units.first().copied().unwrap_or(0).into();
        if !(charged.least..=charged.most).contains(&units) {
            let (least, most) = (charged.least, charged.most);
            world.log.violated(format_args!(
                "{limiter} {key} has {units} units, not {least} to {most}"
            ));
        }
    }
}

/// A block is seen by all processes within the interval at which they refresh the list.
///
/// Judged where each process reaches the server at any time, and begins once.
fn judge_blocks(world: &mut World, plan: &Plan) {
    let harmless = [FaultKind::ClockSkew, FaultKind::RepeatedMessages];
    if plan.faults.iter().any(|fault| !harmless.contains(fault)) {
        return;
    }
    let blocks = world.record.blocks.clone();
    for block in blocks {
        let unseen =
            world.record.unblocked_uses.iter().find(|used| {
                used.sent >= block.from + BLOCK_SEEN && used.answered + 10 <= block.to
            });
        if let Some(used) = unseen.copied() {
            world
                .log
                .violated(format_args!("{used:?} passes the block {block:?}"));
        }
    }
}

/// When all clients have gone, no holder has slots or units.
///
/// Where the clock stepped back and nobody has asked since, an entry may last: the next one who asks clamps its end, which this
/// promise had forgotten.
fn judge_rest(world: &mut World, keys: &Keyspace) {
    for stored in keys.keys() {
        let held = world.holders.still_held(&stored, keys.now);
        if held > 0 {
            let name = text(stored.name);
            world.log.violated(format_args!(
                "{held} slots or units of {name} are held by nobody at the end"
            ));
        }
    }
}

fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}
