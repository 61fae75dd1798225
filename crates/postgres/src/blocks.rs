//! The blocked keys, which each process reads once a second.

use std::sync::Arc;
use std::time::Duration;

use sqlx::{Executor, Row, raw_sql};
use tokio::sync::Mutex;
use tollgate::store::{Block, BlockList, StoreFuture};
use tollgate::{Error, Key};

use crate::error::failed;
use crate::queue::Queue;

/// The time between two readings: other processes know a change so much later.
const INTERVAL: Duration = Duration::from_secs(1);

/// The blocked keys in Postgres, and the list of this process.
#[derive(Clone)]
pub(crate) struct Blocks {
    queue: Arc<Queue>,
    list: BlockList,
    /// Held while the list is read or changed, so that a reading from before a change does not overwrite it.
    turn: Arc<Mutex<()>>,
}

impl Blocks {
    pub(crate) fn new(queue: Arc<Queue>) -> Self {
        Self {
            queue,
            list: BlockList::shared(INTERVAL),
            turn: Arc::default(),
        }
    }

    /// Reads the blocked keys into the list of this process.
    pub(crate) fn refresh(&self) -> StoreFuture<()> {
        let Self { queue, list, turn } = self.clone();
        let asked = Arc::clone(&queue);
        asked.spawn(async move {
            let _turn = turn.lock().await;
            list.replace(read(&queue).await?);
            Ok(())
        })
    }

    /// Returns the list of this process.
    pub(crate) fn list(&self) -> BlockList {
        self.list.clone()
    }

    /// Blocks or unblocks a key in Postgres, and then in the list of this process.
    pub(crate) fn block(&self, block: Block<'_>) -> StoreFuture<bool> {
        let Self { queue, list, turn } = self.clone();
        let (limiter, key, duration) = (block.limiter.clone(), block.key.clone(), block.duration);
        let micros = i64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(i64::MAX);
        // The sum with the time has to fit, too.
        let micros = micros.min(i64::MAX / 2);
        let sql = queue
            .names()
            .block(&limiter, &key, micros, block.is_automatic);
        let asked = Arc::clone(&queue);
        asked.spawn(async move {
            let _turn = turn.lock().await;
            let row = queue
                .pool()
                .fetch_one(raw_sql(&sql))
                .await
                .map_err(failed)?;
            let took_effect: Option<bool> = row.try_get(0).map_err(failed)?;
            match took_effect {
                None => Err(BlockList::full()),
                Some(false) => Ok(false),
                // Postgres has decided, so that the list of this process does not.
                Some(true) => list.put(Block::new(&limiter, &key, duration)),
            }
        })
    }
}

/// Reads the blocked keys, each with its limiter and the remaining time.
async fn read(queue: &Queue) -> Result<Vec<(Key, Key, Duration)>, Error> {
    let sql = queue.names().blocked();
    let rows = queue
        .pool()
        .fetch_all(raw_sql(&sql))
        .await
        .map_err(failed)?;
    let blocks = rows.iter().filter_map(|row| {
        let (limiter, key): (String, String) = (row.try_get(0).ok()?, row.try_get(1).ok()?);
        let left = u64::try_from(row.try_get::<i64, _>(2).ok()?).ok()?;
        let keys = (Key::from_stored(&limiter)?, Key::from_stored(&key)?);
        Some((keys.0, keys.1, Duration::from_micros(left)))
    });
    Ok(blocks.collect())
}
