//! The rules of quotas in flight: see [`Holding`].

use std::time::Duration;

use tollgate::store::protocol::{Answer, Change, Check, Holding};
use tollgate::{Algorithm, Quota, Share};

use crate::conformance::{Broken, Conformance, Rule, ScratchKey, ensure};

pub(crate) const RULES: &[(&str, Rule)] = &[
    ("slots in flight are absolute counts of holders", |kit| {
        Box::pin(absolute_counts(kit))
    }),
    ("checks of one message of a holder add up", |kit| {
        Box::pin(one_message(kit))
    }),
    (
        "a late message of a holder is superseded and changes nothing",
        |kit| Box::pin(superseded(kit)),
    ),
    (
        "what a holder states is stored even above the limit or with a refusal",
        |kit| Box::pin(stated(kit)),
    ),
    ("slots return when the lease of their holder ends", |kit| {
        Box::pin(lease(kit))
    }),
    (
        "a rate and slots are charged together or not at all",
        |kit| Box::pin(with_rate(kit)),
    ),
    ("slots of several checks are all taken or none", |kit| {
        Box::pin(several_checks(kit))
    }),
    (
        "slots are kept for their share, and bounded for it",
        |kit| Box::pin(shares(kit)),
    ),
    ("holders of slots are listed with their leases", |kit| {
        Box::pin(listed(kit))
    }),
    ("a reset leaves slots in flight alone", |kit| {
        Box::pin(reset(kit))
    }),
    ("a refund leaves slots in flight alone", |kit| {
        Box::pin(refund(kit))
    }),
    ("a credit leaves slots in flight alone", |kit| {
        Box::pin(credit(kit))
    }),
];

/// A lease that no rule waits for.
const LONG_LEASE: Duration = Duration::from_secs(600);

/// Returns a message of a holder.
fn message(holder: u8, sequence: u64, held: u32, wanted: u32) -> Holding {
    Holding::new([holder; 16], sequence, held, wanted, LONG_LEASE)
}

/// An answer to a check of slots, in short: whether it is admitted, the used slots, and the note.
type Numbers = (bool, u32, u64);

const NONE: u64 = 0;
const MISSING: u64 = 1;
const SUPERSEDED: u64 = 2;

fn numbers(subject: &ScratchKey, answer: &Answer) -> Result<Numbers, Broken> {
    ensure!(
        answer.quotas().len() == subject.quotas.len(),
        "{} answers to a check of {} quotas",
        answer.quotas().len(),
        subject.quotas.len()
    );
    let mut quotas = subject.quotas.iter().zip(answer.quotas());
    let slots = quotas.find(|(quota, _)| quota.algorithm() == Algorithm::InFlight);
    let Some((_, slots)) = slots else {
        return Err(Broken::Failed("no answer to a check of slots".to_owned()));
    };
    let note = slots.receipt().generation;
    Ok((answer.is_admitted(), slots.used(), note))
}

/// Sends a message, which has to be answered in this way.
async fn send(
    kit: &Conformance,
    subject: &ScratchKey,
    message: &Holding,
    expected: Numbers,
) -> Result<Answer, Broken> {
    let answer = kit.decide(subject.check(1).with_holding(message)).await?;
    let numbers = numbers(subject, &answer)?;
    ensure!(
        numbers == expected,
        "{message:?} is answered by (admitted, used, note) {numbers:?}, not {expected:?}"
    );
    Ok(answer)
}

/// Looks at the slots, which has to change nothing.
async fn look(kit: &Conformance, subject: &ScratchKey, expected: u32) -> Result<(), Broken> {
    for _ in 0..2 {
        let answer = kit.check(subject, 0).await?;
        let (_, used, note) = numbers(subject, &answer)?;
        ensure!(
            used == expected && note == NONE,
            "a look finds {used} slots used and {note:?}, not {expected}"
        );
    }
    Ok(())
}

async fn absolute_counts(kit: &Conformance) -> Result<(), Broken> {
    let subject = kit.scratch_key(Quota::in_flight(5));
    let _ = send(kit, &subject, &message(1, 1, 0, 2), (true, 2, NONE)).await?;
    let _ = send(kit, &subject, &message(2, 1, 0, 2), (true, 4, NONE)).await?;
    let refused = send(kit, &subject, &message(1, 2, 2, 2), (false, 4, NONE)).await?;
    ensure!(
        refused
            .quotas()
            .iter()
            .all(|quota| quota.retry_after().is_some()),
        "slots that may return have no wait: {refused:?}"
    );
    look(kit, &subject, 4).await?;
    // Another holds less than before, and wants more. A message that was lost in between does not matter.
    let _ = send(kit, &subject, &message(1, 9, 1, 2), (true, 5, NONE)).await?;
    let _ = send(kit, &subject, &message(1, 10, 0, 0), (true, 2, NONE)).await?;
    look(kit, &subject, 2).await?;
    let never = send(kit, &subject, &message(1, 11, 0, 6), (false, 2, NONE)).await?;
    ensure!(
        never
            .quotas()
            .iter()
            .all(|quota| quota.retry_after().is_none()),
        "more slots than the limit are never admitted, but the answer has a wait: {never:?}"
    );
    // A key of its own.
    look(kit, &kit.scratch_key(Quota::in_flight(5)), 0).await
}

async fn one_message(kit: &Conformance) -> Result<(), Broken> {
    let subject = kit.scratch_key(Quota::in_flight(4));
    let _ = send(kit, &subject, &message(1, 1, 0, 1), (true, 1, NONE)).await?;
    for used in 2..=4 {
        let _ = send(kit, &subject, &message(1, 2, 1, 1), (true, used, NONE)).await?;
    }
    let _ = send(kit, &subject, &message(1, 2, 1, 1), (false, 4, NONE)).await?;
    let _ = send(kit, &subject, &message(1, 2, 1, 0), (true, 4, NONE)).await?;
    look(kit, &subject, 4).await
}

async fn superseded(kit: &Conformance) -> Result<(), Broken> {
    let subject = kit.scratch_key(Quota::in_flight(4));
    let _ = send(kit, &subject, &message(1, 5, 0, 1), (true, 1, NONE)).await?;
    let _ = send(kit, &subject, &message(1, 7, 0, 0), (true, 0, NONE)).await?;
    // The entry of a holder without slots is known still.
    for late in [message(1, 6, 1, 0).stated(), message(1, 5, 0, 1)] {
        let _ = send(kit, &subject, &late, (false, 0, SUPERSEDED)).await?;
        look(kit, &subject, 0).await?;
    }
    Ok(())
}

async fn stated(kit: &Conformance) -> Result<(), Broken> {
    let subject = kit.scratch_key(Quota::in_flight(2));
    // The store has lost the entries of both.
    let _ = send(kit, &subject, &message(1, 5, 2, 0), (true, 2, MISSING)).await?;
    let _ = send(kit, &subject, &message(2, 5, 1, 0), (false, 3, MISSING)).await?;
    look(kit, &subject, 3).await?;
    // Refused: what is stated counts, what is wanted does not.
    let _ = send(
        kit,
        &subject,
        &message(1, 6, 1, 1).stated(),
        (false, 2, NONE),
    )
    .await?;
    look(kit, &subject, 2).await?;
    let _ = send(kit, &subject, &message(1, 7, 0, 1), (true, 2, NONE)).await?;
    // Not stated, so nothing is written.
    let _ = send(kit, &subject, &message(1, 8, 0, 2), (false, 1, NONE)).await?;
    look(kit, &subject, 2).await
}

async fn lease(kit: &Conformance) -> Result<(), Broken> {
    let subject = kit.scratch_key(Quota::in_flight(3));
    let lease = kit.window();
    let short =
        |holder, sequence, held, wanted| Holding::new([holder; 16], sequence, held, wanted, lease);
    let _ = send(kit, &subject, &short(1, 1, 0, 1), (true, 1, NONE)).await?;
    let _ = send(kit, &subject, &short(2, 1, 0, 2), (true, 3, NONE)).await?;
    kit.pass(lease / 2).await;
    if kit.is_exact() {
        let _ = send(kit, &subject, &short(1, 2, 1, 0), (true, 3, NONE)).await?;
        kit.pass(lease / 2 - Duration::from_millis(1)).await;
        look(kit, &subject, 3).await?;
        kit.pass(Duration::from_millis(1)).await;
        look(kit, &subject, 1).await?;
        // Its own lease has ended, so a late message is as good as a new one.
        let _ = send(kit, &subject, &short(2, 1, 1, 0), (true, 2, MISSING)).await?;
    }
    kit.pass(lease * 5 / 4).await;
    look(kit, &subject, 0).await
}

async fn with_rate(kit: &Conformance) -> Result<(), Broken> {
    let subject = kit.scratch_key([Quota::per_hour(2), Quota::in_flight(2)]);
    let used = async |expected: [u32; 2]| -> Result<(), Broken> {
        let answer = kit.check(&subject, 0).await?;
        let used = answer.quotas().iter().map(|quota| quota.used());
        let used: Vec<_> = used.collect();
        ensure!(used == expected, "{used:?} used, not {expected:?}");
        Ok(())
    };
    let _ = send(kit, &subject, &message(1, 1, 0, 2), (true, 2, NONE)).await?;
    used([1, 2]).await?;
    // The slots refuse.
    let _ = send(kit, &subject, &message(2, 1, 0, 1), (false, 2, NONE)).await?;
    used([1, 2]).await?;
    let _ = send(kit, &subject, &message(1, 2, 1, 1), (true, 2, NONE)).await?;
    used([2, 2]).await?;
    // The rate refuses, but what is held is stated.
    let _ = send(
        kit,
        &subject,
        &message(1, 3, 0, 1).stated(),
        (false, 0, NONE),
    )
    .await?;
    used([2, 0]).await?;
    // A cost of 0 takes slots as any other.
    let message = message(1, 4, 0, 1);
    let answer = kit.decide(subject.check(0).with_holding(&message)).await?;
    ensure!(
        answer.is_admitted(),
        "a check of cost 0 that wants a slot is refused: {answer:?}"
    );
    used([2, 1]).await
}

async fn several_checks(kit: &Conformance) -> Result<(), Broken> {
    let quotas = [9, 2].map(|slots| Quota::in_flight(slots).into());
    let [user, tenant] = kit.scratch_keys_together(quotas).await;
    let both = async |of_user: &Holding, of_tenant: &Holding| -> Result<bool, Broken> {
        let checks: [Check<'_>; 2] = [
            user.check(1).with_holding(of_user),
            tenant.check(1).with_holding(of_tenant),
        ];
        let answers = kit.check_all(&checks).await?;
        ensure!(answers.len() == 2, "{} answers to 2 checks", answers.len());
        Ok(answers.are_admitted())
    };
    let admitted = both(&message(1, 1, 0, 3), &message(1, 1, 0, 2)).await?;
    ensure!(admitted, "both checks have room, but one is refused");
    look(kit, &user, 3).await?;
    look(kit, &tenant, 2).await?;
    // The second has no room. Of the first, only what is held is stored.
    let admitted = both(&message(1, 2, 2, 1).stated(), &message(1, 2, 2, 1)).await?;
    ensure!(!admitted, "a check without room is admitted");
    look(kit, &user, 2).await?;
    look(kit, &tenant, 2).await?;
    let admitted = both(&message(1, 3, 0, 1), &message(1, 3, 2, 1)).await?;
    ensure!(!admitted, "a check without room is admitted");
    look(kit, &user, 2).await
}

async fn shares(kit: &Conformance) -> Result<(), Broken> {
    let quota = Quota::in_flight(5).shares([
        Share::of("critical").reserve(2),
        Share::of("batch").at_most(2),
    ]);
    let none = kit.scratch_key(quota);
    let critical = none.in_share("critical");
    let batch = none.in_share("batch");
    // Used is the limit less what the share that asks may still take.
    let _ = send(kit, &none, &message(1, 1, 0, 2), (true, 4, NONE)).await?;
    let _ = send(
        kit,
        &batch,
        &message(1, 2, 0, 1).in_share("batch"),
        (true, 5, NONE),
    )
    .await?;
    let _ = send(
        kit,
        &batch,
        &message(2, 1, 0, 1).in_share("batch"),
        (false, 5, NONE),
    )
    .await?;
    let _ = send(kit, &none, &message(2, 2, 0, 1), (false, 5, NONE)).await?;
    let critical_takes = message(2, 3, 0, 2).in_share("critical");
    let _ = send(kit, &critical, &critical_takes, (true, 5, NONE)).await?;
    let _ = send(kit, &none, &message(1, 3, 0, 0), (true, 3, NONE)).await?;
    // A bound holds though slots are free.
    let _ = send(
        kit,
        &batch,
        &message(3, 1, 0, 2).in_share("batch"),
        (false, 4, NONE),
    )
    .await?;
    let never = message(3, 2, 0, 3).in_share("batch");
    let never = send(kit, &batch, &never, (false, 4, NONE)).await?;
    ensure!(
        never
            .quotas()
            .iter()
            .all(|quota| quota.retry_after().is_none()),
        "more slots than the bound are never admitted, but the answer has a wait: {never:?}"
    );
    let _ = send(
        kit,
        &batch,
        &message(3, 3, 0, 1).in_share("batch"),
        (true, 5, NONE),
    )
    .await?;
    look(kit, &critical, 4).await
}

async fn listed(kit: &Conformance) -> Result<(), Broken> {
    let subject = kit.scratch_key(Quota::in_flight(9));
    let lease = kit.window();
    let short = Holding::new([2; 16], 1, 0, 3, lease);
    let _ = send(kit, &subject, &message(1, 1, 0, 1), (true, 1, NONE)).await?;
    let _ = send(kit, &subject, &short, (true, 4, NONE)).await?;
    // A holder that has given all slots back.
    let _ = send(kit, &subject, &message(3, 1, 0, 1), (true, 5, NONE)).await?;
    let _ = send(kit, &subject, &message(3, 2, 0, 0), (true, 4, NONE)).await?;
    let list = async || -> Result<Vec<Holding>, Broken> {
        let mut listed = kit.store.holders(subject.subject()).await?;
        listed.sort_by_key(|holding| holding.holder);
        Ok(listed)
    };
    let listed = list().await?;
    let slots: Vec<_> = listed.iter().map(|of| (of.holder, of.held)).collect();
    let expected = [([1; 16], 1), ([2; 16], 3)];
    ensure!(
        slots == expected,
        "the holders are {slots:?}, not {expected:?}"
    );
    let leases = listed.iter().zip([LONG_LEASE, lease]);
    for (of, lease) in leases {
        ensure!(
            of.lease <= lease && (of.lease == lease || !kit.is_exact()),
            "{:?} of a lease of {lease:?} are left",
            of.lease
        );
    }
    kit.pass(lease * 5 / 4).await;
    let listed = list().await?;
    ensure!(
        listed.len() == 1,
        "a holder is listed after the end of its lease: {listed:?}"
    );
    Ok(())
}

/// Takes two slots, and a unit of a rate.
async fn taken(kit: &Conformance) -> Result<(ScratchKey, Answer), Broken> {
    let subject = kit.scratch_key([Quota::in_flight(2), Quota::per_hour(9)]);
    let answer = send(kit, &subject, &message(1, 1, 0, 2), (true, 2, NONE)).await?;
    Ok((subject, answer))
}

/// The rate has units back, and the slots are as before.
async fn returned(kit: &Conformance, subject: &ScratchKey) -> Result<(), Broken> {
    look(kit, subject, 2).await?;
    let answer = kit.check(subject, 0).await?;
    let units = answer.quotas().get(1).map_or(0, |rate| rate.used());
    ensure!(units == 0, "{units} units of the rate used, not 0");
    Ok(())
}

async fn reset(kit: &Conformance) -> Result<(), Broken> {
    let (subject, _) = taken(kit).await?;
    kit.reset(&subject).await?;
    returned(kit, &subject).await
}

async fn refund(kit: &Conformance) -> Result<(), Broken> {
    let (subject, charged) = taken(kit).await?;
    kit.refund(&subject, &charged, 1, 1).await?;
    returned(kit, &subject).await
}

async fn credit(kit: &Conformance) -> Result<(), Broken> {
    let (subject, _) = taken(kit).await?;
    let credit = subject.subject().adjust(Change::Credit { units: 5 });
    kit.store.adjust(credit).await?;
    returned(kit, &subject).await
}
