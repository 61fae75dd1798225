use std::collections::HashMap;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::clock::{TestClock, certain_part};
use crate::decision::{QuotaAnswer, Source};
use crate::quota::Quota;

const TIMES: Times = Times {
    period: 1_000,
    round_trip: 10,
};

fn table() -> (TestClock, LeaseTable) {
    let clock = TestClock::new();
    (clock.clone(), LeaseTable::new(Clock::Test(clock)))
}

fn quotas() -> Quotas {
    Quota::per_minute(1_000_000).into()
}

fn ada() -> Subject<'static> {
    static KEY: LazyLock<Key> = LazyLock::new(|| Key::from("ada"));
    static QUOTAS: LazyLock<Quotas> = LazyLock::new(quotas);
    Subject::new(&KEY, &KEY, &QUOTAS).with_lease(Duration::from_micros(TIMES.period))
}

fn grant(table: &LeaseTable, number: u64, units: u32, micros: u64) -> Grant {
    let now = table.clock.now();
    let answer = QuotaAnswer::admitted(units, Duration::from_secs(60));
    Grant {
        number,
        answer: Answer::new(Source::Other, [answer]),
        units,
        left: units,
        answered_at: now,
        ends_at: now + micros,
    }
}

fn take(table: &LeaseTable, subject: Subject<'_>, cost: u32) -> (TakenUnits, Answer) {
    let mut answer = Answer::default();
    let result = table.take(subject, cost, TIMES, &mut answer);
    (result, answer)
}

fn ask(table: &LeaseTable, subject: Subject<'_>, clock: &TestClock) -> Ask {
    let (_, ask) = ask_by(table, subject, clock, TIMES, 1);
    ask.expect("a request")
}

/// Checks until units are asked for, and returns how many checks that took. At most a thousand.
fn ask_by(
    table: &LeaseTable,
    subject: Subject<'_>,
    clock: &TestClock,
    times: Times,
    micros_between: u64,
) -> (u64, Option<Ask>) {
    for checks in 1..=1_000 {
        clock.advance(Duration::from_micros(micros_between));
        let taken = table.take(subject, 1, times, &mut Answer::default());
        if let Some(ask) = taken.ask {
            return (checks, Some(ask));
        }
    }
    (1_000, None)
}

#[test]
fn a_busy_key_asks_once_and_for_what_it_used() {
    let (clock, table) = table();
    let subject = ada();
    let first = ask(&table, subject, &clock);
    // The sixteenth check asks. The units may be used for 0.79 of the lease.
    assert_eq!(first.units, 12);
    for _ in 0..100 {
        assert_eq!(take(&table, subject, 1).0.ask, None);
    }
    table.end_request(subject, 0);
    // Of 117 checks.
    assert_eq!(ask(&table, subject, &clock).units, 92);
}

#[test]
fn the_longer_the_round_trip_the_fewer_checks_ask_but_never_for_units_that_come_too_late() {
    let second = |round_trip| Times {
        period: 1_000_000,
        round_trip,
    };
    // Eight checks a second.
    let checks_until_asked = |round_trip| {
        let (clock, table) = table();
        let (checks, ask) = ask_by(&table, ada(), &clock, second(round_trip), 125_000);
        ask.map(|ask| (checks, ask.units))
    };
    assert_eq!(checks_until_asked(200), None);
    assert_eq!(checks_until_asked(80_000), Some((5, 3)));
    assert_eq!(checks_until_asked(250_000), Some((6, 3)));
    assert_eq!(checks_until_asked(750_000), None);
    assert_eq!(checks_until_asked(900_000), None);
}

#[test]
fn units_are_asked_for_before_those_at_hand_are_used_up() {
    let (clock, table) = table();
    let subject = ada();
    let times = Times {
        period: 1_000_000,
        round_trip: 100_000,
    };
    // A hundred checks a second, for two leases.
    let (_, first) = ask_by(&table, subject, &clock, times, 10_000);
    table.end_request(subject, 1_500_000);
    let (_, second) = ask_by(&table, subject, &clock, times, 10_000);
    // 70 of 100 come while the units may be used.
    assert_eq!(second.map(|ask| ask.units), Some(70));
    assert!(table.add(subject, first.unwrap(), grant(&table, 1, 70, 700_000)));
    table.end_request(subject, 0);
    let (checks, third) = ask_by(&table, subject, &clock, times, 10_000);
    // A round trip and an eighth of a lease ahead. The 22 that are left end before they would be used.
    assert_eq!((checks, third.map(|ask| ask.units)), (48, Some(70)));
}

#[test]
fn a_key_that_is_checked_in_bursts_asks_before_the_burst_that_would_find_no_units() {
    let (clock, table) = table();
    let subject = ada();
    let times = Times {
        period: 50_000,
        round_trip: 200,
    };
    let mut without_units = 0;
    for burst in 0..100 {
        clock.advance(Duration::from_millis(5));
        let mut asked = None;
        for _ in 0..20 {
            let taken = table.take(subject, 1, times, &mut Answer::default());
            asked = asked.or(taken.ask);
            // Until its rate is known.
            if burst >= 20 && !taken.is_complete {
                without_units += 1;
            }
        }
        // The reply comes before the next burst.
        if let Some(ask) = asked {
            let grant = grant(&table, burst, ask.units, certain_part(times.period));
            assert!(table.add(subject, ask, grant));
            table.end_request(subject, 0);
        }
    }
    assert_eq!(without_units, 0);
}

#[test]
fn a_process_asks_for_twice_the_part_of_what_is_left_that_it_was_charged_of_the_limit() {
    let (clock, table) = table();
    let subject = ada();
    assert_eq!(ask(&table, subject, &clock).eighths, 1);
    table.end_request(subject, 0);
    // 350 000 of a million: 300 000 by checks, the rest by a grant.
    table.record_charge(subject, 300_000);
    let request = ask(&table, subject, &clock);
    assert!(table.add(subject, request, grant(&table, 1, 50_000, 1)));
    table.end_request(subject, 0);
    // A burst gets no more than before, for a lease.
    assert_eq!(ask(&table, subject, &clock).eighths, 1);
    table.end_request(subject, TIMES.period);
    assert_eq!(ask(&table, subject, &clock).eighths, 6);
}

#[test]
fn a_request_that_found_few_units_is_not_repeated_at_once() {
    let (clock, table) = table();
    let subject = ada();
    ask(&table, subject, &clock);
    table.end_request(subject, 500);
    for _ in 0..499 {
        clock.advance(Duration::from_micros(1));
        assert_eq!(take(&table, subject, 1).0.ask, None);
    }
    clock.advance(Duration::from_micros(1));
    assert!(take(&table, subject, 1).0.ask.is_some());
}

#[test]
fn units_are_used_until_their_grant_ends_and_not_later() {
    let (clock, table) = table();
    let subject = ada();
    let request = ask(&table, subject, &clock);
    assert!(table.add(subject, request, grant(&table, 1, 100, 800)));
    clock.advance(Duration::from_micros(799));
    let (result, answer) = take(&table, subject, 60);
    assert!(result.is_complete && result.grants.is_empty());
    assert_eq!((answer.grant(), answer.extra_units()), (1, 40));
    // 40 of the 100 are left.
    assert_eq!(answer.quotas()[0].used(), 60);
    clock.advance(Duration::from_micros(1));
    assert!(!take(&table, subject, 1).0.is_complete);
    assert!(!table.put_back(subject, 1, 10));
    assert_eq!(
        (table.end(subject, 1), table.end(subject, 1)),
        (Some(40), None)
    );
}

#[test]
fn units_that_a_later_grant_holds_do_not_lower_the_use_that_is_told() {
    let (clock, table) = table();
    let subject = ada();
    let request = ask(&table, subject, &clock);
    // The store has charged 100 units, and then 50 more.
    for (number, units, used) in [(1, 100, 100), (2, 50, 150)] {
        let answer = QuotaAnswer::admitted(used, Duration::from_secs(60));
        let grant = Grant {
            answer: Answer::new(Source::Other, [answer]),
            ..grant(&table, number, units, 800)
        };
        assert!(table.add(subject, request, grant));
    }
    let mut used = 0;
    for cost in [60, 60, 5] {
        let (result, answer) = take(&table, subject, cost);
        assert!(result.is_complete);
        used += cost;
        assert_eq!(answer.quotas()[0].used(), used);
    }
}

#[test]
fn a_check_may_take_units_of_several_grants_and_the_rest_elsewhere() {
    let (clock, table) = table();
    let subject = ada();
    let request = ask(&table, subject, &clock);
    for number in 1..=3 {
        let grant = grant(&table, number, 10, 800);
        assert!(table.add(subject, request, grant));
    }
    let (result, answer) = take(&table, subject, 15);
    assert!(result.is_complete);
    let others: Vec<_> = (result.grants.iter())
        .map(|taken| {
            (
                taken.answer.grant(),
                taken.units,
                taken.answer.extra_units(),
            )
        })
        .collect();
    // The answer comes from the later grant, which counts the units of the earlier one, too.
    assert_eq!((answer.grant(), answer.extra_units()), (2, 5));
    assert_eq!(others, [(1, 10, 0)]);
    // A grant without units may get some back.
    assert!(table.put_back(subject, 1, 4));
    let (result, _) = take(&table, subject, 100);
    let taken: Vec<_> = (result.grants.iter())
        .map(|taken| (taken.answer.grant(), taken.units))
        .collect();
    assert!(!result.is_complete);
    assert_eq!(taken, [(1, 4), (2, 5), (3, 10)]);
}

#[test]
fn a_grant_that_arrives_after_its_key_became_void_is_not_added() {
    let (clock, table) = table();
    let subject = ada();
    let request = ask(&table, subject, &clock);
    assert!(table.add(subject, request, grant(&table, 1, 10, 800)));
    let void = table.void(subject.key);
    assert_eq!(void.iter().map(|(_, grant)| grant.left).sum::<u32>(), 10);
    assert!(!table.add(subject, request, grant(&table, 2, 10, 800)));
    assert!(!take(&table, subject, 1).0.is_complete);
}

fn check_key(table: &LeaseTable, number: usize, quotas: &Quotas) {
    let key = Key::from(number.to_string());
    let subject = Subject::new(&key, &key, quotas);
    let _ = take(table, subject, 1);
}

fn count_keys(table: &LeaseTable) -> usize {
    table
        .shards
        .iter()
        .map(|shard| shard.lock().keys.len())
        .sum()
}

#[test]
fn a_flood_of_keys_takes_bounded_memory_and_ends() {
    let (clock, table) = table();
    let quotas = quotas();
    for number in 0..100_000 {
        check_key(&table, number, &quotas);
    }
    assert_eq!(count_keys(&table), SHARDS * MAX_KEYS_PER_SHARD);
    clock.advance(Duration::from_micros(3 * TIMES.period));
    for number in 100_000..110_000 {
        check_key(&table, number, &quotas);
    }
    assert_eq!(count_keys(&table), 10_000);
}

#[test]
fn threads_take_and_put_back_every_unit_once() {
    let (clock, table) = table();
    let subject = ada();
    let request = ask(&table, subject, &clock);
    for number in 1..=4 {
        let grant = grant(&table, number, 50_000, 1_000_000);
        assert!(table.add(subject, request, grant));
    }
    let used = AtomicU32::new(0);
    thread::scope(|scope| {
        for thread in 0..8 {
            let table = &table;
            let used = &used;
            scope.spawn(move || {
                for step in 0..20_000 {
                    let (result, answer) = take(table, subject, 1 + (step + thread) % 3);
                    let own = 1 + (step + thread) % 3;
                    let others: u32 = result.grants.iter().map(|taken| taken.units).sum();
                    let first = if result.is_complete { own - others } else { 0 };
                    if step % 2 == 0 && first > 0 {
                        assert!(table.put_back(subject, answer.grant(), first));
                        used.fetch_add(others, Ordering::Relaxed);
                    } else {
                        used.fetch_add(first + others, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let left: u32 = (1..=4)
        .filter_map(|number| table.end(subject, number))
        .sum();
    assert_eq!(used.into_inner() + left, 200_000);
}

#[derive(Clone, Debug)]
enum Step {
    Take(u32),
    PutBack(usize),
    Add(u32, u64),
    End(u64),
    Advance(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..30_u32).prop_map(Step::Take),
        2 => (0..100_usize).prop_map(Step::PutBack),
        3 => (1..60_u32, 1..900_u64).prop_map(|(units, micros)| Step::Add(units, micros)),
        1 => (1..20_u64).prop_map(Step::End),
        3 => (0..300_u64).prop_map(Step::Advance),
    ]
}

proptest! {
    /// A unit is at hand, in a decision, or was returned when its grant ended. Never in two places.
    #[test]
    fn no_unit_is_used_twice_or_after_its_grant_has_ended(
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let (clock, table) = table();
        let key = Key::from("ada");
        let quotas = quotas();
        let subject = Subject::new(&key, &key, &quotas);
        let request = ask(&table, subject, &clock);
        // The units at hand and the end of each grant, in a model.
        let mut grants: HashMap<u64, (u32, u64)> = HashMap::new();
        let mut taken: Vec<(u64, u32)> = Vec::new();
        for step in steps {
            let now = table.clock.now();
            match step {
                Step::Take(cost) => {
                    let (result, answer) = take(&table, subject, cost);
                    let live = grants.values().filter(|(_, end)| now < *end);
                    let held: u32 = live.map(|(left, _)| left).sum();
                    prop_assert_eq!(result.is_complete, held >= cost);
                    let others: u32 = result.grants.iter().map(|taken| taken.units).sum();
                    let mut parts: Vec<_> = (result.grants.iter())
                        .map(|taken| (taken.answer.grant(), taken.units))
                        .collect();
                    if result.is_complete {
                        parts.push((answer.grant(), cost - others));
                    } else {
                        prop_assert_eq!(others, held);
                    }
                    for (grant, units) in &parts {
                        let (left, end) = grants.get_mut(grant).unwrap();
                        prop_assert!(now < *end && units <= left);
                        *left -= units;
                    }
                    taken.extend(parts);
                }
                Step::PutBack(index) if !taken.is_empty() => {
                    let (number, units) = taken.swap_remove(index % taken.len());
                    let live = grants.get_mut(&number).filter(|(_, end)| now < *end);
                    prop_assert_eq!(table.put_back(subject, number, units), live.is_some());
                    if let Some((left, _)) = live {
                        *left += units;
                    }
                }
                Step::PutBack(_) => {}
                Step::Add(units, micros) => {
                    let number = u64::try_from(grants.len()).unwrap() + 1;
                    assert!(table.add(subject, request, grant(&table, number, units, micros)));
                    grants.insert(number, (units, now + micros));
                }
                Step::End(number) => {
                    let left = table.end(subject, number).unwrap_or(0);
                    let known = grants.get_mut(&number);
                    prop_assert_eq!(left, known.map_or(0, |(left, end)| {
                        *end = 0;
                        mem::take(left)
                    }));
                }
                Step::Advance(micros) => clock.advance(Duration::from_micros(micros)),
            }
        }
    }
}
