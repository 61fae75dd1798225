//! Builds a decision from the store's answers, in pooled memory.

use super::answer::Answer;
use super::answers::Answers;
use super::decision::{Decision, DecisionData, DecisionView};
use super::levels::{LevelData, LevelLimiter, reported_index};
use super::pool::Unshared;
use crate::key::IntoKey;
use crate::quota::{Quotas, ShareId};

/// Builds one decision. Call [`set_level`](Self::set_level) for each level and [`begin`](Self::begin), let the
/// store write its answers, then [`finish`](Self::finish).
#[derive(Default)]
pub(crate) struct DecisionBuilder(Unshared<DecisionData>);

impl DecisionBuilder {
    /// Takes pooled memory of this thread, or allocates some.
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Self(Unshared::take())
    }

    /// Sets the next level, over the level of an earlier decision. Returns it, with an empty answer.
    #[inline(always)]
    pub(crate) fn set_level(
        &mut self,
        index: usize,
        quotas: &Quotas,
        cost: u32,
        share: Option<ShareId>,
        limiter: LevelLimiter<'_>,
        key: impl IntoKey,
    ) -> Option<(&mut LevelData, &mut Answer)> {
        let DecisionData {
            levels, answers, ..
        } = self.0.get_mut();
        if levels.len() <= index {
            levels.resize_with(index + 1, LevelData::default);
        }
        let level = levels.get_mut(index)?;
        level.set(quotas, cost, share, limiter, key);
        Some((level, answers.reset(index)?))
    }

    /// Forgets the other levels of an earlier decision. Returns the levels.
    #[inline(always)]
    pub(crate) fn begin(&mut self, levels: usize) -> &[LevelData] {
        let DecisionData {
            levels: data,
            answers,
            ..
        } = self.0.get_mut();
        if data.len() > levels {
            data.truncate(levels);
        }
        answers.truncate(levels);
        data
    }

    /// Returns the levels.
    #[inline]
    pub(crate) fn levels(&self) -> &[LevelData] {
        &self.0.levels
    }

    /// Returns the levels, and their answers for a store to write to.
    #[inline]
    pub(crate) fn levels_and_answers(&mut self) -> (&mut [LevelData], &mut Answers) {
        let data = self.0.get_mut();
        (&mut data.levels, &mut data.answers)
    }

    /// Returns the answers to the levels, which are empty before there are any.
    #[inline]
    pub(crate) fn answers(&self) -> &Answers {
        &self.0.answers
    }

    /// Decides by the answers. Returns whether the check is admitted. If one level is refused, others may have no answer:
    /// they were not asked.
    ///
    /// # Errors
    ///
    /// Fails with the number of answers and of quotas of a level, if they differ.
    #[inline(always)]
    pub(crate) fn decide(&mut self) -> Result<bool, (usize, usize)> {
        let DecisionData {
            levels,
            answers,
            allowed,
            reported,
            ..
        } = self.0.get_mut();
        // Most checks have one level, and most limiters one quota.
        if let ([level], [answer]) = (&levels[..], &answers[..])
            && let ([_], [only]) = (&level.quotas[..], answer.quotas())
        {
            (*allowed, *reported) = (only.is_admitted(), (0, 0));
            return Ok(*allowed);
        }
        *allowed = answers.are_admitted();
        let is_admitted = *allowed;
        for (level, answer) in levels.iter().zip(answers.iter()) {
            let (quotas, answered) = (level.quotas.len(), answer.quotas().len());
            if quotas != answered && (answered > 0 || *allowed) {
                return Err((answered, quotas));
            }
        }
        let index = reported_index(self.0.levels());
        self.0.get_mut().reported = index;
        Ok(is_admitted)
    }

    /// Returns the decision.
    #[inline(always)]
    pub(crate) fn finish(self) -> Decision {
        Decision::holding(DecisionView::new(self.0.share()))
    }
}

#[cfg(test)]
impl Decision {
    /// Decides by an answer, without a key.
    pub(crate) fn new(quotas: &Quotas, cost: u32, answer: Answer) -> Self {
        let mut builder = DecisionBuilder::of_one("default", quotas, cost, answer);
        for level in &mut builder.0.get_mut().levels {
            level.charged = None;
        }
        builder.decide().unwrap();
        builder.finish()
    }

    /// Decides by an answer, as a limiter of this name.
    pub(crate) fn by(limiter: &str, quotas: &Quotas, answer: Answer) -> Self {
        let mut builder = DecisionBuilder::of_one(limiter, quotas, 1, answer);
        builder.decide().unwrap();
        builder.finish()
    }
}

#[cfg(test)]
impl DecisionBuilder {
    fn of_one(limiter: &str, quotas: &Quotas, cost: u32, answer: Answer) -> Self {
        let id = super::LimiterId {
            name: crate::Key::from(limiter).fingerprint(),
            store: super::StoreId::unique(),
        };
        let name = &limiter.into();
        let mut builder = Self::new();
        builder.set_level(
            0,
            quotas,
            cost,
            None,
            LevelLimiter {
                name,
                id,
                lease: 0,
                begun_at: 0,
                place: 0,
            },
            "ada",
        );
        builder.begin(1);
        *builder.levels_and_answers().1 = answer.into();
        builder
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::decision::{QuotaAnswer, Source};
    use crate::quota::Quota;

    const SECOND: Duration = Duration::from_secs(1);

    fn decide<const N: usize>(quotas: [(u32, QuotaAnswer); N]) -> Decision {
        let list: Quotas = (1..)
            .zip(&quotas)
            .map(|(n, (limit, _))| Quota::new(*limit, n * SECOND))
            .collect();
        let answers = quotas.into_iter().map(|(_, answer)| answer);
        Decision::new(&list, 1, Answer::new(Source::Memory, answers))
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
    fn a_soft_quota_is_reported_only_if_all_are_soft() {
        let hard = Quota::per_second(9);
        let soft = [1, 2].map(|n| Quota::new(5, n * SECOND).soft());
        let exceeded =
            |quota: &Quota| QuotaAnswer::refused(5, Some(7 * SECOND), SECOND).softened(quota);
        let answers = [exceeded(&soft[0]), QuotaAnswer::admitted(4, SECOND)];
        let only_soft = Decision::new(
            &Quotas::from(&soft),
            1,
            Answer::new(Source::Memory, answers),
        );
        assert!(only_soft.is_allowed() && only_soft.is_exceeded());
        assert_eq!((only_soft.limit(), only_soft.remaining()), (5, 0));
        assert_eq!(only_soft.retry_after(), None);

        let [first, second] = soft;
        let quotas = Quotas::from([first, hard, second]);
        let admitted = QuotaAnswer::admitted(2, SECOND);
        let of = |hard| Answer::new(Source::Memory, [answers[0], hard, answers[1]]);
        let decision = Decision::new(&quotas, 1, of(admitted));
        assert!(decision.is_allowed() && decision.is_exceeded());
        assert_eq!(
            (decision.limit(), decision.used(), decision.remaining()),
            (9, 2, 7)
        );

        let refused = QuotaAnswer::refused(9, Some(3 * SECOND), SECOND);
        let decision = Decision::new(&quotas, 1, of(refused));
        assert!(!decision.is_allowed() && decision.is_exceeded());
        assert_eq!(
            (decision.limit(), decision.retry_after()),
            (9, Some(3 * SECOND))
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
        Decision::new(&Quotas::from(Quota::per_hour(limit)), 1, answer)
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
