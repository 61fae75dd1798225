//! The list of blocked keys in pages: 10 000 rows at once would freeze the tab.

use std::time::Duration;

use futures_util::future::try_join_all;
use serde::{Deserialize, Serialize};
use tollgate::{Admin, BlockReason, Error, Key};

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

#[derive(Serialize)]
struct Row {
    key: String,
    /// The time until the block ends.
    seconds: f64,
    reason: String,
}

impl PageRequest {
    /// Returns the requested page of the keys that a limiter blocks.
    pub(crate) async fn of(&self, admin: &Admin) -> Result<Page, Error> {
        let blocked = admin.blocked().await?;
        let search = self.search.trim();
        let found: Vec<_> = blocked
            .iter()
            .filter(|(key, _)| key.as_str().contains(search))
            .collect();
        let pages = found.len().div_ceil(ROWS).max(1);
        let page = self.page.min(pages - 1);
        // The store is asked for the reasons of one page only.
        let rows = found.iter().skip(page * ROWS).take(ROWS);
        let rows = rows.map(|(key, left)| Row::new(admin, key, *left));
        Ok(Page {
            total: blocked.len(),
            found: found.len(),
            page,
            pages,
            first: page * ROWS + 1,
            rows: try_join_all(rows).await?,
        })
    }
}

impl Row {
    async fn new(admin: &Admin, key: &Key, left: Duration) -> Result<Self, Error> {
        let status = admin.status(key).await?;
        Ok(Self {
            key: key.as_str().to_owned(),
            seconds: left.as_secs_f64(),
            reason: match status.block_reason {
                Some(BlockReason::Refusals { blocks }) => {
                    format!("refused too often, block {blocks}")
                }
                _ => "operator".to_owned(),
            },
        })
    }
}
