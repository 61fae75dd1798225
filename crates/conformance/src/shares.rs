//! The rules of quotas with shares: see [`Quota::shares`].

use std::time::Duration;

use tollgate::store::protocol::Answer;
use tollgate::{Algorithm, Quota, Share};

use crate::conformance::{Broken, Conformance, Random, Rule, ScratchKey, ensure};

pub(crate) const RULES: &[(&str, Rule)] = &[
    (
        "shares keep their reserves and their bounds, and together the limit",
        |kit| Box::pin(rooms(kit, false)),
    ),
    ("a refund returns its units to their share", |kit| {
        Box::pin(rooms(kit, true))
    }),
    ("the wait of a share is the shortest", |kit| {
        Box::pin(shortest_wait(kit))
    }),
];

/// The algorithms that count shares.
const ALGORITHMS: [Algorithm; 2] = [Algorithm::SlidingLog, Algorithm::SlidingBuckets(10)];

const LIMIT: u32 = 20;

/// A share that asks, and the units that it uses.
struct Asking {
    subject: ScratchKey,
    reserve: u32,
    most: u32,
    used: u32,
}

/// Returns two shares of one key, and one that its quota does not have.
fn shares(
    kit: &Conformance,
    window: Duration,
    algorithm: Algorithm,
) -> Result<[Asking; 3], Broken> {
    let quota = Quota::new(LIMIT, window).with_algorithm(algorithm);
    let quota = quota.shares([
        Share::of("critical").reserve(6),
        Share::of("batch").reserve(2).at_most(5),
    ]);
    let none = kit.scratch_key(quota);
    let asking = |name, reserve, most| Asking {
        subject: none.in_share(name),
        reserve,
        most,
        used: 0,
    };
    Ok([
        asking("critical", 6, LIMIT),
        asking("batch", 2, 5),
        asking("unknown", 0, LIMIT),
    ])
}

/// Returns whether a share may charge a cost, by the rule of [`Quota::shares`].
fn admits(asking: &Asking, others: [&Asking; 2], cost: u32) -> bool {
    let own = asking.used + cost;
    let used: u32 = others.iter().map(|other| other.used).sum();
    let kept: u32 = others
        .iter()
        .map(|other| other.used.max(other.reserve))
        .sum();
    used + own <= LIMIT && own <= asking.most && (own <= asking.reserve || kept + own <= LIMIT)
}

/// Charges a cost if the rule allows it, and compares what the store answers.
async fn check(
    kit: &Conformance,
    asking: &mut Asking,
    others: [&Asking; 2],
    cost: u32,
) -> Result<Answer, Broken> {
    let is_admitted = admits(asking, others, cost);
    let answer = kit.check(&asking.subject, cost).await?;
    ensure!(
        answer.is_admitted() == is_admitted,
        "a share of {LIMIT} units with a reserve of {} and at most {} uses {}, others {:?}: a cost of {cost} is answered by {answer:?}",
        asking.reserve,
        asking.most,
        asking.used,
        others.map(|other| (other.reserve, other.used))
    );
    if is_admitted {
        asking.used += cost;
    }
    let left = (1..=LIMIT)
        .take_while(|cost| admits(asking, others, *cost))
        .count();
    let told = answer.quotas().first();
    let told = told.map(|quota| LIMIT.saturating_sub(quota.used()) as usize);
    ensure!(
        told == Some(left),
        "{told:?} units are left to a share, not {left}: {answer:?}"
    );
    Ok(answer)
}

/// Random checks of the shares, and refunds if the rule is about them.
async fn rooms(kit: &Conformance, gives_back: bool) -> Result<(), Broken> {
    let mut random = Random(5);
    for algorithm in [ALGORITHMS; 8].into_iter().flatten() {
        // No unit returns meanwhile.
        let [mut one, mut two, mut three] = shares(kit, Duration::from_secs(3_600), algorithm)?;
        for _ in 0..20 {
            // Each of them asks, one after the other.
            (one, two, three) = (two, three, one);
            let cost = 1 + random.below(6);
            let charged = check(kit, &mut one, [&two, &three], cost).await?;
            if gives_back && charged.is_admitted() {
                let _ = check(kit, &mut two, [&three, &one], 1).await?;
                let units = random.below(cost + 1);
                kit.refund(&one.subject, &charged, cost, units).await?;
                one.used -= units;
                for cost in [0, 1] {
                    let _ = check(kit, &mut three, [&one, &two], cost).await?;
                    let _ = check(kit, &mut one, [&two, &three], cost).await?;
                }
            }
        }
    }
    Ok(())
}

async fn shortest_wait(kit: &Conformance) -> Result<(), Broken> {
    let mut random = Random(6);
    let rounds = if kit.is_exact() { 20 } else { 0 };
    for algorithm in ALGORITHMS {
        for _ in 0..rounds {
            let asking = shares(kit, kit.window(), algorithm)?;
            for asking in asking.iter().cycle().take(30) {
                let _ = kit.check(&asking.subject, 1 + random.below(4)).await?;
                kit.pass(kit.window() * random.below(1_000) / 8_000).await;
            }
            for asking in &asking {
                let cost = 1 + random.below(asking.most.min(12));
                let refused = kit.check(&asking.subject, cost).await?;
                let first = refused.quotas().first();
                let Some(wait) = first.and_then(|quota| quota.retry_after()) else {
                    ensure!(
                        refused.is_admitted(),
                        "a cost of {cost} never passes: {refused:?}"
                    );
                    continue;
                };
                let early = Duration::from_micros(1);
                kit.pass(wait.saturating_sub(early)).await;
                let before = kit.check(&asking.subject, cost).await?;
                ensure!(
                    !before.is_admitted(),
                    "{cost} of a share are admitted before the end of the wait of {wait:?}"
                );
                kit.pass(early).await;
                let after = kit.check(&asking.subject, cost).await?;
                ensure!(
                    after.is_admitted(),
                    "{cost} of a share are refused after the wait of {wait:?}: {after:?}"
                );
            }
        }
    }
    Ok(())
}
