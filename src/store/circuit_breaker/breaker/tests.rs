//! Tests of when the breaker opens, for how long, and when it closes.

use super::*;
use crate::error::ErrorKind;

fn failure() -> Error {
    Error::new(ErrorKind::Timeout, "too late")
}

/// Returns whether the breaker is open after one more failure.
fn fail(breaker: &Breaker, now: u64) -> bool {
    breaker.record_failure(now, &failure());
    is_open(breaker)
}

/// Returns whether the breaker is open after a caller that started at `started_at` has given up.
fn give_up(breaker: &Breaker, started_at: u64, now: u64) -> bool {
    breaker.record_abandoned(started_at, now, DEADLINE);
    is_open(breaker)
}

fn is_open(breaker: &Breaker) -> bool {
    breaker.is_open()
}

const DEADLINE: u64 = 100_000;

fn opened_at(now: u64) -> Breaker {
    let breaker = Breaker::default();
    for _ in 1..CONSECUTIVE_FAILURES {
        assert!(!fail(&breaker, now));
    }
    assert!(fail(&breaker, now));
    breaker
}

/// Takes the permit for the next probe. Returns the time at which it was granted.
fn next_probe(breaker: &Breaker, mut now: u64) -> u64 {
    while breaker.admit(DEADLINE, || now) == Admission::Refuse {
        now += 1_000;
    }
    now
}

#[test]
fn five_consecutive_failures_open_it() {
    let breaker = Breaker::default();
    for _ in 0..3 {
        for _ in 1..CONSECUTIVE_FAILURES {
            assert!(!fail(&breaker, 0));
        }
        breaker.record_success(|| 0);
    }
    assert_eq!(breaker.admit(DEADLINE, || 0), Admission::Ask);
    let breaker = opened_at(0);
    assert_eq!(breaker.admit(DEADLINE, || 0), Admission::Refuse);
}

#[test]
fn the_failure_of_a_call_with_many_checks_counts_once() {
    let breaker = Breaker::default();
    let error = failure();
    for _ in 0..100 {
        breaker.record_failure(0, &error);
    }
    assert!(!is_open(&breaker));
}

#[test]
fn ten_failures_of_twenty_within_a_second_open_it() {
    let breaker = Breaker::default();
    for _ in 0..9 {
        assert!(!fail(&breaker, 0));
        breaker.record_success(|| 0);
    }
    assert!(!fail(&breaker, 999_000));
    assert!(fail(&breaker, 999_000));
}

#[test]
fn a_failure_rate_over_two_seconds_does_not_open_it() {
    let breaker = Breaker::default();
    for now in (0..100).map(|step| step * 120_000) {
        assert!(!fail(&breaker, now));
        breaker.record_success(|| now);
    }
}

#[test]
fn fewer_than_half_failures_do_not_open_it() {
    let breaker = Breaker::default();
    for _ in 0..1_000 {
        assert!(!fail(&breaker, 0));
        breaker.record_success(|| 0);
        breaker.record_success(|| 0);
    }
}

#[test]
fn successes_are_not_counted_a_second_after_the_last_failure() {
    let breaker = Breaker::default();
    assert!(!fail(&breaker, 0));
    breaker.record_success(|| SECOND);
    assert_eq!(breaker.state.load(Ordering::Relaxed), CLOSED);
}

#[test]
fn it_stays_open_for_100_to_500_ms_twice_as_long_each_time() {
    let mut lengths = [const { Vec::new() }; 5];
    for _ in 0..200 {
        let breaker = opened_at(0);
        let mut now = 0;
        for lengths in &mut lengths {
            let probe = next_probe(&breaker, now);
            lengths.push(probe - now);
            now = probe;
            breaker.record_probe(now, Some(Err(&failure())));
        }
    }
    let bounds = [(100, 200), (200, 400), (250, 500), (250, 500), (250, 500)];
    for (lengths, (shortest, longest)) in lengths.iter().zip(bounds) {
        let min = lengths.iter().min().unwrap() / 1_000;
        let max = lengths.iter().max().unwrap() / 1_000;
        assert!(shortest <= min && max <= longest + 1, "{min} to {max} ms");
        // There is jitter, so that processes do not probe at the same time.
        assert!(max - min > (longest - shortest) / 2, "{min} to {max} ms");
    }
}

#[test]
fn one_probe_is_in_flight_at_a_time() {
    let breaker = opened_at(0);
    let probe = next_probe(&breaker, 0);
    for now in [probe, probe + 1, probe + DEADLINE + PROBE_TIMEOUT - 1] {
        assert_eq!(breaker.admit(DEADLINE, || now), Admission::Refuse);
    }
    // The probe is lost.
    assert_eq!(
        breaker.admit(DEADLINE, || probe + DEADLINE + PROBE_TIMEOUT),
        Admission::Probe
    );
}

#[test]
fn an_abandoned_probe_is_sent_by_the_next_caller() {
    let breaker = opened_at(0);
    let probe = next_probe(&breaker, 0);
    breaker.record_probe(probe + 1, None);
    assert_eq!(breaker.admit(DEADLINE, || probe + 1), Admission::Probe);
}

#[test]
fn one_successful_probe_closes_it() {
    let breaker = opened_at(0);
    let probe = next_probe(&breaker, 0);
    breaker.record_probe(probe, Some(Ok(())));
    assert_eq!(breaker.admit(DEADLINE, || probe), Admission::Ask);
    // Earlier failures no longer count.
    for _ in 1..CONSECUTIVE_FAILURES {
        assert!(!fail(&breaker, probe));
    }
}

#[test]
fn outcomes_of_earlier_requests_do_not_change_an_open_breaker() {
    let breaker = opened_at(0);
    for now in [0, 50_000, 99_000] {
        fail(&breaker, now);
        breaker.record_success(|| now);
        assert_eq!(breaker.admit(DEADLINE, || now), Admission::Refuse);
    }
    assert!(next_probe(&breaker, 0) <= 201_000);
}

#[test]
fn reopening_within_a_second_lasts_longer() {
    let mut shortest = u64::MAX;
    for _ in 0..50 {
        let breaker = opened_at(0);
        let mut now = next_probe(&breaker, 0);
        breaker.record_probe(now, Some(Ok(())));
        for _ in 0..CONSECUTIVE_FAILURES {
            let _ = breaker.record_failure(now, &failure());
        }
        shortest = shortest.min(next_probe(&breaker, now) - now);
        // After a second without failures, the duration is short again.
        now = next_probe(&breaker, now) + SECOND;
        breaker.record_probe(now, Some(Ok(())));
        now += SECOND;
        for _ in 0..CONSECUTIVE_FAILURES {
            let _ = breaker.record_failure(now, &failure());
        }
        assert!(next_probe(&breaker, now) - now <= 201_000);
    }
    assert!(shortest >= 200_000, "{shortest}");
}

#[test]
fn it_opens_if_all_callers_give_up() {
    let breaker = Breaker::default();
    for started_at in (0..4).map(|step| step * 30_000) {
        assert!(!give_up(&breaker, started_at, started_at + 30_000));
    }
    assert!(give_up(&breaker, 120_000, 150_000));
}

#[test]
fn overlapping_waits_count_once() {
    let breaker = Breaker::default();
    for _ in 0..1_000 {
        assert!(!give_up(&breaker, 0, 90_000));
    }
    assert!(give_up(&breaker, 70_000, 100_000));
}

#[test]
fn callers_that_give_up_early_are_ignored() {
    let breaker = Breaker::default();
    for started_at in (0..10_000).map(|step| step * 10_000) {
        assert!(!give_up(&breaker, started_at, started_at + 5_000));
    }
}

#[test]
fn callers_that_give_up_rarely_are_ignored() {
    let breaker = Breaker::default();
    for started_at in (0..100).map(|step| step * 2 * SECOND) {
        assert!(!give_up(&breaker, started_at, started_at + 50_000));
    }
}

#[test]
fn callers_that_give_up_are_ignored_while_others_are_answered() {
    let breaker = Breaker::default();
    for started_at in (0..1_000).map(|step| step * 40_000) {
        for _ in 0..100 {
            assert!(!give_up(&breaker, started_at, started_at + 40_000));
        }
        breaker.record_success(|| started_at + 40_000);
    }
}

#[test]
fn a_probe_is_not_lost_before_its_deadline() {
    let breaker = opened_at(0);
    let deadline = 10 * SECOND;
    let probe = next_probe(&breaker, 0);
    breaker.record_probe(probe, None);
    assert_eq!(breaker.admit(deadline, || probe), Admission::Probe);
    let lost_at = probe + deadline + PROBE_TIMEOUT;
    assert_eq!(breaker.admit(deadline, || lost_at - 1), Admission::Refuse);
    assert_eq!(breaker.admit(deadline, || lost_at), Admission::Probe);
}

#[test]
fn a_clock_that_stepped_back_does_not_keep_it_open() {
    let breaker = opened_at(3_600 * SECOND);
    assert_eq!(breaker.admit(DEADLINE, || 0), Admission::Probe);
}

#[test]
fn the_error_while_it_is_open_names_the_failure() {
    let text = opened_at(0).open_error().to_string();
    assert!(
        text.contains("not asked") && text.contains("too late"),
        "{text}"
    );
}
