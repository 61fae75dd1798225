//! Limiters without HTTP, under load.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use governor::DefaultKeyedRateLimiter;
use tollgate::{Algorithm, MemoryStore, Quota, RateLimiter, RedisStore};

use crate::args::Args;
use crate::support::increx::Increx;
use crate::support::load::{self, Decide, Done, Load};
use crate::support::redis_server::RedisServer;
use crate::support::spent::{Meter, Spent};
use crate::support::table::{self, beside, median, short};
use crate::support::textbook::Textbook;
use crate::workload::Workload;

const SECOND: Duration = Duration::from_secs(1);

/// Never reached by one key in a second.
const LIMIT: u32 = 1_000_000_000;

enum Limiter {
    Tollgate(RateLimiter),
    Textbook(Textbook),
    Increx(Increx),
    Governor(DefaultKeyedRateLimiter<String>),
}

struct Keyed {
    name: &'static str,
    limiter: Limiter,
    keys: Vec<String>,
    on_redis: bool,
}

impl Decide for Keyed {
    async fn decide(&self, key: usize) -> bool {
        let key = &self.keys[key];
        match &self.limiter {
            Limiter::Tollgate(limiter) => {
                let decision = limiter.check(key.as_str()).await;
                decision.expect("an answer").is_allowed()
            }
            Limiter::Textbook(textbook) => textbook.check(key).await,
            Limiter::Increx(increx) => increx.check(key, 1).await,
            Limiter::Governor(governor) => governor.check_key(key).is_ok(),
        }
    }
}

/// What one of them did in one round.
struct Sample {
    per_second: f64,
    tail: [f64; 3],
    spent: Spent,
    wrong: u64,
}

#[tokio::main]
pub(crate) async fn print(args: &Args) {
    for (told, keys) in [("10 000 keys", 10_000), ("one hot key", 1)] {
        for tasks in [64, 512] {
            let title = format!("Limiter alone, {told}, all admitted; {tasks} tasks");
            measure(&title, keys, tasks, args).await;
        }
    }
}

async fn measure(title: &str, keys: usize, tasks: usize, args: &Args) {
    let mut samples: Vec<(&str, bool, Vec<Sample>)> = Vec::new();
    for _ in 0..args.rounds {
        // Each round begins on an empty server and in an empty memory.
        let server = RedisServer::start();
        let mut meter = Meter::new(server.connect());
        for (at, one) in all(&server, keys).await.into_iter().enumerate() {
            if samples.len() == at {
                samples.push((one.name, one.on_redis, Vec::new()));
            }
            let load = |span| Load { tasks, keys, span };
            let one = Arc::new(one);
            load::run(&one, load(args.warm_up)).await;
            meter.begin();
            let done = load::run(&one, load(args.span)).await;
            samples[at].2.push(sample(&done, &mut meter));
        }
    }
    let textbook = samples.iter().find(|(name, ..)| *name == "textbook");
    let (_, _, textbook) = textbook.expect("it is one of them");
    let head = "|decisions/s|× textbook|p50 µs|p99|p99.9|Redis CPU µs|× textbook|scripts|wrong";
    let head: Vec<_> = head.split('|').map(str::to_owned).collect();
    let rows = samples
        .iter()
        .map(|(name, on_redis, own)| row(name, *on_redis, own, textbook));
    table::print(title, &head, &rows.collect::<Vec<_>>());
}

fn sample(done: &Done, meter: &mut Meter) -> Sample {
    Sample {
        per_second: done.per_second(),
        tail: done.latencies.tail(),
        spent: meter.spent().per(done.decisions),
        wrong: done.decisions - done.admitted,
    }
}

async fn all(server: &RedisServer, count: usize) -> Vec<Keyed> {
    let keyed = |name: &'static str, on_redis, limiter| Keyed {
        name,
        limiter,
        keys: (0..count).map(Workload::key).collect(),
        on_redis,
    };
    let quota = |algorithm| Quota::new(LIMIT, SECOND).with_algorithm(algorithm);
    let on_redis = |algorithm| {
        let store = RedisStore::open(&server.url()).expect("a URL");
        let store = store.deadline(Duration::from_secs(10));
        // Different names, so that contestants do not share keys.
        let limiter = RateLimiter::new(store, quota(algorithm));
        Limiter::Tollgate(limiter.name(format!("{algorithm:?}")))
    };
    let in_memory =
        |algorithm| Limiter::Tollgate(RateLimiter::new(MemoryStore::new(), quota(algorithm)));
    let textbook = Textbook::connect(&server.url(), LIMIT, SECOND).await;
    let rate = NonZeroU32::new(LIMIT).expect("not zero");
    let governor = governor::RateLimiter::keyed(governor::Quota::per_second(rate));
    let increx = Increx::connect(&server.url(), LIMIT, SECOND).await;
    let increx = increx.map(|increx| keyed("increx", true, Limiter::Increx(increx)));
    let others = [
        keyed("textbook", true, Limiter::Textbook(textbook)),
        keyed("tollgate-redis", true, on_redis(Algorithm::SlidingLog)),
        keyed("tollgate-redis-gcra", true, on_redis(Algorithm::Gcra)),
        keyed("tollgate-memory", false, in_memory(Algorithm::SlidingLog)),
        keyed("tollgate-memory-gcra", false, in_memory(Algorithm::Gcra)),
        keyed("governor", false, Limiter::Governor(governor)),
    ];
    others.into_iter().chain(increx).collect()
}

fn row(name: &str, on_redis: bool, own: &[Sample], textbook: &[Sample]) -> Vec<String> {
    let both = |of: fn(&Sample) -> f64| {
        let ratios = own.iter().zip(textbook).map(|(own, its)| of(own) / of(its));
        beside(median(own.iter().map(of)), median(ratios))
    };
    let mut row = vec![name.to_owned()];
    row.extend(both(|sample| sample.per_second));
    row.extend([0, 1, 2].map(|at| short(median(own.iter().map(|sample| sample.tail[at])))));
    if on_redis {
        row.extend(both(|sample| sample.spent.cpu));
        row.push(short(median(own.iter().map(|sample| sample.spent.scripts))));
    } else {
        row.extend([const { String::new() }; 3]);
    }
    row.push(
        own.iter()
            .map(|sample| sample.wrong)
            .sum::<u64>()
            .to_string(),
    );
    row
}
