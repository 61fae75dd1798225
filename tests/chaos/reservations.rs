//! Reserved units while processes are killed or stand still: never more used and reserved than the limit, all of it charged.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs::{self, File};
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tollgate::{Acquired, Algorithm, Permit, Quota, Quotas, RateLimiter, RedisStore};

use crate::notes::{Notes, Random, note, now, open_notes, until_begun};
use crate::suite::{beside_others, child, patient, report, run, short_or_long, told, until};
use crate::support::node::{Node, wait_until};
use crate::support::process::Process;
use crate::support::sentinel::Sentinels;

const LIMIT: u32 = 5_000;
const PROCESSES: usize = 8;
const TASKS: u64 = 16;
/// How many keys are busy at a time, and for how long, in microseconds.
const KEYS: u64 = 4;
const BUSY: u64 = 2_000_000;
const LEASE: Duration = Duration::from_secs(5);

/// What may not be known to Redis of a process that dies or stands still, in microseconds: a third of a lease, and a part of a
/// second in which a busy machine sends a message.
const UNKNOWN: u64 = 1_667_000 + 500_000;

/// What a process is told.
#[derive(Deserialize, Serialize)]
struct Told {
    url: String,
    /// Where it writes what it reserves and uses.
    notes: PathBuf,
    /// It ends when this file is there.
    end: PathBuf,
    seed: u64,
}

/// A budget of each kind that is advised beside held units, by the last digit of the key.
fn quotas(key: u64) -> Quotas {
    let day = Quota::per_day(LIMIT);
    match key % KEYS {
        0 => day.with_algorithm(Algorithm::SlidingBuckets(10)).into(),
        1 => Quota::per_calendar_month(LIMIT, "UTC").unwrap().into(),
        2 => Quota::new(LIMIT, Duration::from_secs(366 * 86_400))
            .with_algorithm(Algorithm::SlidingCounter)
            .into(),
        _ => Quota::total(LIMIT, Duration::from_secs(86_400)).into(),
    }
}

fn limiters(store: &RedisStore) -> Vec<RateLimiter> {
    let limiters = (0..KEYS).map(|key| {
        RateLimiter::new(store.clone(), quotas(key))
            .name(format!("budget-{key}"))
            .reserve_lease(LEASE)
    });
    limiters.collect()
}

/// Reserves units until the end. It notes the units of each permit that are reserved, used, or used of what is left at the end.
fn reserve_units(told: &str) {
    let told: Told = serde_json::from_str(told).unwrap();
    run(async move {
        let file = open_notes(&told.notes);
        let store = RedisStore::open(&told.url).unwrap();
        let limiters = limiters(&store.deadline(Duration::from_secs(1)));
        let permits = Arc::new(AtomicU64::new(0));
        let tasks = (0..TASKS).map(|task| {
            let (limiters, file, permits) =
                (limiters.clone(), Arc::clone(&file), Arc::clone(&permits));
            let (end, mut random) = (told.end.clone(), Random(told.seed * 1_000 + task + 1));
            tokio::spawn(async move {
                while !end.exists() {
                    let digit = random.below(KEYS);
                    let key = now() / BUSY * KEYS + digit;
                    let units = u32::try_from(20 + random.below(300)).unwrap();
                    let limiter = &limiters[usize::try_from(digit).unwrap()];
                    let level = limiter.level(key.to_string()).cost(units);
                    if let Ok(Acquired::Permit(permit)) =
                        RateLimiter::try_acquire_all([level]).await
                    {
                        let number = permits.fetch_add(1, Ordering::Relaxed);
                        note(&file, format_args!("B {number} {key} {units}"));
                        stream(&file, &mut random, permit, (number, key, units)).await;
                    } else {
                        tokio::time::sleep(Duration::from_millis(random.below(40))).await;
                    }
                }
            })
        });
        let tasks: Vec<_> = tasks.collect();
        for task in tasks {
            task.await.unwrap();
        }
        for limiter in &limiters {
            limiter.release().await.unwrap();
        }
    });
}

/// Uses units in parts. What is noted is noted before it is used.
async fn stream(
    file: &File,
    random: &mut Random,
    mut permit: Permit,
    (number, key, units): (u64, u64, u32),
) {
    let mut left = units;
    for _ in 0..random.below(5) {
        let work = tokio::time::sleep(Duration::from_millis(random.below(250)));
        let is_lost = tokio::time::timeout_at(work.deadline(), permit.lost()).await;
        if is_lost.is_ok() {
            note(file, format_args!("L {number} {key} 0"));
            // What it has used is charged, and no more.
            return permit.add(0);
        }
        let part = u32::try_from(random.below(u64::from(units) / 4 + 1)).unwrap();
        note(file, format_args!("A {number} {key} {part}"));
        permit.add(part);
        left = left.saturating_sub(part);
    }
    if random.below(4) == 0 {
        let rest = left / 2;
        note(file, format_args!("E {number} {key} {rest}"));
        permit.settle(units - left + rest);
    } else {
        // Says what was used, also if that is nothing.
        permit.add(0);
        note(file, format_args!("E {number} {key} 0"));
    }
}

/// A process that was started, and when it was killed and stopped.
struct Started {
    notes: Notes,
    killed_at: Option<u64>,
    stopped_at: Vec<u64>,
}

/// What is known of a key.
#[derive(Default)]
struct Account {
    /// The changes of the used units and those of valid permits, less what may exceed the limit.
    changes: Vec<(u64, i64)>,
    used: i64,
    /// What a process that was killed has used and may not have said.
    unknown: i64,
}

#[derive(Default)]
struct Totals {
    streams: u64,
    killed: u64,
    stopped: u64,
    lost: u64,
}

/// A permit that is open in the notes.
struct Open {
    key: u64,
    left: i64,
    began: u64,
}

/// Adds the notes of a process.
fn add_notes(started: &Started, accounts: &mut BTreeMap<u64, Account>, totals: &mut Totals) {
    let text = fs::read_to_string(&started.notes.path).unwrap_or_default();
    let mut open: HashMap<u64, Open> = HashMap::new();
    let mut uses = Vec::new();
    for line in text.lines() {
        let words: Vec<_> = line.split(' ').collect();
        let [what, permit, key, units, at] = words[..] else {
            continue; // cut off by the kill
        };
        let (permit, key, units): (u64, u64, i64) = (
            permit.parse().unwrap(),
            key.parse().unwrap(),
            units.parse().unwrap(),
        );
        let at: u64 = at.parse().unwrap();
        let account = accounts.entry(key).or_default();
        if what == "B" {
            totals.streams += 1;
            account.changes.push((at, units));
            let began = at;
            open.insert(
                permit,
                Open {
                    key,
                    left: units,
                    began,
                },
            );
            continue;
        }
        let Some(held) = open.get_mut(&permit) else {
            continue;
        };
        // Others had its units while the process stood still, whenever it saw that.
        let stops = started.stopped_at.iter().copied();
        if let Some(stop) = stops.filter(|stop| (held.began..at).contains(stop)).min() {
            account.changes.push((stop, -mem::take(&mut held.left)));
        }
        totals.lost += u64::from(what == "L");
        // Units of the permit are used units from now on; those beyond it may exceed the limit. The sum stays.
        account.used += units;
        uses.push((at, key, units));
        held.left -= units.min(held.left);
        if what != "A" {
            account.changes.push((at, -held.left));
            open.remove(&permit);
        }
    }
    for held in open.into_values() {
        totals.killed += 1;
        let at = started.killed_at.unwrap();
        let account = accounts.entry(held.key).or_default();
        account.changes.push((at, -held.left));
    }
    let ends = started.stopped_at.iter().chain(&started.killed_at);
    for end in ends {
        for (at, key, units) in &uses {
            // Others may get these units, which were used.
            if (end.saturating_sub(UNKNOWN)..=*end).contains(at) {
                let account = accounts.entry(*key).or_default();
                account.changes.push((*end, -units));
                if started.killed_at == Some(*end) {
                    account.unknown += units;
                }
            }
        }
    }
}

/// Waits until so many streams have begun.
async fn until_streams(started: &mut [Started], streams: usize) {
    until_begun(
        || started.iter_mut().map(|one| one.notes.begun()).sum(),
        streams,
    )
    .await;
}

fn open_streams(notes: &Path) -> u64 {
    let text = fs::read_to_string(notes).unwrap_or_default();
    let begun = text.lines().filter(|line| line.starts_with('B')).count();
    let ended = text.lines().filter(|line| line.starts_with(['E', 'L']));
    (begun - ended.count()) as u64
}

#[test]
fn processes_are_killed_and_stopped_and_no_unit_is_given_twice_or_lost() {
    if let Some(told) = told() {
        return reserve_units(&told);
    }
    const TEST: &str =
        "reservations::processes_are_killed_and_stopped_and_no_unit_is_given_twice_or_lost";
    let (kills, stops, wanted) = short_or_long((6, 1, 1_000), (64, 7, 10_000));
    beside_others(async {
        let directory = tempfile::tempdir().unwrap();
        let end = directory.path().join("end");
        let redis = Node::start(&[]);
        let mut started = Vec::new();
        let start = |started: &mut Vec<Started>| {
            let notes = directory.path().join(started.len().to_string());
            let told = Told {
                url: redis.url(),
                notes: notes.clone(),
                end: end.clone(),
                seed: started.len() as u64 + 1,
            };
            started.push(Started {
                notes: Notes::new(notes),
                killed_at: None,
                stopped_at: Vec::new(),
            });
            Process::start(&mut child(TEST, &serde_json::to_string(&told).unwrap()))
        };
        let mut processes: Vec<_> = (0..PROCESSES).map(|_| start(&mut started)).collect();
        let mut numbers: Vec<usize> = (0..PROCESSES).collect();
        // When each goes on that stands still.
        let mut wakes: Vec<Option<Instant>> = vec![None; PROCESSES];
        let mut totals = Totals::default();
        let began = Instant::now();
        let events = kills + stops;
        for event in 0..events {
            until_streams(&mut started, wanted / (events + 1) * (event + 1)).await;
            wake(&mut wakes, &mut processes);
            let running = (0..PROCESSES).filter(|place| wakes[*place].is_none());
            let running: Vec<usize> = running.collect();
            let place = running[event % running.len()];
            let number = numbers[place];
            let is_stop = event % (events / stops) == 1;
            if is_stop {
                started[number].stopped_at.push(now());
                processes[place].signal("STOP");
                totals.stopped += open_streams(&started[number].notes.path);
                wakes[place] = Some(Instant::now() + 2 * LEASE);
            } else {
                started[number].killed_at = Some(now());
                processes[place].kill();
                numbers[place] = started.len();
                processes[place] = start(&mut started);
            }
        }
        until_streams(&mut started, wanted).await;
        while wakes.iter().any(Option::is_some) {
            tokio::time::sleep(Duration::from_millis(20)).await;
            wake(&mut wakes, &mut processes);
        }
        let took = began.elapsed();
        // Half of them die with what they hold.
        for place in 0..PROCESSES / 2 {
            started[numbers[place]].killed_at = Some(now());
            processes[place].kill();
        }
        let died = Instant::now();
        fs::write(&end, "").unwrap();
        for process in &mut processes[PROCESSES / 2..] {
            process.wait();
        }
        let mut accounts = BTreeMap::new();
        for process in &started {
            add_notes(process, &mut accounts, &mut totals);
        }
        let looks = limiters(&patient(&redis.url()));
        let look = async |key: u64| {
            let limiter = &looks[usize::try_from(key % KEYS).unwrap()];
            let seen = limiter.peek(key.to_string()).await.unwrap();
            let reserved = seen.levels().next().unwrap().reserved();
            (i64::from(seen.used()), reserved)
        };
        let keys: Vec<u64> = accounts.keys().copied().collect();
        until(
            LEASE + Duration::from_secs(1),
            "all units are back",
            async || {
                for key in &keys {
                    if look(*key).await.1 > 0 {
                        return false;
                    }
                }
                true
            },
        )
        .await;
        let returned = died.elapsed();
        let (mut exceeded, mut uncharged, mut missing, mut exact) = (Vec::new(), 0, 0, 0);
        for (key, account) in &mut accounts {
            account.changes.sort_unstable();
            let mut sum = 0;
            let mut most = 0;
            for (_, change) in &account.changes {
                sum += change;
                most = most.max(sum);
            }
            if most > i64::from(LIMIT) {
                exceeded.push((*key, most));
            }
            let (charged, _) = look(*key).await;
            exact += u32::from(charged == account.used);
            missing += account.used - charged;
            if charged > account.used || charged < account.used - account.unknown {
                uncharged += 1;
            }
        }
        let Totals {
            streams,
            killed,
            stopped,
            lost,
        } = totals;
        let mut figure = String::new();
        write!(
            figure,
            "{streams} streams of {} keys in {took:.0?}, {killed} killed with {} processes, {stopped} stopped for two leases, {lost} lost; keys above the limit {exceeded:?}; {exact} keys charged to the unit, {missing} units of killed processes not, {uncharged} keys out of bounds; all units back {returned:.1?} after the last kill",
            keys.len(),
            kills + PROCESSES / 2,
        )
        .unwrap();
        report(
            24,
            "reserved units: 8 processes, killed and stopped for two leases",
            &figure,
            "never more used and reserved than the limit; charged = used, but for a third of a lease before a kill; back within a lease and a second",
        );
        assert!(exceeded.is_empty() && uncharged == 0, "{figure}");
        assert!(killed > 0 && stopped > 0 && lost > 0, "{figure}");
    });
}

/// A third of the default lease, which is the longest time without a message about a key, and a look at it.
const THIRD: Duration = Duration::from_millis(5_500);

/// A limiter whose messages a slow machine sends in time.
fn budget(url: &str) -> RateLimiter {
    let store = RedisStore::open(url).unwrap();
    let store = store.deadline(Duration::from_secs(1));
    let quota = Quota::total(1_000, Duration::from_secs(86_400));
    RateLimiter::new(store, quota).reserve_lease(3 * LEASE)
}

async fn reserve(limiter: &RateLimiter, units: u32) -> Permit {
    let level = limiter.level("acme").cost(units);
    RateLimiter::acquire_all([level]).await.unwrap()
}

/// Waits until so many units are used and reserved.
async fn until_counted(url: &str, within: Duration, expected: (u32, u32)) -> Duration {
    let began = Instant::now();
    let look = budget(url);
    until(within, "the units are counted", async || {
        let Ok(seen) = look.peek("acme").await else {
            return false;
        };
        let reserved = seen.levels().next().unwrap().reserved();
        (seen.used() - reserved, reserved) == expected
    })
    .await;
    began.elapsed()
}

#[test]
fn a_failover_charges_what_is_not_acknowledged_once_and_holds_the_rest_again() {
    beside_others(async {
        for loses_all in [false, true] {
            let mut servers = Sentinels::start();
            let url = servers.url();
            let processes = [(); 2].map(|()| budget(&url));
            let mut permits = Vec::new();
            for limiter in &processes {
                let mut permit = reserve(limiter, 100).await;
                permit.add(10);
                permits.push(permit);
                // Its message says what was used before.
                permits.push(reserve(limiter, 50).await);
            }
            let replica = &servers.servers[1];
            wait_until("the replica has it all", || {
                let keys: Vec<String> = replica.ask(&["KEYS", "*"]);
                keys.len() >= 2
            });
            tokio::time::sleep(Duration::from_millis(300)).await;
            if loses_all {
                let () = replica.ask(&["CONFIG", "SET", "replica-read-only", "no"]);
                let () = replica.ask(&["FLUSHALL"]);
            }
            servers.servers[0].kill();
            for permit in &mut permits {
                permit.add(7);
            }
            wait_until("the replica is promoted", || {
                let role = servers.servers[1].try_ask::<Vec<redis::Value>>(&["ROLE"]);
                let role = role.unwrap_or_default();
                role.first() == Some(&redis::Value::BulkString(b"master".to_vec()))
            });
            // What was charged is lost with the writes, as any count is.
            let charged = if loses_all { 4 * 7 } else { 2 * 10 + 4 * 7 };
            let reserved = 2 * (100 + 50 - 10 - 2 * 7);
            let took = until_counted(&url, THIRD, (charged, reserved)).await;
            report(
                24,
                "reserved units: a Sentinel failover",
                &format!(
                    "the replica lacks all writes: {loses_all}; {charged} units are charged and {reserved} reserved {took:.1?} after it was promoted"
                ),
                "within a third of the lease, 5 s, of the promotion; no use is charged twice",
            );
            drop(permits);
            until_counted(&url, THIRD, (charged, 0)).await;
        }
    });
}

/// Lets processes go on whose time has come.
fn wake(wakes: &mut [Option<Instant>], processes: &mut [Process]) {
    for (wake, process) in wakes.iter_mut().zip(processes) {
        if wake.is_some_and(|at| at <= Instant::now()) {
            process.signal("CONT");
            *wake = None;
        }
    }
}
