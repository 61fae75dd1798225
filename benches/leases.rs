//! Leases: busy keys admitted from memory, next to a store in memory and to Redis without a lease. Prints tables;
//! README.md says how they are measured.
#![expect(
    clippy::float_arithmetic,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "what is measured is shown to three digits"
)]

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tollgate::{Key, MemoryStore, Quota, RateLimitLayer, RateLimiter, RedisStore, Source, key};

#[path = "support/mod.rs"]
mod support;

use support::args::{Args, Usage};
use support::http_client::HttpClient;
use support::load::{self, Decide, Done, Load};
use support::redis_server::{RedisServer, run};
use support::spent::{Meter, Spent};
use support::table::{self, beside, median, short};

const TASKS: usize = 64;

/// No check is refused.
const QUOTA: Quota = Quota::per_second(100_000_000);
const LEASE: Duration = Duration::from_millis(50);

/// The ways to limit. The first one is the base of the ratios.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Memory,
    Redis,
    Lease,
    /// Behind axum: no limit.
    Bare,
}

const WAYS: [Way; 4] = [Way::Memory, Way::Redis, Way::Lease, Way::Bare];

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Memory => "in memory",
            Self::Redis => "Redis",
            Self::Lease => "Redis with a lease",
            Self::Bare => "no limit",
        }
    }

    /// Returns the limiter on a server. `None` without a limit.
    fn limiter(self, redis: &RedisServer) -> Option<RateLimiter> {
        // A slow machine is not what is measured.
        let store = RedisStore::open(&redis.url()).expect("a URL");
        let store = store.deadline(Duration::from_secs(10));
        match self {
            Self::Memory => Some(RateLimiter::new(MemoryStore::new(), QUOTA)),
            Self::Redis => Some(RateLimiter::new(store, QUOTA)),
            Self::Lease => Some(RateLimiter::new(store, QUOTA).lease(LEASE)),
            Self::Bare => None,
        }
    }
}

/// The keys of the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keys {
    Hot,
    /// 10 000 keys. The n-th is checked 1/n as often as the first.
    Zipf,
    /// 10 000 keys, each checked five times a second.
    Even,
}

impl Keys {
    fn name(self) -> &'static str {
        match self {
            Self::Hot => "one hot key",
            Self::Zipf => "10 000 keys, Zipf's distribution with s = 1",
            Self::Even => "10 000 keys, each five times a second",
        }
    }

    fn count(self) -> usize {
        match self {
            Self::Hot => 1,
            Self::Zipf | Self::Even => 10_000,
        }
    }

    /// Returns the key of a check. `walked` goes through all numbers below the number of keys.
    fn pick(self, walked: usize) -> usize {
        if self != Self::Zipf {
            return walked;
        }
        let keys = self.count() as f64;
        let rank = keys.powf(random()) as usize;
        rank.min(self.count()) - 1
    }
}

/// Returns a number from 0 to 1.
fn random() -> f64 {
    thread_local!(static STATE: Cell<u64> = const { Cell::new(0x9e37_79b9_7f4a_7c15) });
    let state = STATE.get().wrapping_mul(6_364_136_223_846_793_005);
    STATE.set(state.wrapping_add(1_442_695_040_888_963_407));
    (state >> 11) as f64 / (1_u64 << 53) as f64
}

/// One turn of a way.
struct Sample {
    per_second: f64,
    /// p50, p99 and p99.9 in microseconds.
    tail: [f64; 3],
    spent: Spent,
    /// The part of the decisions that was made from units that were held.
    from_lease: f64,
}

fn main() -> Result<(), lexopt::Error> {
    let args = Args::parse(Usage {
        parts: &["alone", "axum", "stall"],
        option: None,
        rounds: 7,
        span: Duration::from_secs(1),
    })?;
    if args.has("alone") {
        for keys in [Keys::Hot, Keys::Zipf, Keys::Even] {
            compare(
                &args,
                &format!("Without HTTP, {}", keys.name()),
                &WAYS[..3],
                |way| alone(way, keys, &args, false),
            );
        }
    }
    if args.has("axum") {
        for keys in [Keys::Hot, Keys::Zipf] {
            compare(
                &args,
                &format!("Behind axum, {}", keys.name()),
                &WAYS,
                |way| behind_axum(way, keys, &args),
            );
        }
    }
    if args.has("stall") {
        let title =
            "Without HTTP, one hot key, 10 000 checks a second, Redis stalls for 20 ms each second";
        compare(&args, title, &WAYS[..3], |way| {
            alone(way, Keys::Hot, &args, true)
        });
    }
    Ok(())
}

/// Measures the ways in turn, and prints a table.
fn compare(args: &Args, title: &str, ways: &[Way], measure: impl Fn(Way) -> Sample) {
    let mut samples: Vec<Vec<Sample>> = ways.iter().map(|_| Vec::new()).collect();
    for _ in 0..args.rounds {
        for (way, of_way) in ways.iter().zip(&mut samples) {
            of_way.push(measure(*way));
        }
    }
    let head = "|× memory|a second|p50 µs|p99|p99.9|Redis CPU µs|scripts|from the lease";
    let head: Vec<_> = head.split('|').map(str::to_owned).collect();
    let rows = ways.iter().zip(&samples);
    let rows: Vec<_> = rows
        .map(|(way, own)| row(way.name(), own, &samples[0]))
        .collect();
    let title = format!(
        "{title}; medians of {} rounds of {:?}",
        args.rounds, args.span
    );
    table::print(&title, &head, &rows);
}

fn runtime() -> Runtime {
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.expect("a runtime")
}

/// A limiter without HTTP.
struct Alone {
    limiter: RateLimiter,
    keys: Keys,
    names: Vec<Key>,
    /// How long a task waits between its checks.
    pause: Option<Duration>,
    from_lease: AtomicU64,
}

impl Decide for Alone {
    async fn decide(&self, key: usize) -> bool {
        let key = &self.names[self.keys.pick(key)];
        let decision = self.limiter.check(key).await.expect("Redis answers");
        if decision.source() == Source::Lease {
            self.from_lease.fetch_add(1, Ordering::Relaxed);
        }
        decision.is_allowed()
    }

    async fn rest(&self) -> bool {
        if let Some(pause) = self.pause {
            tokio::time::sleep(pause).await;
        }
        self.pause.is_some()
    }
}

fn alone(way: Way, keys: Keys, args: &Args, stalls: bool) -> Sample {
    let redis = RedisServer::start();
    let runtime = runtime();
    let per_second = match keys {
        Keys::Even => Some(50_000),
        _ if stalls => Some(10_000),
        _ => None,
    };
    let pause = per_second.map(|all| Duration::from_secs(TASKS as u64) / all);
    let mut meter = Meter::new(redis.connect());
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if stalls {
            let (mut connection, has_ended) = (redis.connect(), &has_ended);
            scope.spawn(move || {
                while !has_ended.load(Ordering::Relaxed) {
                    run(&mut connection, &["DEBUG", "SLEEP", "0.02"]);
                    std::thread::sleep(Duration::from_millis(980));
                }
            });
        }
        let sample = runtime.block_on(async {
            let names = (0..keys.count()).map(|key| Key::from(key.to_string()));
            let limiter = way.limiter(&redis).expect("a limiter");
            let alone = Arc::new(Alone {
                limiter,
                keys,
                names: names.collect(),
                pause,
                from_lease: AtomicU64::new(0),
            });
            let warmed_up = || alone.from_lease.store(0, Ordering::Relaxed);
            let measured = measure(&alone, &mut meter, keys, args.span, warmed_up).await;
            let (mut sample, done) = measured;
            let from_lease = alone.from_lease.load(Ordering::Relaxed);
            sample.from_lease = from_lease as f64 / done.decisions.max(1) as f64;
            sample
        });
        has_ended.store(true, Ordering::Relaxed);
        sample
    })
}

/// Requests to a server.
struct Requests {
    client: HttpClient,
    keys: Keys,
}

impl Decide for Requests {
    async fn decide(&self, key: usize) -> bool {
        let key = self.keys.pick(key);
        self.client.get(&format!("x-user: {key}\r\n")).await
    }
}

fn behind_axum(way: Way, keys: Keys, args: &Args) -> Sample {
    let redis = RedisServer::start();
    let app = Router::new().route("/", get(async || "ok"));
    let app = match way.limiter(&redis) {
        Some(limiter) => {
            app.layer(RateLimitLayer::from(limiter).key(key::header("x-user").plain()))
        }
        None => app,
    };
    let server = runtime();
    let listener = server.block_on(TcpListener::bind("127.0.0.1:0"));
    let listener = listener.expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    server.spawn(async move { axum::serve(listener, app).await });
    // The client has one thread: it leaves the rest of the machine to the server.
    let client = Builder::new_current_thread().enable_all().build();
    let mut meter = Meter::new(redis.connect());
    let (sample, _) = client.expect("a runtime").block_on(async {
        let client = HttpClient::connect(port, TASKS).await;
        let requests = Arc::new(Requests { client, keys });
        measure(&requests, &mut meter, keys, args.span, || {}).await
    });
    server.shutdown_background();
    sample
}

/// Measures after a fifth of the time.
async fn measure<D: Decide>(
    checked: &Arc<D>,
    meter: &mut Meter,
    keys: Keys,
    span: Duration,
    warmed_up: impl Fn(),
) -> (Sample, Done) {
    let load = |span| Load {
        tasks: TASKS,
        keys: keys.count(),
        span,
    };
    load::run(checked, load(span / 5)).await;
    warmed_up();
    meter.begin();
    let done = load::run(checked, load(span)).await;
    assert_eq!(done.admitted, done.decisions, "a check was not admitted");
    let sample = Sample {
        per_second: done.per_second(),
        tail: done.latencies.tail(),
        spent: meter.spent().per(done.decisions),
        from_lease: 0.0,
    };
    (sample, done)
}

fn row(name: &str, own: &[Sample], base: &[Sample]) -> Vec<String> {
    let of = |value: &dyn Fn(&Sample) -> f64| median(own.iter().map(value));
    let ratios = own.iter().zip(base);
    let ratios = ratios.map(|(own, base)| own.per_second / base.per_second);
    let [per_second, ratio] = beside(of(&|sample| sample.per_second), median(ratios));
    let mut row = vec![name.to_owned(), ratio, per_second];
    row.extend([0, 1, 2].map(|at| short(of(&|sample| sample.tail[at]))));
    row.push(short(of(&|sample| sample.spent.cpu)));
    row.push(short(of(&|sample| sample.spent.scripts)));
    row.push(short(of(&|sample| sample.from_lease)));
    row
}
