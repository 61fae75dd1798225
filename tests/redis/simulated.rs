//! The simulated server of `crates/simulation` beside a real one: equal replies to the same commands, and equal data.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{Cmd, Pipeline, RedisFuture, RedisResult, Value};
use tokio::sync::Mutex;
use tollgate::store::TestClock;
use tollgate::{Acquired, Algorithm, Permit, Quota, Quotas, RateLimiter, RedisStore, Share};
use tollgate_simulation::server::{Reply, Server};
use tollgate_simulation::wire;

use crate::support::block_on;
use crate::support::cases::some_or_all;
use crate::support::redis_server::RedisServer;

const CLOCK: &str = include_str!("../support/clock.lua");

/// A question to the thread of the simulated server.
enum Question {
    Command(Vec<Vec<u8>>, Sender<Reply>),
    Fill(bool),
    Texts(Sender<BTreeMap<Vec<u8>, Vec<u8>>>),
}

/// Runs the simulated server, which stays on one thread.
fn serve(questions: Receiver<Question>) {
    let mut server = Server::new().expect("Lua has memory");
    for question in questions {
        match question {
            Question::Command(command, answer) => {
                answer.send(server.run(&command)).expect("somebody asks");
            }
            Question::Fill(is_full) => server.with_keys(|keys| keys.is_full = is_full),
            Question::Texts(answer) => {
                let texts = server.with_keys(|keys| {
                    let texts = keys.keys().filter_map(|key| {
                        let text = key.text?;
                        Some((key.name.to_vec(), text.to_vec()))
                    });
                    texts.collect()
                });
                answer.send(texts).expect("somebody asks");
            }
        }
    }
}

/// A real server and a simulated one, which get the same commands in the same order.
#[derive(Clone)]
struct BothServers {
    real: MultiplexedConnection,
    simulated: Sender<Question>,
    compared: Arc<Mutex<Compared>>,
}

#[derive(Default)]
struct Compared {
    commands: usize,
    differences: Vec<String>,
}

impl BothServers {
    async fn run(&self, command: &Cmd) -> RedisResult<Value> {
        // Until both have replied, so that both run the commands in one order.
        let mut compared = self.compared.lock().await;
        let (answer, simulated) = channel();
        let question = Question::Command(wire::arguments(command), answer);
        self.simulated.send(question).expect("the thread runs");
        let simulated = simulated.recv().expect("a reply").into_value();
        let real = self.real.clone().send_packed_command(command).await;
        let real = real.and_then(Value::extract_error);
        compared.commands += 1;
        if !are_equal(&real, &simulated) {
            let args = wire::arguments(command).into_iter();
            let args = args.map(|arg| arg.escape_ascii().to_string());
            let shown: Vec<String> = args.filter(|arg| arg.len() < 500).collect();
            let text = format!("{shown:?}: real {real:?}, simulated {simulated:?}");
            compared.differences.push(text);
        }
        real
    }

    async fn set(&self, key: &str, value: &str) {
        let mut command = redis::cmd("SET");
        command.arg(key).arg(value);
        self.run(&command).await.expect("SET answers");
    }

    /// Makes both servers full, or gives them memory again.
    async fn fill(&self, is_full: bool) {
        let _compared = self.compared.lock().await;
        let bytes = if is_full { 1 } else { 0 };
        let mut command = redis::cmd("CONFIG");
        command.arg("SET").arg("maxmemory").arg(bytes);
        let mut real = self.real.clone();
        command.exec_async(&mut real).await.expect("CONFIG SET");
        self.simulated
            .send(Question::Fill(is_full))
            .expect("the thread runs");
    }
}

/// Whether both replied the same. The text of an error names places in the script, so only its code is compared.
fn are_equal(real: &RedisResult<Value>, simulated: &RedisResult<Value>) -> bool {
    match (real, simulated) {
        (Ok(real), Ok(simulated)) => real == simulated,
        (Err(real), Err(simulated)) => {
            let code = simulated.code().unwrap_or_default();
            // Before Redis 7, an error in a script has the code behind other words.
            real.code() == Some(code) || real.to_string().contains(code)
        }
        _ => false,
    }
}

impl ConnectionLike for BothServers {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(self.run(cmd))
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        _: &'a Pipeline,
        _: usize,
        _: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        unreachable!("the store sends no pipelines")
    }

    fn get_db(&self) -> i64 {
        0
    }
}

/// A generator of random numbers: splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn of<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        let index = self.below(list.len() as u64);
        &list[usize::try_from(index).expect("an index")]
    }
}

/// Lists of quotas that reach all files of the scripts.
fn lists() -> Vec<Quotas> {
    let second = Duration::from_secs(1);
    let by = |limit, algorithm| Quota::new(limit, second).with_algorithm(algorithm);
    let shares = [
        Share::of("critical").reserve(2),
        Share::of("batch").at_most(3),
    ];
    vec![
        Quota::per_second(3).into(),
        Quotas::from([Quota::per_second(3), Quota::per_minute(20)]),
        by(4, Algorithm::Gcra).into(),
        Quotas::from([
            by(5, Algorithm::Gcra),
            Quota::per_minute(40).with_algorithm(Algorithm::SlidingCounter),
            by(4, Algorithm::FixedWindow),
        ]),
        by(4, Algorithm::SlidingCounter).into(),
        by(4, Algorithm::FixedWindow).into(),
        by(6, Algorithm::SlidingBuckets(10)).into(),
        by(5, Algorithm::SortedSetLog).into(),
        Quota::per_minute(3_000).into(),
        Quotas::from([Quota::per_second(4).soft(), Quota::per_minute(30)]),
        Quota::per_second(6).shares(shares).into(),
    ]
}

/// A service that asks both servers.
struct Service {
    both: BothServers,
    clock: TestClock,
    limiters: Vec<RateLimiter>,
    slots: RateLimiter,
    held: VecDeque<Permit>,
    random: Random,
}

impl Service {
    fn new(both: BothServers, seed: u64) -> Self {
        let clock = TestClock::new();
        let store = RedisStore::with_connection(both.clone())
            .with_clock_source(CLOCK, clock.clone())
            // A slow machine is not what is compared.
            .deadline(Duration::from_secs(10))
            .refusal_cache(Duration::ZERO);
        let lists = lists().into_iter().enumerate();
        let limiters = lists.map(|(index, quotas)| {
            RateLimiter::new(store.clone(), quotas).name(format!("list{index}"))
        });
        let slots = Quotas::from([Quota::in_flight(3), Quota::per_second(9)]);
        Self {
            limiters: limiters.collect(),
            slots: RateLimiter::new(store, slots).name("slots"),
            both,
            clock,
            held: VecDeque::new(),
            random: Random(seed),
        }
    }

    /// Moves the clock, sometimes back or far ahead.
    async fn move_clock(&mut self) {
        let micros = [0, 0, 1, 1_000, 20_000, 50_000, 100_000, 300_000];
        self.clock
            .advance(Duration::from_micros(*self.random.of(&micros)));
        if self.random.below(200) == 0 {
            self.clock.advance(Duration::from_secs(40));
        }
        if self.random.below(50) == 0 {
            self.clock.step_back(Duration::from_millis(700));
        }
        let now = self.clock.now_micros().to_string();
        self.both.set("test:clock", &now).await;
    }

    /// Makes a random call. Its outcome is compared where the replies are.
    async fn step(&mut self) {
        self.move_clock().await;
        let limiter = self.random.of(&self.limiters).clone();
        let key = *self.random.of(&["ada", "bob"]);
        let cost = u32::try_from(self.random.below(3)).expect("a cost");
        let minute = Duration::from_secs(60);
        match self.random.below(16) {
            0 => drop(limiter.admin().reset(key).await),
            1 => drop(limiter.admin().credit(key, 1).await),
            2 => drop(limiter.admin().block("eve", minute).await),
            3 => drop(limiter.admin().unblock("eve").await),
            4 => drop(limiter.charge(key, 2 + cost).await),
            5 => {
                if let Ok(decision) = limiter.check_n(key, 1).await {
                    let _ = decision.settle(cost).await;
                }
            }
            6 => {
                let levels = [0, 3, 8].map(|index| self.limiters[index].level("all"));
                drop(RateLimiter::check_all(levels).await);
            }
            7 => {
                let share = *self.random.of(&["critical", "batch", "other"]);
                let level = self.limiters[10].level(key).cost(cost).share(share);
                drop(RateLimiter::check_all([level]).await);
            }
            8 | 9 => self.take_slot(key).await,
            10 => self.spoil(key).await,
            11 => self.be_full(&limiter, key, cost).await,
            _ => drop(limiter.check_n(key, cost).await),
        }
    }

    async fn take_slot(&mut self, key: &str) {
        if self.held.len() > 3 || self.random.below(3) == 0 {
            self.held.pop_front();
        }
        if let Ok(Acquired::Permit(permit)) = self.slots.try_acquire(key).await {
            self.held.push_back(permit);
        }
    }

    /// Writes a value that is none of a limiter, which a check then finds.
    async fn spoil(&mut self, key: &str) {
        let name = format!("tollgate:v3:{{list0,{key}}}:log");
        let mut unlink = redis::cmd("UNLINK");
        unlink.arg(&name);
        if self.random.below(2) == 0 {
            self.both.set(&name, "foreign bytes").await;
        } else {
            let mut command = redis::cmd("ZADD");
            command.arg(&name).arg("1.5").arg("member");
            let _ = self.both.run(&unlink).await;
            self.both.run(&command).await.expect("ZADD answers");
        }
        drop(self.limiters[0].check_n(key, 1).await);
        self.both.run(&unlink).await.expect("UNLINK answers");
    }

    /// Makes a call while both servers are full.
    async fn be_full(&mut self, limiter: &RateLimiter, key: &str, cost: u32) {
        self.both.fill(true).await;
        drop(limiter.check_n(key, cost).await);
        drop(limiter.admin().credit(key, 1).await);
        self.both.fill(false).await;
    }
}

/// Returns all strings of a real server.
async fn texts_of(mut real: MultiplexedConnection) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let keys = redis::cmd("KEYS").arg("*").query_async(&mut real).await;
    let keys: Vec<Vec<u8>> = keys.expect("KEYS answers");
    let mut texts = BTreeMap::new();
    for key in keys {
        let text = redis::cmd("GET").arg(&key).query_async(&mut real).await;
        // A key of another type has none.
        if let Ok(Some(text)) = text {
            texts.insert(key, text);
        }
    }
    texts
}

#[test]
fn the_simulated_server_replies_as_a_real_one() {
    let server = RedisServer::start();
    let (simulated, questions) = channel();
    thread::spawn(move || serve(questions));
    block_on(async {
        let client = redis::Client::open(server.url()).expect("a URL");
        // Each command has its reply, however busy the machine is.
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
        let real = client
            .get_multiplexed_async_connection_with_config(&config)
            .await;
        let both = BothServers {
            real: real.expect("the server is ready"),
            simulated,
            compared: Arc::default(),
        };
        let mut service = Service::new(both.clone(), 1);
        let wanted = some_or_all(12_500, 100_000);
        while both.compared.lock().await.commands < wanted {
            service.step().await;
        }
        drop(service);

        let compared = both.compared.lock().await;
        let first: Vec<&String> = compared.differences.iter().take(3).collect();
        let count = compared.differences.len();
        assert!(first.is_empty(), "{count} replies differ, first {first:#?}");
        let (answer, texts) = channel();
        both.simulated
            .send(Question::Texts(answer))
            .expect("the thread runs");
        assert_eq!(
            texts_of(both.real.clone()).await,
            texts.recv().expect("texts")
        );
    });
}
