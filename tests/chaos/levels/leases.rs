//! Four processes with leases on one Redis: units are used from memory, and no limit is exceeded.

use std::time::Duration;

use tollgate::{Algorithm, Quota, RateLimiter};

use super::crowd::Crowd;
use super::hammer::{Load, Pace, hammer, unix_time};
use super::notes::Notes;
use super::tree::{Level, Tree};
use crate::clock::skewed_server;
use crate::suite::{PATIENCE, alone, patient, report, short_or_long, told, until};
use crate::support::node::Node;
use crate::support::proxy::{Proxy, Wire};
use crate::support::redis_server::RedisServer;

const PROCESSES: u64 = 4;

/// Redis has a charge in its file before it replies.
const DURABLE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::SlidingLog,
    Algorithm::SortedSetLog,
    Algorithm::SlidingBuckets(60),
    Algorithm::SlidingCounter,
    Algorithm::FixedWindow,
    Algorithm::Gcra,
];

/// A fast load that leaves the other processes time.
const STEADY: Pace = Pace {
    burst: 1,
    rest: Duration::from_millis(1),
    part: Duration::ZERO,
};

const LONG_STOP: Duration = Duration::from_secs(2);

/// A load on one limit for each algorithm.
#[derive(Clone, Copy)]
struct Round {
    algorithms: &'static [Algorithm],
    window: Duration,
    lease: Duration,
    /// The algorithms take them in turn. One is above the load.
    limits: [u32; 3],
    pace: Pace,
    lasts: Duration,
    /// Whether Redis is killed. Such a Redis writes each charge to its disk, which takes longer than the shortest lease.
    kills_redis: bool,
}

impl Round {
    fn limit(&self, index: usize) -> u32 {
        self.limits[index % self.limits.len()]
    }

    fn trees(&self) -> Vec<Tree> {
        let tree = |(index, algorithm): (usize, &Algorithm)| {
            let quota = Quota::new(self.limit(index), self.window).with_algorithm(*algorithm);
            let name = format!("{algorithm:?} {:?}/{:?}", self.window, self.lease);
            let level = Level::new(name, vec!["ada".to_owned()], quota);
            Tree(vec![level.lease(self.lease)])
        };
        self.algorithms.iter().enumerate().map(tree).collect()
    }

    fn load(&self, url: String) -> Load {
        Load {
            url,
            trees: self.trees(),
            max_cost: 3,
            cancelled: 50,
            pace: self.pace,
            deadline: None,
        }
    }
}

/// Reads the notes of all trees: none has exceeded its limit. Returns the units that were admitted, and those of
/// them that were held.
fn judge(row: u32, fault: &str, load: &Load, all: &[Notes]) -> (u64, u64) {
    let mut sum = (0, 0);
    for (tree, notes) in load.trees.iter().zip(all) {
        let level = &tree.0[0];
        report(
            row,
            fault,
            &format!(
                "{} of {}: {} units admitted, {} of them from leases; at most {} in a window; {} checks refused, {} failed, {} cancelled",
                level.name,
                level.quotas(),
                notes.total(),
                notes.leased,
                notes.most_in_a_window(),
                notes.refused[0],
                notes.failed,
                notes.cancelled,
            ),
            "no span as long as the window above the promise of its algorithm",
        );
        notes.assert_no_span_exceeds_a_limit();
        sum.0 += u64::from(notes.total());
        sum.1 += u64::from(notes.leased);
    }
    sum
}

fn assert_aligned(all: &[Notes]) {
    for notes in all {
        notes.assert_no_aligned_window_exceeds_a_limit();
    }
}

/// Asserts that a share of the units was used from memory: otherwise the test says nothing about leases. The slower the
/// machine, the fewer keys are busy enough for a lease.
fn assert_leased((admitted, leased): (u64, u64), percent: u64) {
    let share = 100 * leased / admitted.max(1);
    println!("{leased} of {admitted} units from leases: {share} %");
    assert!(share >= percent, "{leased} of {admitted}");
}

/// Stops, kills and restarts until the load has lasted for its time.
async fn disturb(crowd: &mut Crowd, redis: &mut Node, round: &Round) {
    let pause = round.lasts / 6;
    tokio::time::sleep(pause).await;
    crowd.stop_each(round.lease * 6 / 5).await;
    tokio::time::sleep(pause).await;
    crowd.replace_one();
    tokio::time::sleep(pause).await;
    if round.kills_redis {
        redis.kill();
        tokio::time::sleep(pause / 4).await;
        redis.restart();
    }
    tokio::time::sleep(pause).await;
    crowd.replace_one();
    // Longer than a burst that uses the whole limit, and the lease.
    crowd.stop_each(round.window.min(LONG_STOP)).await;
    tokio::time::sleep(pause).await;
}

fn rounds() -> Vec<Round> {
    let millis = Duration::from_millis;
    let round = |window: u64, lease: u64, limits, lasts| Round {
        algorithms: &ALGORITHMS,
        window: millis(window),
        lease: millis(lease),
        limits,
        pace: Pace {
            part: millis(lease.min(500)),
            ..STEADY
        },
        lasts: millis(lasts),
        kills_redis: true,
    };
    let pairs = || ALGORITHMS.chunks(2);
    // So short a lease takes many checks at once.
    let shortest = pairs().map(|pair| Round {
        algorithms: pair,
        pace: Pace {
            burst: 64,
            rest: millis(20),
            part: millis(2),
        },
        kills_redis: false,
        ..round(200, 5, [500, 200, 20_000], 1_200)
    });
    let short = pairs().map(|pair| Round {
        algorithms: pair,
        ..round(200, 20, [150, 200, 20_000], 2_500)
    });
    let mut all: Vec<_> = shortest.chain(short).collect();
    let lasts = |short| short_or_long(short, 9_000);
    all.extend([
        round(1_000, 50, [50_000, 300, 200], lasts(4_500)),
        round(4_000, 400, [1_000, 200_000, 800], lasts(6_000)),
        round(60_000, 6_000, [1_500, 500_000, 1_000], lasts(4_500)),
    ]);
    all
}

#[test]
fn processes_with_leases_are_stopped_and_killed_and_no_span_exceeds_the_limit() {
    if let Some(told) = told() {
        return hammer(&told);
    }
    alone(async {
        let test = "levels::leases::processes_with_leases_are_stopped_and_killed_and_no_span_exceeds_the_limit";
        let fault = "leases: 4 processes stopped and killed, Redis killed";
        let mut durable = Node::start(&DURABLE);
        let mut fast = Node::start(&[]);
        let (mut sum, mut failed) = ((0, 0), 0);
        for round in rounds() {
            let redis = if round.kills_redis {
                &mut durable
            } else {
                &mut fast
            };
            let load = round.load(redis.url());
            let mut crowd = Crowd::start(test, load.clone(), PROCESSES);
            disturb(&mut crowd, redis, &round).await;
            let notes = crowd.end_load();
            let (admitted, leased) = judge(16, fault, &load, &notes);
            assert_aligned(&notes);
            println!(
                "{:?}/{:?}: {leased} of {admitted}",
                round.window, round.lease
            );
            sum.0 += admitted;
            sum.1 += leased;
            for (index, notes) in notes.iter().enumerate() {
                let is_low = round.limit(index) < 10_000;
                let name = &load.trees[index].0[0].name;
                assert!(!is_low || notes.refused[0] > 0, "{name} never refused");
            }
            failed += notes.iter().map(|notes| notes.failed).sum::<u32>();
        }
        assert!(failed > 0);
        assert_leased(sum, 10);
    });
}

#[test]
fn the_clock_of_redis_steps_back_and_no_span_exceeds_the_limit() {
    if let Some(told) = told() {
        return hammer(&told);
    }
    alone(async {
        let test = "levels::leases::the_clock_of_redis_steps_back_and_no_span_exceeds_the_limit";
        let directory = tempfile::tempdir().expect("a directory");
        let (server, skew) = skewed_server(directory.path());
        let millis = Duration::from_millis;
        let round = Round {
            algorithms: &ALGORITHMS,
            // With both cores busy, a reply takes longer than a shorter lease.
            window: millis(1_500),
            lease: millis(150),
            limits: [600, 240, 420],
            pace: Pace {
                part: millis(150),
                ..STEADY
            },
            lasts: Duration::ZERO,
            kills_redis: false,
        };
        let load = round.load(server.url());
        let mut crowd = Crowd::start(test, load.clone(), PROCESSES);
        tokio::time::sleep(2 * round.window).await;
        let mut offset = 0;
        for step in [1, 70, 130, 400, 999, 1_100, 3_000, 3_600_000, 250] {
            offset -= 1_000 * step;
            skew.set(offset);
            tokio::time::sleep(round.window * 137 / 100).await;
        }
        let notes = crowd.end_load();
        let sum = judge(17, "leases: the clock of Redis steps back", &load, &notes);
        assert_leased(sum, 10);
    });
}

/// A load of one unit each, on one limit.
fn plain_load(url: String, quotas: &[Quota], lease: Duration, pace: Pace) -> Load {
    let tree = |quota: &Quota| {
        let name = format!("{:?}", quota.algorithm());
        let level = Level::new(name, vec!["ada".to_owned()], quota.clone());
        Tree(vec![level.lease(lease)])
    };
    Load {
        url,
        trees: quotas.iter().map(tree).collect(),
        max_cost: 1,
        cancelled: 0,
        pace,
        deadline: None,
    }
}

#[test]
fn what_is_not_used_returns_within_the_lease() {
    if let Some(told) = told() {
        return hammer(&told);
    }
    alone(async {
        let test = "levels::leases::what_is_not_used_returns_within_the_lease";
        let server = RedisServer::start();
        let window = Duration::from_secs(short_or_long(10, 20));
        let (lease, limit) = (
            window / 20,
            2_000 * u32::try_from(window.as_secs()).expect("few"),
        );
        // 64 tasks use 40 % of the limit.
        let pace = Pace {
            burst: 1,
            rest: Duration::from_millis(80),
            part: Duration::ZERO,
        };
        let quota = Quota::new(limit, window);
        let load = plain_load(server.url(), std::slice::from_ref(&quota), lease, pace);
        let crowd = Crowd::start(test, load.clone(), PROCESSES);
        let limiter = RateLimiter::new(patient(&load.url), quota);
        let limiter = limiter.name(load.trees[0].0[0].name.as_str()).lease(lease);
        let used = async || limiter.peek("ada").await.expect("Redis answers").used();
        let began = unix_time();
        let mut samples = Vec::new();
        while unix_time() < began + window * 3 / 5 {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let before = unix_time();
            samples.push((before, used().await));
        }
        let (notes, counted) = crowd.end().await.remove(0);
        let admissions = notes.of_level(0).remove(0);
        assert!(admissions.lasted() < window, "{:?}", admissions.lasted());
        let unused = samples.iter().map(|(before, used)| {
            let certain = admissions.until(*before);
            u64::from(*used).saturating_sub(certain)
        });
        let (most, all): (_, u64) = (unused.clone().max().expect("samples"), unused.sum());
        let samples = u64::try_from(samples.len()).expect("few");
        report(
            18,
            "leases: 4 processes below the limit",
            &format!(
                "{} units used in {:.1?}, {} of them from leases, {} checks failed; of {limit}, at most {most} counted without having been used, {} in the mean; in the end, {} counted",
                notes.total(),
                admissions.lasted(),
                notes.leased,
                notes.failed,
                all / samples,
                counted[0][0],
            ),
            "at most 5 % of the limit; in the end, none",
        );
        assert_eq!(notes.refused[0], 0);
        assert_leased((notes.total().into(), notes.leased.into()), 80);
        assert!(most * 20 <= limit.into(), "{most}");
        // Units may be granted by a reply that comes after the deadline.
        let unused = counted[0][0].checked_sub(notes.total());
        let most = if notes.failed == 0 { 0 } else { limit / 20 };
        assert!(unused.is_some_and(|unused| unused <= most), "{unused:?}");
    });
}

#[test]
fn a_load_above_the_limit_gets_almost_all_of_it() {
    if let Some(told) = told() {
        return hammer(&told);
    }
    alone(async {
        let test = "levels::leases::a_load_above_the_limit_gets_almost_all_of_it";
        let server = RedisServer::start();
        let window = Duration::from_secs(2);
        let (lease, limit) = (window / 20, 3_000);
        let algorithms = [Algorithm::SlidingLog, Algorithm::SlidingBuckets(60)];
        let quotas =
            algorithms.map(|algorithm| Quota::new(limit, window).with_algorithm(algorithm));
        let load = plain_load(server.url(), &quotas, lease, STEADY);
        let mut crowd = Crowd::start(test, load.clone(), PROCESSES);
        tokio::time::sleep(7 * window).await;
        let notes = crowd.end_load();
        let sum = judge(19, "leases: a load above the limit", &load, &notes);
        assert_leased(sum, 50);
        for notes in notes {
            let admissions = notes.of_level(0).remove(0);
            // Limit × W/(W + D) in a window is the limit in a W + D. The first limit was there at once, so the
            // periods begin between it and the second one.
            let period = window + lease;
            let begin = admissions.begin() + period / 2;
            let used = |periods: u32| admissions.until(begin + periods * period);
            let of_periods: Vec<_> = (1..=5).map(|end| used(end) - used(end - 1)).collect();
            println!("{of_periods:?} of {limit} units in the window and the lease");
            // A period in which the machine stands still says nothing of the leases.
            let mut sorted = of_periods.clone();
            sorted.sort_unstable();
            assert!(sorted[2] * 100 >= 95 * u64::from(limit), "{of_periods:?}");
        }
    });
}

#[test]
fn connections_are_cut_and_no_span_exceeds_the_limit() {
    if let Some(told) = told() {
        return hammer(&told);
    }
    alone(async {
        let test = "levels::leases::connections_are_cut_and_no_span_exceeds_the_limit";
        let redis = Node::start(&[]);
        let proxy = Proxy::before(redis.port()).await;
        let millis = Duration::from_millis;
        let round = Round {
            algorithms: &ALGORITHMS,
            // Where both cores have other work, a reply takes more than 50 ms.
            window: millis(2_000),
            lease: millis(200),
            limits: [80_000, 2_400, 800],
            pace: Pace {
                part: millis(500),
                ..STEADY
            },
            lasts: Duration::ZERO,
            kills_redis: false,
        };
        let load = round.load(proxy.url());
        let mut crowd = Crowd::start(test, load.clone(), PROCESSES);
        // A slow machine makes fewer calls.
        for (every, cuts) in [(300, 3), (100, 9), (30, 21)] {
            tokio::time::sleep(millis(1_000)).await;
            proxy.set(Wire::CutBeforeReply(every));
            tokio::time::sleep(millis(1_500)).await;
            until(PATIENCE, "connections are cut", async || {
                proxy.cuts() >= cuts
            })
            .await;
            proxy.set(Wire::Whole);
        }
        tokio::time::sleep(millis(500)).await;
        let notes = crowd.end_load();
        println!("{} cuts", proxy.cuts());
        assert!(proxy.cuts() > 20);
        let sum = judge(20, "leases: connections cut before replies", &load, &notes);
        assert_aligned(&notes);
        assert_leased(sum, 10);
    });
}
