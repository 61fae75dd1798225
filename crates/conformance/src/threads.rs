//! The rules about threads that compete for the same counts.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use tokio::runtime::Builder;

use tollgate::store::protocol::Change;
use tollgate::{Algorithm, Quota};

use crate::conformance::{Broken, Conformance, Random, ScratchKey, ensure};
use crate::rules::max_units;

/// A rule that starts threads.
type ThreadRule = fn(&Conformance, Algorithm) -> Result<(), Broken>;

pub(crate) const RULES: &[(&str, ThreadRule)] = &[
    (
        "threads are admitted the limit, and refunds lose nothing",
        conserved_units,
    ),
    (
        "no span holds more than the promise while threads check and time passes",
        promise_under_threads,
    ),
    (
        "checks of several keys are all or nothing under threads",
        all_or_nothing,
    ),
];

const THREADS: u32 = 8;
const CHECKS: u32 = 60;

/// Runs the function on each of several threads, each with its own runtime.
fn run_threads(
    adversary: impl AsyncFn(u32, Random) -> Result<(), Broken> + Sync,
) -> Result<(), Broken> {
    thread::scope(|scope| {
        let adversary = &adversary;
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let random = Random(u64::from(thread) << 32);
                scope.spawn(move || on_own_runtime(adversary(thread, random)))
            })
            .collect();
        let outcomes: Vec<_> = threads
            .into_iter()
            .map(|thread| joined(thread.join()))
            .collect();
        outcomes.into_iter().collect()
    })
}

/// Returns the units used.
fn used(kit: &Conformance, subject: &ScratchKey) -> Result<u32, Broken> {
    on_another_thread(kit.used(subject))
}

/// Waits for a future on another thread, with its own runtime.
fn on_another_thread<T: Send>(
    future: impl Future<Output = Result<T, Broken>> + Send,
) -> Result<T, Broken> {
    thread::scope(|scope| {
        let thread = scope.spawn(|| on_own_runtime(future));
        joined(thread.join())
    })
}

fn on_own_runtime<T>(future: impl Future<Output = Result<T, Broken>>) -> Result<T, Broken> {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Broken::Failed(error.to_string()))?;
    runtime.block_on(future)
}

fn joined<T>(outcome: thread::Result<Result<T, Broken>>) -> Result<T, Broken> {
    outcome.unwrap_or_else(|_| Err(Broken::Failed("a thread panicked".to_owned())))
}

fn conserved_units(kit: &Conformance, algorithm: Algorithm) -> Result<(), Broken> {
    const LIMIT: u32 = 100;
    // The window is long, so that no units return meanwhile. With Gcra some do, unless the clock stands still.
    let high = kit.scratch_key(Quota::per_day(LIMIT).with_algorithm(algorithm));
    let low = high.with(Quota::per_day(LIMIT / 2).with_algorithm(algorithm));
    let admitted = AtomicU64::new(0);
    let refunded = AtomicU64::new(0);
    run_threads(async |_, mut random| {
        for _ in 0..CHECKS {
            let subject = if random.below(3) == 0 { &low } else { &high };
            let cost = 1 + random.below(3);
            let answer = kit.check(subject, cost).await?;
            if !answer.is_admitted() {
                continue;
            }
            admitted.fetch_add(cost.into(), Ordering::SeqCst);
            if random.below(3) == 0 {
                let units = 1 + random.below(cost);
                let refund = subject.subject().adjust(Change::Refund {
                    answer: &answer,
                    cost,
                    units,
                    held: 0,
                });
                kit.store.adjust(refund).await?;
                refunded.fetch_add(units.into(), Ordering::SeqCst);
            }
        }
        Ok(())
    })?;
    let left = admitted.into_inner() - refunded.into_inner();
    let used = u64::from(used(kit, &high)?);
    let is_exact = kit.is_exact() || algorithm != Algorithm::Gcra;
    ensure!(
        used == left || (!is_exact && used < left),
        "{used} units used, but admissions less refunds are {left}"
    );
    ensure!(
        left <= LIMIT.into() || !is_exact,
        "{left} units admitted and not refunded, of a limit of {LIMIT}"
    );
    ensure!(
        left > u64::from(LIMIT) / 2,
        "only {left} units admitted of a limit of {LIMIT}"
    );
    Ok(())
}

fn promise_under_threads(kit: &Conformance, algorithm: Algorithm) -> Result<(), Broken> {
    const LIMIT: u32 = 12;
    if !kit.is_exact() {
        // The kit does not know the times of admissions.
        return Ok(());
    }
    let subject = kit.scratch_key(kit.quota(LIMIT, algorithm));
    let admitted = Mutex::new(Vec::new());
    let is_done = AtomicBool::new(false);
    let outcome = thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random(5);
            while !is_done.load(Ordering::SeqCst) {
                kit.step(kit.window() * random.below(100) / 400);
                thread::yield_now();
            }
        });
        let outcome = run_threads(async |_, mut random| {
            for _ in 0..CHECKS {
                let cost = 1 + random.below(3);
                let start = kit.elapsed();
                let answer = kit.check(&subject, cost).await?;
                let end = kit.elapsed_at_most();
                if answer.is_admitted() {
                    let mut admitted = admitted.lock().unwrap_or_else(PoisonError::into_inner);
                    admitted.push((start, end, u64::from(cost)));
                }
            }
            Ok(())
        });
        is_done.store(true, Ordering::SeqCst);
        outcome
    });
    outcome?;
    let admitted = admitted
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    let window = u64::try_from(kit.window().as_micros()).unwrap_or(u64::MAX);
    let max = max_units(algorithm, LIMIT);
    for (start, ..) in &admitted {
        // Units were charged within the span if the whole interval of their check is within it.
        let within = admitted
            .iter()
            .filter(|(from, until, _)| from >= start && *until < start + window);
        let units: u64 = within.map(|(.., units)| *units).sum();
        ensure!(
            units <= max,
            "a limit of {LIMIT} admitted {units} units within a window, at most {max} are promised"
        );
    }
    Ok(())
}

fn all_or_nothing(kit: &Conformance, algorithm: Algorithm) -> Result<(), Broken> {
    const LIMIT: u32 = 40;
    let quotas = [LIMIT, LIMIT + 5, LIMIT * 2]
        .map(|limit| Quota::per_day(limit).with_algorithm(algorithm).into());
    let subjects = on_another_thread(async { Ok(kit.scratch_keys_together(quotas).await) })?;
    let [one, two, three] = &subjects;
    let admitted = AtomicU64::new(0);
    run_threads(async |thread, mut random| {
        for _ in 0..CHECKS {
            let cost = 1 + random.below(2);
            // Threads use different orders.
            let order = match thread % 3 {
                0 => [one, two, three],
                1 => [three, two, one],
                _ => [two, three, one],
            };
            let checks = order.map(|subject| subject.check(cost));
            let answers = kit.check_all(&checks).await?;
            if answers.are_admitted() {
                admitted.fetch_add(cost.into(), Ordering::SeqCst);
            }
        }
        Ok(())
    })?;
    let admitted = admitted.into_inner();
    for subject in &subjects {
        let used = u64::from(used(kit, subject)?);
        let is_exact = kit.is_exact() || algorithm != Algorithm::Gcra;
        ensure!(
            used == admitted || (!is_exact && used < admitted),
            "{used} units used, but {admitted} were admitted together"
        );
    }
    ensure!(
        admitted + 1 >= LIMIT.into(),
        "only {admitted} units admitted of a limit of {LIMIT}"
    );
    Ok(())
}
