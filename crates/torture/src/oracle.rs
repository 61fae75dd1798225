//! The judges. They see only the history and the promise, and know no limiter.
//!
//! A call happened at one unknown moment between its start and its end. A promise is broken only if it is broken whichever
//! moments these were, so a busy machine breaks none.

use std::collections::{BTreeMap, BTreeSet};

use crate::contestant::Bound;
use crate::history::{Action, Event, Outcome};

/// The finding of an oracle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// By how much the promise is broken: units, slots, calls or milliseconds. 0 if it is held.
    pub(crate) broken_by: u64,
    /// The observation in words.
    pub(crate) seen: String,
}

impl Finding {
    pub(crate) fn new(broken_by: u64, seen: String) -> Self {
        Self { broken_by, seen }
    }

    /// Returns the first of these that is broken, or the first of all.
    pub(crate) fn worst(findings: impl IntoIterator<Item = Self>) -> Self {
        let mut findings = findings.into_iter();
        let first = findings
            .next()
            .unwrap_or_else(|| Self::new(0, String::new()));
        if first.broken_by > 0 {
            return first;
        }
        findings.find(|each| each.broken_by > 0).unwrap_or(first)
    }
}

/// The promise about admitted units, with times in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promise {
    pub(crate) bound: Bound,
    pub(crate) limit: u64,
    pub(crate) window: u64,
    pub(crate) resolution: u64,
}

/// Two clocks of one machine differ by some millionths, and one may have whole microseconds.
pub(crate) fn drift(span: u64) -> u64 {
    span / 2_000 + 2
}

/// An admission: it was charged between `start` and `end`.
#[derive(Clone, Copy, Debug)]
struct Admission {
    start: u64,
    end: u64,
    units: u64,
}

/// Judges whether any span holds more units than promised.
pub(crate) fn bound(events: &[Event], promise: &Promise) -> Finding {
    let mut refunded: BTreeMap<u64, u64> = BTreeMap::new();
    for event in events {
        // A refund that failed may have been executed.
        if let Action::Refund { of, units } = event.action {
            *refunded.entry(of).or_default() += u64::from(units);
        }
    }
    let losses = events.iter().filter(|event| event.action == Action::Loss);
    let losses: Vec<_> = losses.map(|event| (event.start, event.end)).collect();
    // Counts of different keys, and counts before and after a loss, have nothing in common.
    let mut counts: BTreeMap<(&str, usize), Vec<Admission>> = BTreeMap::new();
    for event in events.iter().filter(|event| event.is_admitted()) {
        let Action::Check(cost) = event.action else {
            continue;
        };
        let is_lost = |(start, end): &(u64, u64)| event.end >= *start && event.start <= *end;
        if losses.iter().any(is_lost) {
            continue;
        }
        let life = losses.iter().filter(|(_, end)| *end < event.start).count();
        let refunded = refunded.get(&event.id).copied().unwrap_or_default();
        counts
            .entry((&event.key, life))
            .or_default()
            .push(Admission {
                start: event.start,
                end: event.end,
                units: u64::from(cost).saturating_sub(refunded),
            });
    }
    let total: u64 = counts.values().flatten().map(|each| each.units).sum();
    let worst = counts.values_mut().map(|each| worst_span(each, promise));
    let worst = worst.max_by_key(|span| (span.excess, span.units));
    let Some(worst) = worst else {
        return Finding::new(0, "nobody was admitted".to_owned());
    };
    let millis = worst.length / 1_000;
    let seen = format!(
        "{} units in {millis} ms, at most {} promised; {total} in all",
        worst.units, worst.most
    );
    Finding::new(worst.excess, seen)
}

#[derive(Debug, Default)]
struct Span {
    excess: u64,
    units: u64,
    most: u64,
    length: u64,
}

/// Returns the span with the largest excess, otherwise the fullest one no longer than a window.
fn worst_span(admissions: &mut [Admission], promise: &Promise) -> Span {
    admissions.sort_by_key(|each| each.end);
    let mut worst = Span::default();
    for first in admissions.iter() {
        let mut units = 0;
        // What began later and ended sooner was charged within the span, whatever the moment was.
        for last in admissions.iter().filter(|each| each.start >= first.start) {
            units += last.units;
            let length = last.end.saturating_sub(first.start);
            let counted = length + drift(length) + promise.resolution;
            let most = promise.bound.most(promise.limit, promise.window, counted);
            let excess = units.saturating_sub(most);
            let is_fuller = worst.excess == 0 && counted < promise.window && units > worst.units;
            if excess > worst.excess || (excess == 0 && is_fuller) {
                worst = Span {
                    excess,
                    units,
                    most,
                    length,
                };
            }
        }
    }
    worst
}

/// Judges whether calls without a reply were charged at most once: `key` was used until it refused, within one window.
pub(crate) fn once(events: &[Event], key: &str, limit: u64) -> Finding {
    let checks = events.iter().filter(|event| event.key == key);
    let units = |is_counted: fn(&Event) -> bool| -> u64 {
        let counted = checks.clone().filter(|event| is_counted(event));
        let costs = counted.map(|event| match event.action {
            Action::Check(cost) => u64::from(cost),
            _ => 0,
        });
        costs.sum()
    };
    let (admitted, unknown) = (units(Event::is_admitted), units(Event::is_unknown));
    let lost = limit.saturating_sub(admitted + unknown);
    let seen = format!("{admitted} units admitted and {unknown} without a reply, of {limit}");
    Finding::new(lost, seen)
}

/// Judges whether the first check of a key was refused.
pub(crate) fn fresh_keys(events: &[Event]) -> Finding {
    let mut known = BTreeSet::new();
    let checks = events
        .iter()
        .filter(|event| matches!(event.action, Action::Check(_)));
    let firsts: Vec<_> = checks.filter(|event| known.insert(&event.key)).collect();
    let refused = firsts.iter().filter(|event| event.is_refused()).count();
    let seen = format!(
        "{refused} of {} keys refused at their first check",
        firsts.len()
    );
    Finding::new(u64::try_from(refused).unwrap_or(u64::MAX), seen)
}

/// Judges the waits of one caller who is alone: after a refusal with a wait, the next check of the key says whether it was
/// true. Counts microseconds.
pub(crate) fn waits(events: &[Event], is_exact: bool) -> Finding {
    let checks = events
        .iter()
        .filter(|event| matches!(event.action, Action::Check(_)));
    let checks: Vec<_> = checks.collect();
    let (mut late, mut early, mut tried) = (0, 0, 0_u64);
    for (before, after) in checks.iter().zip(checks.iter().skip(1)) {
        let Outcome::Refused(Some(wait)) = before.outcome else {
            continue;
        };
        if before.key != after.key || before.action != after.action {
            continue;
        }
        tried += 1;
        if after.is_refused() && after.start >= before.end + wait + drift(wait) {
            late = late.max(match after.outcome {
                Outcome::Refused(Some(more)) => more.max(1),
                _ => 1,
            });
        }
        if is_exact && after.is_admitted() {
            let certain = before.start + wait;
            early = early.max(certain.saturating_sub(after.end + drift(wait)));
        }
    }
    let seen = format!("{tried} waits; refused with {late} µs to go, admitted {early} µs early");
    Finding::new(late.max(early), seen)
}

/// Judges whether more slots than the limit were held at the same time.
pub(crate) fn slots(events: &[Event], limit: u64) -> Finding {
    let released = events.iter().filter_map(|event| match event.action {
        Action::Release { of } => Some((of, event.start)),
        _ => None,
    });
    let released: BTreeMap<u64, u64> = released.collect();
    let mut changes = Vec::new();
    let acquired = events
        .iter()
        .filter(|event| event.action == Action::Acquire);
    for event in acquired.filter(|event| event.is_admitted()) {
        let until = released.get(&event.id).copied().unwrap_or(u64::MAX);
        if event.end < until {
            changes.extend([(event.end, 1_i64), (until, -1)]);
        }
    }
    // Of what happens at the same moment, the release is first.
    changes.sort_unstable();
    let (mut held, mut most) = (0_i64, 0_i64);
    for (_, change) in changes {
        held += change;
        most = most.max(held);
    }
    let most = u64::try_from(most).unwrap_or_default();
    let seen = format!("{most} slots held at the same time, of {limit}");
    Finding::new(most.saturating_sub(limit), seen)
}

/// Judges whether a key was admitted again at the end: the last check of `key` was.
pub(crate) fn recovery(events: &[Event], key: &str) -> Finding {
    let mut checks = events.iter().rev().filter(|event| event.key == key);
    match checks.next() {
        Some(last) if last.is_admitted() => Finding::new(0, "admits again".to_owned()),
        Some(Event {
            outcome: Outcome::Failed(error),
            ..
        }) => Finding::new(1, format!("does not recover: {error}")),
        _ => Finding::new(1, "does not admit again".to_owned()),
    }
}

/// Judges whether the attack was one: without a refusal and as many admissions as the limit, nothing is shown.
pub(crate) fn is_tried(events: &[Event], limit: u64) -> bool {
    let checks = events.iter().filter(|event| event.is_admitted());
    let units = checks.map(|event| match event.action {
        Action::Check(cost) => u64::from(cost),
        Action::Acquire => 1,
        _ => 0,
    });
    units.sum::<u64>() >= limit && events.iter().any(Event::is_refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(id: u64, start: u64, end: u64, units: u32, outcome: Outcome) -> Event {
        Event {
            id,
            start,
            end,
            caller: 0,
            key: "ada".to_owned(),
            action: Action::Check(units),
            outcome,
        }
    }

    fn admitted(id: u64, start: u64, end: u64) -> Event {
        check(id, start, end, 1, Outcome::Admitted)
    }

    const PROMISE: Promise = Promise {
        bound: Bound::Sliding,
        limit: 2,
        window: 1_000_000,
        resolution: 0,
    };

    #[test]
    fn one_unit_too_many_in_a_span_is_found() {
        let mut events = vec![admitted(1, 0, 10), admitted(2, 500_000, 500_010)];
        events.push(admitted(3, 999_000, 999_010));
        assert_eq!(bound(&events, &PROMISE).broken_by, 1);
        // After a window, the first has expired.
        events[2] = admitted(3, 1_000_010, 1_000_020);
        assert_eq!(bound(&events, &PROMISE).broken_by, 0);
    }

    #[test]
    fn a_slow_call_is_no_evidence() {
        // The third may have been charged at its end, when the first had expired.
        let events = [admitted(1, 0, 10), admitted(2, 500_000, 500_010)];
        let slow = admitted(3, 900_000, 1_200_000);
        let events: Vec<_> = events.into_iter().chain([slow]).collect();
        assert_eq!(bound(&events, &PROMISE).broken_by, 0);
    }

    #[test]
    fn lost_counts_are_not_held_against_a_limiter() {
        let mut loss = admitted(9, 20, 30);
        loss.action = Action::Loss;
        let mut events = vec![admitted(1, 0, 10), admitted(2, 0, 10)];
        events.extend([admitted(3, 40, 50), admitted(4, 40, 50)]);
        assert_eq!(bound(&events, &PROMISE).broken_by, 2);
        events.push(loss);
        // What was under way meanwhile was charged before, or after.
        events.push(admitted(5, 15, 35));
        assert_eq!(bound(&events, &PROMISE).broken_by, 0);
    }

    #[test]
    fn units_that_were_given_back_do_not_count() {
        let mut refund = admitted(9, 20, 30);
        refund.action = Action::Refund { of: 1, units: 1 };
        let mut events: Vec<_> = (1..4).map(|id| admitted(id, 0, 10)).collect();
        assert_eq!(bound(&events, &PROMISE).broken_by, 1);
        events.push(refund);
        assert_eq!(bound(&events, &PROMISE).broken_by, 0);
    }

    #[test]
    fn a_wait_that_is_a_millisecond_short_or_long_is_found() {
        let refused = |start, wait| check(1, start, start + 10, 1, Outcome::Refused(Some(wait)));
        let again = [refused(0, 50_000), refused(50_100, 900)];
        assert_eq!(waits(&again, true).broken_by, 900);
        let early = [refused(0, 50_000), admitted(2, 48_000, 48_010)];
        assert!(waits(&early, true).broken_by > 1_500);
        assert_eq!(waits(&early, false).broken_by, 0);
        let exact = [refused(0, 50_000), admitted(2, 50_100, 50_110)];
        assert_eq!(waits(&exact, true).broken_by, 0);
    }

    #[test]
    fn a_slot_too_many_is_found_while_it_is_held() {
        let acquired = |id, start, end| Event {
            action: Action::Acquire,
            ..admitted(id, start, end)
        };
        let mut events = vec![acquired(1, 0, 10), acquired(2, 20, 30), acquired(3, 20, 40)];
        assert_eq!(slots(&events, 2).broken_by, 1);
        // Whoever gives back before the third has its answer may have made room for it.
        let mut release = admitted(4, 35, 50);
        release.action = Action::Release { of: 1 };
        events.push(release);
        assert_eq!(slots(&events, 2).broken_by, 0);
    }

    #[test]
    fn a_charge_without_an_admission_or_a_lost_reply_is_found() {
        let lost = check(3, 20, 30, 1, Outcome::Failed("reset".to_owned()));
        let events = [admitted(1, 0, 10), admitted(2, 0, 10), lost];
        assert_eq!(once(&events, "ada", 3).broken_by, 0);
        assert_eq!(once(&events, "ada", 4).broken_by, 1);
    }

    #[test]
    fn a_key_that_is_refused_at_first_or_at_last_is_found() {
        let refused = check(1, 0, 10, 1, Outcome::Refused(None));
        let events = [refused.clone(), admitted(2, 20, 30)];
        assert_eq!(fresh_keys(&events).broken_by, 1);
        assert_eq!(recovery(&events, "ada").broken_by, 0);
        let events = [admitted(2, 0, 10), refused];
        assert_eq!(fresh_keys(&events).broken_by, 0);
        assert_eq!(recovery(&events, "ada").broken_by, 1);
    }

    #[test]
    fn an_event_is_read_as_it_was_written() {
        let events = [
            check(1, 2, 3, 4, Outcome::Failed("connection  reset".to_owned())),
            check(1, 2, 3, 4, Outcome::Refused(Some(5))),
            check(1, 2, 3, 4, Outcome::Refused(None)),
        ];
        for event in events {
            let text = event.to_string();
            let read: Event = text.parse().map_err(|_| "an event").unwrap();
            assert_eq!(read, event);
        }
    }
}
