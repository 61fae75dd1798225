//! What was charged for a request, in the hands of its handler.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Waker};

use tokio::runtime::Handle;

use super::config::LayerConfig;
use crate::decision::{Decision, DecisionView};
use crate::error::{Error, ErrorKind};

/// What was charged for a request, for its handler to settle when the cost is known.
///
/// A layer that is told to [reserve](crate::RateLimitLayer::reserve) puts one into the extensions of
/// each request that it lets through, where layers are nested that of the innermost one; with the
/// feature `axum-08` it is an extractor too. Clones are one reservation: it is settled once, by who does
/// so first. One that nobody settles keeps what was charged. Where nothing was charged, since the request
/// is exempt or costs nothing, there is nothing to settle.
///
/// # Examples
///
/// A model's answer is charged 1 000 tokens before, and what it took after:
///
/// ```
/// use axum::{Router, routing::post};
/// use tollgate::{MemoryStore, Quota, RateLimitLayer, Reservation};
///
/// async fn complete(reservation: Reservation, prompt: String) -> String {
///     let (answer, tokens) = (prompt.to_uppercase(), 640);
///     // In the background: the answer does not wait for it.
///     reservation.settle(tokens);
///     answer
/// }
///
/// let app: Router = Router::new().route("/complete", post(complete)).layer(
///     RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(10_000))
///         .cost(|_| 1_000)
///         .reserve(),
/// );
/// ```
#[derive(Clone)]
pub struct Reservation(Arc<Inner>);

struct Inner {
    gate: Arc<LayerConfig>,
    view: DecisionView,
    /// Until it is settled.
    decision: Mutex<Option<Decision>>,
}

impl Reservation {
    pub(crate) fn new(gate: Arc<LayerConfig>, decision: Decision) -> Self {
        Self(Arc::new(Inner {
            gate,
            view: decision.view().clone(),
            decision: Mutex::new(Some(decision)),
        }))
    }

    /// For a request that was let through without a charge.
    pub(crate) fn of_nothing(gate: Arc<LayerConfig>, view: Option<DecisionView>) -> Self {
        Self(Arc::new(Inner {
            gate,
            view: view.unwrap_or_else(DecisionView::unlimited),
            decision: Mutex::default(),
        }))
    }

    /// What was decided and charged.
    #[must_use]
    pub fn decision(&self) -> &DecisionView {
        &self.0.view
    }

    /// Makes the charge what the request has cost in the end, as
    /// [`RateLimiter::settle`](crate::RateLimiter::settle) does, in the background: nobody waits for
    /// it, and if the store fails, the charge stays as it is. After the first call, nothing.
    ///
    /// Call it in a tokio runtime, as handlers and the bodies of their answers are.
    pub fn settle(&self, used: u32) {
        let decision = &self.0.decision;
        let decision = decision
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(decision) = decision {
            settle_later(&self.0.gate, decision, used);
        }
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reservation").field(&self.0.view).finish()
    }
}

/// Settles a charge while nobody waits for it.
pub(crate) fn settle_later(gate: &Arc<LayerConfig>, decision: Decision, used: u32) {
    if used == decision.held() {
        return;
    }
    if decision.cost() == 0 {
        gate.notices.nothing_to_settle(gate.limiter.label());
        return;
    }
    let settling_gate = Arc::clone(gate);
    let mut settling = Box::pin(async move {
        let LayerConfig {
            limiter, notices, ..
        } = &*settling_gate;
        let outcome = limiter.settle(decision, used).await;
        notices.settled(limiter.label(), &outcome);
    });
    // In memory that is all.
    let mut nobody = Context::from_waker(Waker::noop());
    if settling.as_mut().poll(&mut nobody).is_pending() {
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(settling)),
            Err(_) => gate
                .notices
                .settled(gate.limiter.label(), &Err(no_runtime())),
        }
    }
}

fn no_runtime() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "settling was not begun in a tokio runtime",
    )
}
