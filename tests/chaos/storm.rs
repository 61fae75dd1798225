//! SCRIPT FLUSH and CLIENT KILL ten times per second.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use http::request::Parts;
use tollgate::{Quota, RateLimitLayer, RateLimiter, RedisStore};

use crate::drive::{ask, by_path, key_of};
use crate::suite::{
    Process, answer_parent, beside_others, closed, report, run, short_or_long, told,
};
use crate::support::redis_server::{RedisServer, run as command};
use crate::support::store_on;

const PROCESSES: usize = 2;
const TASKS: usize = 64;
const LIMIT: u32 = 300;

fn quota() -> Quota {
    Quota::per_hour(LIMIT)
}

/// What the requests of a process came to.
#[derive(Default)]
struct Tally {
    /// The units that each key was admitted.
    admitted: BTreeMap<u32, u32>,
    checks: u32,
    undecided: u32,
}

impl Tally {
    fn add(&mut self, other: Self) {
        for (key, units) in other.admitted {
            *self.admitted.entry(key).or_default() += units;
        }
        self.checks += other.checks;
        self.undecided += other.undecided;
    }

    fn write(&self) -> String {
        let keys = self
            .admitted
            .iter()
            .map(|(key, units)| format!(" {key} {units}"));
        format!(
            "{} {}{}",
            self.checks,
            self.undecided,
            keys.collect::<String>()
        )
    }

    fn read(text: &str) -> Self {
        let numbers: Vec<u32> = text
            .split(' ')
            .map(|text| text.parse().expect("a number"))
            .collect();
        let [checks, undecided, keys @ ..] = numbers.as_slice() else {
            panic!("{text}");
        };
        Self {
            admitted: keys.chunks(2).map(|pair| (pair[0], pair[1])).collect(),
            checks: *checks,
            undecided: *undecided,
        }
    }
}

/// Asks for one key until it is refused, then for the next.
async fn hammer(layer: RateLimitLayer, task: usize, span: Duration) -> Tally {
    let (begin, mut tally, mut key) = (Instant::now(), Tally::default(), 0);
    while begin.elapsed() < span {
        let cost = 1 + u32::try_from(task).expect("few") % 5;
        let response = ask(&layer, &format!("/{key}?{cost}")).await;
        tally.checks += 1;
        match response.status().as_u16() {
            200 => *tally.admitted.entry(key).or_default() += cost,
            429 => key += 1,
            503 => {
                tally.undecided += 1;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            status => panic!("{status}"),
        }
    }
    tally
}

async fn hammer_all(url: &str, span: Duration) -> Tally {
    let store = RedisStore::open(url).expect("a URL");
    let cost = |parts: &Parts| {
        parts
            .uri
            .query()
            .and_then(|cost| cost.parse().ok())
            .unwrap_or(1)
    };
    let layer = closed(by_path(store, quota()).cost(cost));
    let tasks = (0..TASKS).map(|task| tokio::spawn(hammer(layer.clone(), task, span)));
    let mut all = Tally::default();
    for task in tasks.collect::<Vec<_>>() {
        all.add(task.await.expect("a task ends"));
    }
    all
}

#[test]
fn a_storm_of_script_flushes_and_killed_clients_never_admits_more_than_the_limit() {
    const TEST: &str =
        "storm::a_storm_of_script_flushes_and_killed_clients_never_admits_more_than_the_limit";
    let span = Duration::from_secs(short_or_long(4, 60));
    if let Some(url) = told() {
        let tally = run(hammer_all(&url, span));
        return answer_parent(&tally.write());
    }
    beside_others(async {
        let server = RedisServer::start();
        let processes: Vec<_> = (0..PROCESSES)
            .map(|_| Process::of(TEST, &server.url()))
            .collect();
        let storm = tokio::task::spawn_blocking({
            let mut connection = server.connect();
            move || {
                let begin = Instant::now();
                let mut blows: u32 = 0;
                while begin.elapsed() < span {
                    command(&mut connection, &["SCRIPT", "FLUSH"]);
                    command(
                        &mut connection,
                        &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"],
                    );
                    blows += 1;
                    std::thread::sleep(
                        (blows * Duration::from_millis(100)).saturating_sub(begin.elapsed()),
                    );
                }
                blows
            }
        });
        let blows = storm.await.expect("the storm ends");
        let mut tally = Tally::default();
        for process in processes {
            tally.add(Tally::read(&process.report()));
        }
        let direct = RateLimiter::new(store_on(&server), quota());
        for (key, units) in &tally.admitted {
            assert!(*units <= LIMIT, "{units} units were admitted of key {key}");
            let used = direct
                .peek(key_of(&format!("/{key}")))
                .await
                .expect("an answer")
                .used();
            assert!(
                (*units..=LIMIT).contains(&used),
                "{units} admitted, {used} counted"
            );
        }
        let most = tally.admitted.values().max().copied().unwrap_or(0);
        let full = tally
            .admitted
            .values()
            .filter(|units| **units > LIMIT - 5)
            .count();
        assert!(full > 0, "no key was used up");
        report(
            4,
            "SCRIPT FLUSH and CLIENT KILL ten times a second",
            &format!(
                "{blows} blows, {} checks of {} keys, {} % without a decision: at most {most} of {LIMIT} units admitted",
                tally.checks,
                tally.admitted.len(),
                tally.undecided * 100 / tally.checks,
            ),
            "admitted cost ≤ limit",
        );
    });
}
