//! The list of blocked keys in pages: 10 000 rows at once would freeze the tab.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tollgate::Key;

/// The number of rows of a page.
const ROWS: usize = 50;

/// The part of the list that the operator looks at.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct PageRequest {
    /// Lists only keys whose stored text contains this.
    search: String,
    /// From 0. The last page, if there are fewer.
    page: usize,
}

#[derive(Serialize)]
pub(crate) struct Page {
    /// The number of blocked keys of the limiter.
    total: usize,
    /// The number of those that the search found.
    found: usize,
    page: usize,
    pages: usize,
    /// The number of the first row, from 1.
    first: usize,
    rows: Vec<Row>,
}

/// A block. Whatever else is known of it becomes a field here, and a column on the page.
#[derive(Serialize)]
struct Row {
    key: String,
    /// The time until the block ends.
    seconds: f64,
}

impl PageRequest {
    /// Returns the requested page of a list.
    pub(crate) fn of(&self, blocked: &[(Key, Duration)]) -> Page {
        let search = self.search.trim();
        let found: Vec<_> = blocked
            .iter()
            .filter(|(key, _)| key.as_str().contains(search))
            .collect();
        let pages = found.len().div_ceil(ROWS).max(1);
        let page = self.page.min(pages - 1);
        let rows = found.iter().skip(page * ROWS).take(ROWS);
        Page {
            total: blocked.len(),
            found: found.len(),
            page,
            pages,
            first: page * ROWS + 1,
            rows: rows.map(|(key, left)| Row::new(key, *left)).collect(),
        }
    }
}

impl Row {
    fn new(key: &Key, left: Duration) -> Self {
        Self {
            key: key.as_str().to_owned(),
            seconds: left.as_secs_f64(),
        }
    }
}
