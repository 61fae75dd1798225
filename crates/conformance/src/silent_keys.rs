//! The rule about keys that fill, are silent, and fill again.

use std::time::{Duration, Instant};

use tollgate::store::protocol::Change;
use tollgate::{Algorithm, ErrorKind, Quota};

use crate::conformance::{Broken, Conformance, Rule, ScratchKey, ensure};
use crate::rules::SLACK;

pub(crate) const RULES: &[(&str, Rule)] = &[(
    "a key that is silent and fills again counts nothing of before",
    |kit| Box::pin(silent_keys(kit)),
)];

/// The charges of a fill: so many that a store may keep them in several places, each of which expires at another time.
const CHARGES: u32 = 165;

const LIMIT: u32 = 1_000;

/// The units of a credit.
const CREDIT: u32 = 100;

/// The window if the kit sleeps.
const SHORT_WINDOW: Duration = Duration::from_secs(2);

/// The length of the first fill and the begin of the second one, in percent of a window. A store may drop a key two
/// windows and a second after its first charge, and what it added last one fill later.
const AGES: [(u32, u32); 6] = [
    (95, 150),
    (95, 210),
    (95, 260),
    (40, 205),
    (130, 310),
    (95, 400),
];
const AGES_WITH_SHORT_WINDOW: [(u32, u32); 2] = [(90, 150), (90, 253)];

/// A key, and when it was charged.
struct Filled {
    subject: ScratchKey,
    is_log: bool,
    /// The time before and after each charge.
    charges: Vec<[Duration; 2]>,
}

async fn silent_keys(kit: &Conformance) -> Result<(), Broken> {
    let (window, ages) = if kit.is_exact() {
        (kit.window(), &AGES[..])
    } else {
        (SHORT_WINDOW, &AGES_WITH_SHORT_WINDOW[..])
    };
    let mut keys = Vec::new();
    let mut schedule = Vec::new();
    for (fill, again) in ages {
        for algorithm in Algorithm::ALL.iter().copied() {
            let is_log = matches!(algorithm, Algorithm::SlidingLog | Algorithm::SortedSetLog);
            // Without a clock of the kit, there is no time for more.
            if !is_log && !kit.is_exact() {
                continue;
            }
            for charge in 0..CHARGES {
                let slow = window * *fill * charge / (100 * CHARGES);
                let fast = window * (*again * CHARGES + charge) / (100 * CHARGES);
                schedule.extend([(slow, keys.len()), (fast, keys.len())]);
            }
            let quota = Quota::new(LIMIT, window).with_algorithm(algorithm);
            keys.push(Filled {
                subject: kit.scratch_key(quota),
                is_log,
                charges: Vec::new(),
            });
        }
    }
    schedule.sort_unstable();
    let start = Start {
        at: Instant::now(),
        elapsed: kit.elapsed(),
    };
    for (due, index) in schedule {
        let step = due.saturating_sub(start.elapsed(kit));
        // The keys of all algorithms are charged at the same times. To move the clock of a store may be a call.
        if !step.is_zero() {
            kit.pass(step).await;
        }
        let Some(key) = keys.get_mut(index) else {
            continue;
        };
        let before = start.elapsed(kit);
        let _ = kit.charge(&key.subject, 1).await?;
        key.charges.push([before, start.elapsed(kit)]);
        if key.charges.len() == 2 * CHARGES as usize {
            examine(kit, key, window, &start).await?;
        }
    }
    Ok(())
}

/// The begin of the charges.
struct Start {
    at: Instant,
    /// By the clock that the kit moves.
    elapsed: u64,
}

impl Start {
    fn elapsed(&self, kit: &Conformance) -> Duration {
        if kit.is_exact() {
            Duration::from_micros(kit.elapsed() - self.elapsed)
        } else {
            self.at.elapsed()
        }
    }
}

/// Examines a key that has filled again.
async fn examine(
    kit: &Conformance,
    key: &Filled,
    window: Duration,
    start: &Start,
) -> Result<(), Broken> {
    let slack = if kit.is_exact() {
        Duration::ZERO
    } else {
        SLACK
    };
    let before = start.elapsed(kit);
    let used = kit.used(&key.subject).await?;
    let after = start.elapsed(kit);
    // A counter may count for up to two windows.
    let span = if key.is_log { window } else { 2 * window };
    let most = key
        .charges
        .iter()
        .filter(|[_, end]| *end + span + slack > before)
        .count();
    ensure!(
        used as usize <= most,
        "{used} units used, where {most} were charged within {span:?}: {:?}",
        key.subject.quotas
    );
    if !key.is_log {
        return Ok(());
    }
    let charges = key.charges.iter();
    let least = charges.filter(|[begin, _]| *begin + window > after + slack);
    let least = least.count();
    ensure!(
        used as usize >= least,
        "{used} units used, where {least} were charged within {window:?}: {:?}",
        key.subject.quotas
    );
    for cost in [LIMIT + 1 - used, LIMIT - used / 2, LIMIT] {
        let refused = kit.check(&key.subject, cost).await?;
        let first = refused.quotas().first();
        let wait = first.and_then(|quota| quota.retry_after());
        ensure!(
            wait.is_some_and(|wait| wait <= window) || !kit.is_exact(),
            "{used} of {LIMIT} units used, and a cost of {cost} is answered by {refused:?}"
        );
    }
    credit(kit, key, used).await
}

/// Returns a few of the used units, if the store knows credits.
async fn credit(kit: &Conformance, key: &Filled, used: u32) -> Result<(), Broken> {
    let subject = key.subject.subject();
    let credit = subject.adjust(Change::Credit { units: CREDIT });
    match kit.store.adjust(credit).await {
        Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(()),
        outcome => outcome?,
    }
    let left = kit.used(&key.subject).await?;
    ensure!(
        left == used.saturating_sub(CREDIT) || !kit.is_exact(),
        "{left} units used after {used} and a credit of {CREDIT}"
    );
    Ok(())
}
