//! A permit: slots that are held until it is dropped.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::table::{LEASE_SHORTENED, PermitTable};
use crate::decision::{Answers, Decision, DecisionView};
use crate::error::Error;

/// Slots of a quota [in flight](crate::Quota::in_flight), held until the permit is dropped.
///
/// [`RateLimiter::acquire`](crate::RateLimiter::acquire) and [`try_acquire`](crate::RateLimiter::try_acquire) return it.
/// The process renews the [lease](crate::Quota::slot_lease) of its permits in the background, however long the work takes. If
/// it is killed, the slots return when the lease ends.
///
/// The store learns of a dropped permit within some milliseconds. If the tokio runtime ends before, the slots stay taken
/// until the lease ends: await [`RateLimiter::release`](crate::RateLimiter::release) before the runtime ends.
///
/// # Examples
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// use tollgate::{MemoryStore, Quota, RateLimiter};
///
/// let exports = RateLimiter::new(MemoryStore::new(), Quota::in_flight(2)).name("exports");
/// let permit = exports.acquire("ada").await?;
/// // … the export …
/// drop(permit);
/// # Ok::<(), tollgate::Error>(())
/// # }).unwrap();
/// ```
#[must_use = "dropping the permit gives its slots back"]
pub struct Permit {
    decision: Decision,
    tickets: Vec<Ticket>,
}

/// The result of [`RateLimiter::try_acquire`](crate::RateLimiter::try_acquire): a permit, or the decision that refused it.
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "slots are held or not")]
#[must_use = "dropping the permit gives its slots back"]
pub enum Acquired {
    /// The slots are held until the permit is dropped.
    Permit(Permit),
    /// A quota had no room, so nothing was taken.
    Refused(Decision),
}

impl Permit {
    pub(crate) fn new(decision: Decision, tickets: Vec<Ticket>) -> Self {
        Self { decision, tickets }
    }

    /// Adds the slots of another permit.
    pub(crate) fn join(&mut self, mut other: Self) {
        self.tickets.append(&mut other.tickets);
    }

    /// Returns the decision by which the slots were taken.
    #[must_use]
    pub fn decision(&self) -> &DecisionView {
        self.decision.view()
    }

    /// Gives the slots back, and returns the decision. [`RateLimiter::settle`](crate::RateLimiter::settle) takes it to charge
    /// the rates the actual cost, and [`settle_all`](crate::RateLimiter::settle_all) for a permit of several keys.
    pub fn into_decision(self) -> Decision {
        self.decision
    }

    /// Gives the slots back, and waits until the store knows.
    ///
    /// Dropping the permit gives them back too, and the store learns it within some milliseconds, unless the runtime ends
    /// before.
    ///
    /// # Errors
    ///
    /// Returns an error if the store fails. The slots are given back nevertheless: the process tells the store later.
    pub async fn release(self) -> Result<(), Error> {
        for ticket in self.tickets {
            ticket.release().await?;
        }
        Ok(())
    }

    /// Waits until the permit is lost: until the store has not acknowledged it for 0.8 of its
    /// [lease](crate::Quota::slot_lease).
    ///
    /// From then on, other processes may get the slots. Stop the work if it must not overlap with theirs. A lost permit stays
    /// lost, and its slots still count until it is dropped. In a [`MemoryStore`](crate::MemoryStore), no permit is lost.
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// # async fn export() {}
    /// use tollgate::{MemoryStore, Quota, RateLimiter};
    ///
    /// let exports = RateLimiter::new(MemoryStore::new(), Quota::in_flight(1)).name("exports");
    /// let permit = exports.acquire("ada").await?;
    /// tokio::select! {
    ///     () = export() => println!("exported"),
    ///     () = permit.lost() => println!("stopped, because another export may have started"),
    /// }
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    pub async fn lost(&self) {
        loop {
            // Before the look, so that no change after it is missed.
            let lease_shortened = LEASE_SHORTENED.notified();
            match self.tickets.iter().filter_map(Ticket::lost_in).min() {
                Some(0) => return,
                Some(micros) => {
                    let _ = timeout(Duration::from_micros(micros), lease_shortened).await;
                }
                None => lease_shortened.await,
            }
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("decision", &self.decision)
            .finish_non_exhaustive()
    }
}

/// A check that wants slots and, once they are granted, the permit.
pub(crate) struct Ticket {
    table: Arc<PermitTable>,
    number: u64,
}

impl Ticket {
    pub(super) fn new(table: Arc<PermitTable>, number: u64) -> Self {
        Self { table, number }
    }

    /// Returns the decision of this process in place of the store, if there is one.
    pub(super) fn take_decision(&self) -> Option<Answers> {
        self.table.lock().decided_here.remove(&self.number)
    }

    pub(super) fn lost_in(&self) -> Option<u64> {
        self.table.lost_in(self.number)
    }

    async fn release(self) -> Result<(), Error> {
        for told in self.table.end(self.number, true) {
            told.await?;
        }
        Ok(())
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // Nothing, if the permit was released.
        drop(self.table.end(self.number, false));
    }
}
