//! When it opens, for how long, and who closes it.

use crate::error::ErrorKind;
use crate::store::circuit_breaker::breaker::*;

fn failure() -> Error {
    Error::new(ErrorKind::Timeout, "too late")
}

/// Whether it is open after one more failure.
fn fail(breaker: &Breaker, now: u64) -> bool {
    breaker.failed(now, &failure());
    is_open(breaker)
}

/// Whether it is open after somebody who waited since then has left.
fn give_up(breaker: &Breaker, began: u64, now: u64) -> bool {
    breaker.given_up(began, now, DEADLINE);
    is_open(breaker)
}

fn is_open(breaker: &Breaker) -> bool {
    breaker.is_open()
}

const DEADLINE: u64 = 100_000;

fn opened_at(now: u64) -> Breaker {
    let breaker = Breaker::default();
    for _ in 1..FAILURES_IN_A_ROW {
        assert!(!fail(&breaker, now));
    }
    assert!(fail(&breaker, now));
    breaker
}

/// When it lets somebody ask again, who then does.
fn next_probe(breaker: &Breaker, mut now: u64) -> u64 {
    while breaker.enter(DEADLINE, || now) == Permit::Refuse {
        now += 1_000;
    }
    now
}

#[test]
fn it_opens_at_the_fifth_failure_in_a_row() {
    let breaker = Breaker::default();
    for _ in 0..3 {
        for _ in 1..FAILURES_IN_A_ROW {
            assert!(!fail(&breaker, 0));
        }
        breaker.succeeded(|| 0);
    }
    assert_eq!(breaker.enter(DEADLINE, || 0), Permit::Ask);
    let breaker = opened_at(0);
    assert_eq!(breaker.enter(DEADLINE, || 0), Permit::Refuse);
}

#[test]
fn a_call_that_carried_many_checks_fails_once() {
    let (breaker, lost) = (Breaker::default(), failure());
    for _ in 0..100 {
        breaker.failed(0, &lost);
    }
    assert!(!is_open(&breaker));
}

#[test]
fn it_opens_when_half_of_twenty_fail_within_a_second() {
    let breaker = Breaker::default();
    for _ in 0..9 {
        assert!(!fail(&breaker, 0));
        breaker.succeeded(|| 0);
    }
    assert!(!fail(&breaker, 999_000));
    assert!(fail(&breaker, 999_000));
}

#[test]
fn half_of_the_outcomes_of_two_seconds_does_not_open_it() {
    let breaker = Breaker::default();
    for now in (0..100).map(|step| step * 120_000) {
        assert!(!fail(&breaker, now));
        breaker.succeeded(|| now);
    }
}

#[test]
fn fewer_than_half_do_not_open_it() {
    let breaker = Breaker::default();
    for _ in 0..1_000 {
        assert!(!fail(&breaker, 0));
        breaker.succeeded(|| 0);
        breaker.succeeded(|| 0);
    }
}

#[test]
fn it_is_calm_again_a_second_after_the_last_failure() {
    let breaker = Breaker::default();
    assert!(!fail(&breaker, 0));
    breaker.succeeded(|| SECOND);
    assert_eq!(breaker.mode.load(Ordering::Relaxed), CALM);
}

#[test]
fn it_is_open_for_a_tenth_to_half_a_second_twice_as_long_each_time() {
    let mut lengths = [const { Vec::new() }; 5];
    for _ in 0..200 {
        let breaker = opened_at(0);
        let mut now = 0;
        for lengths in &mut lengths {
            let probe = next_probe(&breaker, now);
            lengths.push(probe - now);
            now = probe;
            breaker.probed(now, Some(Err(&failure())));
        }
    }
    let bounds = [(100, 200), (200, 400), (250, 500), (250, 500), (250, 500)];
    for (lengths, (least, longest)) in lengths.iter().zip(bounds) {
        let (min, max) = (lengths.iter().min(), lengths.iter().max());
        let (min, max) = (min.unwrap() / 1_000, max.unwrap() / 1_000);
        assert!(least <= min && max <= longest + 1, "{min} to {max} ms");
        // They are spread: else all processes would come back at once.
        assert!(max - min > (longest - least) / 2, "{min} to {max} ms");
    }
}

#[test]
fn one_probes_at_a_time() {
    let breaker = opened_at(0);
    let probe = next_probe(&breaker, 0);
    for now in [probe, probe + 1, probe + DEADLINE + PROBE - 1] {
        assert_eq!(breaker.enter(DEADLINE, || now), Permit::Refuse);
    }
    // The probe is lost.
    assert_eq!(
        breaker.enter(DEADLINE, || probe + DEADLINE + PROBE),
        Permit::Probe
    );
}

#[test]
fn a_probe_that_nobody_waited_for_is_the_next_ones() {
    let breaker = opened_at(0);
    let probe = next_probe(&breaker, 0);
    breaker.probed(probe + 1, None);
    assert_eq!(breaker.enter(DEADLINE, || probe + 1), Permit::Probe);
}

#[test]
fn one_success_of_a_probe_closes_it() {
    let breaker = opened_at(0);
    let probe = next_probe(&breaker, 0);
    breaker.probed(probe, Some(Ok(())));
    assert_eq!(breaker.enter(DEADLINE, || probe), Permit::Ask);
    // Those that failed before count no more.
    for _ in 1..FAILURES_IN_A_ROW {
        assert!(!fail(&breaker, probe));
    }
}

#[test]
fn what_was_asked_before_it_opened_does_not_move_it() {
    let breaker = opened_at(0);
    for now in [0, 50_000, 99_000] {
        fail(&breaker, now);
        breaker.succeeded(|| now);
        assert_eq!(breaker.enter(DEADLINE, || now), Permit::Refuse);
    }
    assert!(next_probe(&breaker, 0) <= 201_000);
}

#[test]
fn one_that_opens_again_at_once_stays_open_longer() {
    let mut shortest = u64::MAX;
    for _ in 0..50 {
        let breaker = opened_at(0);
        let mut now = next_probe(&breaker, 0);
        breaker.probed(now, Some(Ok(())));
        for _ in 0..FAILURES_IN_A_ROW {
            let _ = breaker.failed(now, &failure());
        }
        shortest = shortest.min(next_probe(&breaker, now) - now);
        // A second later it is another story.
        now = next_probe(&breaker, now) + SECOND;
        breaker.probed(now, Some(Ok(())));
        now += SECOND;
        for _ in 0..FAILURES_IN_A_ROW {
            let _ = breaker.failed(now, &failure());
        }
        assert!(next_probe(&breaker, now) - now <= 201_000);
    }
    assert!(shortest >= 200_000, "{shortest}");
}

#[test]
fn a_store_whose_callers_all_leave_unanswered_hangs() {
    let breaker = Breaker::default();
    for began in (0..4).map(|step| step * 30_000) {
        assert!(!give_up(&breaker, began, began + 30_000));
    }
    assert!(give_up(&breaker, 120_000, 150_000));
}

#[test]
fn those_who_wait_together_have_not_waited_for_longer() {
    let breaker = Breaker::default();
    for _ in 0..1_000 {
        assert!(!give_up(&breaker, 0, 90_000));
    }
    assert!(give_up(&breaker, 70_000, 100_000));
}

#[test]
fn callers_that_leave_at_once_say_nothing() {
    let breaker = Breaker::default();
    for began in (0..10_000).map(|step| step * 10_000) {
        assert!(!give_up(&breaker, began, began + 5_000));
    }
}

#[test]
fn callers_that_leave_now_and_then_say_nothing() {
    let breaker = Breaker::default();
    for began in (0..100).map(|step| step * 2 * SECOND) {
        assert!(!give_up(&breaker, began, began + 50_000));
    }
}

#[test]
fn callers_that_leave_a_store_which_answers_others_say_nothing() {
    let breaker = Breaker::default();
    for began in (0..1_000).map(|step| step * 40_000) {
        for _ in 0..100 {
            assert!(!give_up(&breaker, began, began + 40_000));
        }
        breaker.succeeded(|| began + 40_000);
    }
}

#[test]
fn a_probe_is_not_lost_before_its_deadline() {
    let breaker = opened_at(0);
    let (deadline, probe) = (10 * SECOND, next_probe(&breaker, 0));
    breaker.probed(probe, None);
    assert_eq!(breaker.enter(deadline, || probe), Permit::Probe);
    let lost = probe + deadline + PROBE;
    assert_eq!(breaker.enter(deadline, || lost - 1), Permit::Refuse);
    assert_eq!(breaker.enter(deadline, || lost), Permit::Probe);
}

#[test]
fn a_clock_that_stepped_back_does_not_keep_it_open() {
    let breaker = opened_at(3_600 * SECOND);
    assert_eq!(breaker.enter(DEADLINE, || 0), Permit::Probe);
}

#[test]
fn what_is_answered_while_it_is_open_names_the_failure() {
    let text = opened_at(0).refusal().to_string();
    assert!(
        text.contains("not asked") && text.contains("too late"),
        "{text}"
    );
}
