//! The lease of one limiter: how units are asked for, and how they return.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::sleep;

use super::grant::Grant;
use super::round_trip::RoundTrip;
use super::table::{Ask, LeaseTable, TakenUnits};
use super::times::Times;
use crate::clock::{Clock, certain_part, micros};
use crate::decision::{Answer, GrantUnits, QuotaAnswer};
use crate::error::Error;
use crate::key::Key;
#[cfg(tollgate_simulation)]
use crate::planted::is_planted;
use crate::quota::{Algorithm, Quotas};
use crate::runtime::spawn_or_drop;
use crate::store::{OwnedSubject, ProtectedStore, StoreFuture, Subject, join_all};
use crate::telemetry::{HAS_METRICS, LeaseMeter};

#[cfg(all(test, feature = "test-util"))]
mod tests;

/// Quotas with a lower limit are not leased: a process that has used little gets an eighth of what is left, which is too few.
const MIN_LIMIT: u32 = 21;

/// The most units of one grant. A sorted set takes half a microsecond of Redis for each.
const MAX_UNITS: u32 = 100_000;
const MAX_UNITS_OF_SORTED_SET: u32 = 500;

/// The number of the latest grant in this process. Another limiter of the same name may refund its units, and must
/// not find a grant of its own.
static LATEST_GRANT: AtomicU64 = AtomicU64::new(0);

/// The lease of one limiter. Clones of the limiter share it.
pub(in crate::limiter) struct Lease {
    /// The longest time for which units are held.
    pub(in crate::limiter) duration: Duration,
    store: ProtectedStore,
    table: LeaseTable,
    round_trip: RoundTrip,
    /// False for a store in the memory of the process, and after a release.
    holds_units: AtomicBool,
    meter: LeaseMeter,
}

impl Lease {
    pub(in crate::limiter) fn new(
        duration: Duration,
        store: &ProtectedStore,
        name: &Arc<str>,
    ) -> Self {
        Self {
            duration,
            store: store.clone(),
            table: LeaseTable::new(Clock::monotonic()),
            round_trip: RoundTrip::default(),
            holds_units: AtomicBool::new(store.supports_leases()),
            meter: LeaseMeter::new(name),
        }
    }

    /// Takes the units of a check: all, or as many as there are. The store has to be asked for the others.
    ///
    /// If these are all units, the answer was written.
    #[inline]
    pub(in crate::limiter) fn take(
        self: &Arc<Self>,
        subject: Subject<'_>,
        cost: u32,
        answer: &mut Answer,
    ) -> TakenUnits {
        let is_leased = self.holds_units.load(Ordering::Relaxed)
            && cost > 0
            && subject.quotas.min_limit(None) >= Some(MIN_LIMIT);
        if !is_leased {
            return TakenUnits::default();
        }
        let times = Times {
            period: subject.lease_micros,
            round_trip: self.round_trip.micros(),
        };
        let mut taken = self.table.take(subject, cost, times, answer);
        if let Some(ask) = taken.ask.take() {
            self.send(subject, ask, times);
        }
        taken
    }

    /// Takes units that were used from those that this process holds. Returns how many the store has to charge.
    pub(in crate::limiter) fn use_up(self: &Arc<Self>, subject: Subject<'_>, units: u32) -> u32 {
        let taken = self.take(subject, units, &mut Answer::default());
        if taken.is_complete {
            return 0;
        }
        let held: u32 = taken.grants.iter().map(|taken| taken.units).sum();
        units.saturating_sub(held)
    }

    /// Takes in that the store has charged units to a check, which it was asked for at this time.
    #[cold]
    pub(in crate::limiter) fn record_charge(
        &self,
        subject: Subject<'_>,
        units: u32,
        asked_at: u64,
    ) {
        let waited = self.table.clock.now().saturating_sub(asked_at);
        self.round_trip.record_check(waited);
        self.table.record_charge(subject, units);
    }

    /// Asks the store for units in the background, so that no caller waits and none that gives up loses them.
    #[cold]
    fn send(self: &Arc<Self>, subject: Subject<'_>, ask: Ask, times: Times) {
        let request = Request {
            lease: Arc::clone(self),
            subject: subject.into(),
            ask,
            pause: times.period,
        };
        spawn_or_drop(request.run());
    }

    fn grant(&self, subject: Subject<'_>, sent_at: u64, answer: Answer) -> Grant {
        let units = 1 + answer.extra_units();
        self.meter.record_grant(units);
        let window_ends = subject
            .quotas
            .iter()
            .zip(answer.quotas())
            .filter(|(quota, _)| quota.algorithm() == Algorithm::FixedWindow)
            .map(|(_, answer)| micros(answer.reset_after()));
        let lease = subject.lease_micros;
        #[cfg(tollgate_simulation)]
        let window_ends = window_ends.filter(|_| !is_planted("EndOfWindowIgnored"));
        let period = window_ends.min().map_or(lease, |end| end.min(lease));
        #[cfg(tollgate_simulation)]
        let period = period << u32::from(is_planted("WholeLeaseOfUnits"));
        #[cfg(tollgate_simulation)]
        let sent_at = if is_planted("UsedFromReply") {
            self.table.clock.now()
        } else {
            sent_at
        };
        Grant {
            number: LATEST_GRANT.fetch_add(1, Ordering::Relaxed) + 1,
            answer,
            units,
            left: units,
            answered_at: self.table.clock.now(),
            ends_at: sent_at.saturating_add(certain_part(period)),
        }
    }

    /// Returns units of a decision: to their grant, or to the store if it has ended. `charged` is the number of
    /// units that the grant had.
    pub(in crate::limiter) fn give_back(
        &self,
        subject: Subject<'_>,
        answer: &Answer,
        units: u32,
        charged: u32,
    ) -> StoreFuture<()> {
        if self.table.put_back(subject, answer.grant(), units) {
            return StoreFuture::ready(Ok(()));
        }
        self.refund(subject, answer, units, charged)
    }

    /// Returns units of a check that has not ended. What goes to the store goes there in the background.
    fn give_back_later(&self, subject: Subject<'_>, taken: &GrantUnits) {
        let charged = taken.units.saturating_add(taken.answer.extra_units());
        let sent = self.give_back(subject, &taken.answer, taken.units, charged);
        if let Err(future) = sent.try_ready() {
            spawn_or_drop(future);
        }
    }

    fn refund_grant(&self, subject: Subject<'_>, grant: &Grant) -> StoreFuture<()> {
        self.meter.record_end(grant.units, grant.left);
        if grant.left == 0 {
            return StoreFuture::ready(Ok(()));
        }
        self.refund(subject, &grant.answer, grant.left, grant.units)
    }

    fn refund(
        &self,
        subject: Subject<'_>,
        answer: &Answer,
        units: u32,
        charged: u32,
    ) -> StoreFuture<()> {
        // The users of the other units may return them later.
        let sent = self.store.adjust(subject.refund(answer, charged, units));
        if !HAS_METRICS {
            return sent;
        }
        let unit_return = self.meter.begin_return(units);
        match sent.try_ready() {
            Ok(outcome) => StoreFuture::ready(outcome.inspect(|()| unit_return.succeed())),
            Err(sent) => StoreFuture::boxed(async move {
                let outcome = sent.await;
                outcome.inspect(|()| unit_return.succeed())
            }),
        }
    }

    /// Ends what this process holds of a key, and returns it to the store. Other processes hold their units for
    /// the rest of their lease.
    pub(in crate::limiter) async fn void(&self, key: &Key) -> Result<(), Error> {
        self.refund_grants(self.table.void(key)).await
    }

    /// Returns all units to the store. From then on, this process takes none in advance.
    pub(in crate::limiter) async fn release(&self) -> Result<(), Error> {
        self.holds_units.store(false, Ordering::Relaxed);
        self.refund_grants(self.table.end_all()).await
    }

    /// Sends all returns at the same time, also if one of them fails.
    async fn refund_grants(&self, ended: Vec<(OwnedSubject, Grant)>) -> Result<(), Error> {
        let refunds: Vec<_> = ended
            .iter()
            .map(|(owned, grant)| self.refund_grant(owned.subject(), grant))
            .collect();
        join_all(refunds).await.into_iter().collect()
    }
}

/// Units that were taken for a check that has not ended. They are returned on drop, unless they were
/// [kept](Self::keep).
pub(in crate::limiter) struct HeldUnits {
    lease: Arc<Lease>,
    subject: OwnedSubject,
    /// The units of the answer, if that is complete.
    answered: Option<GrantUnits>,
    others: Vec<GrantUnits>,
}

impl HeldUnits {
    /// `answer` is the answer to the check if these are all of its units.
    #[cold]
    pub(in crate::limiter) fn new(
        lease: &Arc<Lease>,
        subject: Subject<'_>,
        cost: u32,
        taken: TakenUnits,
        answer: &Answer,
    ) -> Self {
        let others: u32 = taken.grants.iter().map(|taken| taken.units).sum();
        let answered = taken.is_complete.then(|| GrantUnits {
            answer: answer.clone(),
            units: cost.saturating_sub(others),
        });
        Self {
            lease: Arc::clone(lease),
            subject: subject.into(),
            answered,
            others: taken.grants,
        }
    }

    pub(in crate::limiter) fn units(&self) -> u32 {
        self.answered
            .iter()
            .chain(&self.others)
            .map(|taken| taken.units)
            .fold(0, u32::saturating_add)
    }

    /// Leaves the units to the decision of an admitted check, which then holds them. Returns those that are not in the
    /// answer.
    pub(in crate::limiter) fn keep(mut self) -> Vec<GrantUnits> {
        self.answered = None;
        std::mem::take(&mut self.others)
    }
}

impl Drop for HeldUnits {
    fn drop(&mut self) {
        for taken in self.answered.iter().chain(&self.others) {
            self.lease.give_back_later(self.subject.subject(), taken);
        }
    }
}

/// A request for units of one key. On drop, it lets the next request be sent.
struct Request {
    lease: Arc<Lease>,
    subject: OwnedSubject,
    ask: Ask,
    /// How long no other request is sent after this one, in microseconds.
    pause: u64,
}

impl Request {
    /// Sends the request, and returns what is left of its grant when that ends.
    async fn run(self) {
        let lease = Arc::clone(&self.lease);
        let owned = self.subject.clone();
        let subject = owned.subject();
        let Some(grant) = self.send().await else {
            return;
        };
        let _end = EndOnDrop {
            lease: &lease,
            subject,
            grant: &grant,
        };
        #[cfg(tollgate_simulation)]
        if is_planted("ReturnStaysUsable") {
            let _ = lease.refund_grant(subject, &grant).await;
        }
        let time_left = grant.ends_at.saturating_sub(lease.table.clock.now());
        sleep(Duration::from_micros(time_left)).await;
        #[cfg(tollgate_simulation)]
        if is_planted("ReturnSentAgain") {
            let _ = lease.refund_grant(subject, &grant).await;
        }
        if let Some(left) = lease.table.end(subject, grant.number) {
            let grant = grant.clone();
            let ended = Grant { left, ..grant };
            // A failed return leaves the units counted until they leave their window.
            let _ = lease.refund_grant(subject, &ended).await;
        }
    }

    async fn send(mut self) -> Option<Grant> {
        let lease = &self.lease;
        let subject = self.subject.subject();
        let units = self.ask.units.min(max_units(subject.quotas));
        let check = subject
            .check(1)
            .with_extra_units(units - 1, self.ask.eighths);
        let sent_at = lease.table.clock.now();
        let answer = lease.store.check_uncached(check).await.ok()?;
        let round_trip = lease.table.clock.now().saturating_sub(sent_at);
        lease.round_trip.record(round_trip);
        if !answer.is_admitted() {
            let wait = answer
                .quotas()
                .iter()
                .filter_map(QuotaAnswer::retry_after)
                .max()
                .map_or(self.pause, micros);
            self.pause = certain_part(wait.min(self.pause));
            return None;
        }
        let grant = lease.grant(subject, sent_at, answer);
        let is_kept = lease.holds_units.load(Ordering::Relaxed)
            && lease.table.add(subject, self.ask, grant.clone());
        if !is_kept {
            let _ = lease.refund_grant(subject, &grant).await;
            return None;
        }
        // Near the limit there are few units, and asking again at once would bring fewer.
        let is_short = grant.units < units / 4;
        self.pause = if is_short { self.pause / 8 } else { 0 };
        Some(grant)
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let table = &self.lease.table;
        table.end_request(self.subject.subject(), self.pause);
    }
}

/// Ends a grant if its task is dropped, such as with its runtime. Nothing would return its units later.
struct EndOnDrop<'a> {
    lease: &'a Lease,
    subject: Subject<'a>,
    grant: &'a Grant,
}

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        let Lease { table, meter, .. } = self.lease;
        if let Some(left) = table.end(self.subject, self.grant.number) {
            meter.record_end(self.grant.units, left);
            let _lost = meter.begin_return(left);
        }
    }
}

fn max_units(quotas: &Quotas) -> u32 {
    let has_sorted_set = quotas
        .iter()
        .any(|quota| quota.algorithm() == Algorithm::SortedSetLog);
    if has_sorted_set {
        MAX_UNITS_OF_SORTED_SET
    } else {
        MAX_UNITS.min(quotas.max_cost())
    }
}
