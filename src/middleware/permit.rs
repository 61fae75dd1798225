//! The permit of a request: the layer holds it until the response body ends, unless the handler takes it.

use std::sync::Arc;

use crate::decision::LevelDecision;
use crate::limiter::{Decision, DecisionView, HeldSlots, Permit};
use crate::lock::Mutex;

/// The permit of a request in the extensions of the request, if its layer has a quota
/// [in flight](crate::Quota::in_flight).
///
/// The layer gives the slots back when the response body ends. Take the permit if the work goes on after that, as with a
/// WebSocket or a task that the handler spawns. Then the slots are held until the permit is dropped. With nested layers,
/// the permit has the slots of all of them.
///
/// A request that holds no slots has no handle: one that the layer [skips](crate::RateLimitLayer::skip), or that was refused
/// in a [dry run](crate::RateLimitLayer::dry_run).
///
/// # Examples
///
/// ```
/// use tollgate::PermitHandle;
///
/// // Without the feature `axum-08`, extract an `axum::Extension<PermitHandle>`.
/// # #[cfg(feature = "axum-08")]
/// async fn start(permit: PermitHandle) -> &'static str {
///     let permit = permit.take();
///     tokio::spawn(async move {
///         // … a long job …
///         drop(permit);
///     });
///     "started"
/// }
/// ```
#[derive(Clone, Debug)]
pub struct PermitHandle {
    own: SharedPermit,
    /// That of an outer layer.
    outer: Option<Arc<Self>>,
}

/// `None` after the permit was taken, or after the response has ended.
type SharedPermit = Arc<Mutex<Option<Permit>>>;

impl PermitHandle {
    /// Takes the permit from the layer. Returns `None` if it was taken before, or if the response has ended.
    ///
    /// The [decision](Permit::decision) has the numbers of the request, but no charge: the layer settles it. So
    /// [`into_decision`](Permit::into_decision) refunds nothing.
    #[must_use = "dropping the permit gives its slots back"]
    pub fn take(&self) -> Option<Permit> {
        let mut permit = take(&self.own)?;
        if let Some(outer) = self.outer.as_ref().and_then(|outer| outer.take()) {
            permit.join(outer);
        }
        Some(permit)
    }
}

fn take(permit: &SharedPermit) -> Option<Permit> {
    let mut permit = permit.lock();
    permit.take()
}

/// The permit while the layer holds it. Dropping it gives the slots back, although handlers may have handles.
#[derive(Debug)]
pub(super) struct HeldPermit(SharedPermit);

impl HeldPermit {
    #[cold]
    pub(super) fn new(decision: &DecisionView, slots: Vec<HeldSlots>) -> Self {
        let decision = Decision::without_charge(decision.clone());
        let permit = Permit::new(decision, slots);
        Self(Arc::new(Mutex::new(Some(permit))))
    }

    /// The handle takes the permit of an outer layer with it.
    pub(super) fn handle(&self, outer: Option<&PermitHandle>) -> PermitHandle {
        PermitHandle {
            own: Arc::clone(&self.0),
            outer: outer.cloned().map(Arc::new),
        }
    }

    pub(super) fn units(&self) -> ReservedUnits {
        ReservedUnits(Arc::clone(&self.0))
    }
}

/// The units that a request holds, for its reservation. It does nothing after the permit was taken, or after the response has
/// ended.
pub(super) struct ReservedUnits(SharedPermit);

impl ReservedUnits {
    pub(super) fn add(&self, level: LevelDecision<'_>, units: u32) {
        if let Some(permit) = &mut *self.0.lock() {
            permit.add_units(level, units);
        }
    }

    pub(super) fn settle(&self, level: LevelDecision<'_>, used: u32) {
        if let Some(permit) = &mut *self.0.lock() {
            permit.settle_units(level, used);
        }
    }
}

impl Drop for HeldPermit {
    fn drop(&mut self) {
        drop(take(&self.0));
    }
}
