//! The answers of a store to checks that it decides together.

use std::ops::{Deref, DerefMut};

use smallvec::SmallVec;

use super::answer::Answer;

/// The answers of a [`Store`](crate::Store) to checks that it decides together: one for each, in their order.
///
/// Dereferences to a slice of [`Answer`]. The answer to a single check takes no allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answers(SmallVec<[Answer; 1]>);

impl Answers {
    /// Creates an empty answer for each of `checks` checks.
    #[must_use]
    pub fn empty(checks: usize) -> Self {
        Self(SmallVec::from_elem(Answer::default(), checks))
    }

    /// Returns whether every check is admitted, so that all of them are charged.
    #[must_use]
    #[inline]
    pub fn are_admitted(&self) -> bool {
        self.iter().all(Answer::is_admitted)
    }

    #[cfg(feature = "redis")]
    #[inline]
    pub(crate) fn push(&mut self, answer: Answer) {
        self.0.push(answer);
    }

    pub(crate) fn into_answers(self) -> impl Iterator<Item = Answer> {
        self.0.into_iter()
    }
}

impl Deref for Answers {
    type Target = [Answer];

    #[inline]
    fn deref(&self) -> &[Answer] {
        &self.0
    }
}

impl DerefMut for Answers {
    #[inline]
    fn deref_mut(&mut self) -> &mut [Answer] {
        &mut self.0
    }
}

impl From<Answer> for Answers {
    #[inline]
    fn from(answer: Answer) -> Self {
        Self(SmallVec::from_buf([answer]))
    }
}

impl FromIterator<Answer> for Answers {
    fn from_iter<I: IntoIterator<Item = Answer>>(iter: I) -> Self {
        Self(iter.into_iter().collect())
    }
}
