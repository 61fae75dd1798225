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
    pub(super) fn single_rows(count: usize) -> Self {
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

    pub(super) fn find(&self, row: usize) -> Option<usize> {
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
        let mut groups = Groups::single_rows(6);
        groups.join(&[3, 4]);
        groups.join(&[1, 2]);
        groups.join(&[5]);
        groups.join(&[]);
        assert_ne!(groups.find(1), groups.find(3));
        groups.join(&[4, 2]);
        let group = groups.find(1);
        assert!(group.is_some());
        for row in 2..5 {
            assert_eq!(groups.find(row), group);
        }
        assert_eq!(groups.find(0), Some(0));
        assert_eq!(groups.find(5), Some(5));
        assert_eq!(groups.find(6), None);
    }
}
