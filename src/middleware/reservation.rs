//! The reservation, with which a handler settles its charge.

use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Waker};

use tokio::runtime::Handle;

use super::config::LayerConfig;
use crate::decision::{Decision, DecisionView};
use crate::error::{Error, ErrorKind};

/// The charge of a request, which its handler adjusts when the actual cost is known.
///
/// A layer with [`reserve`](crate::RateLimitLayer::reserve) inserts a reservation into the extensions of each
/// request that passes. With the feature `axum-08`, a handler can take it as an argument. If several nested
/// layers reserve, the handler gets the reservation of the innermost one.
///
/// If it is never settled, the charge stays. Clones share the charge, and only the first settlement counts.
/// A request without a charge has nothing to settle: it is exempt, its cost was 0, or it passed only because
/// of a [dry run](crate::RateLimitLayer::dry_run).
///
/// # Examples
///
/// A language model charges 1 000 tokens before the call, and the handler settles the actual number:
///
/// ```
/// # #[cfg(feature = "axum-08")]
/// # {
/// use axum::{Router, routing::post};
/// use tollgate::{MemoryStore, Quota, RateLimitLayer, Reservation};
///
/// async fn complete(reservation: Reservation, prompt: String) -> String {
///     let (answer, tokens) = (prompt.to_uppercase(), 640);
///     // Runs in the background, so the response does not wait for it.
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
    /// The charge. `None` if there is none or it was settled.
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

    /// Returns the decision about the request. For an exempt request, it is an admission without any quota.
    #[must_use]
    pub fn decision(&self) -> &DecisionView {
        &self.0.view
    }

    /// Adjusts the charge to the actual cost in units, as
    /// [`RateLimiter::settle`](crate::RateLimiter::settle) does. Later calls do nothing.
    ///
    /// It starts the settlement in the background and returns at once. If the store fails, the charge stays,
    /// and a warning is logged.
    ///
    /// With a store that waits for a reply, such as Redis, call it in a tokio runtime. Handlers and response
    /// bodies run in one. Outside of a runtime, the charge stays, and a warning is logged.
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

/// Settles a charge in the background.
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
    // A store in memory is done after one poll, so it needs no task.
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
