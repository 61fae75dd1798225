//! Automatic blocks: counts refusals and blocks keys by the rules of [`RefusalRecord`], in the transaction of a request.

use rusqlite::{Row, Transaction, params};
use tollgate::store::{RefusalOutcome, RefusalRecord, Refusals};
use tollgate::{Error, ErrorKind, Key};

use crate::{REMOVED_PER_CHECK, failed, micros, read_text, signed};

/// The most keys that are blocked automatically. The list has room for 10 000; the rest is for operators.
const MAX_BLOCKS: i64 = 9_000;

/// The most of one limiter, so that a flood at it leaves room for others.
const MAX_BLOCKS_PER_LIMITER: i64 = 1_000;

/// Counts the refusals of a key, and blocks it if a block is due.
pub(crate) fn count(
    transaction: &Transaction<'_>,
    refusals: Refusals<'_>,
    now: u64,
) -> Result<RefusalOutcome, Error> {
    let (limiter, key) = (refusals.limiter, refusals.key);
    let mut record = read(transaction, limiter, key, now)?;
    if let Some(left) = record.blocked_for(now) {
        let blocks = record.blocks();
        return Ok(RefusalOutcome::StillBlocked { left, blocks });
    }
    if refusals.count == 0 {
        return Ok(RefusalOutcome::Counted);
    }
    let mut outcome = RefusalOutcome::Counted;
    let due = record.count(refusals.rule, refusals.count, refusals.age, now);
    if let Some(duration) = due {
        let until = now.saturating_add(micros(duration));
        match block(transaction, limiter, key, now, until).map_err(|error| failed(&error))? {
            None => outcome = RefusalOutcome::NoRoom,
            // An operator has blocked the key.
            Some(false) => {}
            Some(true) => {
                record.start_block(duration, now);
                let blocks = record.blocks();
                outcome = RefusalOutcome::Blocked { duration, blocks };
            }
        }
    }
    write(transaction, refusals, &record, now)?;
    Ok(outcome)
}

/// Forgets the refusals and the blocks of a key about which an operator has decided.
pub(crate) fn forget(
    transaction: &Transaction<'_>,
    limiter: &str,
    key: &str,
) -> rusqlite::Result<()> {
    let names = params![limiter, key];
    let delete = "DELETE FROM refusals WHERE limiter = ? AND key = ?";
    transaction.execute(delete, names).map(drop)
}

/// Blocks a key unless it is blocked already, and returns whether it did. `None` if the list is full.
fn block(
    transaction: &Transaction<'_>,
    limiter: &Key,
    key: &Key,
    now: u64,
    until: u64,
) -> rusqlite::Result<Option<bool>> {
    transaction.execute("DELETE FROM blocks WHERE until <= ?", params![signed(now)])?;
    let count = "SELECT count(*), count(*) FILTER (WHERE limiter = ?) FROM blocks";
    let counts = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
    let (blocked, of_limiter): (i64, i64) =
        transaction.query_row(count, [limiter.as_str()], counts)?;
    if blocked >= MAX_BLOCKS || of_limiter >= MAX_BLOCKS_PER_LIMITER {
        return Ok(None);
    }
    let added = transaction.execute(
        "INSERT OR IGNORE INTO blocks VALUES (?, ?, ?)",
        params![limiter.as_str(), key.as_str(), signed(until)],
    )?;
    Ok(Some(added > 0))
}

/// Reads the record of a key. It is empty if the key is new or its record has expired.
fn read(
    transaction: &Transaction<'_>,
    limiter: &Key,
    key: &Key,
    now: u64,
) -> Result<RefusalRecord, Error> {
    let query = "SELECT record FROM refusals WHERE limiter = ? AND key = ? AND expires_at > ?";
    match read_text(transaction, query, limiter, key, now)? {
        None => Ok(RefusalRecord::new()),
        Some(text) => serde_json::from_str(&text).map_err(|error| {
            let text = format!("cannot parse stored refusals: {error}");
            Error::new(ErrorKind::InvalidReply, text)
        }),
    }
}

/// Writes the record of a key, and removes a few that have expired.
fn write(
    transaction: &Transaction<'_>,
    refusals: Refusals<'_>,
    record: &RefusalRecord,
    now: u64,
) -> Result<(), Error> {
    let text = serde_json::to_string(record)
        .map_err(|error| Error::new(ErrorKind::InvalidReply, error.to_string()))?;
    let (limiter, key) = (refusals.limiter.as_str(), refusals.key.as_str());
    let expires_at = signed(record.expires_at(refusals.rule));
    let written = transaction
        .execute(
            "INSERT OR REPLACE INTO refusals VALUES (?, ?, ?, ?)",
            params![limiter, key, text, expires_at],
        )
        .and_then(|_| {
            transaction.execute(
                "DELETE FROM refusals WHERE (limiter, key) IN
                 (SELECT limiter, key FROM refusals WHERE expires_at <= ? LIMIT ?)",
                params![signed(now), REMOVED_PER_CHECK],
            )
        });
    written.map(drop).map_err(|error| failed(&error))
}
