//! What slots cost in Redis, beside the textbook's semaphore.

use std::sync::Arc;
use std::time::Duration;

use tollgate::store::Store;
use tollgate::store::protocol::{Holding, Subject};
use tollgate::{Acquired, Key, Quota, Quotas, RateLimiter, RedisStore};

use crate::semaphore::Semaphore;
use crate::support::args::Args;
use crate::support::load::{self, Decide, Load};
use crate::support::redis_server::RedisServer;
use crate::support::spent::{Meter, Spent};
use crate::support::table::{self, beside, median, short};
use crate::{runtime, store};

/// No permit is refused, and releases are gathered.
const LIMIT: u32 = 1_000;
const LEASE: Duration = Duration::from_secs(15);

const NAME: &str = "permits";

/// How long tasks rest between two permits, so that a release does not go with the next acquire.
const REST: Duration = Duration::from_millis(5);

/// The keys whose leases are renewed, and for how many spans: a renewal comes every few seconds.
const RENEWED: usize = 1_000;
const SPANS: u32 = 30;

/// The ways to hold a slot. The first one is the base of the ratios.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Semaphore,
    Tollgate,
}

const WAYS: [Way; 2] = [Way::Semaphore, Way::Tollgate];

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Semaphore => "textbook",
            Self::Tollgate => "tollgate",
        }
    }
}

enum Slots {
    Semaphore(Semaphore),
    Tollgate(RateLimiter),
}

/// Takes and releases one permit after the other.
struct Permits {
    slots: Slots,
    keys: Vec<Key>,
    rest: Duration,
}

impl Permits {
    async fn of(way: Way, redis: &RedisServer, keys: usize, rest: Duration) -> Arc<Self> {
        let quota = Quota::in_flight(LIMIT).slot_lease(LEASE);
        let slots = match way {
            Way::Semaphore => {
                Slots::Semaphore(Semaphore::connect(&redis.url(), LIMIT, LEASE).await)
            }
            Way::Tollgate => {
                let limiter = RateLimiter::new(store(&redis.url()), quota);
                Slots::Tollgate(limiter.name(NAME))
            }
        };
        let keys = (0..keys).map(|key| Key::from(key.to_string())).collect();
        Arc::new(Self { slots, keys, rest })
    }
}

impl Decide for Permits {
    async fn decide(&self, key: usize) -> bool {
        let key = &self.keys[key];
        match &self.slots {
            Slots::Semaphore(semaphore) => {
                let member = semaphore.acquire(key.as_str()).await;
                if let Some(member) = &member {
                    semaphore.release(key.as_str(), member).await;
                }
                member.is_some()
            }
            Slots::Tollgate(limiter) => {
                let acquired = limiter.try_acquire(key).await;
                matches!(acquired.expect("Redis answers"), Acquired::Permit(_))
            }
        }
    }

    async fn rest(&self) -> bool {
        if !self.rest.is_zero() {
            tokio::time::sleep(self.rest).await;
        }
        !self.rest.is_zero()
    }
}

/// One turn of a way.
struct Sample {
    per_second: f64,
    p50: f64,
    /// Of one permit.
    spent: Spent,
    /// The bytes of the first key, while it is held by as many as the table says.
    bytes: f64,
}

/// Permits of as many tasks as keys, and of one task.
pub(crate) fn compare(args: &Args) {
    let workloads = [
        ("64 tasks, each with a key", 64, Duration::ZERO),
        ("64 tasks, each with a key, which rest", 64, REST),
        ("One task", 1, Duration::ZERO),
    ];
    for (title, tasks, rest) in workloads {
        let samples = in_turn(args, |way| {
            let redis = RedisServer::start();
            let mut meter = Meter::new(redis.connect());
            runtime().block_on(async {
                let permits = Permits::of(way, &redis, tasks, rest).await;
                measure(&permits, &mut meter, tasks, args.span).await
            })
        });
        let head =
            "|× CPU|CPU µs a permit|scripts|commands|bytes in|bytes out|permits a second|p50 µs";
        let rows = WAYS.iter().zip(&samples);
        let rows: Vec<_> = rows
            .map(|(way, own)| {
                let of = |value: &dyn Fn(&Sample) -> f64| median(own.iter().map(value));
                let mut row = vec![way.name().to_owned()];
                row.extend(cpu(own, &samples[0]));
                row.push(short(of(&|sample| sample.spent.scripts)));
                row.push(short(of(&|sample| sample.spent.commands)));
                row.push(short(of(&|sample| sample.spent.received)));
                row.push(short(of(&|sample| sample.spent.sent)));
                row.push(short(of(&|sample| sample.per_second)));
                row.push(short(of(&|sample| sample.p50)));
                row
            })
            .collect();
        print(args, title, head, &rows);
    }
}

/// Permits of one task on a key that others hold.
pub(crate) fn compare_holders(args: &Args) {
    let mut rows = Vec::new();
    for holders in [1_u8, 50, 200] {
        let samples = in_turn(args, |way| {
            let redis = RedisServer::start();
            let mut meter = Meter::new(redis.connect());
            runtime().block_on(async {
                let permits = Permits::of(way, &redis, 1, Duration::ZERO).await;
                hold(&permits, &redis, holders - 1).await;
                let mut sample = measure(&permits, &mut meter, 1, args.span).await;
                sample.bytes = bytes(&redis);
                sample
            })
        });
        for (way, own) in WAYS.iter().zip(&samples) {
            let of = |value: &dyn Fn(&Sample) -> f64| median(own.iter().map(value));
            let mut row = vec![format!("{}, {holders} holders", way.name())];
            row.extend(cpu(own, &samples[0]));
            row.push(short(of(&|sample| {
                // A release by the textbook is a command, which no script runs.
                let releases = if *way == Way::Semaphore { 1.0 } else { 0.0 };
                sample.spent.cpu / (sample.spent.scripts + releases)
            })));
            row.push(short(of(&|sample| sample.bytes)));
            rows.push(row);
        }
    }
    let head = "|× CPU|CPU µs a permit|CPU µs a message|bytes of the key";
    print(args, "One task on a key with other holders", head, &rows);
}

/// Renewals of held keys, and the same server without them.
pub(crate) fn compare_renewals(args: &Args) {
    let redis = RedisServer::start();
    let mut meter = Meter::new(redis.connect());
    let span = args.span * SPANS;
    let row = |name: &str, spent: Spent| {
        let each = |total: f64| short(total / span.as_secs_f64());
        let values = [spent.cpu, spent.scripts, spent.received, spent.sent];
        let mut row = vec![name.to_owned()];
        row.extend(values.map(each));
        row
    };
    let rows = runtime().block_on(async {
        let limiter =
            RateLimiter::new(store(&redis.url()), Quota::in_flight(LIMIT)).name("renewed");
        let mut rows = Vec::new();
        for held in [0, RENEWED] {
            let mut permits = Vec::new();
            for key in 0..held {
                permits.push(limiter.acquire(key.to_string()).await.expect("a slot"));
            }
            meter.begin();
            tokio::time::sleep(span).await;
            let spent = meter.spent();
            rows.push(row(&format!("{held} keys"), spent));
        }
        rows
    });
    let head = "held|CPU µs a second|scripts|bytes in|bytes out";
    let head: Vec<_> = head.split('|').map(str::to_owned).collect();
    let title = format!("Renewal at the default lease; one run of {span:?} each");
    table::print(&title, &head, &rows);
}

/// Measures the ways in turn.
fn in_turn(args: &Args, measure: impl Fn(Way) -> Sample) -> [Vec<Sample>; 2] {
    let mut samples = WAYS.map(|_| Vec::new());
    for _ in 0..args.rounds {
        for (way, of_way) in WAYS.into_iter().zip(&mut samples) {
            of_way.push(measure(way));
        }
    }
    samples
}

/// Measures after a fifth of the time.
async fn measure(
    permits: &Arc<Permits>,
    meter: &mut Meter,
    tasks: usize,
    span: Duration,
) -> Sample {
    let load = |span| Load {
        tasks,
        keys: tasks,
        span,
    };
    load::run(permits, load(span / 5)).await;
    meter.begin();
    let done = load::run(permits, load(span)).await;
    let spent = meter.spent().per(done.decisions);
    assert_eq!(done.admitted, done.decisions, "a permit was refused");
    Sample {
        per_second: done.per_second(),
        p50: done.latencies.tail()[0],
        spent,
        bytes: 0.0,
    }
}

/// Makes others hold a slot each of the first key.
async fn hold(permits: &Permits, redis: &RedisServer, others: u8) {
    let key = &permits.keys[0];
    match &permits.slots {
        Slots::Semaphore(semaphore) => {
            for _ in 0..others {
                let member = semaphore.acquire(key.as_str()).await;
                assert!(member.is_some(), "a slot was refused");
            }
        }
        Slots::Tollgate(_) => {
            let store = store(&redis.url());
            for other in 1..=others {
                state(&store, key, other).await;
            }
        }
    }
}

/// Sends the message of another process that takes a slot of a key.
async fn state(store: &RedisStore, key: &Key, other: u8) {
    // Longer than the measurement.
    let holding = Holding::new([other; 16], 1, 0, 1, Duration::from_secs(600));
    let quotas = Quotas::from([Quota::in_flight(LIMIT)]);
    let name = Key::from(NAME);
    let check = Subject::new(&name, key, &quotas)
        .check(0)
        .with_holding(&holding);
    let answers = store.check(&[check]).await.expect("Redis answers");
    assert!(answers.are_admitted(), "a slot was refused");
}

/// Returns what the largest key takes: that of the slots.
fn bytes(redis: &RedisServer) -> f64 {
    let mut connection = redis.connect();
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg("*")
        .query(&mut connection)
        .expect("KEYS answers");
    let usage = |key: &String| {
        let mut command = redis::cmd("MEMORY");
        command.arg("USAGE").arg(key).arg("SAMPLES").arg(0);
        command.query::<u32>(&mut connection).expect("a key")
    };
    keys.iter().map(usage).max().map_or(0.0, f64::from)
}

fn cpu(own: &[Sample], base: &[Sample]) -> [String; 2] {
    let ratios = own.iter().zip(base);
    let ratios = ratios.map(|(own, base)| own.spent.cpu / base.spent.cpu);
    let [cpu, ratio] = beside(median(own.iter().map(|own| own.spent.cpu)), median(ratios));
    [ratio, cpu]
}

fn print(args: &Args, title: &str, head: &str, rows: &[Vec<String>]) {
    let head: Vec<_> = head.split('|').map(str::to_owned).collect();
    let title = format!(
        "{title}; medians of {} rounds of {:?}",
        args.rounds, args.span
    );
    table::print(&title, &head, rows);
}
