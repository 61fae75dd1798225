//! Slots in flight while processes, Redis and replies are lost: never more permits than the limit, and none that stays.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tollgate::store::Store;
use tollgate::store::protocol::{CircuitBreaker, StoreFuture};
use tollgate::{Error, ErrorKind, Quota, RateLimiter, RedisStore};

use crate::notes::{Noted, Notes, Random, hold, note, now, open_notes, until_begun};
use crate::suite::{beside_others, child, patient, report, run, short_or_long, told, until};
use crate::support::fakes::fake_store::FakeStore;
use crate::support::node::Node;
use crate::support::process::Process;
use crate::support::proxy::{Proxy, Wire};

const LIMIT: u32 = 5;
const KEYS: u64 = 8;
const TASKS: u64 = 16;
const LEASE: Duration = Duration::from_secs(5);
const HELD: &str = "held";

/// Redis has a slot in its file before it replies.
const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

/// What a process is told.
#[derive(Deserialize, Serialize)]
struct Told {
    url: String,
    /// Where it writes when permits begin and end.
    notes: PathBuf,
    /// It ends when this file is there.
    end: PathBuf,
    seed: u64,
    lease: Duration,
    /// Whether it also holds a slot of [`HELD`] all the time.
    holds: bool,
}

/// Returns a Redis whose circuit breaker stays closed, however many replies are lost: every message is sent.
fn unbroken(redis: RedisStore) -> FakeStore {
    let circuit_breaker = CircuitBreaker::new().deadline(Duration::from_secs(1));
    let store = FakeStore::on(redis).circuit_breaker(circuit_breaker);
    store.checks_by(|redis, checks| {
        let asked = redis.check(checks);
        // An error of this kind is an answer to the breaker.
        let kind = ErrorKind::Misconfigured;
        StoreFuture::boxed(async move {
            let answers = asked.await;
            answers.map_err(|error| Error::new(kind, error.to_string()))
        })
    })
}

fn limiter(store: impl Store) -> RateLimiter {
    with_lease(store, LEASE)
}

fn with_lease(store: impl Store, lease: Duration) -> RateLimiter {
    let quota = Quota::in_flight(LIMIT).slot_lease(lease);
    RateLimiter::new(store, quota).max_wait(Duration::from_secs(5))
}

/// Takes permits and gives them back until the end.
fn take_permits(told: &str) {
    let told: Told = serde_json::from_str(told).unwrap();
    run(async move {
        let file = open_notes(&told.notes);
        let store = RedisStore::open(&told.url).unwrap();
        let limiter = with_lease(unbroken(store), told.lease);
        let mut held = None;
        while told.holds && held.is_none() {
            held = limiter.acquire(HELD).await.ok();
        }
        let permits = Arc::new(AtomicU64::new(0));
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let (limiter, file, permits) =
                    (limiter.clone(), Arc::clone(&file), Arc::clone(&permits));
                let (end, mut random) = (told.end.clone(), Random(told.seed * 1_000 + task + 1));
                tokio::spawn(async move {
                    while !end.exists() {
                        let key = random.below(KEYS);
                        let acquire = limiter.acquire(key.to_string());
                        // One in ten is cancelled at a random point.
                        let acquired = if random.below(10) == 0 {
                            let wait = Duration::from_micros(random.below(3_000));
                            tokio::time::timeout(wait, acquire).await.ok()
                        } else {
                            Some(acquire.await)
                        };
                        let permit = match acquired {
                            Some(Ok(permit)) => permit,
                            Some(Err(_)) => {
                                note(&file, format_args!("F 0 {key}"));
                                tokio::time::sleep(Duration::from_millis(random.below(20))).await;
                                continue;
                            }
                            None => {
                                note(&file, format_args!("C 0 {key}"));
                                continue;
                            }
                        };
                        let number = permits.fetch_add(1, Ordering::Relaxed);
                        let work = Duration::from_micros(random.below(2_000));
                        hold(&file, permit, (number, key), work).await;
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        // What was given back is told within some milliseconds.
        tokio::time::sleep(Duration::from_millis(500)).await;
    });
}

/// A process that was started.
struct Started {
    notes: Notes,
    killed_at: Option<u64>,
}

impl Started {
    fn new(notes: PathBuf) -> Self {
        Self {
            notes: Notes::new(notes),
            killed_at: None,
        }
    }
}

/// Waits until so many permits were taken.
async fn until_permits(started: &mut [Started], permits: usize) {
    until_begun(
        || started.iter_mut().map(|one| one.notes.begun()).sum(),
        permits,
    )
    .await;
}

/// Waits until no slot of any key is used. Returns how long that took.
async fn until_free(url: &str, patience: Duration) -> Duration {
    let began = Instant::now();
    let limiter = limiter(patient(url));
    for key in 0..KEYS {
        loop {
            let used = limiter
                .peek(key.to_string())
                .await
                .map(|decision| decision.used());
            if used.as_ref().is_ok_and(|used| *used == 0) {
                break;
            }
            assert!(began.elapsed() < patience, "key {key}: {used:?} used");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    began.elapsed()
}

#[test]
fn processes_replies_and_redis_are_lost_and_no_slot_is_given_twice_or_stays() {
    if let Some(told) = told() {
        return take_permits(&told);
    }
    const TEST: &str =
        "in_flight::processes_replies_and_redis_are_lost_and_no_slot_is_given_twice_or_stays";
    let (kills, restarts, wanted) = short_or_long((4, 1, 4_000), (20, 5, 1_000_000));
    beside_others(async {
        let directory = tempfile::tempdir().unwrap();
        let end = directory.path().join("end");
        let mut redis = Node::start(&DURABLE);
        let proxy = Proxy::before(redis.port()).await;
        // One reply in ten is lost, with its connection.
        proxy.set(Wire::CutBeforeReply(10));
        let mut started = Vec::new();
        let start = |started: &mut Vec<Started>| {
            let notes = directory.path().join(started.len().to_string());
            let told = Told {
                url: proxy.url(),
                notes: notes.clone(),
                end: end.clone(),
                seed: started.len() as u64 + 1,
                lease: LEASE,
                holds: false,
            };
            started.push(Started::new(notes));
            Process::start(&mut child(TEST, &serde_json::to_string(&told).unwrap()))
        };
        let mut processes: Vec<_> = (0..4).map(|_| start(&mut started)).collect();
        let mut numbers: Vec<usize> = (0..4).collect();
        let began = Instant::now();
        for kill in 0..kills {
            // Over the whole load, in equal parts.
            until_permits(&mut started, wanted / (kills + 1) * (kill + 1)).await;
            let place = kill % 4;
            started[numbers[place]].killed_at = Some(now());
            processes[place].kill();
            numbers[place] = started.len();
            processes[place] = start(&mut started);
            if kill % (kills / restarts) == 1 {
                redis.kill();
                tokio::time::sleep(Duration::from_millis(300)).await;
                redis.restart();
            }
        }
        until_permits(&mut started, wanted).await;
        let took = began.elapsed();
        let cuts = proxy.cuts();
        proxy.set(Wire::Whole);
        fs::write(&end, "").unwrap();
        for process in &mut processes {
            process.wait();
        }
        let free = until_free(&redis.url(), LEASE + Duration::from_secs(1)).await;
        let mut notes = Noted::default();
        for process in &started {
            notes.add(&process.notes.path, process.killed_at);
        }
        let most = notes.most();
        let Noted {
            acquired,
            cancelled,
            failed,
            lost,
            ..
        } = notes;
        let mut figure = String::new();
        write!(
            figure,
            "{acquired} permits of {KEYS} keys in {took:.0?}, {cancelled} cancelled, {failed} failed, {lost} lost, {cuts} replies cut, {kills} processes and {restarts} times Redis killed: at most {most} at the same time; all slots free {free:.1?} after the end",
        )
        .unwrap();
        report(
            21,
            "slots in flight: 4 processes, replies and Redis lost",
            &figure,
            "never more permits than the limit of 5; every slot free within one lease and a second",
        );
        assert!(most <= i32::try_from(LIMIT).unwrap(), "{figure}");
        assert!(cancelled > 0 && cuts > 0, "{figure}");
    });
}

#[test]
fn processes_of_one_fleet_with_three_leases_share_the_slots_and_each_returns_its_own() {
    if let Some(told) = told() {
        return take_permits(&told);
    }
    const TEST: &str = "in_flight::processes_of_one_fleet_with_three_leases_share_the_slots_and_each_returns_its_own";
    let leases = short_or_long([5, 8, 13], [5, 15, 60]).map(Duration::from_secs);
    let load = short_or_long(Duration::from_secs(4), Duration::from_secs(60));
    beside_others(async {
        let directory = tempfile::tempdir().unwrap();
        let redis = Node::start(&[]);
        let mut started = Vec::new();
        let mut processes = Vec::new();
        for (number, lease) in leases.into_iter().enumerate() {
            let told = Told {
                url: redis.url(),
                notes: directory.path().join(number.to_string()),
                end: directory.path().join("end"),
                seed: number as u64 + 1,
                lease,
                holds: true,
            };
            started.push(Started::new(told.notes.clone()));
            let told = serde_json::to_string(&told).unwrap();
            processes.push(Process::start(&mut child(TEST, &told)));
        }
        let look = limiter(patient(&redis.url()));
        let used = async || look.peek(HELD).await.unwrap().used();
        until(load, "each process holds a slot", async || {
            used().await == 3
        })
        .await;
        tokio::time::sleep(load).await;
        let killed = now();
        let began = Instant::now();
        for (process, started) in processes.iter_mut().zip(&mut started) {
            process.kill();
            started.killed_at = Some(killed);
        }
        // Each has renewed within a third of its lease, so that its slot stays for at least the rest, if the machine is not too
        // late.
        let mut returned = Vec::new();
        for (left, lease) in [2, 1, 0].into_iter().zip(leases) {
            while used().await > left {
                assert!(began.elapsed() < lease + Duration::from_secs(1));
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            let took = began.elapsed();
            let least = (lease * 2 / 3).saturating_sub(Duration::from_secs(1));
            assert!(took > least, "{took:?} of {lease:?}");
            returned.push(took);
        }
        let patience = (leases[2] + Duration::from_secs(1)).saturating_sub(began.elapsed());
        let free = until_free(&redis.url(), patience).await;
        let mut notes = Noted::default();
        for process in &started {
            notes.add(&process.notes.path, process.killed_at);
        }
        let (most, acquired) = (notes.most(), notes.acquired);
        let figure = format!(
            "{acquired} permits of {KEYS} keys, at most {most} at the same time; all processes killed: with leases of {leases:?}, their slots return after {returned:.1?}; all slots free {free:.1?} later",
        );
        report(
            21,
            "slots in flight: three leases in one fleet",
            &figure,
            "never more permits than the limit of 5; the slots of each process return within its own lease and a second",
        );
        assert!(most <= i32::try_from(LIMIT).unwrap(), "{figure}");
        assert!(acquired > 100 && notes.lost == 0, "{figure}");
    });
}

#[test]
fn a_process_that_stood_still_has_lost_its_slots_before_it_takes_another() {
    const TEST: &str =
        "in_flight::a_process_that_stood_still_has_lost_its_slots_before_it_takes_another";
    if let Some(told) = told() {
        let told: Told = serde_json::from_str(&told).unwrap();
        return run(async move {
            let limiter = limiter(RedisStore::open(&told.url).unwrap());
            let held = limiter.acquire("ada").await.unwrap();
            fs::write(&told.notes, "held").unwrap();
            let began = Instant::now();
            while began.elapsed() < LEASE * 2 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            // It was stopped for three leases meanwhile. The loss is known before anything is taken.
            let lost = tokio::time::timeout(Duration::ZERO, held.lost()).await;
            let next = limiter.try_acquire("ada").await;
            let text = format!("lost {}, next {next:?}", lost.is_ok());
            fs::write(&told.end, text).unwrap();
            tokio::time::sleep(Duration::from_millis(300)).await;
            drop(held);
            tokio::time::sleep(Duration::from_millis(500)).await;
        });
    }
    beside_others(async {
        let directory = tempfile::tempdir().unwrap();
        let redis = Node::start(&[]);
        let told = Told {
            url: redis.url(),
            notes: directory.path().join("held"),
            end: directory.path().join("end"),
            seed: 0,
            lease: LEASE,
            holds: false,
        };
        let mut process = Process::start(&mut child(TEST, &serde_json::to_string(&told).unwrap()));
        while !told.notes.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        process.signal("STOP");
        // Its slot comes back at about the end of the usual patience.
        let others = limiter(patient(&redis.url())).max_wait(LEASE * 2);
        let mut permits = Vec::new();
        let began = Instant::now();
        for _ in 0..LIMIT {
            permits.push(others.acquire("ada").await.unwrap());
        }
        let all = began.elapsed();
        tokio::time::sleep((LEASE * 3).saturating_sub(began.elapsed())).await;
        process.signal("CONT");
        while !told.end.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let said = fs::read_to_string(&told.end).unwrap();
        let used = others.peek("ada").await.unwrap().used();
        report(
            22,
            "slots in flight: a process stands still for three leases",
            &format!(
                "its slot is another's after {all:.1?}; when it wakes: {used} used of {LIMIT}, {}",
                &said[..10]
            ),
            "others get the slots within a lease; lost before anything is taken; nobody admitted above the limit",
        );
        assert!(said.starts_with("lost true, next Ok(Refused"), "{said}");
        assert!(all < LEASE + Duration::from_millis(500), "{all:?}");
        assert_eq!(used, LIMIT + 1);
        process.wait();
        drop(permits);
    });
}
