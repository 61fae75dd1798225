//! Decisions that nobody holds any more, to be written over.
//!
//! A decision is some three hundred bytes. To return it by value is to move it several times, which
//! takes longer than to decide; to allocate each is no better. So each thread keeps the last few
//! that it made, and takes one again once it is the only holder.

use std::cell::RefCell;
use std::sync::Arc;

use super::Shown;

/// For what is decided while another decision is still held.
const KEPT: usize = 4;

thread_local! {
    static SPARE: RefCell<[Option<Arc<Shown>>; KEPT]> = const { RefCell::new([const { None }; KEPT]) };
}

/// One that nobody else holds; a new one where none is left.
#[inline]
pub(super) fn take() -> Arc<Shown> {
    let spare = SPARE.try_with(|spare| {
        let mut spare = spare.try_borrow_mut().ok()?;
        let mut slots = spare.iter_mut();
        let unheld = slots.find(|slot| {
            slot.as_ref()
                .is_some_and(|shown| Arc::strong_count(shown) == 1)
        });
        unheld?.take()
    });
    spare.ok().flatten().unwrap_or_default()
}

/// Keeps one for when its other holders have let it go.
#[inline]
pub(super) fn keep(shown: &Arc<Shown>) {
    // A thread that ends has no use for it.
    let _ = SPARE.try_with(|spare| {
        if let Ok(mut spare) = spare.try_borrow_mut()
            && let Some(slot) = spare.iter_mut().find(|slot| slot.is_none())
        {
            *slot = Some(Arc::clone(shown));
        }
    });
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::decision::{Answer, QuotaAnswer, Source};
    use crate::{Decision, Quota, Quotas};

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
}
