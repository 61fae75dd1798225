//! The rules of refunds, credits and resets, and of charges beyond a limit.

use tollgate::store::protocol::Change;
use tollgate::{Algorithm, Quota};

use crate::conformance::{AlgorithmRule, Broken, Conformance, Random, Rule, ensure};

pub(crate) const RULES: &[(&str, Rule)] = &[];

pub(crate) const RULES_OF_ALGORITHMS: &[(&str, AlgorithmRule)] = &[
    ("a refund returns its units", |kit, algorithm| {
        Box::pin(refund(kit, algorithm))
    }),
    (
        "a refund in parts returns no more than was charged",
        |kit, algorithm| Box::pin(refund_in_parts(kit, algorithm)),
    ),
    (
        "a refund of units that have returned changes nothing",
        |kit, algorithm| Box::pin(late_refund(kit, algorithm)),
    ),
    (
        "a refund after a reset changes nothing",
        |kit, algorithm| Box::pin(refund_after_reset(kit, algorithm)),
    ),
    (
        "a credit returns any units, and no more",
        |kit, algorithm| Box::pin(credit(kit, algorithm)),
    ),
    (
        "a charge counts in full beyond the limit, and its wait is the shortest",
        |kit, algorithm| Box::pin(charge_beyond(kit, algorithm)),
    ),
    ("a reset forgets what was charged", |kit, algorithm| {
        Box::pin(reset(kit, algorithm))
    }),
    (
        "a check that asks for more gets at most its eighths of what is left, and all of it may return",
        |kit, algorithm| Box::pin(more(kit, algorithm)),
    ),
];

async fn more(kit: &Conformance, algorithm: Algorithm) -> Result<(), Broken> {
    let subject = kit.scratch_key(Quota::per_hour(1_000).with_algorithm(algorithm));
    let mut used = 0;
    let mut charges = Vec::new();
    for (cost, more, eighths) in [
        (1, 0, 1),
        (3, 40, 1),
        (1, 500, 1),
        (7, 500, 3),
        (900, 500, 8),
        (0, 500, 8),
        (1, 20, 8),
        (1, 500, 8),
    ] {
        let left = 1_000_u32.saturating_sub(used + cost);
        let answer = kit
            .decide(subject.check(cost).with_extra_units(more, eighths))
            .await?;
        let extra = answer.extra_units();
        let is_admitted = answer.is_admitted();
        ensure!(
            is_admitted == (used + cost <= 1_000),
            "a cost of {cost} and up to {more} more, with {used} of 1000 used: {answer:?}"
        );
        let most = if is_admitted && cost > 0 {
            more.min(eighths * left / 8)
        } else {
            0
        };
        ensure!(
            extra <= most,
            "{extra} units more than the cost, where at most {most} are granted"
        );
        // A store without leases may charge the cost alone.
        ensure!(
            extra == most || !kit.store.parts().supports_leases,
            "{extra} units more than the cost, not {most}"
        );
        if is_admitted {
            used += cost + extra;
            charges.push((answer, cost + extra));
        }
        let counted = kit.used(&subject).await?;
        ensure!(counted == used, "{counted} units used, not {used}");
    }
    for (charged, cost) in charges {
        kit.refund(&subject, &charged, cost, cost).await?;
    }
    let counted = kit.used(&subject).await?;
    ensure!(counted == 0, "{counted} units used after all were refunded");
    Ok(())
}

async fn refund(kit: &Conformance, algorithm: Algorithm) -> Result<(), Broken> {
    let subject = kit.scratch_key(Quota::per_hour(9).with_algorithm(algorithm));
    let _ = kit.charge(&subject, 2).await?;
    let charged = kit.charge(&subject, 5).await?;
    let _ = kit.charge(&subject, 1).await?;
    kit.refund(&subject, &charged, 5, 3).await?;
    let used = kit.used(&subject).await?;
    ensure!(used == 5, "{used} units used after 8, and a refund of 3");
    let _ = kit.charge(&subject, 4).await?;
    ensure!(
        !kit.check(&subject, 1).await?.is_admitted(),
        "a refund of 3 frees more than 3 units"
    );
    Ok(())
}

async fn refund_in_parts(kit: &Conformance, algorithm: Algorithm) -> Result<(), Broken> {
    let mut random = Random(4);
    for _ in 0..10 {
        let subject = kit.scratch_key(Quota::per_hour(60).with_algorithm(algorithm));
        let mut charges = Vec::new();
        for _ in 0..8 {
            let cost = 1 + random.below(6);
            charges.push((kit.charge(&subject, cost).await?, cost, cost));
            if random.below(2) == 0 {
                kit.step(std::time::Duration::from_micros(1));
            }
        }
        let mut expected: u32 = charges.iter().map(|(_, cost, _)| cost).sum();
        for _ in 0..30 {
            let index = random.below(8) as usize;
            let Some((charged, cost, held)) = charges.get_mut(index) else {
                continue;
            };
            let units = random.below(*held + 1);
            *held -= units;
            expected -= units;
            let refund = subject.subject().adjust(Change::Refund {
                answer: charged,
                cost: *cost,
                units,
                held: *held,
            });
            kit.store.adjust(refund).await?;
            let used = kit.used(&subject).await?;
            ensure!(
                used == expected,
                "{used} units used after a refund of {units}, not {expected}"
            );
        }
    }
    Ok(())
}

/// Compares a key with another key that has the same history without the refund.
async fn late_refund(kit: &Conformance, algorithm: Algorithm) -> Result<(), Broken> {
    let quota = kit.quota(6, algorithm);
    let (refunded, other) = (kit.scratch_key(quota.clone()), kit.scratch_key(quota));
    let charged = kit.charge(&refunded, 3).await?;
    let _ = kit.charge(&other, 3).await?;
    kit.pass(kit.window() * 7 / 4).await;
    for subject in [&refunded, &other] {
        let _ = kit.charge(subject, 2).await?;
    }
    kit.pass(kit.window() * 3 / 8).await;
    kit.refund(&refunded, &charged, 3, 3).await?;
    let (used, expected) = (kit.used(&refunded).await?, kit.used(&other).await?);
    ensure!(
        used == expected || !kit.is_exact(),
        "a refund of expired units took others: {used} units used, not {expected}"
    );
    Ok(())
}

async fn refund_after_reset(kit: &Conformance, algorithm: Algorithm) -> Result<(), Broken> {
    let subject = kit.scratch_key(Quota::per_hour(6).with_algorithm(algorithm));
    let charged = kit.charge(&subject, 3).await?;
    kit.reset(&subject).await?;
    kit.pass(std::time::Duration::from_millis(1)).await;
    let _ = kit.charge(&subject, 2).await?;
    kit.refund(&subject, &charged, 3, 3).await?;
    let used = kit.used(&subject).await?;
    ensure!(
        used == 2,
        "a refund of a charge from before the reset took others: {used} units used, not 2"
    );
    Ok(())
}

async fn credit(kit: &Conformance, algorithm: Algorithm) -> Result<(), Broken> {
    let subject = kit.scratch_key(Quota::per_hour(9).with_algorithm(algorithm));
    let _ = kit.charge(&subject, 3).await?;
    let _ = kit.charge(&subject, 4).await?;
    for (units, expected) in [(2, 5), (100, 0), (1, 0)] {
        let credit = subject.subject().adjust(Change::Credit { units });
        kit.store.adjust(credit).await?;
        let used = kit.used(&subject).await?;
        ensure!(
            used == expected,
            "{used} units used after a credit of {units}, not {expected}"
        );
    }
    let _ = kit.charge(&subject, 9).await?;
    ensure!(
        !kit.check(&subject, 1).await?.is_admitted(),
        "a credit of more than was used raised the limit"
    );
    Ok(())
}

async fn charge_beyond(kit: &Conformance, algorithm: Algorithm) -> Result<(), Broken> {
    // A sorted set takes no more members than its limit.
    let most = if algorithm == Algorithm::SortedSetLog {
        [5, 4]
    } else {
        [7, 7]
    };
    for before in [0, 3] {
        let subject = kit.scratch_key([
            Quota::per_hour(5).with_algorithm(algorithm),
            Quota::per_hour(4).with_algorithm(algorithm).soft(),
        ]);
        if before > 0 {
            let _ = kit.charge(&subject, before).await?;
        }
        let charge = subject.subject().adjust(Change::Charge { units: 7 });
        kit.store.adjust(charge).await?;
        let looked = kit.check(&subject, 0).await?;
        let used: Vec<_> = looked.quotas().iter().map(|quota| quota.used()).collect();
        let expected = most.map(|units| before + units);
        ensure!(
            used == expected,
            "{used:?} units used of a quota and a soft one after {before} and a charge of 7, not {expected:?}"
        );
        ensure!(
            !kit.check(&subject, 1).await?.is_admitted(),
            "a unit is admitted after a charge beyond the limit"
        );
    }
    let subject = kit.scratch_key(kit.quota(5, algorithm));
    let charge = subject.subject().adjust(Change::Charge { units: 12 });
    kit.store.adjust(charge).await?;
    let refused = kit.check(&subject, 2).await?;
    let wait = refused
        .quotas()
        .first()
        .and_then(|quota| quota.retry_after());
    let Some(wait) = wait.filter(|_| kit.is_exact()) else {
        ensure!(
            !kit.is_exact(),
            "2 units never pass after a charge of 12: {refused:?}"
        );
        return Ok(());
    };
    kit.pass(wait.saturating_sub(std::time::Duration::from_micros(1)))
        .await;
    ensure!(
        !kit.check(&subject, 2).await?.is_admitted(),
        "2 units are admitted before the end of the wait of {wait:?}"
    );
    kit.pass(std::time::Duration::from_micros(1)).await;
    ensure!(
        kit.check(&subject, 2).await?.is_admitted(),
        "2 units are refused after the wait of {wait:?}"
    );
    Ok(())
}

async fn reset(kit: &Conformance, algorithm: Algorithm) -> Result<(), Broken> {
    let subject = kit.scratch_key(Quota::per_hour(3).with_algorithm(algorithm));
    let other = kit.scratch_key(Quota::per_hour(3).with_algorithm(algorithm));
    for subject in [&subject, &other] {
        let _ = kit.charge(subject, 3).await?;
    }
    kit.reset(&subject).await?;
    let used = kit.used(&subject).await?;
    ensure!(used == 0, "{used} units used after a reset");
    let used = kit.used(&other).await?;
    ensure!(used == 3, "{used} units used after a reset of another key");
    let _ = kit.charge(&subject, 3).await?;
    Ok(())
}
