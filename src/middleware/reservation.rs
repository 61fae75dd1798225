//! The charge of a request, and its settlements in the background: by the handler, by the response, or not at all.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Waker};

use http::response;
use http_body::SizeHint;
use smallvec::SmallVec;

use super::config::LayerConfig;
use super::level::Level;
use super::permit::ReservedUnits;
use crate::error::{Code, Error};
use crate::key::Key;
use crate::limiter::{Decision, DecisionView, RateLimiter, TakenLevel, settle_together};
use crate::lock::Mutex;
use crate::runtime::{is_in_runtime, spawn_or_drop};

/// The charge of a request, which its handler adjusts when the actual cost is known.
///
/// A layer with [`reserve`](crate::RateLimitLayer::reserve) inserts a reservation into the extensions of each
/// request that passes. With the feature `axum-08`, a handler can take it as an argument. If several nested
/// layers reserve, the handler gets the reservation of the innermost one.
///
/// If it is never settled, the charge stays; with a [`reserve_lease`](crate::RateLimitLayer::reserve_lease), what was not
/// [added](Self::add) returns. Clones share the charge, and only the first settlement of each level
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
pub struct Reservation(Arc<ReservationInner>);

struct ReservationInner {
    config: Arc<LayerConfig>,
    view: DecisionView,
    charge: Mutex<Decision>,
    /// What the request holds, in place of a charge.
    units: Option<ReservedUnits>,
}

/// Levels of a decision to settle.
type Settlements = SmallVec<[TakenLevel; 2]>;

impl Reservation {
    pub(super) fn new(
        config: &Arc<LayerConfig>,
        charge: Decision,
        units: Option<ReservedUnits>,
    ) -> Self {
        Self(Arc::new(ReservationInner {
            config: Arc::clone(config),
            view: charge.view().clone(),
            charge: Mutex::new(charge),
            units,
        }))
    }

    pub(super) fn unlimited(config: &Arc<LayerConfig>) -> Self {
        let view = DecisionView::unlimited();
        Self::new(config, Decision::without_charge(view), None)
    }

    /// Returns the decision about the request. For an exempt request, it is an admission without any quota.
    #[must_use]
    pub fn decision(&self) -> &DecisionView {
        &self.0.view
    }

    /// Takes units that were used from those that the request holds, if the layer has a
    /// [`reserve_lease`](crate::RateLimitLayer::reserve_lease). More than it holds may be used: all is charged.
    ///
    /// It asks no store, so call it for each part of a stream. What was added is charged with the next renewal, at most a third
    /// of the lease later, or when the response body ends. Then the rest returns.
    ///
    /// In a layer with several [levels](crate::Level), it adds to those that cost what the layer costs. For the others, use
    /// [`add_level`](Self::add_level). Nothing is held of a level without a `reserve_lease`: then a warning is logged, and
    /// [`settle`](Self::settle) adjusts the charge.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::Reservation;
    ///
    /// // For each part of an answer, as it is sent. If the client disconnects, the rest returns.
    /// fn sent(reservation: &Reservation, tokens: u32) {
    ///     reservation.add(tokens);
    /// }
    /// ```
    pub fn add(&self, units: u32) {
        let config = &self.0.config;
        self.add_where(units, |place| config.shares_cost(place));
    }

    /// Takes units that were used from those that the request holds of the [levels](crate::Level) of this limiter, as
    /// [`add`](Self::add) does.
    ///
    /// Use it for levels with their own [cost](crate::Level::cost), such as money beside tokens. If the layer has no level of the
    /// limiter, nothing is added, and a warning is logged.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{RateLimiter, Reservation};
    ///
    /// // `budget` is the limiter of a level of the layer. A part of an answer costs so many cents.
    /// fn sent(reservation: &Reservation, budget: &RateLimiter, tokens: u32, cents: u32) {
    ///     reservation.add(tokens);
    ///     reservation.add_level(budget, cents);
    /// }
    /// ```
    pub fn add_level(&self, limiter: &RateLimiter, units: u32) {
        if let Some(name) = self.known_level_name(limiter) {
            let config = &self.0.config;
            self.add_where(units, |place| config.level(place).name() == name);
        }
    }

    fn add_where(&self, units: u32, is_used: impl Fn(usize) -> bool) {
        let ReservationInner { config, view, .. } = &*self.0;
        for level in view.levels() {
            let place = level.place();
            if !is_used(place) {
                continue;
            }
            match &self.0.units {
                Some(held) if level.is_held() => held.add(level, units),
                _ if level.is_charged() => {
                    let level = config.level(place);
                    level.diagnostics.nothing_is_held(level.name());
                }
                _ => {}
            }
        }
    }

    /// Adjusts the charge to the actual cost in units, as
    /// [`Decision::settle`] does. Later calls do nothing.
    ///
    /// Of units that the request [holds](crate::RateLimitLayer::reserve_lease), the cost is charged with what was
    /// [added](Self::add) before, and the rest returns. Settle them before the response body ends, or take the
    /// [permit](crate::PermitHandle): with the body, units are charged of which nobody has said what was used.
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
        let config = &self.0.config;
        self.settle_each(|_, place| config.shares_cost(place).then_some(actual_cost));
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
        if let Some(name) = self.known_level_name(limiter) {
            let config = &self.0.config;
            self.settle_each(|_, place| {
                (config.level(place).name() == name).then_some(actual_cost)
            });
        }
    }

    fn known_level_name<'a>(&self, limiter: &'a RateLimiter) -> Option<&'a Arc<str>> {
        let config = &self.0.config;
        let name = &limiter.0.facts.name;
        if config.levels().any(|level| level.name() == name) {
            return Some(name);
        }
        config.diagnostics.unknown_level(config.first.name(), name);
        None
    }

    pub(super) fn settle_by(&self, head: &response::Parts, size: SizeHint) {
        let ReservationInner { config, view, .. } = &*self.0;
        let mut shared = None;
        self.settle_each(|index, place| {
            match (&config.level(place).settle, &config.first.settle) {
                (Some(settle), _) if place > 0 => Some(settle(&view.for_level(index), head, size)),
                (_, Some(settle)) if config.shares_cost(place) => {
                    Some(*shared.get_or_insert_with(|| settle(&view.for_level(index), head, size)))
                }
                _ => None,
            }
        });
    }

    pub(super) fn give_back(&self) {
        self.settle_each(|_, _| Some(0));
    }

    /// Settles the levels that have an actual cost now, unless they were settled before. The cost is computed from the
    /// index of a level in the decision, and its place in the layer.
    fn settle_each(&self, mut actual_cost: impl FnMut(usize, usize) -> Option<u32>) {
        let ReservationInner {
            config,
            view,
            charge,
            ..
        } = &*self.0;
        // Before the lock: a closure of the application may settle, too.
        let costs: SmallVec<[_; 4]> = view
            .levels()
            .enumerate()
            .map(|(index, level)| actual_cost(index, level.place()))
            .collect();
        let mut charge = charge.lock();
        let mut settlements = Settlements::new();
        for (index, (level, used)) in view.levels().zip(costs).enumerate() {
            if level.is_held() {
                if let (Some(held), Some(used)) = (&self.0.units, used) {
                    held.settle(level, used);
                }
                continue;
            }
            let taken = used.and_then(|used| charge.take_all(index, used));
            match taken.filter(|taken| taken.held != taken.used) {
                Some(_) if level.cost() == 0 => {
                    let level = config.level(level.place());
                    level.diagnostics.nothing_to_settle(level.name());
                }
                taken => settlements.extend(taken),
            }
        }
        drop(charge);
        if !settlements.is_empty() {
            self.settle_in_background(settlements);
        }
    }

    fn settle_in_background(&self, settlements: Settlements) {
        let reservation = self.clone();
        let unsettled = settlements.clone();
        let mut task = Box::pin(async move {
            let levels = reservation.settled_levels(&settlements);
            let outcomes = settle_together(reservation.decision(), &settlements).await;
            for ((level, key), outcome) in levels.iter().zip(&outcomes) {
                level.diagnostics.settled(&level.limiter, key, outcome);
            }
        });
        // A store in memory is done after one poll, so it needs no task.
        let mut cx = Context::from_waker(Waker::noop());
        if task.as_mut().poll(&mut cx).is_ready() {
            return;
        }
        if is_in_runtime() {
            spawn_or_drop(task);
            return;
        }
        for (level, key) in self.settled_levels(&unsettled) {
            let unsettled = Err(no_runtime());
            level.diagnostics.settled(&level.limiter, key, &unsettled);
        }
    }

    fn settled_levels(&self, settlements: &[TakenLevel]) -> SmallVec<[(&Level, &Key); 2]> {
        let ReservationInner { config, view, .. } = &*self.0;
        settlements
            .iter()
            .filter_map(|taken| view.level(taken.index))
            .map(|level| (config.level(level.place()), level.key()))
            .collect()
    }
}

fn no_runtime() -> Error {
    Error::coded(
        Code::TASK_DROPPED,
        "cannot settle in the background: not called in a tokio runtime",
    )
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reservation").field(&self.0.view).finish()
    }
}
