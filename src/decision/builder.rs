//! Builds a decision from the store's answer, in pooled memory.

use super::answer::{Answer, QuotaAnswer};
use super::decision::{Decision, DecisionData, DecisionView};
use super::levels::{GrantUnits, LevelData, LevelName, Levels, reported_index};
use super::pool::Pooled;
use crate::key::Key;
use crate::quota::{Quota, Quotas};

/// Builds one decision. Call [`start`](Self::start), let the store write its answer or
/// [set](Self::set_answer) it, then [`decide`](Self::decide) and [`finish`](Self::finish).
///
/// For a check of several keys, call [`set_level`](Self::set_level) for each, then
/// [`decide_levels`](Self::decide_levels).
#[derive(Default)]
pub(crate) struct DecisionBuilder(Pooled<DecisionData>);

impl DecisionBuilder {
    /// Takes pooled memory of this thread, or allocates some.
    #[inline]
    pub(crate) fn new() -> Self {
        Self(Pooled::take())
    }

    /// Starts the decision on a check, and overwrites an earlier decision. Returns the stored key, and the
    /// empty answer for the store to write to.
    ///
    /// Takes `impl Into<Key>` to convert the key in place: copying it takes a tenth of a check.
    #[inline(always)]
    pub(crate) fn start(
        &mut self,
        quotas: &Quotas,
        cost: u32,
        limiter: LevelName<'_>,
        key: impl Into<Key>,
    ) -> (&Key, &mut Answer) {
        let data = self.0.make_mut();
        if !data.others.is_empty() {
            data.forget_levels();
        }
        data.first.start(quotas, cost, limiter, key)
    }

    /// Sets a level of a check of several keys, with its answer. Overwrites that of an earlier decision.
    pub(crate) fn set_level(
        &mut self,
        index: usize,
        quotas: &Quotas,
        cost: u32,
        limiter: LevelName<'_>,
        key: Key,
        answer: Answer,
    ) {
        let data = self.0.make_mut();
        let level = match index.checked_sub(1) {
            None => &mut data.first,
            Some(other) => {
                if data.others.len() <= other {
                    data.others.resize_with(other + 1, LevelData::default);
                }
                match data.others.get_mut(other) {
                    Some(level) => level,
                    None => return,
                }
            }
        };
        level.start(quotas, cost, limiter, key);
        level.answer = answer;
    }

    /// Sets the units of a level that came from grants, beyond those of its answer.
    pub(crate) fn set_grants(&mut self, level: usize, grants: Vec<GrantUnits>) {
        let data = self.0.make_mut();
        let level = match level.checked_sub(1) {
            None => Some(&mut data.first),
            Some(other) => data.others.get_mut(other),
        };
        if let Some(level) = level {
            level.grants = grants;
        }
    }

    /// Sets an answer that the store did not write in place.
    pub(crate) fn set_answer(&mut self, answer: Answer) {
        self.0.make_mut().first.answer = answer;
    }

    /// Decides by the answer.
    ///
    /// # Errors
    ///
    /// Fails with the number of answers if it differs from the number of quotas.
    #[inline]
    pub(crate) fn decide(&mut self) -> Result<(), usize> {
        let data = self.0.make_mut();
        let answers = data.first.answer.quotas();
        if answers.len() != data.first.quotas.len() {
            return Err(answers.len());
        }
        // Most limiters have one quota.
        (data.allowed, data.reported) = match answers {
            [answer] => (answer.is_admitted(), 0),
            answers => {
                let allowed = answers.iter().all(QuotaAnswer::is_admitted);
                let (_, reported) = reported_index(Levels::new(&data.first, &[]));
                (allowed, reported)
            }
        };
        Ok(())
    }

    /// Decides by the answers to all levels, of which there are `levels`. An empty answer is that of a level that
    /// was not asked.
    ///
    /// The caller has compared the number of answers with the number of quotas.
    pub(crate) fn decide_levels(&mut self, levels: usize) {
        let data = self.0.make_mut();
        data.others.truncate(levels.saturating_sub(1));
        data.allowed = data.levels().all(|level| level.answer.is_admitted());
        (data.reported_level, data.reported) = reported_index(data.levels());
        let allowed = data.allowed;
        let held = data.others.iter().map(|level| match allowed {
            true if level.is_counted() => Some(level.cost),
            _ => Some(0),
        });
        data.held_by_others.clear();
        data.held_by_others.extend(held);
    }

    /// Returns the key and the cost of the check, if the decision was started.
    pub(crate) fn key_and_cost(&self) -> Option<(&Key, u32)> {
        let charged = self.0.first.charged.as_ref()?;
        Some((&charged.key, self.0.first.cost))
    }

    /// Returns the quotas of the check.
    pub(crate) fn quota_list(&self) -> &[Quota] {
        &self.0.first.quotas
    }

    /// Returns the decision.
    #[inline]
    pub(crate) fn finish(self) -> Decision {
        Decision::holding(DecisionView::new(self.0))
    }
}

#[cfg(test)]
impl Decision {
    /// Decides by an answer, without a key. Fails as [`DecisionBuilder::decide`] does.
    pub(crate) fn new(quotas: &Quotas, cost: u32, answer: Answer) -> Result<Self, usize> {
        let mut builder = DecisionBuilder::new();
        let data = builder.0.make_mut();
        data.forget_levels();
        data.first.start_without_key(quotas, cost);
        builder.set_answer(answer);
        builder.decide()?;
        Ok(builder.finish())
    }

    /// Decides by an answer, as a limiter of this name.
    pub(crate) fn by(limiter: &str, quotas: &Quotas, answer: Answer) -> Self {
        let id = super::LimiterId {
            name: Key::from(limiter).fingerprint(),
            store: super::StoreId::unique(),
        };
        let name = &limiter.into();
        let mut builder = DecisionBuilder::new();
        builder.start(quotas, 1, LevelName { name, id }, "ada");
        builder.set_answer(answer);
        builder.decide().unwrap();
        builder.finish()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::decision::{QuotaDecision, Source};

    const SECOND: Duration = Duration::from_secs(1);

    fn decide<const N: usize>(quotas: [(u32, QuotaAnswer); N]) -> Decision {
        let list: Quotas = (1..)
            .zip(&quotas)
            .map(|(n, (limit, _))| Quota::new(*limit, n * SECOND))
            .collect();
        let answers = quotas.into_iter().map(|(_, answer)| answer);
        Decision::new(&list, 1, Answer::new(Source::Memory, answers)).unwrap()
    }

    #[test]
    fn the_refusing_quota_with_the_longest_wait_is_reported() {
        let decision = decide([
            (5, QuotaAnswer::refused(5, Some(SECOND), SECOND)),
            (7, QuotaAnswer::admitted(7, 9 * SECOND)),
            (6, QuotaAnswer::refused(6, Some(3 * SECOND), SECOND)),
        ]);
        assert!(!decision.is_allowed());
        assert_eq!((decision.limit(), decision.used()), (6, 6));
        assert_eq!(decision.retry_after(), Some(3 * SECOND));
    }

    #[test]
    fn never_is_the_longest_wait() {
        let decision = decide([
            (5, QuotaAnswer::refused(5, Some(9 * SECOND), SECOND)),
            (0, QuotaAnswer::refused(0, None, Duration::ZERO)),
        ]);
        assert_eq!((decision.limit(), decision.retry_after()), (0, None));
        assert!(!decision.is_allowed());
    }

    #[test]
    fn if_all_quotas_admit_the_one_with_the_fewest_units_left_is_reported() {
        let reported = |quotas: [(u32, QuotaAnswer); 2]| {
            let decision = decide(quotas);
            let reported = decision.view().reported().unwrap().quota().clone();
            decision
                .quotas()
                .position(|quota| *quota.quota() == reported)
                .unwrap()
        };
        let admitted = QuotaAnswer::admitted;
        assert_eq!(
            reported([(9, admitted(1, SECOND)), (5, admitted(1, SECOND))]),
            1
        );
        assert_eq!(
            reported([(5, admitted(1, SECOND)), (5, admitted(1, 2 * SECOND))]),
            1
        );
        assert_eq!(
            reported([(5, admitted(1, SECOND)), (5, admitted(1, SECOND))]),
            0
        );
    }

    #[test]
    fn remaining_is_the_least_and_never_negative() {
        let decision = decide([
            (5, QuotaAnswer::refused(9, Some(SECOND), SECOND)),
            (7, QuotaAnswer::refused(6, Some(2 * SECOND), SECOND)),
        ]);
        assert_eq!((decision.remaining(), decision.used()), (0, 6));
    }

    #[test]
    fn without_quotas_there_is_no_limit() {
        let decision = decide([]);
        assert!(decision.is_allowed());
        assert_eq!(
            (decision.limit(), decision.used(), decision.remaining()),
            (u32::MAX, 0, u32::MAX)
        );
        assert_eq!(
            (decision.retry_after(), decision.reset_after()),
            (None, Duration::ZERO)
        );
    }

    fn decide_one(limit: u32) -> Decision {
        let answer = QuotaAnswer::admitted(limit / 2, Duration::ZERO);
        let answer = Answer::new(Source::Memory, [answer]);
        Decision::new(&Quotas::from(Quota::per_hour(limit)), 1, answer).unwrap()
    }

    #[test]
    fn a_held_decision_is_not_overwritten() {
        let held: Vec<_> = (0..20).map(decide_one).collect();
        let view = decide_one(20).view().clone();
        // Dropped decisions are overwritten here.
        for limit in 30..50 {
            assert_eq!(decide_one(limit).limit(), limit);
        }
        for (limit, decision) in (0..).zip(&held) {
            assert_eq!((decision.limit(), decision.used()), (limit, limit / 2));
        }
        assert_eq!((view.limit(), view.used()), (20, 10));
    }

    #[test]
    fn a_decision_and_its_view_return_the_same_values() {
        let refused = QuotaAnswer::refused(3, Some(2 * SECOND), 7 * SECOND);
        let mut refused = decide([(4, refused), (9, QuotaAnswer::admitted(8, SECOND))]);
        let admitted = decide([(6, QuotaAnswer::admitted(5, SECOND))]);
        refused.set_outer(admitted.view().clone());
        for decision in [refused, admitted] {
            let view = decision.view();
            assert_eq!(decision.is_allowed(), view.is_allowed());
            assert_eq!(decision.cost(), view.cost());
            assert_eq!(decision.limit(), view.limit());
            assert_eq!(decision.used(), view.used());
            assert_eq!(decision.remaining(), view.remaining());
            assert_eq!(decision.reset_after(), view.reset_after());
            assert_eq!(decision.retry_after(), view.retry_after());
            assert_eq!(decision.source(), view.source());
            let limit = |outer: Option<&DecisionView>| outer.map(DecisionView::limit);
            assert_eq!(limit(decision.outer()), limit(view.outer()));
            let limits = |quota: QuotaDecision<'_>| (quota.limit(), quota.used());
            assert!(decision.quotas().map(limits).eq(view.quotas().map(limits)));
        }
    }

    #[test]
    fn a_dropped_decision_is_reused() {
        let address = |limit| std::ptr::from_ref(decide_one(limit).view().answer());
        assert_eq!(address(1), address(2));
    }

    #[test]
    fn a_decision_is_reused_once_its_last_view_is_dropped() {
        let decision = decide_one(1);
        let address = std::ptr::from_ref(decision.view().answer());
        let view = decision.view().clone();
        drop(decision);
        assert_ne!(std::ptr::from_ref(decide_one(2).view().answer()), address);
        drop(view);
        assert_eq!(std::ptr::from_ref(decide_one(3).view().answer()), address);
    }
}
