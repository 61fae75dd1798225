//! The store on rows.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::batch::RowKind;
use super::blocked_row::{BlockKey, BlockedRow, RefreshBlocks};
use super::counts::{AdjustUnits, DecideChecks, Ping, ReadHolders};
use super::queue::{Database, Queue};
use super::rows::Rows;
use crate::decision::{Answers, Holding, StoreId};
use crate::error::Error;
use crate::store::block_list::BlockList;
use crate::store::circuit_breaker::CircuitBreaker;
use crate::store::counters::Counters;
use crate::store::future::StoreFuture;
use crate::store::refusal_cache::{DEFAULT_MAX_AGE, RefusalCache};
use crate::store::requests::{Adjust, Block, Check, Subject};
use crate::store::store::{Store, StoreParts};

const DEFAULT_DEADLINE: Duration = Duration::from_millis(100);

/// The time between two readings of the blocked keys: other processes know a change so much later.
const BLOCKS_INTERVAL: Duration = Duration::from_secs(1);

/// A [`Store`] on the [`Rows`] of a database. Clones share it.
///
/// Call the settings right after [`new`](Self::new), before the store is cloned or given to a limiter: each returns another
/// store on the same rows.
///
/// # Examples
///
/// ```no_run
/// # fn example(rows: impl tollgate::store::Rows) {
/// use std::time::Duration;
/// use tollgate::store::StoreOn;
/// use tollgate::{Quota, RateLimiter};
///
/// let store = StoreOn::new(rows).name("sqlite").deadline(Duration::from_millis(50));
/// let limiter = RateLimiter::new(store, Quota::per_minute(100));
/// # }
/// ```
pub struct StoreOn<R> {
    id: StoreId,
    counts: Arc<Queue<R, Counters>>,
    blocks: Arc<Queue<R, BlockedRow>>,
    rows: Arc<R>,
    parts: StoreParts,
    settings: RowsSettings,
}

#[derive(Clone, Debug)]
struct RowsSettings {
    name: Arc<str>,
    deadline: Duration,
    refusal_age: Duration,
}

impl<R: Rows> StoreOn<R> {
    /// Creates a store.
    #[must_use]
    pub fn new(rows: R) -> Self {
        let settings = RowsSettings {
            name: "other".into(),
            deadline: DEFAULT_DEADLINE,
            refusal_age: DEFAULT_MAX_AGE,
        };
        Self::build(Arc::new(rows), settings)
    }

    /// Sets the name of the store in metrics and events. The default is `other`.
    #[must_use]
    pub fn name(self, name: &str) -> Self {
        self.with(|settings| settings.name = name.into())
    }

    /// Sets how long a check waits for the database. The default is 100 ms.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        self.with(|settings| settings.deadline = deadline)
    }

    /// Sets the longest time that a refusal is repeated without asking the database. The default is one second. Zero turns the
    /// cache off.
    ///
    /// It is also the longest delay until this process sees units that other processes return, and limits that they raise.
    /// Rows that [answer at once](Rows::answers_at_once) are always asked.
    #[must_use]
    pub fn refusal_cache(self, max_age: Duration) -> Self {
        self.with(|settings| settings.refusal_age = max_age)
    }

    fn with(self, change: impl FnOnce(&mut RowsSettings)) -> Self {
        let mut settings = self.settings.clone();
        change(&mut settings);
        Self::build(self.rows, settings)
    }

    fn build(rows: Arc<R>, settings: RowsSettings) -> Self {
        let database = Database::new(Arc::clone(&rows), &settings.name, settings.deadline);
        let database = Arc::new(database);
        let counts = Queue::new(&database, RowKind::Counts);
        Self {
            id: StoreId::unique(),
            parts: parts(&counts, &settings, rows.answers_at_once()),
            counts,
            blocks: Queue::new(&database, RowKind::Blocks),
            rows,
            settings,
        }
    }

    /// Returns the rows.
    #[must_use]
    pub fn rows(&self) -> &R {
        &self.rows
    }

    /// Verifies that the database answers, for counts and for blocked keys.
    ///
    /// # Errors
    ///
    /// Returns the error of the database.
    pub async fn ping(&self) -> Result<(), Error> {
        self.counts.ask(Ping).await?;
        self.refresh_blocks(self.settings.deadline).await
    }
}

fn parts<R: Rows>(
    counts: &Arc<Queue<R, Counters>>,
    settings: &RowsSettings,
    answers_at_once: bool,
) -> StoreParts {
    // The store has the breaker, so the breaker does not keep the store.
    let probed = Arc::downgrade(counts);
    let probe = move || match probed.upgrade() {
        Some(counts) => counts.ask(Ping),
        None => StoreFuture::ready(Ok(())),
    };
    let name = &settings.name;
    let circuit_breaker = CircuitBreaker::new()
        .name(name)
        .deadline(settings.deadline)
        .probed_by(probe);
    let refusal_cache = RefusalCache::new().name(name).max_age(settings.refusal_age);
    StoreParts {
        block_list: BlockList::shared(BLOCKS_INTERVAL),
        circuit_breaker,
        refusal_cache: (!answers_at_once).then_some(refusal_cache),
        supports_leases: !answers_at_once,
        // Another process may have the same database.
        ends_with_process: false,
    }
}

impl<R: Rows> Store for StoreOn<R> {
    fn id(&self) -> StoreId {
        self.id
    }

    fn check(&self, checks: &[Check<'_>]) -> StoreFuture {
        if checks.is_empty() {
            return StoreFuture::ready(Ok(Answers::default()));
        }
        match Check::verify_distinct(checks) {
            Ok(()) => self.counts.ask(DecideChecks::new(checks)),
            Err(error) => StoreFuture::ready(Err(error)),
        }
    }

    fn adjust(&self, adjust: Adjust<'_>) -> StoreFuture<()> {
        self.counts.ask(AdjustUnits::new(adjust))
    }

    fn holders(&self, subject: Subject<'_>) -> StoreFuture<Vec<Holding>> {
        self.counts.ask(ReadHolders::new(subject))
    }

    fn block(&self, block: Block<'_>) -> StoreFuture<bool> {
        let list = self.parts.block_list.clone();
        self.blocks.ask(BlockKey::new(block, list))
    }

    fn refresh_blocks(&self, _: Duration) -> StoreFuture<()> {
        let list = self.parts.block_list.clone();
        self.blocks.ask(RefreshBlocks::new(list))
    }

    fn parts(&self) -> StoreParts {
        self.parts.clone()
    }
}

impl<R> Clone for StoreOn<R> {
    fn clone(&self) -> Self {
        Self {
            id: self.id,
            counts: Arc::clone(&self.counts),
            blocks: Arc::clone(&self.blocks),
            rows: Arc::clone(&self.rows),
            parts: self.parts.clone(),
            settings: self.settings.clone(),
        }
    }
}

impl<R> fmt::Debug for StoreOn<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreOn")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
