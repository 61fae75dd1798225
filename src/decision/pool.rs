//! Decisions that nobody holds any more, to be written over.
//!
//! A decision is some three hundred bytes. To return it by value is to move it several times, which
//! takes longer than to decide; to allocate each is no better. So a thread keeps the last few that
//! were let go there, and takes one of them for the next.

use std::cell::RefCell;
use std::ops::Deref;
use std::sync::{Arc, LazyLock};

use arrayvec::ArrayVec;

use super::decision::DecisionData;

/// For what is decided while another decision is still held.
const KEPT: usize = 4;

thread_local! {
    static SPARE: RefCell<ArrayVec<Arc<DecisionData>, KEPT>> = const { RefCell::new(ArrayVec::new_const()) };
}

/// A decision that is kept for the next one when its last holder lets it go.
///
/// It holds something until it is dropped.
#[derive(Clone, Default)]
pub(super) struct Pooled(Option<Arc<DecisionData>>);

impl Pooled {
    /// One that nobody else holds; a new one where none is left.
    #[inline]
    pub(super) fn take() -> Self {
        let spare = SPARE.try_with(|spare| spare.try_borrow_mut().ok()?.pop());
        Self(Some(spare.ok().flatten().unwrap_or_default()))
    }

    /// To be written to by its only holder; a copy where there are others.
    #[inline]
    pub(super) fn make_mut(&mut self) -> &mut DecisionData {
        Arc::make_mut(self.0.get_or_insert_default())
    }
}

impl Deref for Pooled {
    type Target = DecisionData;

    #[inline]
    fn deref(&self) -> &DecisionData {
        static NOTHING: LazyLock<DecisionData> = LazyLock::new(DecisionData::default);
        self.0.as_deref().unwrap_or_else(|| &NOTHING)
    }
}

impl Drop for Pooled {
    #[inline]
    fn drop(&mut self) {
        // Of two holders that let it go at once, each may see the other: then it is freed.
        if let Some(mut last) = self.0.take_if(|shown| Arc::strong_count(shown) == 1) {
            // Else it would hold the decision of another layer for as long as it is spare.
            if let Some(shown) = Arc::get_mut(&mut last) {
                shown.outer = None;
            }
            // A thread that ends has no use for it.
            let _ = SPARE.try_with(|spare| spare.try_borrow_mut().ok()?.try_push(last).ok());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::decision::answer::{Answer, QuotaAnswer, Source};
    use crate::decision::decision::Decision;
    use crate::quota::{Quota, Quotas};

    fn decide(limit: u32) -> Decision {
        let answer = QuotaAnswer::admitted(limit / 2, Duration::ZERO);
        let answer = Answer::new(Source::Memory, [answer]);
        Decision::new(&Quotas::from(Quota::per_hour(limit)), 1, answer).unwrap()
    }

    #[test]
    fn what_somebody_holds_is_not_written_over() {
        let held: Vec<_> = (0..20).map(decide).collect();
        let view = decide(20).view().clone();
        // Those that nobody held are written over here.
        for limit in 30..50 {
            assert_eq!(decide(limit).limit(), limit);
        }
        for (limit, decision) in (0..).zip(&held) {
            assert_eq!((decision.limit(), decision.used()), (limit, limit / 2));
        }
        assert_eq!((view.limit(), view.used()), (20, 10));
    }

    #[test]
    fn a_decision_that_was_let_go_is_the_next_one() {
        let place = |limit| std::ptr::from_ref(decide(limit).answer());
        assert_eq!(place(1), place(2));
    }

    #[test]
    fn a_decision_is_let_go_by_the_last_who_holds_a_view() {
        let decision = decide(1);
        let place = std::ptr::from_ref(decision.answer());
        let view = decision.view().clone();
        drop(decision);
        assert_ne!(std::ptr::from_ref(decide(2).answer()), place);
        drop(view);
        assert_eq!(std::ptr::from_ref(decide(3).answer()), place);
    }
}
