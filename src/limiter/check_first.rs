//! A check of several alternatives, of which the first that has room is charged.
//!
//! 1. An alternative is a list of levels. They are tried in order, each as a check of its own: what is known without the store
//!    costs no call.
//! 2. A refused alternative has charged nothing, so at most one is charged, and nothing is refunded.
//! 3. An error ends the check: what the store has charged is unknown, and a later alternative would pay, too.
//! 4. If an alternative falls back and is refused, the later ones are decided without the store for the same reason.
//! 5. If all refuse, the decision is that of the alternative with the shortest wait.

use std::future::Future;
use std::time::Duration;

use super::asked_level::{AskedLevel, AskedLevels};
use super::check::record_and_decide;
use super::checked::{CheckError, Checked, DecidedCheck, FailedCheck};
use super::decision::Decision;
use super::level_check::{LevelCheck, levels};
use super::limiter::RateLimiter;
use super::pending_check::{PendingCheck, verify_store};
use crate::decision::Source;
use crate::error::{Error, ErrorKind};
use crate::key::Key;

/// The most alternatives of a check, and the most levels of one. Each alternative without room may take a call.
const MAX_ALTERNATIVES: usize = 8;
const MAX_LEVELS: usize = 8;

impl RateLimiter {
    /// Charges the first of several alternatives that has room, and nothing else.
    ///
    /// For a pool of upstream keys, for a limit that spills over into another one, or for an allowance with credits behind it.
    /// An alternative is a list of [levels](Self::level): all of them have room, or it is refused. The decision says
    /// [which alternative](crate::DecisionView::alternative) is charged, and has its levels: a settlement or a refund goes
    /// there.
    ///
    /// The alternatives are tried in their order, and each takes a call if it has to be asked. A key that is blocked, paused by
    /// an upstream, or [remembered](crate::RedisStore::refusal_cache) as refused, takes none. So a pool whose first keys are
    /// used up mostly makes one call: their refusals are remembered for up to a second. For as long, a later alternative may be
    /// charged although units of an earlier one were returned by another process.
    ///
    /// If all alternatives refuse, the decision is that of the one with the shortest wait, and
    /// [`retry_after`](crate::DecisionView::retry_after) is that wait. It is a lower bound if a level of the alternative was
    /// [not asked](crate::LevelDecision::is_asked), because another one is blocked or remembered. A cost above a
    /// limit is a refusal of its alternative, not an error. There are several moments: an alternative that
    /// was refused may have room when the last one is asked.
    ///
    /// There are 1 to 8 alternatives of 1 to 8 levels. All levels have one store. A level may stand in several
    /// alternatives, also with another cost.
    ///
    /// # Failures
    ///
    /// The [failure policy](Self::on_failure) of the alternative that is asked applies. [`open`](crate::FailurePolicy::open)
    /// admits it. [`fall_back`](crate::FailurePolicy::fall_back) decides it, and the later ones, by the counts of this process.
    /// With [`closed`](crate::FailurePolicy::closed), or without a policy, the check ends with the error: after a timeout, the
    /// store may have charged that alternative, so no other one is tried.
    ///
    /// # Errors
    ///
    /// Returns an error if the store fails, and one of kind [`Misconfigured`](crate::ErrorKind::Misconfigured)
    ///
    /// - if there are no alternatives or more than 8, or if one has no levels or more than 8;
    /// - if the levels cannot be [checked together](Self::check_all), or have several stores;
    /// - if a limiter has a [lease](Self::lease), or a quota is [in flight](crate::Quota::in_flight) or
    ///   [soft](crate::Quota::soft).
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use tollgate::{MemoryStore, Quota, RateLimiter};
    ///
    /// let upstream = RateLimiter::new(MemoryStore::new(), Quota::per_minute(2)).name("upstream");
    /// let pool = ["key-a", "key-b"];
    ///
    /// for expected in [Some(0), Some(0), Some(1), Some(1), None] {
    ///     let chosen = RateLimiter::check_first(pool.map(|key| [upstream.level(key)])).await?;
    ///     assert_eq!(chosen.alternative(), expected);
    /// }
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    pub fn check_first<'a, A>(
        alternatives: impl IntoIterator<Item = A>,
    ) -> impl Future<Output = Result<Decision, Error>> + Send
    where
        A: IntoIterator<Item = LevelCheck<'a>>,
    {
        let alternatives = Alternatives::new(alternatives.into_iter().map(levels));
        async move { record_and_decide(alternatives.check().await) }
    }
}

/// The alternatives of a check, in the order in which they are tried.
pub(crate) struct Alternatives(Vec<PendingCheck>);

impl Alternatives {
    pub(crate) fn new(alternatives: impl IntoIterator<Item = AskedLevels>) -> Self {
        Self(alternatives.into_iter().map(PendingCheck::new).collect())
    }

    /// Makes an alternative of each key: the level of place 0 counts that key, and the other levels are those of all
    /// alternatives.
    pub(crate) fn with_keys(levels: &AskedLevels, keys: &[Key]) -> Self {
        Self::new(keys.iter().map(|key| {
            let of_key = levels.iter().map(|level| {
                let mut own = level.asked_anew();
                if own.record().place == 0 {
                    own.record_mut().key = key.clone();
                }
                own
            });
            of_key.collect()
        }))
    }

    /// Fails a check that is asked for what no check of alternatives does.
    pub(crate) fn refuse_unsupported(self, what: &str) -> Checked {
        let text = format!("a check of several alternatives has no {what}: leave it out");
        Err(self.fail_with(CheckError::at(0, Error::alternatives(text))))
    }

    pub(crate) async fn check(self) -> Checked {
        if let Err(misuse) = self.verify() {
            return Err(self.fail_with(misuse));
        }
        let mut refused: Option<DecidedCheck> = None;
        let mut falls_back = false;
        for (index, alternative) in (0..).zip(self.0) {
            let mut decided = if falls_back {
                alternative.decide_without_store(&after_failure())?
            } else {
                alternative.start().await?
            };
            let decision = &mut decided.decision;
            if decision.is_allowed() {
                decision.set_alternative(index);
                return Ok(decided);
            }
            falls_back |= decision
                .levels()
                .any(|level| level.source() == Source::Fallback);
            let is_best = refused
                .as_ref()
                .is_none_or(|best| refusal_wait(&decided) < refusal_wait(best));
            if is_best {
                refused = Some(decided);
            }
        }
        refused.ok_or_else(|| Self(Vec::new()).fail_with(wrong_number(0)))
    }

    /// Finds misuse of any alternative, before one is charged.
    fn verify(&self) -> Result<(), CheckError> {
        let alternatives = self.0.len();
        if alternatives == 0 || alternatives > MAX_ALTERNATIVES {
            return Err(wrong_number(alternatives));
        }
        let first = self.0.first().and_then(|check| check.levels.first());
        for check in &self.0 {
            let levels = check.levels.len();
            if levels == 0 || levels > MAX_LEVELS {
                let text = format!("an alternative has {levels} levels: give it 1 to {MAX_LEVELS}");
                return Err(CheckError::at(0, Error::alternatives(text)));
            }
            check.verify_together()?;
            for level in &check.levels {
                verify_level(level).map_err(|error| check.failure(error))?;
                if let Some(first) = first {
                    verify_store(first, level).map_err(|error| check.failure(error))?;
                }
            }
        }
        Ok(())
    }

    fn fail_with(self, failure: CheckError) -> Box<FailedCheck> {
        let first = self.0.into_iter().next();
        first
            .unwrap_or_else(|| PendingCheck::new(AskedLevels::new()))
            .fail_with(failure)
    }
}

fn refusal_wait(decided: &DecidedCheck) -> Duration {
    decided.decision.retry_after().unwrap_or(Duration::MAX)
}

fn wrong_number(alternatives: usize) -> CheckError {
    let text = format!("a check has {alternatives} alternatives: give it 1 to {MAX_ALTERNATIVES}");
    CheckError::at(0, Error::alternatives(text))
}

/// The cause for which an alternative is not asked of the store.
fn after_failure() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "the store has failed at an earlier alternative, and may have charged it",
    )
}

/// Fails if the level takes what no check of alternatives does.
fn verify_level(level: &AskedLevel) -> Result<(), Error> {
    let quotas = level.quotas();
    let what = if level.limiter().0.lease.is_some() {
        "a lease"
    } else if quotas.has_slots() {
        "slots in flight"
    } else if quotas.has_held() {
        "a `reserve_lease`"
    } else if quotas.has_soft() {
        "soft quotas"
    } else {
        return Ok(());
    };
    let name = &level.limiter().0.facts.name;
    let text =
        format!("limiter {name:?} has {what}, which no alternative can have: check it apart");
    Err(Error::alternatives(text))
}
