//! The kit of rows: the promises of a database on which the crate's rules rest.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tollgate::store::protocol::rows_for_kit::{KitChange, KitRow, change};
use tollgate::store::{Rows, StoreOn};
use tollgate::{Acquired, Quota, RateLimiter};

use crate::conformance::{Broken, Random, ensure};
use crate::report::{ConformanceReport, RuleOutcome};
use crate::run_name::run_name;

/// The time after which a rule has failed: a change may hang.
const PATIENCE: Duration = Duration::from_secs(60);

/// The time after which a row is locked for ever.
const LOCK_PATIENCE: Duration = Duration::from_secs(5);

const HOUR: u64 = 3_600_000_000;

/// The longest name of a row.
const LONGEST_NAME: usize = 129;

/// Tests an implementation of [`Rows`]: bytes, names, deletes, groups that are whole or not written, races, time, changes that
/// are given up, and expiry. Then limiters check, block, hold slots and reserve units on it.
///
/// Run it in a test, in a tokio runtime of several threads. It needs room for some thousand rows, and takes some seconds.
///
/// # Examples
///
/// ```no_run
/// # async fn example(open: impl Fn() -> own::Mine) {
/// use tollgate_conformance::RowsConformance;
///
/// // Two connections, as two processes have them.
/// let report = RowsConformance::new([open(), open()]).run().await;
/// println!("{report}");
/// report.assert_complete();
/// # }
/// # mod own {
/// #     use tollgate::store::{Batch, Rows, Written};
/// #     pub struct Mine;
/// #     impl Rows for Mine {
/// #         async fn change(&self, _: &mut Batch) -> Result<Written, tollgate::Error> {
/// #             Ok(Written::Nothing)
/// #         }
/// #     }
/// # }
/// ```
#[derive(Debug)]
pub struct RowsConformance<R> {
    rows: [Arc<R>; 2],
    /// The part of each name that no other run has.
    run: String,
}

impl<R: Rows> RowsConformance<R> {
    /// Creates the kit for two handles of the same rows, as two processes have them.
    #[must_use]
    pub fn new(rows: [R; 2]) -> Self {
        Self {
            rows: rows.map(Arc::new),
            run: run_name(),
        }
    }

    /// Tests all rules.
    pub async fn run(self) -> ConformanceReport {
        let mut report = ConformanceReport::default();
        report.add("bytes come back", limited(self.bytes()).await);
        report.add("a deleted row is missing", limited(self.deletes()).await);
        report.add("each name is a row", limited(self.names()).await);
        report.add("values are in order", limited(self.order()).await);
        let drops = limited(self.drops()).await;
        let has_locks = drops != RuleOutcome::Passed;
        report.add("a dropped change leaves no lock", drops);
        if has_locks {
            // The other rules would wait for it.
            return report;
        }
        report.add("races lose nothing", limited(self.races()).await);
        report.add("groups are whole", limited(self.groups()).await);
        report.add("the time does not step back", limited(self.times()).await);
        report.add("rows stay until their end", limited(self.expiry()).await);
        report.add("two limiters admit the limit", limited(self.checks()).await);
        report.add(
            "a block reaches the other limiter",
            limited(self.blocks()).await,
        );
        report.add("a slot has one holder", limited(self.slots()).await);
        report.add(
            "reserved units are seen by the other limiter, and charged when they are used",
            limited(self.reservations()).await,
        );
        report
    }

    /// Returns names that are as long as names get.
    fn scratch_names(&self, rule: &str, count: usize) -> Vec<String> {
        let names = (0..count).map(|number| {
            let name = format!("{}:{rule}:{number:04}|", self.run);
            // Behind the prefix of all rows of the kit.
            format!("{name:x<width$}", width = LONGEST_NAME - "kit||".len())
        });
        names.collect()
    }

    async fn read(&self, names: &[String]) -> Result<Vec<Option<Vec<u8>>>, Broken> {
        let seen = Arc::new(Mutex::new(None));
        let sink = Arc::clone(&seen);
        let look = move |rows: &mut [KitRow], _: u64| {
            let values = rows.iter().map(|row| row.value.clone()).collect();
            *sink.lock().unwrap_or_else(PoisonError::into_inner) = Some(values);
            KitChange::Read
        };
        change(&*self.rows[1], names, look).await?;
        let seen = seen.lock().unwrap_or_else(PoisonError::into_inner).take();
        seen.ok_or_else(|| Broken::Failed("`Batch::decide` is not called".to_owned()))
    }

    /// Writes rows that expire in an hour.
    async fn write(&self, names: &[String], values: &[Option<Vec<u8>>]) -> Result<(), Broken> {
        let values = values.to_vec();
        let write = move |rows: &mut [KitRow], now: u64| {
            for (row, value) in rows.iter_mut().zip(&values) {
                row.value.clone_from(value);
                row.expires_at = now + HOUR;
            }
            KitChange::Write
        };
        Ok(change(&*self.rows[0], names, write).await?)
    }

    async fn bytes(&self) -> Result<(), Broken> {
        let names = self.scratch_names("bytes", 4);
        let all: Vec<u8> = (0..=255).collect();
        let values = [vec![0], all.clone(), all.repeat(400), b"text".to_vec()].map(Some);
        self.write(&names, &values).await?;
        let read = self.read(&names).await?;
        for (read, written) in read.iter().zip(&values) {
            let length = written.as_ref().map_or(0, Vec::len);
            ensure!(read == written, "{length} bytes are read in another form");
        }
        Ok(())
    }

    async fn deletes(&self) -> Result<(), Broken> {
        let names = self.scratch_names("deletes", 2);
        let values = [Some(vec![1]), Some(vec![2])];
        self.write(&names, &values).await?;
        self.write(&names[..1], &[None]).await?;
        let read = self.read(&names).await?;
        ensure!(read[0].is_none(), "a row is there although it was deleted");
        ensure!(read[1] == values[1], "another row was deleted, too");
        Ok(())
    }

    /// A column may fold case, or cut long names.
    async fn names(&self) -> Result<(), Broken> {
        let [long] = &self.scratch_names("names", 1)[..] else {
            return Ok(());
        };
        let cut = &long[..long.len() - 1];
        let names = [
            cut.to_owned(),
            long.clone(),
            format!("{cut}X"),
            format!("{cut}y"),
            format!("{}:names:%41", self.run),
            format!("{}:names:%_1", self.run),
        ];
        let values: Vec<_> = (1..=6).map(|value| Some(vec![value])).collect();
        for (name, value) in names.iter().zip(&values) {
            let name = std::slice::from_ref(name);
            self.write(name, std::slice::from_ref(value)).await?;
        }
        let read = self.read(&names).await?;
        for ((name, read), written) in names.iter().zip(&read).zip(&values) {
            ensure!(read == written, "another name has changed the row {name}");
        }
        Ok(())
    }

    async fn order(&self) -> Result<(), Broken> {
        let mut names = self.scratch_names("order", 500);
        names.reverse();
        let value = |number: usize| Some(number.to_string().into_bytes());
        let values: Vec<_> = (0..500).map(value).collect();
        self.write(&names, &values).await?;
        let read = self.read(&names).await?;
        let wrong = read.iter().zip(&values).position(|(read, own)| read != own);
        ensure!(wrong.is_none(), "of 500 rows, one has the value of another");
        Ok(())
    }

    /// The deadline of a store drops a change wherever it waits.
    async fn drops(&self) -> Result<(), Broken> {
        let names = self.scratch_names("drops", 2);
        for polls in 1..20 {
            for own in &self.rows {
                let write = |rows: &mut [KitRow], now: u64| {
                    for row in rows {
                        row.value = Some(vec![1]);
                        row.expires_at = now + HOUR;
                    }
                    KitChange::Write
                };
                give_up_after(polls, change(&**own, &names, write)).await;
                let next = tokio::time::timeout(LOCK_PATIENCE, self.read(&names)).await;
                let Ok(read) = next else {
                    let text = format!(
                        "after a change that was dropped, its rows stay locked for {LOCK_PATIENCE:?}"
                    );
                    return Err(Broken::Failed(text));
                };
                read?;
            }
        }
        Ok(())
    }

    /// Lets eight tasks of two processes add to two of four rows at a time: 1 to one, 2 to the other. Returns what they added,
    /// and the rows.
    async fn race(&self, rule: &str) -> Result<(u64, Vec<RacedRow>), Broken> {
        let names = self.scratch_names(rule, 4);
        let tasks = (0..8_usize).map(|task| {
            let rows = Arc::clone(&self.rows[task % 2]);
            let names = names.clone();
            tokio::spawn(async move {
                let mut random = Random(task as u64);
                let mut moves = 0;
                for _ in 0..40 {
                    let from = random.below(4) as usize;
                    let to = (from + 1 + random.below(3) as usize) % 4;
                    let own = [names[from].clone(), names[to].clone()];
                    let mark = u64::from(random.below(u32::MAX));
                    change(&*rows, &own, move |rows: &mut [KitRow], now| {
                        add_to_both(rows, now, mark)
                    })
                    .await?;
                    moves += 1;
                    // Others come in between, also with rows that never wait.
                    tokio::task::yield_now().await;
                }
                Ok::<u64, tollgate::Error>(moves)
            })
        });
        let mut moves = 0;
        for task in tasks.collect::<Vec<_>>() {
            let ended = task.await;
            let ended = ended.map_err(|_| Broken::Failed("a change panics".to_owned()))?;
            moves += ended?;
        }
        let rows = self.read(&names).await?;
        let rows = rows.iter().map(|bytes| RacedRow::read(bytes.as_deref()));
        Ok((moves, rows.collect()))
    }

    async fn races(&self) -> Result<(), Broken> {
        let (moves, rows) = self.race("races").await?;
        let changes: u64 = rows.iter().map(|row| row.from + row.to).sum();
        ensure!(
            changes == 2 * moves,
            "{moves} changes of two rows by two processes have left {changes} changes of one"
        );
        Ok(())
    }

    async fn groups(&self) -> Result<(), Broken> {
        let (_, rows) = self.race("groups").await?;
        let mut from = 0;
        let mut to = 0;
        let mut marks = 0_u64;
        for row in &rows {
            from += row.from;
            to += row.to;
            marks = marks.wrapping_add(row.marks);
        }
        ensure!(
            marks == 0,
            "of a change of two rows, one row is written alone: {from} first rows, {to} second rows"
        );
        Ok(())
    }

    async fn times(&self) -> Result<(), Broken> {
        let (_, rows) = self.race("times").await?;
        let backwards: u64 = rows.iter().map(|row| row.steps_back).sum();
        ensure!(
            backwards == 0,
            "{backwards} times, a change of a row had an earlier time than the one before"
        );
        Ok(())
    }

    async fn expiry(&self) -> Result<(), Broken> {
        let names = self.scratch_names("expiry", 3);
        let values = vec![Some(vec![2]); 3];
        self.write(&names, &values).await?;
        let mut has_more = true;
        while has_more {
            has_more = self.rows[0].remove_expired().await?;
        }
        let read = self.read(&names).await?;
        ensure!(read == values, "a row is removed before its end");
        Ok(())
    }

    /// Returns limiters of two stores.
    fn limiters(&self, rule: &str, quota: &Quota) -> [RateLimiter; 2] {
        self.rows.each_ref().map(|rows| {
            let store = StoreOn::new(Arc::clone(rows)).deadline(Duration::from_secs(20));
            RateLimiter::new(store, quota.clone()).name(format!("{rule} {}", self.run))
        })
    }

    async fn checks(&self) -> Result<(), Broken> {
        let limiters = self.limiters("checks", &Quota::per_day(10));
        let tasks = (0..20_usize).map(|task| {
            let limiter = limiters[task % 2].clone();
            tokio::spawn(async move { limiter.check("ada").await })
        });
        let mut admitted = 0;
        for task in tasks.collect::<Vec<_>>() {
            let ended = task.await;
            let decision = ended.map_err(|_| Broken::Failed("a check panics".to_owned()))??;
            admitted += u32::from(decision.is_allowed());
        }
        ensure!(
            admitted == 10,
            "{admitted} of 20 checks are admitted, not 10"
        );
        Ok(())
    }

    async fn blocks(&self) -> Result<(), Broken> {
        let [one, other] = self.limiters("blocks", &Quota::per_day(10));
        let admin = one.admin();
        admin.block("eve", Duration::from_secs(600)).await?;
        // Reads the list.
        let blocked = other.admin().blocked().await?;
        ensure!(blocked.len() == 1, "{} blocked keys, not 1", blocked.len());
        let decision = other.check("eve").await?;
        ensure!(!decision.is_allowed(), "a blocked key is admitted");
        admin.unblock("eve").await?;
        let blocked = other.admin().blocked().await?;
        ensure!(blocked.is_empty(), "a key stays blocked");
        Ok(())
    }

    async fn slots(&self) -> Result<(), Broken> {
        let [one, other] = self.limiters("slots", &Quota::in_flight(1));
        let permit = one.acquire("ada").await?;
        let taken = other.try_acquire("ada").await?;
        ensure!(
            matches!(taken, Acquired::Refused(_)),
            "a slot that another process holds is granted"
        );
        drop(permit);
        let granted = other.max_wait(Duration::from_secs(20)).acquire("ada").await;
        granted.map(drop)?;
        Ok(())
    }

    async fn reservations(&self) -> Result<(), Broken> {
        let limiters = self.limiters("reservations", &Quota::per_day(100));
        let [one, other] = limiters.map(|limiter| limiter.reserve_lease(Duration::from_secs(600)));
        let mut permit = RateLimiter::acquire_all([one.level("ada").cost(60)]).await?;
        let refused = RateLimiter::try_acquire_all([other.level("ada").cost(41)]).await?;
        ensure!(
            matches!(refused, Acquired::Refused(_)),
            "41 of 100 units are reserved beside 60 of another process"
        );
        permit.add(25);
        let second = RateLimiter::acquire_all([one.level("ada").cost(5)]).await?;
        let seen = used_and_reserved(&other).await?;
        ensure!(
            seen == (25, 40),
            "(used, reserved) is {seen:?} after a message of 25 used units of 65, not (25, 40)"
        );
        second.release().await?;
        permit.release().await?;
        // The second permit was given back without a word, so that its units are used.
        let seen = used_and_reserved(&other).await?;
        ensure!(
            seen == (30, 0),
            "(used, reserved) is {seen:?} after the permits, not (30, 0)"
        );
        RateLimiter::acquire_all([other.level("ada").cost(70)])
            .await?
            .release()
            .await?;
        Ok(())
    }
}

/// Returns what a limiter sees of a key: the units that are used, and those that are reserved beside them.
async fn used_and_reserved(limiter: &RateLimiter) -> Result<(u32, u32), Broken> {
    let seen = limiter.peek("ada").await?;
    let reserved = seen.levels().map(|level| level.reserved()).sum();
    Ok((seen.used().saturating_sub(reserved), reserved))
}

/// The content of a row of the races.
#[derive(Default)]
struct RacedRow {
    /// How often it was the first and the second row of a change.
    from: u64,
    to: u64,
    /// The sum of the marks of the changes of which it was the first row, less those of which it was the second. It wraps.
    marks: u64,
    last_change: u64,
    /// How often the time of a change was before that of the change before.
    steps_back: u64,
}

impl RacedRow {
    fn read(bytes: Option<&[u8]>) -> Self {
        let numbers = bytes.unwrap_or_default().chunks_exact(8);
        let mut numbers =
            numbers.map(|bytes| u64::from_be_bytes(bytes.try_into().unwrap_or_default()));
        Self {
            from: numbers.next().unwrap_or(0),
            to: numbers.next().unwrap_or(0),
            marks: numbers.next().unwrap_or(0),
            last_change: numbers.next().unwrap_or(0),
            steps_back: numbers.next().unwrap_or(0),
        }
    }

    fn write(&self) -> Vec<u8> {
        let numbers = [
            self.from,
            self.to,
            self.marks,
            self.last_change,
            self.steps_back,
        ];
        numbers.map(u64::to_be_bytes).concat()
    }
}

fn add_to_both(rows: &mut [KitRow], now: u64, mark: u64) -> KitChange {
    for (position, row) in rows.iter_mut().enumerate() {
        let mut raced = RacedRow::read(row.value.as_deref());
        if position == 0 {
            raced.from += 1;
            raced.marks = raced.marks.wrapping_add(mark);
        } else {
            raced.to += 1;
            raced.marks = raced.marks.wrapping_sub(mark);
        }
        raced.steps_back += u64::from(now < raced.last_change);
        raced.last_change = now;
        row.value = Some(raced.write());
        row.expires_at = now + HOUR;
    }
    KitChange::Write
}

/// Polls a future so many times at most, and drops it.
async fn give_up_after<T>(polls: u32, future: impl Future<Output = T>) {
    let mut future = pin!(future);
    let mut left = polls;
    poll_fn(|context| {
        if left == 0 {
            return Poll::Ready(());
        }
        left -= 1;
        future.as_mut().poll(context).map(drop)
    })
    .await;
}

async fn limited(rule: impl Future<Output = Result<(), Broken>>) -> RuleOutcome {
    match tokio::time::timeout(PATIENCE, rule).await {
        Ok(Ok(())) => RuleOutcome::Passed,
        Ok(Err(Broken::Unsupported(text))) => RuleOutcome::Unsupported(text),
        Ok(Err(Broken::Failed(text))) => RuleOutcome::Failed(text),
        Err(_) => RuleOutcome::Failed(format!("it has not ended within {PATIENCE:?}")),
    }
}
