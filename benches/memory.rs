//! The memory of a key in Redis and the commands of a check, for each algorithm and for the textbook's sorted
//! set. Prints four tables; README.md says how to read it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redis::{Connection, Script};
use tokio::task::JoinSet;
use tollgate::{Algorithm, Key, Quota, RateLimiter, key};

#[path = "../tests/support/mod.rs"]
mod support;

use support::costs::{algorithms, commands, fill, forget_calls, limiter, memory_of, memory_of_all};
use support::redis_server::{RedisServer, run, times_to_live};
use support::store_on;
use support::test_time::TestTime;

const LIMITS: [u32; 4] = [10, 100, 1_000, 10_000];

const HOUR: Duration = Duration::from_secs(3_600);

/// The live units of the second table, at the last of [`LIMITS`].
const LIVE: u32 = 10;

/// The live units of the third table. Without optimization, this bench only has to work.
const MANY: [u32; 2] = if cfg!(debug_assertions) {
    [100, 1_000]
} else {
    [1_000, 10_000]
};

/// The keys by which the growth of `used_memory` is divided. Without optimization, this bench only has to work.
const KEYS: u32 = if cfg!(debug_assertions) {
    1_000
} else {
    30_000
};

/// The numbers of buckets of the fourth table.
const BUCKETS: [u16; 4] = [4, 12, 60, 240];

/// In the fourth table, the window, after which no bucket is empty, and the time that is measured then. Without
/// optimization, this bench only has to work.
const STEADY: [Duration; 2] = if cfg!(debug_assertions) {
    [Duration::from_millis(50); 2]
} else {
    [Duration::from_millis(1_500), Duration::from_secs(3)]
};

/// The sliding window as it is found in tutorials: one member a unit, scored by its time.
const TEXTBOOK: &str = include_str!("textbook.lua");

/// What the column of a limit and those of the commands say.
struct Measured {
    /// The bytes of a key that is full.
    bytes: u64,
    /// The commands of a key's first check, of the one that fills it, and of one that is refused.
    commands: Option<[u64; 3]>,
}

/// What admits or refuses a unit.
enum Counted {
    By(Box<RateLimiter>),
    Textbook(Script, u32),
}

impl Counted {
    async fn check(&self, connection: &mut Connection) -> bool {
        match self {
            Self::By(limiter) => limiter.check("ada").await.expect("an answer").is_allowed(),
            Self::Textbook(script, limit) => {
                let mut script = script.key("ratelimit:ada");
                script.arg(limit).arg(HOUR.as_millis());
                script.invoke(connection).expect("an answer")
            }
        }
    }

    async fn fill(&self, connection: &mut Connection, units: u32) {
        if let Self::By(limiter) = self {
            return fill(limiter, "ada", units).await;
        }
        for _ in 0..units {
            assert!(self.check(connection).await);
        }
    }

    async fn commands(&self, connection: &mut Connection, admitted: bool) -> u64 {
        forget_calls(connection);
        assert_eq!(self.check(connection).await, admitted);
        commands(connection)
    }

    /// On an empty server.
    async fn measure(&self, connection: &mut Connection, limit: u32) -> Measured {
        let first = self.commands(connection, true).await;
        self.fill(connection, limit - 2).await;
        let last = self.commands(connection, true).await;
        let refused = self.commands(connection, false).await;
        let keys = times_to_live(connection);
        Measured {
            bytes: memory_of_all(connection, &keys),
            commands: Some([first, last, refused]),
        }
    }
}

#[tokio::main]
async fn main() {
    let server = RedisServer::start();
    print_head();
    for (name, algorithm) in algorithms() {
        print_row(name, &of_algorithm(&server, algorithm).await);
        if let Algorithm::SlidingBuckets(buckets) = algorithm {
            let spread = of_full_buckets(&server, buckets).await;
            print_row("the same, no bucket empty", &spread);
        }
    }
    print_row("textbook sorted set", &of_textbook(&server).await);
    print_live(&server).await;
    print_many(&server).await;
    print_buckets(&server).await;
}

async fn of_algorithm(server: &RedisServer, algorithm: Algorithm) -> Vec<Measured> {
    let mut connection = server.connect();
    let mut measured = Vec::new();
    for limit in LIMITS {
        run(&mut connection, &["FLUSHALL"]);
        let counted = Counted::By(Box::new(limiter(store_on(server), algorithm, limit).await));
        measured.push(counted.measure(&mut connection, limit).await);
    }
    measured
}

async fn of_textbook(server: &RedisServer) -> Vec<Measured> {
    let mut connection = server.connect();
    let mut measured = Vec::new();
    for limit in LIMITS {
        run(&mut connection, &["FLUSHALL"]);
        let script = Script::new(TEXTBOOK);
        let loaded = script.prepare_invoke().load(&mut connection);
        loaded.expect("the script is well-formed");
        let counted = Counted::Textbook(script, limit);
        measured.push(counted.measure(&mut connection, limit).await);
    }
    measured
}

/// Buckets take most when what fills them was spread over the window. The clock that moves through
/// it changes which commands run, but not what is stored.
async fn of_full_buckets(server: &RedisServer, buckets: u16) -> Vec<Measured> {
    let mut measured = Vec::new();
    for limit in LIMITS {
        let mut time = TestTime::new(server);
        let quota = Quota::new(limit, HOUR).with_algorithm(Algorithm::SlidingBuckets(buckets));
        let limiter = RateLimiter::new(time.redis.clone(), quota);
        // One bucket more than there are in a window: the oldest counts until all of it is past.
        let steps = u32::from(buckets) + 1;
        for step in 0..steps {
            let units = limit * (step + 1) / steps - limit * step / steps;
            let decision = limiter.check_n("ada", units).await.expect("an answer");
            assert!(decision.is_allowed());
            if step + 1 < steps {
                time.advance(HOUR / u32::from(buckets));
            }
        }
        let decision = limiter.peek("ada").await.expect("an answer");
        assert_eq!(decision.used(), limit, "no bucket has returned");
        let keys = time.times_to_live();
        let bytes = memory_of_all(time.connection(), &keys);
        measured.push(Measured {
            bytes,
            commands: None,
        });
    }
    measured
}

/// A key with few live units under a high limit, and many keys with hashed names.
async fn print_live(server: &RedisServer) {
    println!(
        "\n**A key with {LIVE} live units, at a limit of {}**\n",
        grouped(LIMITS[LIMITS.len() - 1].into())
    );
    println!(
        "| counted by | name, bytes | `MEMORY USAGE` | the same, units expire | hashed header: name, bytes | `MEMORY USAGE` | \
         `used_memory`, of {} keys | left out |",
        grouped(KEYS.into())
    );
    println!("|---|{}", "--:|".repeat(7));
    for (name, algorithm) in algorithms() {
        let [plain_name, plain] = of_live(server, algorithm, "ada").await;
        let steady = in_steady_state(server, algorithm, LIVE).await;
        let hashed = of_hashed(server, algorithm).await;
        let left_out = hashed.used_memory.saturating_sub(hashed.usage);
        let bytes = [
            plain_name,
            plain,
            steady,
            hashed.name,
            hashed.usage,
            hashed.used_memory,
            left_out,
        ];
        println!("| {name} | {} |", bytes.map(grouped).join(" | "));
    }
}

/// The cost of more buckets: they return units with less delay, and each check reads all of them.
async fn print_buckets(server: &RedisServer) {
    println!("\n**Buckets, none empty**\n");
    println!("| counted by | bytes of a key | Redis CPU µs |");
    println!("|---|--:|--:|");
    for buckets in BUCKETS {
        let full = of_full_buckets(server, buckets).await;
        let bytes = full.last().expect("a limit").bytes;
        let cpu = cpu_of_buckets(server, buckets).await;
        println!("| SlidingBuckets({buckets}) | {} | {cpu} |", grouped(bytes));
    }
}

/// The CPU of Redis for a decision, with 64 checks at a time on 192 keys. Each key is checked by one task.
async fn cpu_of_buckets(server: &RedisServer, buckets: u16) -> String {
    const TASKS: u64 = 64;
    const KEYS_OF_A_TASK: u64 = 3;
    let mut connection = server.connect();
    run(&mut connection, &["FLUSHALL", "SYNC"]);
    let [window, measured] = STEADY;
    let quota = Quota::new(u32::MAX, window).with_algorithm(Algorithm::SlidingBuckets(buckets));
    let limiter = RateLimiter::new(store_on(server), quota);
    let decisions = Arc::new(AtomicU64::new(0));
    let end = Instant::now() + 2 * window + measured;
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let (limiter, decisions) = (limiter.clone(), Arc::clone(&decisions));
        tasks.spawn(async move {
            let first = task * KEYS_OF_A_TASK;
            let keys = (first..first + KEYS_OF_A_TASK).map(|key| Key::from(format!("{key}")));
            for key in keys.collect::<Vec<_>>().iter().cycle() {
                let decision = limiter.check(key.clone()).await;
                assert!(decision.expect("the server answers").is_allowed());
                decisions.fetch_add(1, Ordering::Relaxed);
                if Instant::now() >= end {
                    break;
                }
            }
        });
    }
    tokio::time::sleep(2 * window).await;
    let before = (cpu(&mut connection), decisions.load(Ordering::Relaxed));
    tokio::time::sleep(measured * 9 / 10).await;
    let after = (cpu(&mut connection), decisions.load(Ordering::Relaxed));
    tasks.join_all().await;
    let decided = (after.1 - before.1).max(1);
    let nanos = (after.0 - before.0) * 1_000 / decided;
    format!("{}.{}", nanos / 1_000, nanos % 1_000 / 100)
}

/// The microseconds of CPU that the server has used.
fn cpu(connection: &mut Connection) -> u64 {
    let info = redis::cmd("INFO").arg("cpu").query(connection);
    let info: redis::InfoDict = info.expect("INFO answers");
    // "used_cpu_sys:0.123456"
    let micros = |name: &str| -> u64 {
        let seconds: String = info.get(name).expect("a number");
        let digits: String = seconds.chars().filter(char::is_ascii_digit).collect();
        digits.parse().expect("digits")
    };
    micros("used_cpu_user") + micros("used_cpu_sys")
}

/// The length of the name, and the bytes of a key whose units have different times and do not expire.
async fn of_live(server: &RedisServer, algorithm: Algorithm, key: &'static str) -> [u64; 2] {
    let mut connection = server.connect();
    run(&mut connection, &["FLUSHALL"]);
    let limiter = limiter(store_on(server), algorithm, LIMITS[LIMITS.len() - 1]).await;
    fill(&limiter, key, LIVE).await;
    name_and_bytes(&mut connection)
}

fn name_and_bytes(connection: &mut Connection) -> [u64; 2] {
    let keys = times_to_live(connection);
    let [(name, _)] = keys.as_slice() else {
        panic!("not one key: {keys:?}");
    };
    [name.len() as u64, memory_of(connection, name)]
}

/// Logs while units expire: the other algorithms take the same for any number of live units, or have a maximum.
async fn print_many(server: &RedisServer) {
    let heads = MANY.map(|live| format!("{} live units | a unit", grouped(live.into())));
    println!("\n**A log whose units expire**\n");
    println!("| counted by | {} |", heads.join(" | "));
    println!("|---|{}", "--:|".repeat(2 * MANY.len()));
    for (name, algorithm) in algorithms() {
        if !matches!(algorithm, Algorithm::SlidingLog | Algorithm::SortedSetLog) {
            continue;
        }
        let mut cells = vec![name.to_owned()];
        for live in MANY {
            let bytes = in_steady_state(server, algorithm, live).await;
            cells.extend([grouped(bytes), a_unit(bytes, live.into())]);
        }
        println!("| {} |", cells.join(" | "));
    }
}

/// The most bytes that a key takes while one unit expires for each unit that is charged, on a test clock.
async fn in_steady_state(server: &RedisServer, algorithm: Algorithm, live: u32) -> u64 {
    let mut time = TestTime::new(server);
    let limit = LIMITS[LIMITS.len() - 1].max(2 * live);
    let limiter = RateLimiter::new(
        time.redis.clone(),
        Quota::new(limit, HOUR).with_algorithm(algorithm),
    );
    // `MEMORY USAGE` visits each entry of a log.
    let every = live.div_ceil(100);
    let mut most = 0;
    // Expired units may be removed several at once, so the bytes vary within a window.
    for check in 0..4 * live {
        let decision = limiter.check("ada").await.expect("an answer");
        assert!(decision.is_allowed());
        assert!(decision.used() <= live + 1, "{decision:?}");
        if check >= 2 * live && check.is_multiple_of(every) {
            let keys = time.times_to_live();
            most = most.max(memory_of_all(time.connection(), &keys));
        }
        time.advance(HOUR / live);
    }
    most
}

/// The bytes of a key whose name is the hash of a header.
struct Hashed {
    name: u64,
    usage: u64,
    /// The growth of the server's `used_memory`.
    used_memory: u64,
}

async fn of_hashed(server: &RedisServer, algorithm: Algorithm) -> Hashed {
    const TASKS: u32 = 100;
    let mut connection = server.connect();
    run(&mut connection, &["FLUSHALL", "SYNC"]);
    let limiter = limiter(store_on(server), algorithm, LIMITS[LIMITS.len() - 1]).await;
    let header = key::header("x-api-key");
    let keys: Arc<[Key]> = (0..KEYS)
        .map(|number| header.of(number.to_string()))
        .collect();
    let before = used_memory(&mut connection);
    for _ in 0..LIVE {
        let mut checks = JoinSet::new();
        for task in 0..TASKS {
            let (limiter, keys) = (limiter.clone(), Arc::clone(&keys));
            checks.spawn(async move {
                for key in keys.iter().skip(task as usize).step_by(TASKS as usize) {
                    let decision = limiter.check(key.clone()).await;
                    assert!(decision.expect("the server answers").is_allowed());
                }
            });
        }
        checks.join_all().await;
    }
    let grown = used_memory(&mut connection) - before;
    let random = redis::cmd("RANDOMKEY").query(&mut connection);
    let name: String = random.expect("a key");
    Hashed {
        name: name.len() as u64,
        usage: memory_of(&mut connection, &name),
        used_memory: grown / u64::from(KEYS),
    }
}

fn used_memory(connection: &mut Connection) -> u64 {
    let info = redis::cmd("INFO").arg("memory").query(connection);
    let info: redis::InfoDict = info.expect("INFO answers");
    info.get("used_memory").expect("a number")
}

fn print_head() {
    let limits = LIMITS.map(|limit| format!("limit {}", grouped(limit.into())));
    println!(
        "| counted by | {} | a unit of {} | first check | admitted | refused |",
        limits.join(" | "),
        grouped(LIMITS[LIMITS.len() - 1].into()),
    );
    println!("|---|{}", "--:|".repeat(LIMITS.len() + 4));
}

fn print_row(name: &str, measured: &[Measured]) {
    let last = measured.last().expect("a limit");
    let mut cells = vec![name.to_owned()];
    cells.extend(measured.iter().map(|each| grouped(each.bytes)));
    cells.push(a_unit(last.bytes, LIMITS[LIMITS.len() - 1].into()));
    cells.extend(match last.commands {
        Some(commands) => commands.map(|commands| commands.to_string()),
        None => [""; 3].map(str::to_owned),
    });
    println!("| {} |", cells.join(" | "));
}

/// The digits in groups of three.
fn grouped(number: u64) -> String {
    match number {
        0..1_000 => number.to_string(),
        _ => format!("{} {:03}", grouped(number / 1_000), number % 1_000),
    }
}

/// Bytes a unit, rounded up to a hundredth.
fn a_unit(bytes: u64, units: u64) -> String {
    let hundredths = (bytes * 100).div_ceil(units);
    format!("{}.{:02}", hundredths / 100, hundredths % 100)
}
