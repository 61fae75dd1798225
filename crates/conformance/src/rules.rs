//! The rules about checks and blocks.

use std::future::ready;
use std::time::{Duration, Instant};

use tollgate::store::protocol::{Answers, Block, Check};
use tollgate::{Algorithm, Quota, Quotas};

use crate::conformance::{AlgorithmRule, Broken, Conformance, Random, Rule, ensure};

/// The time that the kit sleeps longer than needed, because the store's clock may be slower than its own.
pub(crate) const SLACK: Duration = Duration::from_millis(10);

/// Returns the most units that an algorithm admits in any span as long as the window.
pub(crate) fn max_units(algorithm: Algorithm, limit: u32) -> u64 {
    let limit = u64::from(limit);
    match algorithm {
        Algorithm::SlidingCounter | Algorithm::Gcra => (2 * limit).saturating_sub(1),
        Algorithm::FixedWindow => 2 * limit,
        _ => limit,
    }
}

/// The duration of a block whose end the kit waits for.
const SHORT_BLOCK: Duration = Duration::from_millis(80);

pub(crate) const RULES: &[(&str, Rule)] = &[
    ("a store has one identity", |kit| {
        Box::pin(ready(identity(kit)))
    }),
    ("an empty list of checks has no answers", |kit| {
        Box::pin(no_checks(kit))
    }),
    ("several checks are all charged or none", |kit| {
        Box::pin(several_checks(kit))
    }),
    (
        "quotas of several algorithms are all charged or none",
        |kit| Box::pin(mixed_quotas(kit)),
    ),
    ("a key is blocked for its time, and unblocked", |kit| {
        Box::pin(blocks(kit))
    }),
    (
        "an automatic block takes effect only on a key that is not blocked",
        |kit| Box::pin(automatic_blocks(kit)),
    ),
];

pub(crate) const RULES_OF_ALGORITHMS: &[(&str, AlgorithmRule)] = &[
    (
        "the limit is admitted, and a refusal costs nothing",
        |kit, algorithm| Box::pin(limit(kit, algorithm)),
    ),
    (
        "a check of cost 0 charges nothing, and every limit but 0 admits it",
        |kit, algorithm| Box::pin(free(kit, algorithm)),
    ),
    (
        "a cost above the limit is never admitted",
        |kit, algorithm| Box::pin(too_large(kit, algorithm)),
    ),
    (
        "a check is charged to all quotas or to none",
        |kit, algorithm| Box::pin(all_quotas(kit, algorithm)),
    ),
    (
        "a soft quota is charged what it has room for, and refuses nothing",
        |kit, algorithm| Box::pin(soft(kit, algorithm)),
    ),
    ("the wait is the shortest", |kit, algorithm| {
        Box::pin(shortest_wait(kit, algorithm))
    }),
    ("more units are left after the reset", |kit, algorithm| {
        Box::pin(reset_after(kit, algorithm))
    }),
    (
        "no span holds more than the algorithm promises",
        |kit, algorithm| Box::pin(promise(kit, algorithm)),
    ),
    ("a changed limit keeps the history", |kit, algorithm| {
        Box::pin(changed_limit(kit, algorithm))
    }),
    (
        "limiters, keys and algorithms count apart, and so do windows except in a log",
        |kit, algorithm| Box::pin(counted_apart(kit, algorithm)),
    ),
    (
        "a window of a log counts as far back as the longest that charged",
        |kit, algorithm| Box::pin(longer_window(kit, algorithm)),
    ),
];

fn identity(kit: &Conformance) -> Result<(), Broken> {
    ensure!(
        kit.store.id() == kit.store.id(),
        "`id` returns another identity each time"
    );
    Ok(())
}

async fn no_checks(kit: &Conformance) -> Result<(), Broken> {
    let answers = kit.check_all(&[]).await?;
    ensure!(answers.is_empty(), "{answers:?}");
    Ok(())
}

async fn several_checks(kit: &Conformance) -> Result<(), Broken> {
    let quota = Quota::per_hour;
    let of_service = quota(6).with_algorithm(Algorithm::SlidingCounter);
    let quotas: [Quotas; 3] = [
        quota(5).into(),
        [quota(9), quota(7)].into(),
        of_service.into(),
    ];
    let [user, tenant, service] = kit.scratch_keys_together(quotas).await;
    let check_all = async |costs: [u32; 3]| -> Result<Answers, Broken> {
        let subjects = [&user, &tenant, &service];
        let checks: Vec<Check<'_>> = subjects
            .iter()
            .zip(costs)
            .map(|(subject, cost)| subject.check(cost))
            .collect();
        let answers = kit.check_all(&checks).await?;
        for (subject, answer) in subjects.iter().zip(answers.iter()) {
            ensure!(
                subject.quotas.len() == answer.quotas().len(),
                "{} quotas, {} answers",
                subject.quotas.len(),
                answer.quotas().len()
            );
        }
        ensure!(answers.len() == 3, "{} answers to 3 checks", answers.len());
        Ok(answers)
    };
    let used = async || -> Result<[u32; 3], Broken> {
        Ok([
            kit.used(&user).await?,
            kit.used(&tenant).await?,
            kit.used(&service).await?,
        ])
    };
    let admitted = check_all([2, 3, 1]).await?;
    ensure!(
        admitted.are_admitted(),
        "all have room, but one is refused: {admitted:?}"
    );
    let now_used: Vec<_> = admitted
        .iter()
        .flat_map(|answer| answer.quotas().first())
        .map(|quota| quota.used())
        .collect();
    ensure!(
        now_used == [2, 3, 1],
        "the answers say {now_used:?} units used, not [2, 3, 1]"
    );
    // Each of the three refuses once.
    for (costs, refuses) in [([4, 1, 1], 0), ([1, 5, 1], 1), ([1, 1, 6], 2)] {
        let answers = check_all(costs).await?;
        for (index, answer) in answers.iter().enumerate() {
            ensure!(
                answer.is_admitted() == (index != refuses),
                "costs {costs:?}: check {index} is answered by {answer:?}"
            );
        }
        let now_used = used().await?;
        ensure!(
            now_used == [2, 3, 1],
            "a refused check changed the units used from [2, 3, 1] to {now_used:?}"
        );
    }
    // A check of cost 0 among them charges nothing, and the others are charged.
    let answers = check_all([3, 0, 2]).await?;
    ensure!(answers.are_admitted(), "{answers:?}");
    let now_used = used().await?;
    ensure!(
        now_used == [5, 3, 3],
        "{now_used:?} units used, not [5, 3, 3]"
    );
    // Also above its limit, but not if the limit is 0.
    for (limit, expected) in [(1, [5, 3, 4]), (0, [5, 3, 4])] {
        let lowered = tenant.with_quotas([quota(9), quota(limit)]);
        let answers = kit.check_all(&[lowered.check(0), service.check(1)]).await?;
        ensure!(
            answers.are_admitted() == (limit > 0),
            "beside another check, a limit of {limit} answers to cost 0 by {answers:?}"
        );
        let now_used = used().await?;
        ensure!(
            now_used == expected,
            "{now_used:?} units used, not {expected:?}"
        );
    }
    let alone = kit.check_all(&[tenant.check(4)]).await?;
    ensure!(
        alone.len() == 1 && alone.are_admitted(),
        "a single check is answered by {alone:?}"
    );
    Ok(())
}

async fn mixed_quotas(kit: &Conformance) -> Result<(), Broken> {
    let quotas: Quotas = Algorithm::ALL
        .iter()
        .enumerate()
        .map(|(index, algorithm)| {
            let limit = if index == 3 { 4 } else { 6 };
            Quota::new(limit, kit.window()).with_algorithm(*algorithm)
        })
        .collect();
    let subject = kit.scratch_key(quotas);
    let _ = kit.charge(&subject, 3).await?;
    let refused = kit.check(&subject, 2).await?;
    let admits: Vec<_> = refused
        .quotas()
        .iter()
        .map(|quota| quota.is_admitted())
        .collect();
    ensure!(
        admits == [true, true, true, false, true, true],
        "only the fourth quota has no room: {admits:?}"
    );
    let looked = kit.check(&subject, 0).await?;
    let used: Vec<_> = looked.quotas().iter().map(|quota| quota.used()).collect();
    ensure!(
        used == [3; 6] || !kit.is_exact(),
        "{used:?} units used after a charge of 3 and a refusal"
    );
    Ok(())
}

async fn blocks(kit: &Conformance) -> Result<(), Broken> {
    let subject = kit.scratch_key(Quota::per_hour(5));
    let limiter = &subject.limiter;
    let key = &subject.key;
    let list = kit.store.parts().block_list;
    let left = || list.blocked_for(limiter, key);
    let block = Block::new(limiter, key, kit.window());
    kit.store.block(block).await?;
    let blocked = left();
    ensure!(
        blocked.is_some_and(|left| !left.is_zero() && left <= kit.window()),
        "blocked for {:?}, the list says {blocked:?}",
        kit.window()
    );
    kit.store
        .block(Block::new(limiter, key, Duration::ZERO))
        .await?;
    ensure!(left().is_none(), "unblocked, the list says {:?}", left());
    kit.store
        .block(Block::new(limiter, key, SHORT_BLOCK))
        .await?;
    ensure!(left().is_some(), "blocked again, the list says nothing");
    let other = kit.scratch_key(Quota::per_hour(5));
    ensure!(
        list.blocked_for(&other.limiter, key).is_none(),
        "blocked under another limiter, too"
    );
    // The list may read a clock of the process that the kit cannot move.
    kit.step(SHORT_BLOCK);
    tokio::time::sleep(SHORT_BLOCK).await;
    ensure!(
        left().is_none(),
        "still blocked after its time: {:?}",
        left()
    );
    Ok(())
}

async fn automatic_blocks(kit: &Conformance) -> Result<(), Broken> {
    let subject = kit.scratch_key(Quota::per_hour(5));
    let limiter = &subject.limiter;
    let key = &subject.key;
    let list = kit.store.parts().block_list;
    let hour = Duration::from_secs(3_600);
    let day = Duration::from_secs(86_400);
    let block = |duration| Block::new(limiter, key, duration);
    for (asked, expected, longest, what) in [
        (block(hour).automatic(), true, hour, "an automatic block"),
        (
            block(day).automatic(),
            false,
            hour,
            "another automatic block",
        ),
        (block(day), true, day, "a block by an operator"),
        (
            block(hour).automatic(),
            false,
            day,
            "an automatic block after that",
        ),
        (
            block(Duration::ZERO),
            true,
            Duration::ZERO,
            "an end of the block",
        ),
        (
            block(hour).automatic(),
            true,
            hour,
            "an automatic block once it has ended",
        ),
    ] {
        let took_effect = kit.store.block(asked).await?;
        ensure!(took_effect == expected, "{what} took effect: {took_effect}");
        let left = list.blocked_for(limiter, key).unwrap_or_default();
        ensure!(
            left <= longest && left >= longest.saturating_sub(hour / 2),
            "after {what}, the list says {left:?}"
        );
    }
    ensure!(
        kit.store.block(block(Duration::ZERO)).await?,
        "an end of the last block took no effect"
    );
    Ok(())
}

async fn limit(kit: &Conformance, algorithm: Algorithm) -> Result<(), Broken> {
    // The window is an hour, so that no units return meanwhile.
    let quota = Quota::per_hour(5).with_algorithm(algorithm);
    let subject = kit.scratch_key(quota);
    for charged in 1..=5 {
        let answer = kit.charge(&subject, 1).await?;
        let used = answer.quotas().first().map(|quota| quota.used());
        ensure!(
            used == Some(charged),
            "{used:?} units used after {charged} of 1 unit each"
        );
    }
    let mut waits = Vec::new();
    for cost in [1, 5, 1] {
        let refused = kit.check(&subject, cost).await?;
        ensure!(
            !refused.is_admitted(),
            "a limit of 5 admitted 5 units, and {cost} more"
        );
        let first = refused.quotas().first();
        ensure!(
            first.is_some_and(|quota| quota.retry_after().is_some()),
            "a refusal without a wait: {refused:?}"
        );
        waits.push(first.and_then(|quota| quota.retry_after()));
    }
    if kit.is_exact() {
        ensure!(
            waits.first() == waits.last(),
            "a refusal extends the wait: {waits:?}"
        );
    }
    let used = kit.used(&subject).await?;
    ensure!(used == 5, "{used} units used after 5, and three refusals");
    Ok(())
}

async fn free(kit: &Conformance, algorithm: Algorithm) -> Result<(), Broken> {
    let subject = kit.scratch_key(Quota::per_hour(2).with_algorithm(algorithm));
    for expected in [0, 0, 2, 2] {
        if expected == 2 && kit.used(&subject).await? == 0 {
            let _ = kit.charge(&subject, 2).await?;
        }
        let looked = kit.check(&subject, 0).await?;
        ensure!(looked.is_admitted(), "cost 0 is refused: {looked:?}");
        let used = looked.quotas().first().map(|quota| quota.used());
        ensure!(
            used == Some(expected),
            "{used:?} units used, not {expected}"
        );
    }
    // Two units are used, and the limit is lower.
    let lowered = subject.with_quotas(Quota::per_hour(1).with_algorithm(algorithm));
    let admitted = kit.check(&lowered, 0).await?;
    ensure!(
        admitted.is_admitted(),
        "cost 0 is refused above the limit: {admitted:?}"
    );
    let refused = kit.check(&lowered, 1).await?;
    ensure!(
        !refused.is_admitted(),
        "a unit is admitted above the limit: {refused:?}"
    );
    let closed = subject.with_quotas(Quota::per_hour(0).with_algorithm(algorithm));
    let refused = kit.check(&closed, 0).await?;
    let wait = refused.quotas().first().map(|quota| quota.retry_after());
    ensure!(
        !refused.is_admitted() && wait == Some(None),
        "a limit of 0 admits cost 0, or has a wait for it: {refused:?}"
    );
    let used = kit.used(&subject).await?;
    ensure!(used == 2, "{used} units used after checks of cost 0, not 2");
    Ok(())
}

async fn too_large(kit: &Conformance, algorithm: Algorithm) -> Result<(), Broken> {
    for limit in [0, 5] {
        let subject = kit.scratch_key(Quota::per_hour(limit).with_algorithm(algorithm));
        let refused = kit.check(&subject, limit + 1).await?;
        ensure!(!refused.is_admitted(), "{} of {limit} pass", limit + 1);
        let wait = refused.quotas().first().map(|quota| quota.retry_after());
        ensure!(
            wait == Some(None),
            "a cost above the limit has a wait: {wait:?}"
        );
        let used = kit.used(&subject).await?;
        ensure!(used == 0, "{used} units used after a refusal");
    }
    Ok(())
}

async fn all_quotas(kit: &Conformance, algorithm: Algorithm) -> Result<(), Broken> {
    let quotas = [
        Quota::per_hour(9).with_algorithm(algorithm),
        Quota::per_day(4).with_algorithm(algorithm),
        // Shares the count of the first one.
        Quota::per_hour(7).with_algorithm(algorithm),
    ];
    let subject = kit.scratch_key(quotas);
    let _ = kit.charge(&subject, 3).await?;
    let refused = kit.check(&subject, 2).await?;
    let admits: Vec<_> = refused
        .quotas()
        .iter()
        .map(|quota| quota.is_admitted())
        .collect();
    ensure!(
        admits == [true, false, true],
        "of 9, 4 and 7 units, 3 are used, and a cost of 2 is admitted by {admits:?}"
    );
    let looked = kit.check(&subject, 0).await?;
    let used: Vec<_> = looked.quotas().iter().map(|quota| quota.used()).collect();
    ensure!(used == [3, 3, 3], "{used:?} units used, not [3, 3, 3]");
    let admitted = kit.charge(&subject, 1).await?;
    ensure!(
        admitted.quotas().iter().all(|quota| quota.used() == 4),
        "{admitted:?} after 4 units"
    );
    Ok(())
}

async fn soft(kit: &Conformance, algorithm: Algorithm) -> Result<(), Broken> {
    let quota = |limit| Quota::per_hour(limit).with_algorithm(algorithm);
    let quotas = Quotas::from([quota(9), quota(4).soft(), quota(2).soft()]);
    let subject = kit.scratch_key(quotas);
    for (cost, admitted, expected) in [
        (2, true, [(2, false), (2, false), (2, false)]),
        (1, true, [(3, false), (3, false), (2, true)]),
        (5, true, [(8, false), (3, true), (2, true)]),
        // A refusal is charged to none.
        (2, false, [(8, false), (3, true), (2, true)]),
        (1, true, [(9, false), (4, false), (2, true)]),
    ] {
        let answer = kit.check(&subject, cost).await?;
        let found: Vec<_> = answer
            .quotas()
            .iter()
            .map(|quota| (quota.used(), quota.is_exceeded()))
            .collect();
        ensure!(
            answer.is_admitted() == admitted && found == expected,
            "a cost of {cost} beside 9 units, and 4 and 2 that are soft: {answer:?}"
        );
    }
    Ok(())
}

async fn shortest_wait(kit: &Conformance, algorithm: Algorithm) -> Result<(), Broken> {
    let mut random = Random(1);
    let rounds = if kit.is_exact() { 40 } else { 2 };
    for _ in 0..rounds {
        let limit = 1 + random.below(8);
        let subject = kit.scratch_key(kit.quota(limit, algorithm));
        for _ in 0..random.below(12) {
            let _ = kit.check(&subject, 1 + random.below(limit)).await?;
            if kit.is_exact() {
                kit.pass(kit.window() * random.below(1_000) / 3_000).await;
            }
        }
        let cost = 1 + random.below(limit);
        let (asked_at, wait) = loop {
            let asked_at = Instant::now();
            let answer = kit.check(&subject, cost).await?;
            if !answer.is_admitted() {
                let first = answer.quotas().first();
                break (asked_at, first.and_then(|quota| quota.retry_after()));
            }
        };
        let Some(wait) = wait else {
            return Err(Broken::Failed(format!("{cost} of {limit} never pass")));
        };
        let early = if kit.is_exact() {
            Duration::from_micros(1)
        } else {
            wait / 2
        };
        kit.pass(wait.saturating_sub(early)).await;
        let before = kit.check(&subject, cost).await?;
        // On a slow machine, the wait may have ended already.
        let is_early = kit.is_exact() || asked_at.elapsed() < wait;
        ensure!(
            !before.is_admitted() || !is_early,
            "{cost} of {limit} are admitted {early:?} before the end of the wait of {wait:?}"
        );
        let slack = if kit.is_exact() {
            Duration::ZERO
        } else {
            SLACK
        };
        kit.pass(early + slack).await;
        let after = if before.is_admitted() {
            before
        } else {
            kit.check(&subject, cost).await?
        };
        ensure!(
            after.is_admitted(),
            "{cost} of {limit} are refused after the wait of {wait:?}: {after:?}"
        );
    }
    Ok(())
}

async fn reset_after(kit: &Conformance, algorithm: Algorithm) -> Result<(), Broken> {
    let mut random = Random(2);
    let rounds = if kit.is_exact() { 40 } else { 1 };
    for _ in 0..rounds {
        let limit = 1 + random.below(8);
        let subject = kit.scratch_key(kit.quota(limit, algorithm));
        for _ in 0..1 + random.below(6) {
            let _ = kit.check(&subject, 1 + random.below(limit)).await?;
            if kit.is_exact() {
                kit.pass(kit.window() * random.below(1_000) / 6_000).await;
            }
        }
        let mut used = 0;
        let mut reset = Duration::ZERO;
        // A window may end between the charge and the look.
        for _ in 0..3 {
            let _ = kit.check(&subject, 1).await?;
            let looked = kit.check(&subject, 0).await?;
            let Some(quota) = looked.quotas().first() else {
                return Err(Broken::Failed("no answer".to_owned()));
            };
            (used, reset) = (quota.used(), quota.reset_after());
            if used > 0 {
                break;
            }
        }
        if kit.is_exact() {
            let early = Duration::from_micros(1);
            kit.pass(reset.saturating_sub(early)).await;
            let before = kit.used(&subject).await?;
            ensure!(
                before == used,
                "{used} units used, and {before} before the reset of {reset:?}"
            );
            kit.pass(early).await;
        } else {
            kit.pass(reset + SLACK).await;
        }
        let after = kit.used(&subject).await?;
        ensure!(
            after < used,
            "{used} units used, and {after} after the reset of {reset:?}"
        );
    }
    Ok(())
}

async fn promise(kit: &Conformance, algorithm: Algorithm) -> Result<(), Broken> {
    if !kit.is_exact() {
        // The kit does not know the times of admissions.
        return Ok(());
    }
    let mut random = Random(3);
    for limit in [1, 4, 10] {
        let subject = kit.scratch_key(kit.quota(limit, algorithm));
        let mut admitted = Vec::new();
        for _ in 0..400 {
            let cost = 1 + random.below(limit.min(3));
            if kit.check(&subject, cost).await?.is_admitted() {
                admitted.push((kit.elapsed(), u64::from(cost)));
            }
            let steps = [0, 1, 7, 50, 120, 300];
            let step = steps.get(random.below(6) as usize).copied().unwrap_or(1);
            kit.pass(kit.window() * step / 400).await;
        }
        let window = u64::try_from(kit.window().as_micros()).unwrap_or(u64::MAX);
        let max = max_units(algorithm, limit);
        for (index, (start, _)) in admitted.iter().enumerate() {
            let span = admitted.iter().skip(index);
            let span = span.take_while(|(time, _)| time - start < window);
            let units: u64 = span.map(|(_, units)| *units).sum();
            ensure!(
                units <= max,
                "a limit of {limit} admitted {units} units within a window, at most {max} are promised"
            );
        }
    }
    Ok(())
}

async fn changed_limit(kit: &Conformance, algorithm: Algorithm) -> Result<(), Broken> {
    let low = kit.scratch_key(Quota::per_hour(4).with_algorithm(algorithm));
    let high = low.with(Quota::per_hour(10).with_algorithm(algorithm));
    let _ = kit.charge(&low, 4).await?;
    ensure!(
        !kit.check(&low, 1).await?.is_admitted(),
        "4 of 4 are used, and one more passes"
    );
    let raised = kit.charge(&high, 3).await?;
    let used = raised.quotas().first().map(|quota| quota.used());
    ensure!(
        used == Some(7),
        "{used:?} units used after 4 with one limit and 3 with another"
    );
    ensure!(
        !kit.check(&low, 1).await?.is_admitted(),
        "7 units are used, and a limit of 4 admits one more"
    );
    let used = kit.used(&high).await?;
    ensure!(
        used == 7,
        "{used} units used: a check with a lower limit changed what a higher one charged"
    );
    ensure!(
        !kit.check(&high, 4).await?.is_admitted(),
        "7 of 10 are used, and 4 more pass"
    );
    Ok(())
}

async fn counted_apart(kit: &Conformance, algorithm: Algorithm) -> Result<(), Broken> {
    let quota = Quota::per_hour(2).with_algorithm(algorithm);
    let subject = kit.scratch_key(quota.clone());
    let _ = kit.charge(&subject, 2).await?;
    let day = subject.with(Quota::per_day(2).with_algorithm(algorithm));
    let used = kit.used(&day).await?;
    let shared = if algorithm == Algorithm::SlidingLog {
        2
    } else {
        0
    };
    ensure!(
        used == shared,
        "{used} units used within a day, not {shared}"
    );
    let mut others = Vec::new();
    for other in Algorithm::ALL.iter().copied() {
        if other != algorithm {
            others.push(subject.with(Quota::per_hour(2).with_algorithm(other)));
        }
    }
    let another = kit.scratch_key(quota.clone());
    let mut other_key = subject.with(quota.clone());
    other_key.key = another.key;
    let mut other_limiter = subject.with(quota);
    other_limiter.limiter = another.limiter;
    others.extend([other_key, other_limiter]);
    for other in &others {
        let used = kit.used(other).await?;
        ensure!(
            used == 0,
            "{used} units used under {:?}, {:?}, {:?}, where none was charged",
            other.limiter,
            other.key,
            other.quotas
        );
    }
    Ok(())
}

async fn longer_window(kit: &Conformance, algorithm: Algorithm) -> Result<(), Broken> {
    if algorithm != Algorithm::SlidingLog {
        return Ok(());
    }
    let subject = kit.scratch_key(kit.quota(2, algorithm));
    let longer = subject.with(Quota::new(2, 10 * kit.window()));
    let _ = kit.charge(&subject, 2).await?;
    kit.pass(kit.window()).await;
    let used = kit.used(&longer).await?;
    ensure!(
        used == 0,
        "{used} units used, which no window that charged needs"
    );
    let _ = kit.charge(&longer, 1).await?;
    kit.pass(kit.window()).await;
    let used = kit.used(&longer).await?;
    ensure!(used == 1, "{used} units used after 1 was charged");
    Ok(())
}
