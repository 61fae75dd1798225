//! The reservation, with which a handler settles its charge.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use super::config::LayerConfig;
use super::settlement::{ActualCosts, costs_of, settle, shared_costs};
use crate::decision::{Decision, DecisionView};
use crate::limiter::RateLimiter;

/// The charge of a request, which its handler adjusts when the actual cost is known.
///
/// A layer with [`reserve`](crate::RateLimitLayer::reserve) inserts a reservation into the extensions of each
/// request that passes. With the feature `axum-08`, a handler can take it as an argument. If several nested
/// layers reserve, the handler gets the reservation of the innermost one.
///
/// If it is never settled, the charge stays. Clones share the charge, and only the first settlement of each level
/// counts.
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
    /// `None` if nothing was charged.
    charge: Option<Mutex<Decision>>,
}

impl Reservation {
    pub(super) fn new(config: Arc<LayerConfig>, decision: Decision) -> Self {
        Self(Arc::new(Inner {
            config,
            view: decision.view().clone(),
            charge: Some(Mutex::new(decision)),
        }))
    }

    /// Creates the reservation of a request that passed without a charge.
    pub(super) fn without_charge(config: Arc<LayerConfig>, view: Option<DecisionView>) -> Self {
        Self(Arc::new(Inner {
            config,
            view: view.unwrap_or_else(DecisionView::unlimited),
            charge: None,
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
    /// In a layer with several [levels](crate::Level), it settles all those that cost what the layer costs.
    /// For the others, use [`settle_level`](Self::settle_level).
    ///
    /// It starts the settlement in the background and returns at once. If the store fails, the charge stays,
    /// and a warning is logged.
    ///
    /// With a store that waits for a reply, such as Redis, call it in a tokio runtime. Handlers and response
    /// bodies run in one. Outside of a runtime, the charge stays, and a warning is logged.
    pub fn settle(&self, actual_cost: u32) {
        let Inner { config, view, .. } = &*self.0;
        self.settle_costs(&shared_costs(config, view, actual_cost));
    }

    /// Adjusts the charge of the [levels](crate::Level) of this limiter to the actual cost in units. Later calls
    /// for the same level do nothing.
    ///
    /// Use it for levels with their own [cost](crate::Level::cost), such as tokens beside requests. If the layer has
    /// no level of the limiter, the charge stays, and a warning is logged.
    ///
    /// It runs in the background, as [`settle`](Self::settle) does.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{RateLimiter, Reservation};
    ///
    /// // `tokens` is the limiter of a level of the layer. The level of the requests stays charged.
    /// fn answered(reservation: &Reservation, tokens: &RateLimiter, used: u32) {
    ///     reservation.settle_level(tokens, used);
    /// }
    /// ```
    pub fn settle_level(&self, limiter: &RateLimiter, actual_cost: u32) {
        let Inner { config, view, .. } = &*self.0;
        if !config
            .levels()
            .any(|level| level.limiter.name == limiter.name)
        {
            let own = &config.first.limiter.name;
            config.diagnostics.unknown_level(own, &limiter.name);
            return;
        }
        self.settle_costs(&costs_of(config, view, limiter, actual_cost));
    }

    /// Settles the levels that have an actual cost.
    pub(super) fn settle_costs(&self, costs: &ActualCosts) {
        let Inner { config, charge, .. } = &*self.0;
        if let Some(charge) = charge {
            let mut charge = charge.lock().unwrap_or_else(PoisonError::into_inner);
            settle(config, &mut charge, costs);
        }
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reservation").field(&self.0.view).finish()
    }
}
