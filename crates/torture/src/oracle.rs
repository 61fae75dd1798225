//! The judges. They see only the history and the promise, and know no limiter.
//!
//! A call happened at one unknown moment between its start and its end. A promise is broken only if it is broken whichever
//! moments these were, so a busy machine breaks none.

use std::collections::BTreeMap;

use crate::contestant::{Bound, Span};
use crate::history::{Action, Event, Outcome};

/// The finding of an oracle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    /// By how much the promise is broken. 0 if it is held.
    pub(crate) broken_by: u64,
    pub(crate) unit: Measure,
    /// The observation in words.
    pub(crate) seen: String,
}

impl Finding {
    pub(crate) fn new(broken_by: u64, unit: Measure, seen: String) -> Self {
        Self {
            broken_by,
            unit,
            seen,
        }
    }

    /// Returns the first of these that is broken, or the first of all.
    pub(crate) fn worst(findings: impl IntoIterator<Item = Self>) -> Self {
        findings
            .into_iter()
            .reduce(|first, next| {
                if first.broken_by > 0 || next.broken_by == 0 {
                    first
                } else {
                    next
                }
            })
            .unwrap_or_else(|| Self::new(0, Measure::Unit, String::new()))
    }
}

/// The unit of an excess.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Measure {
    Unit,
    Slot,
    Key,
    Microsecond,
}

impl Measure {
    /// Returns an excess in words.
    pub(crate) fn text(self, excess: u64) -> String {
        let name = match self {
            Self::Unit => "unit",
            Self::Slot => "slot",
            Self::Key => "key",
            Self::Microsecond => return format!("{excess} µs"),
        };
        format!("{excess} {name}{}", if excess == 1 { "" } else { "s" })
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
    let mut losses: Vec<_> = losses.map(|event| (event.start, event.end)).collect();
    losses.sort_by_key(|(_, end)| *end);
    // Counts of different keys, and counts before and after a loss, have nothing in common.
    let mut counts: BTreeMap<(&str, usize), Vec<Admission>> = BTreeMap::new();
    for event in events.iter().filter(|event| event.is_admitted()) {
        let Action::Check(cost) = event.action else {
            continue;
        };
        let is_lost = losses
            .iter()
            .any(|(start, end)| event.end >= *start && event.start <= *end);
        if is_lost {
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
    let firsts = first_starts(events);
    let worst = counts.iter_mut().map(|((key, life), admissions)| {
        // After a loss, a call that was under way may be the first one.
        let lost = life.checked_sub(1).and_then(|last| losses.get(last));
        let first = lost.map(|(start, _)| *start);
        let origin = first.or_else(|| firsts.get(key).copied());
        let origin = origin.unwrap_or_default();
        worst_span(admissions, origin, promise)
    });
    let worst = worst.max_by_key(|span| (span.excess, span.units));
    let Some(worst) = worst else {
        return Finding::new(0, Measure::Unit, "nobody was admitted".to_owned());
    };
    let millis = worst.length / 1_000;
    let seen = format!(
        "{} units in {millis} ms, at most {} promised; {total} in all",
        worst.units, worst.most
    );
    Finding::new(worst.excess, Measure::Unit, seen)
}

/// Returns the first moment at which each key may have been used, by whatever call.
fn first_starts(events: &[Event]) -> BTreeMap<&str, u64> {
    let mut firsts = BTreeMap::new();
    for event in events {
        let first = firsts.entry(event.key.as_str()).or_insert(event.start);
        *first = event.start.min(*first);
    }
    firsts
}

#[derive(Debug, Default)]
struct Worst {
    excess: u64,
    units: u64,
    most: u64,
    length: u64,
}

/// Returns the span with the largest excess, otherwise the fullest one no longer than a window. An excess of the whole limit
/// is enough: a limiter that admits everything has too many spans.
fn worst_span(admissions: &mut [Admission], origin: u64, promise: &Promise) -> Worst {
    let Promise {
        bound,
        limit,
        window,
        resolution,
    } = *promise;
    admissions.sort_by_key(|each| each.end);
    let mut worst = Worst::default();
    let starts = admissions.iter().map(|each| each.start);
    for start in starts.chain([origin]) {
        let mut units = 0;
        let is_first = start <= origin;
        // What began later and ended sooner was charged within the span, whatever the moment was.
        for last in admissions.iter().filter(|each| each.start >= start) {
            units += last.units;
            let length = last.end.saturating_sub(start);
            let counted = length + drift(length);
            let span = Span {
                length: counted,
                is_first,
            };
            let most = bound.most(limit, window, resolution, span);
            let excess = units.saturating_sub(most);
            let is_short = counted + resolution < window;
            let is_fuller = worst.excess == 0 && is_short && units > worst.units;
            if excess > worst.excess || (excess == 0 && is_fuller) {
                worst = Worst {
                    excess,
                    units,
                    most,
                    length,
                };
            }
            if worst.excess >= limit {
                return worst;
            }
        }
    }
    worst
}

/// No limiter gives up on a reply sooner, in microseconds.
const LEAST_DEADLINE: u64 = 10_000;

/// Judges whether calls without a reply were charged at most once: `key` was used until it refused, within one window.
///
/// Such a call counts as charged in two cases, and no other can have been charged:
///
/// - Its connection was cut while the call was under way. The limiter learned of the cut after it started, and nothing that
///   was sent after its end reached the server. So the call overlaps the cut.
/// - The limiter gave up on a reply, with or without the connection and the other calls on it. Then this call, or one that
///   it overlaps, had waited for as long as a deadline.
///
/// All others were never sent, or into a dead connection: a circuit breaker was open, or the limiter was not connected.
pub(crate) fn once(events: &[Event], key: &str, limit: u64) -> Finding {
    let checks: Vec<_> = events.iter().filter(|event| event.key == key).collect();
    let last = checks
        .iter()
        .filter(|event| event.is_admitted())
        .map(|event| event.start)
        .max()
        .unwrap_or_default();
    let doubts: Vec<_> = events
        .iter()
        .filter(|event| {
            event.action == Action::Fault
                || (has_no_reply(event, last) && event.end - event.start >= LEAST_DEADLINE)
        })
        .collect();
    let mut admitted = 0;
    let mut unknown = 0;
    for check in checks {
        let is_doubtful = doubts
            .iter()
            .any(|doubt| check.start <= doubt.end && check.end >= doubt.start);
        if check.is_admitted() {
            admitted += cost(check);
        } else if has_no_reply(check, last) && is_doubtful {
            unknown += cost(check);
        }
    }
    let lost = limit.saturating_sub(admitted + unknown);
    let seen = format!("{admitted} units admitted and {unknown} without a reply, of {limit}");
    Finding::new(lost, Measure::Unit, seen)
}

/// Returns whether a call may have been charged, and had no answer of the server. No unit returns meanwhile: a limiter that
/// refuses, and admits later, could not ask, and refused for that.
fn has_no_reply(event: &Event, last_admission: u64) -> bool {
    event.is_unknown() || (event.is_refused() && event.end < last_admission)
}

fn cost(event: &Event) -> u64 {
    match event.action {
        Action::Check(cost) => u64::from(cost),
        _ => 0,
    }
}

/// Judges whether the first check of a key was refused. Of calls that overlap, any may be the first: such keys are no
/// evidence.
pub(crate) fn fresh_keys(events: &[Event]) -> Finding {
    let checks = events
        .iter()
        .filter(|event| matches!(event.action, Action::Check(_)));
    let mut keys: BTreeMap<&str, Vec<&Event>> = BTreeMap::new();
    for event in checks {
        keys.entry(&event.key).or_default().push(event);
    }
    let firsts = keys.values().filter_map(|checks| {
        let first = checks.iter().min_by_key(|event| event.start)?;
        let begun = checks.iter().filter(|event| event.start <= first.end);
        (begun.count() == 1).then_some(*first)
    });
    let firsts: Vec<_> = firsts.collect();
    let refused = firsts.iter().filter(|event| event.is_refused()).count();
    let seen = format!(
        "{refused} of {} keys refused at their first check",
        firsts.len()
    );
    Finding::new(
        u64::try_from(refused).unwrap_or(u64::MAX),
        Measure::Key,
        seen,
    )
}

/// Judges the waits of one caller who is alone: after a refusal with a wait, the next check of the key says whether it was
/// true. Counts microseconds. Returns `None` if there was no such wait.
pub(crate) fn waits(events: &[Event], is_exact: bool, resolution: u64) -> Option<Finding> {
    let checks = events
        .iter()
        .filter(|event| matches!(event.action, Action::Check(_)));
    let checks: Vec<_> = checks.collect();
    let mut late = 0;
    let mut early = 0;
    let mut tried = 0_u64;
    for (before, after) in checks.iter().zip(checks.iter().skip(1)) {
        let Outcome::Refused(Some(wait)) = before.outcome else {
            continue;
        };
        if before.key != after.key || before.action != after.action {
            continue;
        }
        tried += 1;
        if after.is_refused() && after.start >= before.end + wait + drift(wait) + resolution {
            late = late.max(match after.outcome {
                Outcome::Refused(Some(more)) => more.max(1),
                _ => 1,
            });
        }
        if is_exact && after.is_admitted() {
            let certain = before.start + wait;
            early = early.max(certain.saturating_sub(after.end + drift(wait) + resolution));
        }
    }
    let seen = format!("{tried} waits; refused with {late} µs to go, admitted {early} µs early");
    (tried > 0).then(|| Finding::new(late.max(early), Measure::Microsecond, seen))
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
    let mut held = 0_i64;
    let mut most = 0_i64;
    for (_, change) in changes {
        held += change;
        most = most.max(held);
    }
    let most = u64::try_from(most).unwrap_or_default();
    let seen = format!("{most} slots held at the same time, of {limit}");
    Finding::new(most.saturating_sub(limit), Measure::Slot, seen)
}

/// Judges whether a key was admitted again at the end: the last check of `key` was.
pub(crate) fn recovery(events: &[Event], key: &str) -> Finding {
    let mut checks = events.iter().rev().filter(|event| event.key == key);
    match checks.next() {
        Some(last) if last.is_admitted() => {
            Finding::new(0, Measure::Key, "admits again".to_owned())
        }
        Some(Event {
            outcome: Outcome::Failed(error),
            ..
        }) => Finding::new(1, Measure::Key, format!("does not recover: {error}")),
        _ => Finding::new(1, Measure::Key, "does not admit again".to_owned()),
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

/// Returns the first of these callers without an answer to a check.
pub(crate) fn unanswered(events: &[Event], callers: u64) -> Option<u64> {
    (1..=callers).find(|caller| {
        let mut own = events.iter().filter(|event| event.caller == *caller);
        !own.any(|event| event.is_admitted() || event.is_refused())
    })
}

/// Counts the cancelled checks, and all checks.
pub(crate) fn cancelled(events: &[Event]) -> (usize, usize) {
    let checks = events
        .iter()
        .filter(|event| matches!(event.action, Action::Check(_)));
    let cancelled = checks
        .clone()
        .filter(|event| event.outcome == Outcome::Cancelled);
    (cancelled.count(), checks.count())
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
        let broken_by = |events: &[Event], is_exact, resolution| {
            let finding = waits(events, is_exact, resolution).expect("a wait");
            finding.broken_by
        };
        let again = [refused(0, 50_000), refused(50_100, 900)];
        assert_eq!(broken_by(&again, true, 0), 900);
        let early = [refused(0, 50_000), admitted(2, 48_000, 48_010)];
        assert!(broken_by(&early, true, 0) > 1_500);
        assert_eq!(broken_by(&early, false, 0), 0);
        let exact = [refused(0, 50_000), admitted(2, 50_100, 50_110)];
        assert_eq!(broken_by(&exact, true, 0), 0);
        // A clock with a resolution of two milliseconds cannot tell these.
        assert_eq!(broken_by(&again, true, 2_000), 0);
        assert_eq!(broken_by(&early, true, 2_000), 0);
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

    fn cut(start: u64, end: u64) -> Event {
        Event {
            key: "server".to_owned(),
            action: Action::Fault,
            ..check(9, start, end, 0, Outcome::Done)
        }
    }

    fn failed(id: u64, start: u64, end: u64) -> Event {
        check(id, start, end, 1, Outcome::Failed("reset".to_owned()))
    }

    #[test]
    fn a_charge_without_an_admission_or_a_lost_reply_is_found() {
        let events = [admitted(1, 0, 10), cut(25, 26), failed(3, 20, 30)];
        assert_eq!(once(&events, "ada", 2).broken_by, 0);
        assert_eq!(once(&events, "ada", 3).broken_by, 1);
    }

    #[test]
    fn a_call_that_failed_after_the_cut_was_not_charged() {
        let mut events = vec![admitted(1, 0, 10), cut(25, 26), failed(2, 20, 30)];
        // A circuit breaker fails them at once.
        events.extend((3..90).map(|id| failed(id, id * 10, id * 10 + 1)));
        assert_eq!(once(&events, "ada", 2).broken_by, 0);
        assert_eq!(once(&events, "ada", 3).broken_by, 1);
    }

    #[test]
    fn a_call_that_the_limiter_gave_up_may_have_been_charged() {
        // The second fails with the connection that the limiter closed.
        let events = [
            admitted(1, 0, 10),
            failed(2, 20, 100_020),
            failed(3, 90_000, 100_020),
        ];
        assert_eq!(once(&events, "ada", 3).broken_by, 0);
        assert_eq!(once(&events, "ada", 4).broken_by, 1);
    }

    #[test]
    fn a_limiter_that_admits_everything_is_judged_in_seconds() {
        let begin = std::time::Instant::now();
        let events: Vec<_> = (0..50_000)
            .map(|id| admitted(id, 10 * id, 10 * id + 5))
            .collect();
        assert!(bound(&events, &PROMISE).broken_by >= PROMISE.limit);
        assert!(begin.elapsed().as_secs() < 5);
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
    fn of_calls_that_overlap_any_may_be_the_first() {
        let refused = check(1, 0, 10, 1, Outcome::Refused(None));
        let overlapping = [refused.clone(), admitted(2, 5, 8)];
        assert_eq!(fresh_keys(&overlapping).broken_by, 0);
        let alone = [refused, admitted(2, 11, 20)];
        assert_eq!(fresh_keys(&alone).broken_by, 1);
    }

    #[test]
    fn a_window_that_its_first_request_opens_is_judged_from_there() {
        let opened = Promise {
            bound: Bound::FixedFromRequest,
            ..PROMISE
        };
        // Two windows in three spans of half a window each: the first is full, and so is the second.
        let mut events: Vec<_> = (1..3).map(|id| admitted(id, 0, 10)).collect();
        events.extend((3..5).map(|id| admitted(id, 1_000_100, 1_000_110)));
        assert_eq!(bound(&events, &opened).broken_by, 0);
        let fifth = admitted(5, 1_500_000, 1_500_010);
        events.push(fifth);
        assert_eq!(bound(&events, &opened).broken_by, 1);
        // An aligned window may have ended in between.
        let aligned = Promise {
            bound: Bound::Fixed,
            ..opened
        };
        assert_eq!(bound(&events, &aligned).broken_by, 0);
        // A call before all others may have opened the first window, whatever became of it.
        events.push(check(6, 0, 20, 1, Outcome::Cancelled));
        for event in &mut events {
            if event.id < 6 {
                event.start += 600_000;
                event.end += 600_000;
            }
        }
        assert_eq!(bound(&events, &opened).broken_by, 0);
    }

    #[test]
    fn each_window_may_be_shorter_by_the_resolution() {
        let rounded = Promise {
            resolution: 1_000,
            ..PROMISE
        };
        // Three windows of 999 ms.
        let starts = [0, 500_000, 999_010, 1_500_000, 1_998_020];
        let events: Vec<_> = (1..)
            .zip(starts)
            .map(|(id, at)| admitted(id, at, at + 1))
            .collect();
        assert_eq!(bound(&events, &rounded).broken_by, 0);
    }

    #[test]
    fn a_refusal_of_a_limiter_that_could_not_ask_is_no_answer() {
        let refused = |id, start| check(id, start, start + 10, 1, Outcome::Refused(None));
        let events = [
            admitted(1, 0, 10),
            cut(25, 26),
            refused(2, 20),
            admitted(3, 40, 50),
        ];
        assert_eq!(once(&events, "ada", 3).broken_by, 0);
        // At the end, the limit is used up.
        let events = [admitted(1, 0, 10), admitted(2, 20, 30), refused(3, 40)];
        assert_eq!(once(&events, "ada", 3).broken_by, 1);
    }

    #[test]
    fn a_caller_without_an_answer_is_found() {
        let mut failed = check(2, 0, 10, 1, Outcome::Failed("away".to_owned()));
        failed.caller = 2;
        let mut first = admitted(1, 0, 10);
        first.caller = 1;
        let mut events = vec![first, failed];
        assert_eq!(unanswered(&events, 1), None);
        assert_eq!(unanswered(&events, 2), Some(2));
        events.push(check(3, 20, 30, 1, Outcome::Cancelled));
        assert_eq!(cancelled(&events), (1, 3));
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
