//! The groups of the rows of a batch.
#![cfg_attr(
    not(test),
    expect(
        clippy::indexing_slicing,
        reason = "the parent of a row is a row of the same batch"
    )
)]

/// The groups of rows: requests join the rows that they have in common.
///
/// A group has the number of one of its rows.
#[derive(Debug, Default)]
pub(super) struct Groups {
    /// For each row another row of its group, or itself.
    parents: Vec<usize>,
}

impl Groups {
    /// Creates a group for each row.
    pub(super) fn of_single_rows(count: usize) -> Self {
        Self {
            parents: (0..count).collect(),
        }
    }

    /// Makes one group of the groups of these rows.
    pub(super) fn join(&mut self, rows: &[usize]) {
        let Some((first, others)) = rows.split_first() else {
            return;
        };
        let joined = self.root(*first);
        for other in others {
            let root = self.root(*other);
            self.parents[root] = joined;
        }
    }

    /// Returns the group of a row. `None` if there is no such row.
    pub(super) fn of(&self, row: usize) -> Option<usize> {
        (row < self.parents.len()).then(|| self.root(row))
    }

    fn root(&self, mut row: usize) -> usize {
        while self.parents[row] != row {
            row = self.parents[row];
        }
        row
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_request_are_in_one_group_also_through_others() {
        let mut groups = Groups::of_single_rows(6);
        groups.join(&[3, 4]);
        groups.join(&[1, 2]);
        groups.join(&[5]);
        groups.join(&[]);
        assert_ne!(groups.of(1), groups.of(3));
        groups.join(&[4, 2]);
        let group = groups.of(1);
        assert!(group.is_some());
        for row in 2..5 {
            assert_eq!(groups.of(row), group);
        }
        assert_eq!(groups.of(0), Some(0));
        assert_eq!(groups.of(5), Some(5));
        assert_eq!(groups.of(6), None);
    }
}
