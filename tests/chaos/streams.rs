//! A thousand streams hold slots in flight while Redis loses its data, fails over or is away, or while its clock steps back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::task::JoinHandle;
use tollgate::{Acquired, FailurePolicy, Permit, Quota, RateLimiter, RedisStore};

use crate::suite::{Process, beside_others, child, patient, report, short_or_long, told, until};
use crate::support::node::{Node, wait_until};
use crate::support::sentinel::Sentinels;

const STREAMS: u32 = 1_000;

/// A third of the default lease, which is the longest time without a message about a key.
const THIRD: Duration = Duration::from_secs(5);

/// What one look at all keys may take, which is no part of a bound.
const LOOK: Duration = Duration::from_millis(500);

/// A limiter with the default lease, whose deadline a thousand messages at once meet on a slow machine.
fn limiter(url: &str, limit: u32) -> RateLimiter {
    let store = RedisStore::open(url).unwrap();
    let store = store.deadline(Duration::from_secs(1));
    RateLimiter::new(store, Quota::in_flight(limit))
}

/// Streams of two processes, which hold all slots of their keys.
struct Streams {
    keys: u32,
    limit: u32,
    processes: [RateLimiter; 2],
    permits: Vec<Permit>,
    /// Looks at what Redis counts.
    look: RateLimiter,
}

impl Streams {
    async fn open(url: &str, keys: u32) -> Self {
        let limit = STREAMS / keys;
        let processes = [(); 2].map(|()| limiter(url, limit));
        let mut permits = Vec::new();
        for stream in 0..STREAMS {
            // Both processes hold slots of a key that has several.
            let process = usize::try_from((stream / keys + stream) % 2).unwrap();
            let key = (stream % keys).to_string();
            permits.push(processes[process].acquire(key).await.unwrap());
        }
        Self {
            keys,
            limit,
            processes,
            permits,
            look: limiter(url, limit),
        }
    }

    /// Returns the used slots of each key, if Redis answers.
    async fn used(&self) -> Option<Vec<u32>> {
        let looks = (0..self.keys).map(|key| self.look.peek(key.to_string()));
        let used = join_all(looks).await.into_iter();
        used.map(|decision| decision.ok().map(|decision| decision.used()))
            .collect()
    }

    /// Each process sends a message about a key of which it holds slots.
    async fn send(&self) {
        for (number, process) in self.processes.iter().enumerate() {
            drop(process.try_acquire(number.to_string()).await);
        }
    }

    /// Waits until Redis counts all streams again, while another process takes what it gets. Returns how long that took,
    /// and how many slots the other process has got, which are all above the limits.
    async fn counted_again(
        &self,
        rival: Rival,
        since: Instant,
        within: Duration,
    ) -> (Duration, usize) {
        let took = loop {
            let began = since.elapsed();
            let used = self.used().await;
            let is_counted = |used: &Vec<u32>| used.iter().all(|used| *used >= self.limit);
            if used.as_ref().is_some_and(is_counted) {
                break began;
            }
            // Its own calls would crowd out those of the processes.
            tokio::time::sleep(Duration::from_millis(20)).await;
            let missing = used.map(|used| used.iter().filter(|used| **used < self.limit).count());
            assert!(began < within + LOOK, "{missing:?} keys after {began:?}");
        };
        let over = rival.end().await;
        let mut expected = vec![self.limit; usize::try_from(self.keys).unwrap()];
        for (key, _) in &over {
            expected[usize::try_from(*key).unwrap()] += 1;
        }
        until(THIRD, "all that runs is counted, and no more", async || {
            self.used().await.as_ref() == Some(&expected)
        })
        .await;
        (took, over.len())
    }

    /// Ends all streams. Their slots are free soon.
    async fn end(mut self) {
        self.permits.clear();
        until(THIRD, "all slots are free", async || {
            let used = self.used().await;
            used.is_some_and(|used| used.iter().all(|used| *used == 0))
        })
        .await;
    }
}

/// Another process, which takes every slot of the streams that it gets.
struct Rival {
    has_ended: Arc<AtomicBool>,
    taking: JoinHandle<Vec<(u32, Permit)>>,
}

impl Rival {
    fn start(url: &str, streams: &Streams) -> Self {
        let has_ended = Arc::new(AtomicBool::new(false));
        let (ended, keys) = (Arc::clone(&has_ended), streams.keys);
        let limiter = limiter(url, streams.limit);
        let taking = tokio::spawn(async move {
            let mut taken = Vec::new();
            let mut next = (0..keys).cycle();
            while !ended.load(Ordering::Relaxed) {
                let some: Vec<_> = next.by_ref().take(8).collect();
                let asked = some.iter().map(|key| limiter.try_acquire(key.to_string()));
                let asked = join_all(asked).await;
                let is_away = asked.iter().all(Result::is_err);
                for (key, asked) in some.into_iter().zip(asked) {
                    if let Ok(Acquired::Permit(permit)) = asked {
                        taken.push((key, permit));
                    }
                }
                let pause = Duration::from_millis(if is_away { 5 } else { 1 });
                tokio::time::sleep(pause).await;
            }
            taken
        });
        Self { has_ended, taking }
    }

    async fn end(self) -> Vec<(u32, Permit)> {
        self.has_ended.store(true, Ordering::Relaxed);
        self.taking.await.unwrap()
    }
}

/// The numbers of keys over which the streams are spread.
const SPREADS: [u32; 2] = [1_000, 4];

#[test]
fn streams_that_a_flush_has_removed_are_counted_again_with_the_next_message() {
    beside_others(async {
        let redis = Node::start(&[]);
        for keys in SPREADS {
            for (is_told, within) in [(true, Duration::from_secs(1)), (false, THIRD)] {
                let streams = Streams::open(&redis.url(), keys).await;
                let rival = Rival::start(&redis.url(), &streams);
                tokio::time::sleep(Duration::from_millis(100)).await;
                let () = redis.ask(&["FLUSHALL"]);
                let since = Instant::now();
                if is_told {
                    streams.send().await;
                }
                let (took, over) = streams.counted_again(rival, since, within).await;
                let (what, bound) = match is_told {
                    true => ("after the next message", "within a second"),
                    false => (
                        "without another message",
                        "within a third of the lease, 5 s",
                    ),
                };
                report(
                    23,
                    "slots in flight: FLUSHALL under 1000 streams",
                    &format!(
                        "{keys} keys: all are counted again {took:.1?} {what}; {over} slots above the limits meanwhile"
                    ),
                    bound,
                );
                streams.end().await;
            }
        }
    });
}

#[test]
fn streams_are_counted_again_after_a_restart_without_data() {
    beside_others(async {
        let mut redis = Node::start(&[]);
        for keys in SPREADS {
            let streams = Streams::open(&redis.url(), keys).await;
            let rival = Rival::start(&redis.url(), &streams);
            redis.kill();
            tokio::time::sleep(Duration::from_millis(500)).await;
            redis.restart();
            let (took, over) = streams.counted_again(rival, Instant::now(), THIRD).await;
            report(
                23,
                "slots in flight: a restart without data under 1000 streams",
                &format!(
                    "{keys} keys: all are counted again {took:.1?} after the port answers; {over} slots above the limits meanwhile"
                ),
                "within a third of the lease, 5 s",
            );
            streams.end().await;
        }
    });
}

#[test]
fn streams_are_counted_again_after_a_failover_that_loses_them() {
    beside_others(async {
        for keys in SPREADS {
            let mut servers = Sentinels::start();
            let streams = Streams::open(&servers.url(), keys).await;
            let rival = Rival::start(&servers.url(), &streams);
            // The replica has received nothing.
            let replica = &servers.servers[1];
            let () = replica.ask(&["CONFIG", "SET", "replica-read-only", "no"]);
            let () = replica.ask(&["FLUSHALL"]);
            servers.servers[0].kill();
            let killed = Instant::now();
            wait_until("the replica is promoted", || {
                let role = servers.servers[1].try_ask::<Vec<redis::Value>>(&["ROLE"]);
                let role = role.unwrap_or_default();
                role.first() == Some(&redis::Value::BulkString(b"master".to_vec()))
            });
            let promoted = killed.elapsed();
            let (took, over) = streams.counted_again(rival, Instant::now(), THIRD).await;
            report(
                23,
                "slots in flight: a Sentinel failover that loses 1000 streams",
                &format!(
                    "{keys} keys: promoted after {promoted:.1?}, all are counted again {took:.1?} later; {over} slots above the limits meanwhile"
                ),
                "within a third of the lease, 5 s, of the promotion",
            );
            streams.end().await;
        }
    });
}

#[test]
fn permits_that_are_given_while_redis_is_away_count_within_one_renewal() {
    beside_others(async {
        let mut redis = Node::start(&[]);
        let policies = [
            ("fall_back", FailurePolicy::fall_back()),
            ("open", FailurePolicy::open()),
        ];
        let [counting, open] =
            policies.map(|(name, policy)| limiter(&redis.url(), 4).name(name).on_failure(policy));
        let looks = policies.map(|(name, _)| limiter(&redis.url(), 4).name(name));
        let take = async |limiter: &RateLimiter| match limiter.try_acquire("ada").await {
            Ok(Acquired::Permit(permit)) => Some(permit),
            _ => None,
        };
        let mut permits = Vec::new();
        for limiter in [&counting, &open] {
            permits.push(take(limiter).await.unwrap());
        }
        redis.kill();
        let away = short_or_long(Duration::from_secs(3), Duration::from_secs(30));
        // At the beginning, and just before Redis is back.
        for wait in [Duration::ZERO, away] {
            tokio::time::sleep(wait).await;
            permits.push(take(&counting).await.unwrap());
            for _ in 0..3 {
                permits.push(take(&open).await.unwrap());
            }
        }
        permits.push(take(&counting).await.unwrap());
        assert!(take(&counting).await.is_none(), "more than the limit");
        redis.restart();
        let back = Instant::now();
        let mut figures = Vec::new();
        for (look, expected) in looks.iter().zip([4, 7]) {
            until(THIRD, "the permits are counted", async || {
                let used = look.peek("ada").await;
                used.is_ok_and(|used| used.used() == expected)
            })
            .await;
            figures.push(back.elapsed());
        }
        report(
            23,
            &format!("slots in flight: Redis away for {away:?}"),
            &format!(
                "permits given meanwhile are counted {:.1?} after the port answers (3 of `fall_back`), {:.1?} (6 of `open`)",
                figures[0], figures[1]
            ),
            "within one renewal, 5 s",
        );
        drop(permits);
        for look in &looks {
            until(THIRD, "all slots are free", async || {
                look.peek("ada").await.is_ok_and(|used| used.used() == 0)
            })
            .await;
        }
    });
}

#[cfg(target_os = "linux")]
const KILLED: &str =
    "streams::slots_return_within_one_lease_of_a_step_back_though_every_message_is_refused";

#[cfg(target_os = "linux")]
#[test]
fn slots_return_within_one_lease_of_a_step_back_though_every_message_is_refused() {
    const LEASE: Duration = Duration::from_secs(5);
    let process = |url: &str| {
        let quota = Quota::in_flight(2).slot_lease(LEASE);
        RateLimiter::new(patient(url), quota)
    };
    if let Some(url) = told() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        return runtime.block_on(async {
            let gone = process(&url);
            let levels = [gone.level("ada").slots(2)];
            let _permit = RateLimiter::acquire_all(levels).await.unwrap();
            std::future::pending::<()>().await;
        });
    }
    beside_others(async {
        let directory = tempfile::tempdir().expect("a directory");
        let (server, skew) = crate::clock::skewed_server(directory.path());
        let waiting = process(&server.url());
        let gone = Process::start(&mut child(KILLED, &server.url()));
        until(LEASE * 4, "the slots are taken", async || {
            let used = waiting.peek("ada").await;
            used.is_ok_and(|used| used.used() == 2)
        })
        .await;
        drop(gone);
        skew.set(-3_600 * 1_000_000);
        let began = Instant::now();
        let permit = waiting.acquire("ada").await.unwrap();
        let took = began.elapsed();
        report(
            23,
            "slots in flight: the clock steps back by an hour",
            &format!(
                "the slots of a process that is gone are another's after {took:.2?}, whose messages were all refused"
            ),
            "within one lease of 5 s",
        );
        assert!(took > LEASE / 2, "{took:?}");
        assert!(took < LEASE + Duration::from_millis(500), "{took:?}");
        drop(permit);
    });
}
