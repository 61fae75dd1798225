//! A permit: slots or units that are held until it is dropped.

use std::fmt;
use std::time::Duration;

use tokio::time::timeout;

use super::table::{HeldSlots, LEASE_SHORTENED};
use crate::decision::LevelDecision;
use crate::error::Error;
use crate::limiter::decision::{Decision, DecisionView};
use crate::limiter::limiter::RateLimiter;
use crate::limiter::line::LineKey;

/// Slots of a quota [in flight](crate::Quota::in_flight), or units of a limiter with a
/// [`reserve_lease`](crate::RateLimiter::reserve_lease), held until the permit is dropped.
///
/// [`RateLimiter::acquire`](crate::RateLimiter::acquire) and [`try_acquire`](crate::RateLimiter::try_acquire) return it.
/// The process renews the [lease](crate::Quota::slot_lease) of its permits in the background, however long the work takes. If
/// it is killed, the slots return when the lease ends.
///
/// Units that were [added](Self::add) are charged when the permit is dropped, and the rest returns. A permit that is dropped
/// without a word is charged as a whole.
///
/// A permit may be dropped anywhere, also outside of a tokio runtime. The store learns of it within some milliseconds. If the
/// process ends before, the slots stay taken until the lease ends: await
/// [`RateLimiter::release`](crate::RateLimiter::release) before that.
///
/// # The thread of a store
///
/// A store that other processes may share learns about slots from a thread of this process, `tollgate-slots`, with a tokio runtime of its
/// own. So a runtime of the program that is busy, idle or has ended stops no renewal and no release of others. The thread
/// starts with the first slot of the store. It ends a minute after the last one, or with the last limiter of the store. It
/// costs one more connection, on a cluster one for each node.
///
/// - Connections that the application has made live in its runtime: those of
///   [`RedisStore::with_connection`](crate::RedisStore::with_connection), and of a pool. If that runtime stands still, the
///   messages about slots wait for it. A connection that a pool makes for the thread ends with the thread.
/// - A child that is forked without `exec` has no such thread, so limiters of its parent do not work there, as tokio does not.
/// - A [`MemoryStore`](crate::MemoryStore) learns at once from the caller that takes or drops a permit.
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
    slots: Vec<HeldSlots>,
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
    pub(crate) fn new(decision: Decision, mut slots: Vec<HeldSlots>) -> Self {
        slots.iter_mut().for_each(HeldSlots::charge_rest);
        Self { decision, slots }
    }

    pub(crate) fn join(&mut self, mut other: Self) {
        self.slots.append(&mut other.slots);
    }

    /// Returns the decision by which the slots were taken.
    #[must_use]
    pub fn decision(&self) -> &DecisionView {
        self.decision.view()
    }

    /// Takes units that were used from those that the permit holds of a limiter with a
    /// [`reserve_lease`](crate::RateLimiter::reserve_lease). More than it holds may be used: all is charged.
    ///
    /// It asks no store: what was added is charged with the next renewal, at most a third of the lease later, or when the
    /// permit is dropped. Then the rest returns. Of several keys, the units are those of each: for one of them, use
    /// [`add_level`](Self::add_level). It does nothing for slots.
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use tollgate::{MemoryStore, Quota, RateLimiter};
    ///
    /// let tokens = RateLimiter::new(MemoryStore::new(), Quota::per_day(50_000))
    ///     .reserve_lease(Duration::from_secs(15));
    /// let mut permit = RateLimiter::acquire_all([tokens.level("acme").cost(4_000)]).await?;
    /// permit.add(300);
    /// assert_eq!(tokens.peek("acme").await?.used(), 4_000);
    /// drop(permit);
    /// assert_eq!(tokens.peek("acme").await?.used(), 300);
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    pub fn add(&mut self, units: u32) {
        self.add_where(units, |_| true);
    }

    /// Takes units that were used from those that the permit holds of the keys of one limiter, as [`add`](Self::add) does.
    ///
    /// Use it if several limiters hold units that count different things, such as money beside tokens.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`Misconfigured`](crate::ErrorKind::Misconfigured) if the permit has no level of a limiter with
    /// this name: then nothing is added.
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use tollgate::{MemoryStore, Quota, RateLimiter};
    ///
    /// let store = MemoryStore::new();
    /// let lease = Duration::from_secs(15);
    /// let tokens = RateLimiter::new(store.clone(), Quota::per_day(50_000));
    /// let tokens = tokens.name("tokens").reserve_lease(lease);
    /// let cents = RateLimiter::new(store, Quota::per_day(900));
    /// let cents = cents.name("cents").reserve_lease(lease);
    ///
    /// let levels = [tokens.level("acme").cost(4_000), cents.level("acme").cost(12)];
    /// let mut permit = RateLimiter::acquire_all(levels).await?;
    /// permit.add_level(&tokens, 1_300)?;
    /// permit.add_level(&cents, 4)?;
    /// drop(permit);
    /// assert_eq!(tokens.peek("acme").await?.used(), 1_300);
    /// assert_eq!(cents.peek("acme").await?.used(), 4);
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    pub fn add_level(&mut self, limiter: &RateLimiter, units: u32) -> Result<(), Error> {
        self.decision.find_level(limiter)?;
        self.add_where(units, |line| is_line_of_limiter(line, limiter));
        Ok(())
    }

    /// Charges what was used, with what was [added](Self::add) before, and gives the rest of the units back.
    ///
    /// Use it if the cost is known only at the end. At least what was added is charged, since the store may know it. It asks no
    /// store: it learns of it within some milliseconds, as of a permit that is dropped.
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use tollgate::{MemoryStore, Quota, RateLimiter};
    ///
    /// let tokens = RateLimiter::new(MemoryStore::new(), Quota::per_day(50_000))
    ///     .reserve_lease(Duration::from_secs(15));
    /// let permit = RateLimiter::acquire_all([tokens.level("acme").cost(4_000)]).await?;
    /// permit.settle(640);
    /// assert_eq!(tokens.peek("acme").await?.used(), 640);
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    pub fn settle(mut self, used: u32) {
        self.settle_where(used, |_| true);
    }

    /// Charges what was used of the keys of one limiter, and gives the rest of their units back, as [`settle`](Self::settle) does.
    /// The permit holds nothing more of them, and keeps the others.
    ///
    /// # Errors
    ///
    /// Returns an error in the same case as [`add_level`](Self::add_level): then nothing is settled.
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use tollgate::{MemoryStore, Quota, RateLimiter};
    ///
    /// let store = MemoryStore::new();
    /// let tokens = RateLimiter::new(store.clone(), Quota::per_day(50_000))
    ///     .name("tokens")
    ///     .reserve_lease(Duration::from_secs(15));
    /// let streams = RateLimiter::new(store, Quota::in_flight(2)).name("streams");
    ///
    /// let levels = [tokens.level("acme").cost(4_000), streams.level("acme")];
    /// let mut permit = RateLimiter::acquire_all(levels).await?;
    /// permit.settle_level(&tokens, 640)?;
    /// assert_eq!(tokens.peek("acme").await?.used(), 640);
    /// // The slot is held until the permit is dropped.
    /// assert_eq!(streams.peek("acme").await?.used(), 1);
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    pub fn settle_level(&mut self, limiter: &RateLimiter, used: u32) -> Result<(), Error> {
        self.decision.find_level(limiter)?;
        self.settle_where(used, |line| is_line_of_limiter(line, limiter));
        Ok(())
    }

    pub(crate) fn add_units(&mut self, level: LevelDecision<'_>, units: u32) {
        self.add_where(units, |line| is_line_of(line, level));
    }

    pub(crate) fn settle_units(&mut self, level: LevelDecision<'_>, used: u32) {
        self.settle_where(used, |line| is_line_of(line, level));
    }

    fn add_where(&mut self, units: u32, is_meant: impl Fn(LineKey) -> bool) {
        for slots in &mut self.slots {
            slots.add(units, &is_meant);
        }
    }

    fn settle_where(&mut self, used: u32, is_meant: impl Fn(LineKey) -> bool) {
        for slots in &mut self.slots {
            slots.settle(used, &is_meant);
        }
    }

    /// Gives the slots back, and returns the decision: [`Decision::settle`] charges the rates the actual cost. Units are charged
    /// as when the permit is dropped, and the decision does not settle them.
    pub fn into_decision(self) -> Decision {
        self.decision
    }

    /// Gives the slots back, and waits until the store knows.
    ///
    /// Dropping the permit gives them back too, and the store learns it within some milliseconds, unless the process ends
    /// before.
    ///
    /// # Errors
    ///
    /// Returns an error if the store fails. The slots are given back nevertheless: the process tells the store later.
    pub async fn release(self) -> Result<(), Error> {
        for slots in self.slots {
            slots.release().await?;
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
            match self.slots.iter().filter_map(HeldSlots::lost_in).min() {
                Some(0) => return,
                Some(micros) => {
                    let _ = timeout(Duration::from_micros(micros), lease_shortened).await;
                }
                None => lease_shortened.await,
            }
        }
    }
}

fn is_line_of_limiter(line: LineKey, limiter: &RateLimiter) -> bool {
    line.limiter.name == limiter.0.facts.id.name
}

fn is_line_of(line: LineKey, level: LevelDecision<'_>) -> bool {
    line.limiter == level.facts().id && line.key == level.key().fingerprint()
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit")
            .field("decision", &self.decision)
            .finish_non_exhaustive()
    }
}
