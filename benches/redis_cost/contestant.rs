//! The contestants: each algorithm, the textbook's sorted set, a native module, and a native command.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use redis::Connection;
use redis::aio::MultiplexedConnection;
use tollgate::{Algorithm, Quota, RateLimiter, RedisStore};

use crate::setting::Setting;
use crate::support::costs::algorithms;
use crate::support::increx::Increx;
use crate::support::load::{self, Decide, Done, Load};
use crate::support::redis_server::{RedisServer, run, times_to_live};
use crate::support::textbook::{self, Textbook};

/// Copies a key under a range of names. The range of numbers is in ARGV.
const COPY: &str = r"
local before, after = KEYS[1]:match('^(.*)' .. ARGV[1] .. '(.*)$')
for number = tonumber(ARGV[2]), tonumber(ARGV[3]) do
  redis.call('COPY', KEYS[1], before .. ('k%07d'):format(number) .. after)
end
";

/// The part of a stored name that differs between the copies, as [`keys`] writes it.
const FIRST: &str = "k0000000";

/// Units of one time, as the other contestants are given them.
const USE_TEXTBOOK: &str = r"
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
for unit = 1, ARGV[1] do
  redis.call('ZADD', KEYS[1], now, now - unit)
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
";

/// An implementation with its connections, which makes limiters with any setting.
pub(crate) struct Contestant {
    pub(crate) name: &'static str,
    backend: Backend,
}

enum Backend {
    Tollgate(RedisStore, Algorithm),
    /// The connections take turns.
    Textbook(Vec<Textbook>),
    /// redis-cell's `CL.THROTTLE`: GCRA.
    Module(MultiplexedConnection),
    Command(Increx),
}

impl Contestant {
    /// Each algorithm.
    pub(crate) fn algorithms(server: &RedisServer) -> Vec<Self> {
        let algorithms = algorithms();
        let contestant = |(name, algorithm)| Self {
            name,
            backend: Backend::Tollgate(store(server), algorithm),
        };
        algorithms.map(contestant).collect()
    }

    /// Decided by the server without a script: each on one multiplexed connection, if the server has it.
    pub(crate) async fn natives(server: &RedisServer) -> impl Iterator<Item = Self> {
        let increx = Increx::connect(&server.url(), 1, Duration::from_secs(1)).await;
        let increx = increx.map(|increx| Self {
            name: "INCREX, a native command",
            backend: Backend::Command(increx),
        });
        Self::module(server).await.into_iter().chain(increx)
    }

    async fn module(server: &RedisServer) -> Option<Self> {
        let mut connection = textbook::connect(&server.url()).await;
        let mut exists = redis::cmd("COMMAND");
        exists.arg("INFO").arg("CL.THROTTLE");
        let info: Vec<redis::Value> = exists.query_async(&mut connection).await.ok()?;
        (info != [redis::Value::Nil]).then_some(Self {
            name: "redis-cell, a native module",
            backend: Backend::Module(connection),
        })
    }

    /// The textbook's script on one multiplexed connection.
    pub(crate) async fn textbook(server: &RedisServer) -> Self {
        Self {
            name: "textbook sorted set",
            backend: Backend::Textbook(textbooks(server, 1).await),
        }
    }

    /// The same script on as many connections as tasks.
    pub(crate) async fn textbook_pool(server: &RedisServer, tasks: usize) -> Self {
        Self {
            name: "textbook, a connection a task",
            backend: Backend::Textbook(textbooks(server, tasks).await),
        }
    }

    /// Whether the implementation can check this many quotas at once, and charge this cost.
    pub(crate) fn supports(&self, quotas: u32, cost: u32) -> bool {
        match &self.backend {
            Backend::Tollgate(..) => true,
            Backend::Textbook(_) => quotas == 1 && cost == 1,
            Backend::Module(_) | Backend::Command(_) => quotas == 1,
        }
    }

    /// Creates a limiter on the connections of this contestant.
    pub(crate) fn limiter(&self, setting: &Setting) -> Arc<Limiter> {
        let (prefix, implementation) = match &self.backend {
            Backend::Tollgate(store, algorithm) => {
                let quotas = (1..=setting.quotas).map(|times| {
                    let quota = Quota::new(setting.limit * times, setting.window * times);
                    quota.with_algorithm(*algorithm)
                });
                let limiter = RateLimiter::new(store.clone(), quotas.collect::<Vec<_>>());
                // The name separates the counts of contestants with the same algorithm.
                let limiter = limiter.name(self.name);
                let implementation = Implementation::Tollgate {
                    limiter,
                    algorithm: *algorithm,
                };
                (String::new(), implementation)
            }
            Backend::Textbook(textbooks) => {
                let limited = |each: &Textbook| each.limited(setting.limit, setting.window);
                let textbooks: Vec<_> = textbooks.iter().map(limited).collect();
                let prefix = format!("ratelimit:{}:", textbooks.len());
                let turn = AtomicUsize::new(0);
                (prefix, Implementation::Textbook { textbooks, turn })
            }
            Backend::Module(connection) => (
                "cell:".to_owned(),
                Implementation::Module {
                    connection: connection.clone(),
                    rate: Rate::of(setting),
                },
            ),
            Backend::Command(increx) => {
                let increx = increx.limited(setting.limit, setting.window);
                ("increx:".to_owned(), Implementation::Command(increx))
            }
        };
        Arc::new(Limiter {
            implementation,
            keys: keys(&prefix, setting.keys),
            cost: setting.cost,
            used: setting.sums_used.then(Used::default),
        })
    }
}

pub(crate) struct Limiter {
    implementation: Implementation,
    keys: Vec<String>,
    cost: u32,
    used: Option<Used>,
}

enum Implementation {
    Tollgate {
        limiter: RateLimiter,
        algorithm: Algorithm,
    },
    Textbook {
        textbooks: Vec<Textbook>,
        turn: AtomicUsize,
    },
    Module {
        connection: MultiplexedConnection,
        rate: Rate,
    },
    Command(Increx),
}

/// The sum of what decisions say is used.
#[derive(Default)]
struct Used {
    units: AtomicU64,
    decisions: AtomicU64,
}

/// The arguments of `CL.THROTTLE`, which takes its period in whole seconds: `count` units per `period`.
struct Rate {
    max_burst: u32,
    count: u64,
    period: u64,
}

impl Rate {
    fn of(setting: &Setting) -> Self {
        let whole_seconds = setting.window.subsec_nanos() == 0;
        let period = if whole_seconds {
            setting.window.as_secs()
        } else {
            1
        };
        let units = u128::from(setting.limit) * u128::from(period) * 1_000_000;
        let count = units.div_ceil(setting.window.as_micros());
        Self {
            max_burst: setting.limit - 1,
            count: u64::try_from(count).expect("a rate"),
            period,
        }
    }
}

impl Limiter {
    pub(crate) async fn run(self: &Arc<Self>, load: Load) -> Done {
        load::run(self, load).await
    }

    /// The mean of what the decisions since the last call say is used.
    pub(crate) fn take_used(&self) -> Option<f64> {
        let used = self.used.as_ref()?;
        let units = used.units.swap(0, Ordering::Relaxed);
        let decisions = used.decisions.swap(0, Ordering::Relaxed);
        (decisions > 0).then(|| units as f64 / decisions as f64)
    }

    async fn check(&self, key: &str, cost: u32) -> bool {
        match &self.implementation {
            Implementation::Tollgate { limiter, .. } => {
                let decision = limiter.check_n(key, cost).await.expect("an answer");
                if let Some(used) = &self.used {
                    let units = u64::from(decision.used());
                    used.units.fetch_add(units, Ordering::Relaxed);
                    used.decisions.fetch_add(1, Ordering::Relaxed);
                }
                decision.is_allowed()
            }
            Implementation::Textbook { textbooks, turn } => {
                let turn = turn.fetch_add(1, Ordering::Relaxed);
                textbooks[turn % textbooks.len()].check(key).await
            }
            Implementation::Module { connection, rate } => {
                let mut call = redis::cmd("CL.THROTTLE");
                call.arg(key).arg(rate.max_burst).arg(rate.count);
                call.arg(rate.period).arg(cost);
                let reply = call.query_async(&mut connection.clone()).await;
                let [limited, ..]: [i64; 5] = reply.expect("the server answers");
                limited == 0
            }
            Implementation::Command(increx) => increx.check(key, cost).await,
        }
    }

    /// Charges [`Setting::used`] to the first key.
    async fn use_first(&self, connection: &mut Connection, setting: &Setting) {
        let key = self.keys[0].as_str();
        if let Implementation::Textbook { .. } = self.implementation {
            let millis = setting.window.as_millis().to_string();
            let used = setting.used.to_string();
            let fill = ["EVAL", USE_TEXTBOOK, "1", key, &used, &millis];
            run(connection, &fill);
        } else {
            assert!(self.check(key, setting.used).await);
        }
    }

    /// Panics if the last key was not copied.
    async fn assert_copied(&self, setting: &Setting) {
        // The other algorithms forget units gradually, or when an aligned window ends.
        if let Implementation::Tollgate {
            limiter,
            algorithm: Algorithm::SlidingLog | Algorithm::SortedSetLog,
        } = &self.implementation
        {
            let last = self.keys.last().expect("a key");
            let peeked = limiter.peek(last.as_str()).await.expect("an answer");
            assert_eq!(peeked.used(), setting.used, "{last} is not a copy");
        }
    }
}

impl Decide for Limiter {
    async fn decide(&self, key: usize) -> bool {
        self.check(&self.keys[key], self.cost).await
    }
}

fn store(server: &RedisServer) -> RedisStore {
    let store = RedisStore::open(&server.url()).expect("a URL");
    // A slow machine is not what is measured.
    store.deadline(Duration::from_secs(10))
}

async fn textbooks(server: &RedisServer, connections: usize) -> Vec<Textbook> {
    let mut textbooks = Vec::new();
    for _ in 0..connections {
        textbooks.push(Textbook::connect(&server.url(), 1, Duration::from_secs(1)).await);
    }
    textbooks
}

fn keys(prefix: &str, count: usize) -> Vec<String> {
    let numbers = 0..count;
    numbers
        .map(|number| format!("{prefix}k{number:07}"))
        .collect()
}

/// Charges [`Setting::used`] to every key. Only the first key of each limiter is checked. Its stored state is
/// copied for the others, because checking a million keys takes minutes.
pub(crate) async fn prepare(server: &RedisServer, limiters: &[Arc<Limiter>], setting: &Setting) {
    const AT_ONCE: usize = 10_000;
    let mut connection = server.connect();
    for limiter in limiters {
        limiter.use_first(&mut connection, setting).await;
    }
    let stored = times_to_live(&mut connection).into_iter();
    for (name, _) in stored.filter(|(name, _)| name.contains(FIRST)) {
        for from in (1..setting.keys).step_by(AT_ONCE) {
            let to = (from + AT_ONCE).min(setting.keys) - 1;
            let (from, to) = (from.to_string(), to.to_string());
            let copy = ["EVAL", COPY, "1", &name, FIRST, &from, &to];
            run(&mut connection, &copy);
        }
    }
    for limiter in limiters {
        limiter.assert_copied(setting).await;
    }
}
