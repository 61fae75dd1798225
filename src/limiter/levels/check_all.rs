//! Checks of several keys without HTTP.

use std::future::Future;
use std::time::Duration;

use smallvec::SmallVec;

use super::level_check::{LevelCheck, LevelChecks};
use super::start::start_within_limits;
use super::tree::LevelsError;
use crate::decision::{Decision, DecisionView};
use crate::error::{Error, ErrorKind};
use crate::key::Key;
use crate::limiter::limiter::RateLimiter;
use crate::limiter::refusals::count_refusals;
use crate::limiter::wait::Wait;
use crate::telemetry::OutcomeLabel;

impl RateLimiter {
    /// Returns a level for [`check_all`](Self::check_all): this limiter, a key, and a cost of 1.
    pub fn on(&self, key: impl Into<Key>) -> LevelCheck<'_> {
        LevelCheck {
            limiter: self,
            key: key.into(),
            cost: 1,
            quotas: None,
            error: None,
        }
    }

    /// Checks several keys together: charges each level if all of them admit their cost, and else none.
    ///
    /// For example, the limits of a user, of the tenant and of the whole service. One level is the same as
    /// [`check_n`](Self::check_n), and no level admits.
    ///
    /// The decision has [a part for each level](Decision::levels). The reported numbers are those of the
    /// refusing quota with the longest wait, over all levels. Each limiter [refunds](Self::refund) and
    /// [settles](Self::settle_level) its own level.
    ///
    /// The store decides all levels in one atomic step. On Redis, that is one call. On a cluster, it is one call
    /// if the keys are in one slot. Else the slots are asked in turn. Each is charged, and refunded if a later
    /// one refuses, so that no count ever exceeds its limit. These calls go on if the future is dropped. Another
    /// check may be refused because of a charge that is refunded later, and that refusal may be remembered for
    /// up to 100 ms. If a reply is lost or the process ends, such a charge stays for its window.
    ///
    /// A level that was [not asked](crate::LevelDecision::is_asked), because another one refused, may need a
    /// longer wait than [`retry_after`](Decision::retry_after).
    ///
    /// # When the store fails
    ///
    /// Each level follows the [policy](Self::on_failure) of its limiter. If one of them has no policy or is
    /// closed, the check returns the error. Levels that fall back are decided together by the counts of this
    /// process: all of them are charged, or none. Open levels admit.
    ///
    /// # Errors
    ///
    /// Returns an error
    ///
    /// - of kind [`Misconfigured`](ErrorKind::Misconfigured) if limiters have different stores, or if two levels
    ///   have the same limiter and key. No failure policy applies. The [source](std::error::Error::source) is a
    ///   [`ConfigError`](crate::ConfigError);
    /// - for each level in the same cases as [`check_n`](Self::check_n).
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use tollgate::{Key, MemoryStore, Quota, RateLimiter};
    ///
    /// let store = MemoryStore::new();
    /// let user = RateLimiter::new(store.clone(), Quota::per_minute(60)).name("user");
    /// let tenant = RateLimiter::new(store.clone(), Quota::per_minute(1_000)).name("tenant");
    /// let service = RateLimiter::new(store, Quota::per_second(20_000)).name("service");
    ///
    /// let levels = [user.on("ada"), tenant.on("acme").cost(900), service.on(Key::global())];
    /// let decision = RateLimiter::check_all(levels).await?;
    /// assert!(decision.is_allowed());
    ///
    /// // The tenant has 100 units left, so the user is not charged either.
    /// let levels = [user.on("bob"), tenant.on("acme").cost(900), service.on(Key::global())];
    /// let decision = RateLimiter::check_all(levels).await?;
    /// assert!(!decision.is_allowed());
    /// assert_eq!(decision.limit(), 1_000);
    /// assert_eq!(user.peek("bob").await?.used(), 0);
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    pub fn check_all<'a>(
        levels: impl IntoIterator<Item = LevelCheck<'a>>,
    ) -> impl Future<Output = Result<Decision, Error>> + Send {
        let levels: LevelChecks<'a> = levels.into_iter().collect();
        async move {
            let limiters = limiters_of(&levels);
            let checked = start_within_limits(levels).outcome().await;
            record(&limiters, &checked);
            checked.map_err(|failure| failure.error)
        }
    }

    /// Waits until every level admits its cost, then charges all of them.
    ///
    /// It waits as [`until_ready`](Self::until_ready) does, and checks as [`check_all`](Self::check_all) does.
    /// If the store fails, it keeps waiting if the limiter of each level that failed
    /// [waits through outages](Self::wait_through_outages).
    ///
    /// # Errors
    ///
    /// Returns an error in the same cases as [`check_all`](Self::check_all).
    ///
    /// # Panics
    ///
    /// Panics if it has to wait outside of a tokio runtime, or in a runtime without timers.
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use tollgate::{Key, MemoryStore, Quota, RateLimiter};
    ///
    /// let store = MemoryStore::new();
    /// let short = Quota::new(1, Duration::from_millis(20));
    /// let user = RateLimiter::new(store.clone(), Quota::per_minute(60)).name("user");
    /// let service = RateLimiter::new(store, short).name("service");
    /// for name in ["ada", "bob"] {
    ///     let levels = [user.on(name), service.on(Key::global())];
    ///     let decision = RateLimiter::until_all_ready(levels, Duration::from_secs(5)).await?;
    ///     assert!(decision.is_allowed());
    /// }
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    pub fn until_all_ready<'a>(
        levels: impl IntoIterator<Item = LevelCheck<'a>>,
        max_wait: Duration,
    ) -> impl Future<Output = Result<Decision, Error>> + Send {
        let levels: LevelChecks<'a> = levels.into_iter().collect();
        async move {
            let limiters = limiters_of(&levels);
            let mut wait = Wait::new(max_wait);
            loop {
                let checked = start_within_limits(levels.clone()).outcome().await;
                let checks_again = match &checked {
                    Ok(decision) => wait.after_decision(decision.view()).await,
                    Err(failure) if wait_through_outages(&limiters, failure) => {
                        wait.after_failure(&failure.error).await
                    }
                    Err(_) => false,
                };
                if !checks_again {
                    record(&limiters, &checked);
                    return checked.map_err(|failure| wait.explain(failure.error));
                }
            }
        }
    }
}

/// Returns whether the limiter of each level that failed waits for the store.
fn wait_through_outages(limiters: &[&RateLimiter], failure: &LevelsError) -> bool {
    let failed = failure.failed.iter();
    let mut failed = failed.filter_map(|index| limiters.get(*index));
    failed.all(|limiter| limiter.waits_through_outages)
}

/// Records the result of a check without HTTP: see [`record_levels`].
fn record(limiters: &[&RateLimiter], checked: &Result<Decision, LevelsError>) {
    match checked {
        Ok(decision) if decision.is_allowed() => {
            record_levels(limiters, OutcomeLabel::Admitted, decision.view());
        }
        Ok(decision) => {
            record_levels(limiters, OutcomeLabel::Refused, decision.view());
            count_refusals(limiters.iter().copied(), decision.view());
        }
        Err(failure) => {
            // The store did not fail: the check can never be admitted, which is a refusal.
            let outcome = match failure.error.kind() {
                ErrorKind::CostExceedsLimit => OutcomeLabel::Refused,
                _ => OutcomeLabel::Failed,
            };
            record_failed_levels(limiters, outcome, failure);
        }
    }
}

/// Records a decision: an admission at each level's limiter, and a refusal only at that of the reported level.
pub(crate) fn record_levels(
    limiters: &[&RateLimiter],
    outcome: OutcomeLabel,
    decision: &DecisionView,
) {
    if outcome == OutcomeLabel::Admitted {
        for (limiter, level) in limiters.iter().zip(decision.levels()) {
            limiter.telemetry.record_admission(level);
        }
    } else if let Some(limiter) = limiters.get(decision.reported_index()) {
        limiter.telemetry.record_decision(outcome, decision);
    }
}

/// Records an error at the limiter of each level that failed.
pub(crate) fn record_failed_levels(
    limiters: &[&RateLimiter],
    outcome: OutcomeLabel,
    failure: &LevelsError,
) {
    let LevelsError { error, failed } = failure;
    for limiter in failed.iter().filter_map(|index| limiters.get(*index)) {
        let kind = error.kind().text();
        limiter.telemetry.record_failure(outcome, error, kind);
    }
}

fn limiters_of<'a>(levels: &[LevelCheck<'a>]) -> SmallVec<[&'a RateLimiter; 4]> {
    levels.iter().map(|level| level.limiter).collect()
}
