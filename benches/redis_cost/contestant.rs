//! The contestants: each algorithm, and the textbook's sorted set.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::Connection;
use tollgate::{Algorithm, Quota, RateLimiter, RedisStore};

use crate::setting::Setting;
use crate::support::costs::algorithms;
use crate::support::load::{self, Decide, Done, Load};
use crate::support::redis_server::{RedisServer, run, times_to_live};
use crate::support::textbook::Textbook;

/// Copies a key under a range of names. The range of numbers is in ARGV.
const COPY: &str = r"
local before, after = KEYS[1]:match('^(.*)' .. ARGV[1] .. '(.*)$')
for number = tonumber(ARGV[2]), tonumber(ARGV[3]) do
  redis.call('COPY', KEYS[1], before .. ('k%07d'):format(number) .. after)
end
";

/// Units of one time, as the other contestants are given them.
const USE_TEXTBOOK: &str = r"
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
for unit = 1, ARGV[1] do
  redis.call('ZADD', KEYS[1], now, now - unit)
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
";

pub(crate) struct Contestant {
    pub(crate) name: &'static str,
    counted: Counted,
    keys: Vec<String>,
}

#[expect(clippy::large_enum_variant, reason = "there are a few of them")]
enum Counted {
    By(RateLimiter),
    Textbook(Connections),
}

/// As many connections as a contestant is given, which take turns.
struct Connections {
    textbooks: Vec<Textbook>,
    turn: AtomicUsize,
}

impl Contestant {
    /// All of them, each with its keys. Only tollgate judges by several quotas at once.
    pub(crate) async fn all(server: &RedisServer, setting: &Setting) -> Vec<Arc<Self>> {
        let mut all = Vec::new();
        for (name, algorithm) in algorithms() {
            all.push(Self::tollgate(name, store(server), algorithm, setting));
        }
        if setting.quotas == 1 {
            let unbatched = store(server).batches(false);
            all.push(Self::tollgate(
                "SlidingLog, each check a call",
                unbatched,
                Algorithm::SlidingLog,
                setting,
            ));
            let name = "textbook, a connection a task";
            all.push(Self::textbook(name, server, setting, setting.tasks).await);
            all.push(Self::textbook("textbook sorted set", server, setting, 1).await);
        }
        prepare(server, &all, setting).await;
        all.into_iter().map(Arc::new).collect()
    }

    fn tollgate(
        name: &'static str,
        store: RedisStore,
        algorithm: Algorithm,
        setting: &Setting,
    ) -> Self {
        let quotas = (1..=setting.quotas)
            .map(|times| Quota::new(setting.limit, setting.window * times).algorithm(algorithm));
        let limiter = RateLimiter::new(store, quotas.collect::<Vec<_>>());
        Self {
            name,
            counted: Counted::By(limiter.name(name)),
            keys: keys("", setting.keys),
        }
    }

    async fn textbook(
        name: &'static str,
        server: &RedisServer,
        setting: &Setting,
        connections: usize,
    ) -> Self {
        let url = server.url();
        let mut textbooks = Vec::new();
        for _ in 0..connections {
            textbooks.push(Textbook::connect(&url, setting.limit, setting.window).await);
        }
        let turn = AtomicUsize::new(0);
        Self {
            name,
            counted: Counted::Textbook(Connections { textbooks, turn }),
            keys: keys(&format!("ratelimit:{connections}:"), setting.keys),
        }
    }

    /// Has the first key used what the setting says.
    async fn use_first(&self, connection: &mut Connection, setting: &Setting) {
        let key = self.keys[0].as_str();
        match &self.counted {
            Counted::By(limiter) => {
                let decision = limiter.check_n(key, setting.used).await.expect("an answer");
                assert!(decision.is_allowed());
            }
            Counted::Textbook(_) => {
                let millis = setting.window.as_millis().to_string();
                let used = setting.used.to_string();
                run(
                    connection,
                    &["EVAL", USE_TEXTBOOK, "1", key, &used, &millis],
                );
            }
        }
    }

    pub(crate) async fn run(self: &Arc<Self>, load: Load) -> Done {
        load::run(self, load).await
    }
}

impl Decide for Contestant {
    async fn decide(&self, key: usize) -> bool {
        let key = self.keys[key].as_str();
        match &self.counted {
            Counted::By(limiter) => limiter.check(key).await.expect("an answer").is_allowed(),
            Counted::Textbook(Connections { textbooks, turn }) => {
                let turn = turn.fetch_add(1, Ordering::Relaxed);
                textbooks[turn % textbooks.len()].check(key).await
            }
        }
    }
}

fn store(server: &RedisServer) -> RedisStore {
    let store = RedisStore::open(&server.url()).expect("a URL");
    // A slow machine is not what is measured.
    store.deadline(Duration::from_secs(10))
}

fn keys(prefix: &str, count: usize) -> Vec<String> {
    let numbers = 0..count;
    numbers
        .map(|number| format!("{prefix}k{number:07}"))
        .collect()
}

/// Has every key used what the setting says. Only the first of each contestant is checked; the
/// others are copies of it, since to check a million takes minutes.
async fn prepare(server: &RedisServer, all: &[Contestant], setting: &Setting) {
    const AT_ONCE: usize = 10_000;
    let mut connection = server.connect();
    for contestant in all {
        contestant.use_first(&mut connection, setting).await;
    }
    for (name, _) in times_to_live(&mut connection) {
        for from in (1..setting.keys).step_by(AT_ONCE) {
            let to = (from + AT_ONCE).min(setting.keys) - 1;
            let (from, to) = (from.to_string(), to.to_string());
            let copy = ["EVAL", COPY, "1", &name, "k0000000", &from, &to];
            run(&mut connection, &copy);
        }
    }
}
