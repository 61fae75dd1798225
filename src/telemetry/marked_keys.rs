//! The keys whose marks were logged in their current windows, in bounded memory.

use std::collections::HashMap;

use crate::decision::QuotaDecision;
use crate::key::Fingerprint;
use crate::lock::Mutex;

/// The most marks that are remembered per limiter. If there are more, the mark whose window ends first is forgotten, and may
/// be logged again.
const MAX_MARKS: usize = 4_096;

/// The marks of keys that were logged, each until the end of one window of its quota.
#[derive(Debug, Default)]
pub(super) struct MarkedKeys(Mutex<HashMap<MarkId, u64>>);

/// A key, the index of a quota in the list of its limiter, and the mark.
pub(super) type MarkId = (Fingerprint, usize, Mark);

/// How a quota marks a check that it admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Mark {
    /// A soft quota had no room.
    Exceeded,
    /// The used units have reached the part of the limit at which the quota warns.
    Warned,
}

impl Mark {
    /// All marks, each at the index of its discriminant.
    pub(super) const ALL: [Self; 2] = [Self::Exceeded, Self::Warned];

    pub(super) fn marks(self, quota: &QuotaDecision<'_>) -> bool {
        match self {
            Self::Exceeded => quota.is_exceeded(),
            Self::Warned => quota.is_warned(),
        }
    }

    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Exceeded => "exceeded",
            Self::Warned => "warned",
        }
    }
}

impl MarkedKeys {
    /// Remembers a mark for `window` microseconds, unless it is remembered already. Asks `has_turn` first whether it may be
    /// logged now. Returns what `has_turn` returned.
    pub(super) fn add<T>(
        &self,
        id: MarkId,
        now: u64,
        window: u64,
        has_turn: impl FnOnce() -> Option<T>,
    ) -> Option<T> {
        let mut marks = self.0.lock();
        if marks.get(&id).is_some_and(|until| now < *until) {
            return None;
        }
        let turn = has_turn()?;
        if marks.len() >= MAX_MARKS {
            // Turns are rare, so that few marks pay for this search.
            marks.retain(|_, until| now < *until);
            if marks.len() >= MAX_MARKS
                && let Some((first, _)) = marks.iter().min_by_key(|(_, until)| **until)
            {
                let first = *first;
                marks.remove(&first);
            }
        }
        marks.insert(id, now.saturating_add(window));
        Some(turn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;

    const WINDOW: u64 = 1_000;

    fn add(marks: &MarkedKeys, key: &str, mark: Mark, now: u64) -> bool {
        let id = (Key::from(key).fingerprint(), 0, mark);
        marks.add(id, now, WINDOW, || Some(())).is_some()
    }

    #[test]
    fn a_mark_is_due_once_per_key_and_window() {
        let marks = MarkedKeys::default();
        for now in [0, WINDOW, 5 * WINDOW] {
            for key in ["ada", "bob"] {
                for mark in Mark::ALL {
                    assert!(add(&marks, key, mark, now));
                    assert!(!add(&marks, key, mark, now + WINDOW - 1));
                }
            }
        }
    }

    #[test]
    fn a_mark_without_a_turn_is_due_at_its_next_turn() {
        let marks = MarkedKeys::default();
        let id = (Key::from("ada").fingerprint(), 0, Mark::Warned);
        assert_eq!(marks.add(id, 0, WINDOW, || None::<()>), None);
        assert!(add(&marks, "ada", Mark::Warned, 1));
    }

    #[test]
    fn a_flood_of_keys_is_remembered_in_bounded_memory() {
        let marks = MarkedKeys::default();
        for (now, key) in (0..).zip(0..MAX_MARKS + 100) {
            assert!(add_for_long(&marks, key, now), "{key}");
        }
        assert_eq!(marks.0.lock().len(), MAX_MARKS);
        // The oldest marks were forgotten, and the newest are known.
        assert!(!add_for_long(&marks, MAX_MARKS + 99, 10_000));
        assert!(add_for_long(&marks, 0, 10_000));
    }

    fn add_for_long(marks: &MarkedKeys, key: usize, now: u64) -> bool {
        let id = (Key::from(key.to_string()).fingerprint(), 0, Mark::Exceeded);
        marks.add(id, now, u64::MAX / 2, || Some(())).is_some()
    }
}
