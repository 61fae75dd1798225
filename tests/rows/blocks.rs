//! Blocked keys as rows.

use std::time::Duration;

use tollgate::store::protocol::Block;
use tollgate::store::{Store, StoreOn};
use tollgate::{ErrorKind, Key, Quota, RateLimiter};

use super::scripted::{Plan, Scripted};

const HOUR: Duration = Duration::from_secs(3_600);

fn store(rows: &Scripted) -> StoreOn<Scripted> {
    StoreOn::new(rows.clone()).deadline(Duration::from_secs(20))
}

/// Fills one of the rows with keys that are blocked until the year 2255.
fn fill(rows: &Scripted, number: u32, limiter: &str, count: usize) {
    let mut text = "tollgate blocks 1\n".to_owned();
    for key in 0..count {
        text.push_str(&format!("{limiter} filled:{key} 9000000000000000\n"));
    }
    let name = format!("blocks||{number:x}");
    rows.state().rows.insert(name, text.into_bytes());
}

async fn block(store: &StoreOn<Scripted>, limiter: &str, key: &str) -> Result<bool, ErrorKind> {
    let (limiter, key) = (Key::from(limiter), Key::from(key));
    let block = Block::new(&limiter, &key, HOUR);
    store.block(block).await.map_err(|error| error.kind())
}

async fn block_automatically(
    store: &StoreOn<Scripted>,
    limiter: &str,
    key: &str,
) -> Result<bool, ErrorKind> {
    let (limiter, key) = (Key::from(limiter), Key::from(key));
    let block = Block::new(&limiter, &key, HOUR).automatic();
    store.block(block).await.map_err(|error| error.kind())
}

#[tokio::test]
async fn a_change_has_rows_of_counts_or_rows_of_blocked_keys_and_never_both() {
    let rows = Scripted::new([]);
    let limiter = RateLimiter::new(store(&rows), Quota::per_day(9)).name("own");
    let admin = limiter.admin();
    for number in 0..8 {
        let key = format!("key:{number}");
        let (checked, blocked, refunded) = tokio::join!(
            limiter.check(key.as_str()),
            admin.block(key.as_str(), HOUR),
            admin.credit(key.as_str(), 1),
        );
        let _ = checked.unwrap();
        blocked.unwrap();
        refunded.unwrap();
        assert!(!limiter.check(key.as_str()).await.unwrap().is_allowed());
    }
    let calls = rows.state().calls.clone();
    assert!(calls.iter().any(|call| call.is_of_blocks));
    for call in &calls {
        let of_blocks = call
            .names
            .iter()
            .filter(|name| name.starts_with("blocks||"));
        let expected = if call.is_of_blocks { 16 } else { 0 };
        assert_eq!(of_blocks.count(), expected, "{call:?}");
        // A block writes the row of its key.
        assert!(!call.is_of_blocks || call.written.len() <= 1, "{call:?}");
    }
}

/// A list of 10 000 keys takes long to read. No check waits for it.
#[tokio::test]
async fn a_check_does_not_wait_for_a_change_of_blocked_keys_nor_the_other_way_round() {
    let rows = Scripted::new([]);
    rows.state().blocks_plan = Some(Plan::Wait);
    let store = store(&rows);
    let limiter = RateLimiter::new(store.clone(), Quota::per_day(9)).name("own");
    let blocked = tokio::spawn(async move { block(&store, "own", "eve").await });
    rows.waits.notified().await;
    for used in 1..=3 {
        assert_eq!(limiter.check("ada").await.unwrap().used(), used);
    }
    assert!(!blocked.is_finished());
    rows.state().blocks_plan = None;
    rows.state().plans.push_back(Plan::Wait);
    let checked = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.check("bob").await }
    });
    // The notice of the check that waits.
    rows.waits.notified().await;
    rows.gate.notify_one();
    assert_eq!(blocked.await.unwrap(), Ok(true));
    assert!(!checked.is_finished());
    rows.gate.notify_one();
    let _ = checked.await.unwrap().unwrap();
}

#[tokio::test]
async fn an_automatic_block_leaves_room_for_operators() {
    let rows = Scripted::new([]);
    let store = store(&rows);
    fill(&rows, 0, "full", 1_000);
    assert_eq!(
        block_automatically(&store, "full", "x").await,
        Err(ErrorKind::Full)
    );
    // The name of the limiter is not its beginning.
    assert_eq!(block_automatically(&store, "ful", "x").await, Ok(true));
    assert_eq!(block_automatically(&store, "ful", "x").await, Ok(false));
    assert_eq!(block(&store, "full", "x").await, Ok(true));
    fill(&rows, 15, "other", 8_000);
    assert_eq!(
        block_automatically(&store, "another", "y").await,
        Err(ErrorKind::Full)
    );
    fill(&rows, 15, "other", 10_000);
    assert_eq!(block(&store, "another", "y").await, Err(ErrorKind::Full));
    // A key that is blocked already needs no room, and a key is unblocked in a full list.
    assert_eq!(block(&store, "full", "x").await, Ok(true));
    let (limiter, key) = (Key::from("full"), Key::from("x"));
    let unblock = Block::new(&limiter, &key, Duration::ZERO);
    assert!(store.block(unblock).await.unwrap());
}

/// Only the written row is compared, so two processes may fill the last place together, each with a key of another row.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_fill_the_list_together_exceed_it_by_a_key_each_at_most() {
    let rows = Scripted::new([]);
    fill(&rows, 0, "full", 990);
    let stores = [store(&rows), store(&rows), store(&rows)];
    let mut tasks = Vec::new();
    for (process, store) in stores.into_iter().enumerate() {
        tasks.push(tokio::spawn(async move {
            let mut added = 0;
            for number in 0..20 {
                let key = format!("{process}:{number}");
                match block_automatically(&store, "full", &key).await {
                    Ok(is_new) => added += u32::from(is_new),
                    Err(kind) => assert_eq!(kind, ErrorKind::Full),
                }
            }
            added
        }));
    }
    let mut added = 0;
    for task in tasks {
        added += task.await.unwrap();
    }
    assert!((10..=12).contains(&added), "{added}");
}

#[tokio::test]
async fn expired_blocks_take_no_room_and_leave_with_the_next_block_of_their_row() {
    let rows = Scripted::new([]);
    let store = store(&rows);
    let text = "tollgate blocks 1\nfull old 1\n".to_owned();
    for number in 0..16 {
        let name = format!("blocks||{number:x}");
        rows.state().rows.insert(name, text.clone().into_bytes());
    }
    assert_eq!(block(&store, "full", "new").await, Ok(true));
    let texts: Vec<_> = rows.state().rows.values().cloned().collect();
    let texts: Vec<_> = texts
        .into_iter()
        .map(|text| String::from_utf8(text).unwrap())
        .collect();
    let changed: Vec<_> = texts.iter().filter(|text| text.contains("new")).collect();
    assert_eq!(changed.len(), 1);
    assert!(!changed[0].contains("old"), "{changed:?}");
    let limiter = RateLimiter::new(store, Quota::per_day(9)).name("full");
    let blocked = limiter.admin().blocked().await.unwrap();
    assert_eq!(blocked.len(), 1);
}

#[tokio::test]
async fn a_row_of_another_program_fails_blocks_and_stays() {
    for foreign in [
        "of another program",
        "tollgate blocks 1\nno time\n",
        "tollgate blocks 2\n",
        "tollgate blocks 1\nfull a key 9000000000000000\n",
    ] {
        let rows = Scripted::new([]);
        let name = "blocks||7".to_owned();
        rows.state()
            .rows
            .insert(name.clone(), foreign.as_bytes().to_vec());
        let store = store(&rows);
        let refreshed = store.refresh_blocks(HOUR).await;
        assert_eq!(
            refreshed.unwrap_err().kind(),
            ErrorKind::InvalidReply,
            "{foreign}"
        );
        assert_eq!(rows.state().rows[&name], foreign.as_bytes());
    }
}
