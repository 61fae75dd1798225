//! Each attack finds a planted fault, and finds nothing in a correct limiter.
//!
//! The program `planted` has the limiters. It runs as a user runs it, so its arguments, history files and processes are
//! tested, too.

use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

/// Attacks run one after the other: two of them would take each other's time.
fn planted(arguments: &[&str]) -> (Output, String) {
    static ALONE: Mutex<()> = Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut command = Command::new(env!("CARGO_BIN_EXE_planted"));
    let output = command.args(arguments).output().expect("the program runs");
    let text = String::from_utf8(output.stdout.clone()).expect("text");
    println!("{text}");
    (output, text)
}

fn finds(attack: &str, fault: &str) {
    // What depends on the order of threads is found within ten tries.
    let is_found = (1..=10).any(|seed| {
        let seed = seed.to_string();
        let arguments = [
            "run",
            "--short",
            "--attack",
            attack,
            "--contestant",
            fault,
            "--seed",
            &seed,
        ];
        let (output, text) = planted(&arguments);
        output.status.code() == Some(1) && text.contains("**broken by ")
    });
    assert!(is_found, "{attack} does not find {fault}");
}

fn holds(contestant: &str) {
    let (output, text) = planted(&["run", "--short", "--contestant", contestant]);
    assert!(output.status.success(), "{text}");
}

macro_rules! finds {
    ($($test:ident: $attack:literal finds $fault:literal;)*) => {
        $(#[test] fn $test() { finds($attack, $fault); })*
    };
}

finds! {
    threads_find_a_clock_that_is_read_before_the_lock: "threads" finds "clock-before-lock";
    threads_find_a_window_that_is_checked_before_it_is_charged: "threads" finds "check-then-act";
    processes_find_a_limiter_that_counts_alone: "processes" finds "counts-alone";
    edges_find_a_fixed_window: "edges" finds "fixed-window";
    costs_find_units_that_are_given_back_twice: "costs" finds "refunds-twice";
    cancelled_callers_find_an_answer_for_somebody_else: "cancelled" finds "poisoned";
    cut_replies_find_a_charge_that_is_sent_again: "cut" finds "charges-again";
    cut_replies_find_it_behind_a_circuit_breaker: "cut" finds "charges-again-with-breaker";
    a_paused_server_finds_a_limiter_that_fails_open: "paused" finds "fails-open";
    a_killed_server_finds_a_limiter_that_fails_open: "killed" finds "fails-open";
    a_full_server_finds_a_limiter_that_fails_open: "full" finds "fails-open";
    an_emptied_server_finds_a_script_that_is_loaded_once: "emptied" finds "script-once";
    a_step_of_the_clock_finds_a_limiter_that_starts_anew: "clock" finds "restarts-on-step";
    clocks_that_disagree_find_a_limiter_that_trusts_its_callers: "skew" finds "own-clock";
    slots_find_one_that_leaks: "slots" finds "leaks-a-slot";
    waits_find_one_that_is_a_millisecond_short: "waits" finds "short-wait";
    waits_find_one_that_is_a_millisecond_long: "waits" finds "long-wait";
}

#[test]
fn a_correct_limiter_in_memory_holds() {
    holds("exact");
    holds("bucket");
    holds("opened-window");
}

#[test]
fn a_correct_limiter_in_redis_holds() {
    holds("exact-redis");
}

#[test]
fn a_limiter_that_refuses_where_it_cannot_ask_charges_once() {
    let arguments = ["run", "--short", "--contestant", "fails-closed"];
    let (output, text) = planted(&[&arguments[..], &["--attack", "cut"]].concat());
    assert!(output.status.success(), "{text}");
}

#[test]
fn calls_that_cannot_be_cancelled_are_no_attack() {
    let arguments = ["run", "--short", "--contestant", "answers-at-once"];
    let (output, text) = planted(&[&arguments[..], &["--attack", "cancelled"]].concat());
    assert!(!output.status.success());
    assert!(text.contains("not run: not attacked: only 0 of "), "{text}");
}

#[test]
fn a_limiter_that_tells_no_wait_is_no_attack() {
    let arguments = ["run", "--short", "--contestant", "tells-no-wait"];
    let (output, text) = planted(&[&arguments[..], &["--attack", "waits"]].concat());
    assert!(!output.status.success());
    assert!(text.contains("not run: not attacked: no wait "), "{text}");
}

/// Writes a program that begins with this line and answers requests so.
fn script(name: &str, description: &str, answer: &str) -> String {
    let path = format!("{}/{name}.sh", env!("CARGO_TARGET_TMPDIR"));
    let script = format!(
        "echo contestant {name} 1 sliding {description}
while read -r number request rest; do
case $request in setup) {answer} ;; *) echo $number refused 0.25 ;; esac
done"
    );
    std::fs::write(&path, script).expect("a script");
    format!("sh {path}")
}

#[test]
fn a_program_cannot_cancel_a_call_that_takes_a_slot() {
    let program = format!("{} serve answers-at-once", env!("CARGO_BIN_EXE_planted"));
    let arguments = ["run", "--short", "--attack", "slots", "--program", &program];
    let (output, text) = planted(&[&arguments[..], &["--contestant", "answers-at-once"]].concat());
    // The program, and the contestant of that name in this process.
    assert_eq!(text.matches("held: ").count(), 2, "{text}");
    assert!(output.status.success(), "{text}");
}

#[test]
fn a_wait_of_a_program_that_is_no_number_is_a_failure() {
    let program = script(
        "fraction",
        "offers=waits promises=waits",
        "echo $number done",
    );
    let arguments = ["run", "--short", "--attack", "waits", "--program", &program];
    let (_, text) = planted(&[&arguments[..], &["--contestant", "fraction"]].concat());
    assert!(text.contains("refused 0.25"), "{text}");
}

#[test]
fn a_promise_that_is_no_attack_is_an_error() {
    let program = script("misspelt", "promises=edges,threds", "echo $number done");
    let arguments = ["run", "--short", "--contestant", "misspelt"];
    let (output, _) = planted(&[&arguments[..], &["--program", &program]].concat());
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(
        error.contains("misspelt") && error.contains("\"threds\""),
        "{error}"
    );
    assert!(error.contains("threads, processes, "), "{error}");
}

#[test]
fn a_program_that_does_not_answer_is_given_up() {
    // It sleeps, so others may run meanwhile.
    let given_up = |program: &str, text: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_planted"));
        command.args([
            "run",
            "--short",
            "--attack",
            "edges",
            "--contestant",
            "mute",
        ]);
        let output = command.args(["--program", program]).output();
        let output = output.expect("the program runs");
        assert!(!output.status.success());
        let printed = [output.stdout, output.stderr].concat();
        let printed = String::from_utf8_lossy(&printed).into_owned();
        assert!(printed.contains(text), "{printed}");
    };
    std::thread::scope(|scope| {
        scope.spawn(|| given_up("sleep 90", "no description from sleep within 30 s"));
        let mute = script("mute", "promises=edges", "true");
        scope.spawn(move || given_up(&mute, "no reply to `setup` within 30 s"));
    });
}

#[test]
fn a_finding_is_in_its_history_and_is_found_again() {
    let command = "run --short --contestant short-wait --attack waits --seed 7";
    let (_, text) = planted(&command.split(' ').collect::<Vec<_>>());
    assert!(text.contains(&format!("again: {command}\n")), "{text}");
    let (_, found) = text.split_once("**broken by ").expect("a finding");
    let (by, _) = found.split_once("**").expect("a number");
    let (_, history) = text.split_once("history ").expect("a history");
    let history = history.lines().next().expect("a path");
    let (output, text) = planted(&["replay", history]);
    assert!(text.contains(&format!("in the history: broken by {by}:")));
    assert!(output.status.success(), "{text}");
}
