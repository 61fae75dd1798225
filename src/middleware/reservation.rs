//! The reservation: a charge that the handler settles.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Waker};

use tokio::runtime::Handle;

use super::config::LayerConfig;
use crate::decision::{Decision, DecisionView};
use crate::error::{Error, ErrorKind};

/// The charge of a request, which its handler settles once the actual cost is known.
///
/// A layer that [reserves](crate::RateLimitLayer::reserve) puts a reservation into the extensions of each
/// request that it lets through. Of nested layers, the handler finds the reservation of the innermost one.
/// With the feature `axum-08` it is an extractor too.
///
/// Clones share one reservation: the first one to settle it decides. A reservation that is never settled
/// keeps its charge. An exempt request, or one of cost 0, has no charge and nothing to settle.
///
/// # Examples
///
/// A language model: 1 000 tokens are charged before the call, the actual number after it:
///
/// ```
/// # #[cfg(feature = "axum-08")]
/// # {
/// use axum::{Router, routing::post};
/// use tollgate::{MemoryStore, Quota, RateLimitLayer, Reservation};
///
/// async fn complete(reservation: Reservation, prompt: String) -> String {
///     let (answer, tokens) = (prompt.to_uppercase(), 640);
///     // Settles in the background: the response does not wait for it.
///     reservation.settle(tokens);
///     answer
/// }
///
/// let app: Router = Router::new().route("/complete", post(complete)).layer(
///     RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(10_000))
///         .cost(|_| 1_000)
///         .reserve(),
/// );
/// # }
/// ```
#[derive(Clone)]
pub struct Reservation(Arc<Inner>);

struct Inner {
    config: Arc<LayerConfig>,
    view: DecisionView,
    /// The charge. `None` once it is settled, or if there is none.
    decision: Mutex<Option<Decision>>,
}

impl Reservation {
    pub(super) fn new(config: Arc<LayerConfig>, decision: Decision) -> Self {
        Self(Arc::new(Inner {
            config,
            view: decision.view().clone(),
            decision: Mutex::new(Some(decision)),
        }))
    }

    /// Creates the reservation of a request that passed without a charge.
    pub(super) fn without_charge(config: Arc<LayerConfig>, view: Option<DecisionView>) -> Self {
        Self(Arc::new(Inner {
            config,
            view: view.unwrap_or_else(DecisionView::unlimited),
            decision: Mutex::default(),
        }))
    }

    /// Returns the decision that charged the request.
    #[must_use]
    pub fn decision(&self) -> &DecisionView {
        &self.0.view
    }

    /// Adjusts the charge to the actual cost, as [`RateLimiter::settle`](crate::RateLimiter::settle) does.
    /// Later calls do nothing.
    ///
    /// It settles in the background, without making the caller wait. If the store fails, the charge stays
    /// as it is.
    ///
    /// Call it in a tokio runtime, where handlers and response bodies run anyway.
    pub fn settle(&self, actual_cost: u32) {
        let decision = &self.0.decision;
        let decision = decision
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(decision) = decision {
            settle_in_background(&self.0.config, decision, actual_cost);
        }
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reservation").field(&self.0.view).finish()
    }
}

/// Settles a charge without making the caller wait.
pub(super) fn settle_in_background(
    config: &Arc<LayerConfig>,
    decision: Decision,
    actual_cost: u32,
) {
    if actual_cost == decision.held() {
        return;
    }
    if decision.cost() == 0 {
        config.diagnostics.nothing_to_settle(&config.limiter.name);
        return;
    }
    let task_config = Arc::clone(config);
    let mut settlement = Box::pin(async move {
        let LayerConfig {
            limiter,
            diagnostics,
            ..
        } = &*task_config;
        let result = limiter.settle(decision, actual_cost).await;
        diagnostics.settled(&limiter.name, &result);
    });
    // A store in memory is done after one poll and needs no task.
    let mut cx = Context::from_waker(Waker::noop());
    if settlement.as_mut().poll(&mut cx).is_pending() {
        match Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn(settlement)),
            Err(_) => config
                .diagnostics
                .settled(&config.limiter.name, &Err(no_runtime())),
        }
    }
}

fn no_runtime() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "cannot settle in the background: not called in a tokio runtime",
    )
}
