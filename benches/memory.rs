//! The memory of a key in Redis and the commands of a check, for each algorithm and for the textbook's sorted
//! set. Prints a table; README.md says how to read it.

use std::time::Duration;

use redis::{Connection, Script};
use tollgate::{Algorithm, Quota, RateLimiter};

#[path = "../tests/support/mod.rs"]
mod support;

use support::costs::{algorithms, commands, fill, forget_calls, limiter, memory_of};
use support::redis_server::{RedisServer, run, times_to_live};
use support::store_on;
use support::test_time::TestTime;

const LIMITS: [u32; 4] = [10, 100, 1_000, 10_000];

const HOUR: Duration = Duration::from_secs(3_600);

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
#[expect(clippy::large_enum_variant, reason = "there are a few of them")]
enum Counted {
    By(RateLimiter),
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
        let bytes = keys.iter().map(|(key, _)| memory_of(connection, key));
        Measured {
            bytes: bytes.sum(),
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
}

async fn of_algorithm(server: &RedisServer, algorithm: Algorithm) -> Vec<Measured> {
    let mut connection = server.connect();
    let mut measured = Vec::new();
    for limit in LIMITS {
        run(&mut connection, &["FLUSHALL"]);
        let counted = Counted::By(limiter(store_on(server), algorithm, limit).await);
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
        let quota = Quota::new(limit, HOUR).algorithm(Algorithm::SlidingBuckets(buckets));
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
        let (key, _) = time.times_to_live().swap_remove(0);
        let bytes = memory_of(time.connection(), &key);
        measured.push(Measured {
            bytes,
            commands: None,
        });
    }
    measured
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
