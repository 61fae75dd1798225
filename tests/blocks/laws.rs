//! Automatic blocks in memory and in Redis, against a list of all refusals, and what a flood leaves to others.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use tollgate::store::Store;
use tollgate::store::protocol::{Adjust, Block, Check, StoreFuture, StoreId, StoreParts};
use tollgate::{BlockReason, BlockRule, ErrorKind, Key, Quota, RateLimiter, Source};

use crate::support::cases::{cases, is_all};
use crate::support::redis_server::RedisServer;
use crate::support::test_time::TestTime;
use crate::support::{block_on, runtime};

const SECOND: Duration = Duration::from_secs(1);
const MICRO: Duration = Duration::from_micros(1);
const HOUR: Duration = Duration::from_secs(3_600);

/// 5 refusals within 10 s, for 20 s, 40 s, 80 s, 100 s; forgotten after a minute.
const DOUBLING: BlockRule = BlockRule::refusals(5)
    .within(Duration::from_secs(10))
    .block_for(Duration::from_secs(20))
    .doubling()
    .max_block(Duration::from_secs(100))
    .forget_after(Duration::from_secs(60));

/// A time that ten does not divide.
const CONSTANT: BlockRule = BlockRule::refusals(3)
    .within(Duration::from_micros(12_345_679))
    .block_for(Duration::from_secs(7));

/// Any refusal blocks. The earlier blocks are forgotten as soon as the last one has ended.
const AT_ONCE: BlockRule = BlockRule::refusals(1)
    .block_for(Duration::from_secs(20))
    .doubling()
    .max_block(Duration::from_secs(100))
    .forget_after(Duration::from_secs(1));

const KEYS: [&str; 2] = ["ada", "bob {}\n"];

/// A store that tells whether all that automatic blocks have asked of it was answered.
struct Watched<S> {
    store: S,
    pending: Arc<AtomicUsize>,
}

impl<S> Watched<S> {
    fn watch<T: Send + 'static>(&self, limiter: &Key, future: StoreFuture<T>) -> StoreFuture<T> {
        let is_watched = limiter.as_str().starts_with("blocks=");
        let future = match future.try_ready() {
            Err(future) if is_watched => future,
            Err(future) => return future,
            Ok(answer) => return StoreFuture::ready(answer),
        };
        let pending = Arc::clone(&self.pending);
        pending.fetch_add(1, Ordering::SeqCst);
        StoreFuture::boxed(async move {
            let answer = future.await;
            pending.fetch_sub(1, Ordering::SeqCst);
            answer
        })
    }
}

impl<S: Store> Store for Watched<S> {
    fn id(&self) -> StoreId {
        self.store.id()
    }

    fn check(&self, checks: &[Check<'_>]) -> StoreFuture {
        let limiter = checks.first().expect("a check").limiter;
        let future = self.store.check(checks);
        self.watch(limiter, future)
    }

    fn adjust(&self, adjust: Adjust<'_>) -> StoreFuture<()> {
        let future = self.store.adjust(adjust);
        self.watch(adjust.limiter, future)
    }

    fn block(&self, block: Block<'_>) -> StoreFuture<bool> {
        let future = self.store.block(block);
        self.watch(&Key::from_stored("blocks=").expect("a key"), future)
    }

    fn refresh_blocks(&self, timeout: Duration) -> StoreFuture<()> {
        self.store.refresh_blocks(timeout)
    }

    fn parts(&self) -> StoreParts {
        self.store.parts()
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// Refusals of a key, each by another process.
    Refuse(usize, u32),
    Advance(Duration),
    /// An operator blocks a key, or unblocks it.
    Operator(usize, Duration),
}

fn step() -> impl Strategy<Value = Step> {
    let step = prop_oneof![
        Just(MICRO),
        Just(SECOND),
        Just(7 * SECOND - MICRO),
        Just(7 * SECOND),
        Just(10 * SECOND),
        Just(20 * SECOND - MICRO),
        Just(20 * SECOND),
        Just(40 * SECOND),
        Just(60 * SECOND - MICRO),
        Just(60 * SECOND),
        (0..3_000_000_u64).prop_map(Duration::from_micros),
        (0..3_000_000_u64).prop_map(Duration::from_micros),
        (0..200_u64).prop_map(Duration::from_secs),
    ];
    let duration = prop_oneof![Just(Duration::ZERO), Just(9 * SECOND), Just(HOUR)];
    prop_oneof![
        10 => (0..KEYS.len(), 1..4_u32).prop_map(|(key, count)| Step::Refuse(key, count)),
        6 => step.prop_map(Step::Advance),
        1 => (0..KEYS.len(), duration).prop_map(|(key, duration)| Step::Operator(key, duration)),
    ]
}

/// All that is known of a key.
#[derive(Default)]
struct Model {
    /// The times of refusals since the last block, in microseconds.
    refused: Vec<u64>,
    blocks: u32,
    /// The end of the last block, and whether it was automatic.
    until: u64,
    is_automatic: bool,
}

impl Model {
    fn refused_within(&self, time: u64, now: u64) -> u32 {
        let counted = self.refused.iter().filter(|at| **at + time > now);
        u32::try_from(counted.count()).expect("few")
    }

    fn start_block(&mut self, rule: &Rule, now: u64) {
        let is_forgotten = now >= self.until + micros(rule.forgotten);
        self.blocks = if is_forgotten { 1 } else { self.blocks + 1 };
        let longest = rule.durations.len() - 1;
        let index = usize::try_from(self.blocks - 1).expect("few").min(longest);
        (self.until, self.is_automatic) = (now + micros(rule.durations[index]), true);
        self.refused.clear();
    }

    fn reason(&self, now: u64) -> Option<(BlockReason, Duration)> {
        let left = Duration::from_micros(self.until.checked_sub(now).filter(|left| *left > 0)?);
        let blocks = self.blocks;
        let by_rule = BlockReason::Refusals { blocks };
        Some((
            if self.is_automatic {
                by_rule
            } else {
                BlockReason::Operator
            },
            left,
        ))
    }
}

/// A rule, in the words of its documentation.
struct Rule {
    rule: BlockRule,
    refusals: u32,
    within: Duration,
    durations: &'static [Duration],
    forgotten: Duration,
}

const DOUBLED: &[Duration] = &[
    Duration::from_secs(20),
    Duration::from_secs(40),
    Duration::from_secs(80),
    Duration::from_secs(100),
];

const RULES: [Rule; 3] = [
    Rule {
        rule: DOUBLING,
        refusals: 5,
        within: Duration::from_secs(10),
        durations: DOUBLED,
        forgotten: Duration::from_secs(60),
    },
    Rule {
        rule: CONSTANT,
        refusals: 3,
        within: Duration::from_micros(12_345_679),
        durations: &[Duration::from_secs(7)],
        forgotten: Duration::from_secs(86_400),
    },
    Rule {
        rule: AT_ONCE,
        refusals: 1,
        within: Duration::from_secs(600),
        durations: DOUBLED,
        forgotten: Duration::from_secs(1),
    },
];

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).expect("a short time")
}

#[derive(Default)]
struct Seen {
    blocked: u32,
    doubled: u32,
    forgotten: u32,
    spared: u32,
}

/// What a store does to the keys, and a model of it.
struct Subject<'a, S> {
    store: &'a S,
    rule: &'a Rule,
    pending: Arc<AtomicUsize>,
    models: [Model; KEYS.len()],
}

impl<S: Store + Clone> Subject<'_, S> {
    /// A limiter of a process that has sent nothing yet, so that it sends its first refusal at once.
    fn limiter(&self) -> RateLimiter {
        let store = Watched {
            store: self.store.clone(),
            pending: Arc::clone(&self.pending),
        };
        let limiter = RateLimiter::new(store, Quota::new(1, 300 * 24 * HOUR));
        limiter.name("a,b").block_after(self.rule.rule)
    }

    async fn settle(&self) {
        while self.pending.load(Ordering::SeqCst) > 0 {
            tokio::task::yield_now().await;
        }
    }

    async fn operator(&mut self, key: usize, duration: Duration, now: u64) {
        let admin = self.limiter().admin();
        admin.block(KEYS[key], duration).await.expect("a block");
        self.models[key] = Model {
            until: if duration.is_zero() {
                0
            } else {
                now + micros(duration)
            },
            ..Model::default()
        };
    }

    async fn refuse(&mut self, key: usize, now: u64, seen: &mut Seen) {
        let limiter = self.limiter();
        let mut decision = limiter.check(KEYS[key]).await.expect("a decision");
        if decision.is_allowed() {
            decision = limiter.check(KEYS[key]).await.expect("a decision");
        }
        let model = &self.models[key];
        let was_blocked = model.until > now;
        assert_eq!(was_blocked, decision.source() == Source::Block);
        if was_blocked {
            return;
        }
        self.settle().await;
        let model = &mut self.models[key];
        model.refused.push(now);
        let status = limiter.admin().status(KEYS[key]).await.expect("a status");
        let within = micros(self.rule.within);
        if status.blocked_for.is_some() {
            assert!(
                model.refused_within(within, now) >= self.rule.refusals,
                "blocked too early"
            );
            let earlier = model.blocks;
            model.start_block(self.rule, now);
            seen.blocked += 1;
            seen.doubled += u32::from(model.blocks > 1);
            seen.forgotten += u32::from(model.blocks <= earlier);
        } else {
            let counted = model.refused_within(within / 10 * 7, now);
            assert!(
                counted < self.rule.refusals,
                "not blocked after {counted} refusals"
            );
            seen.spared += u32::from(model.refused.len() >= self.rule.refusals as usize);
        }
    }

    /// The store says what the model says.
    async fn compare(&self, now: u64) {
        for (key, model) in KEYS.iter().zip(&self.models) {
            let status = self.limiter().admin().status(*key).await.expect("a status");
            let found = status.block_reason.zip(status.blocked_for);
            assert_eq!(found, model.reason(now));
        }
    }
}

async fn follows_the_model<S: Store + Clone>(
    store: impl Fn(&TestTime) -> S,
    time: &mut TestTime,
    rule: &Rule,
    steps: &[Step],
    seen: &mut Seen,
) {
    let mut subject = Subject {
        store: &store(time),
        rule,
        pending: Arc::default(),
        models: Default::default(),
    };
    for step in steps {
        let now = time.now();
        match *step {
            Step::Advance(step) => time.advance(step),
            Step::Operator(key, duration) => subject.operator(key, duration, now).await,
            Step::Refuse(key, count) => {
                for _ in 0..count {
                    subject.refuse(key, now, seen).await;
                }
            }
        }
        subject.compare(time.now()).await;
    }
}

#[test]
fn no_key_is_blocked_after_fewer_refusals_than_the_rule_says_and_blocks_grow_as_it_says() {
    let server = RedisServer::start();
    let runtime = runtime();
    for is_redis in [false, true] {
        let seen = RefCell::new(Seen::default());
        let mut runner = TestRunner::new(cases(if is_redis { 160 } else { 1_200 }));
        let strategy = (0..RULES.len(), prop::collection::vec(step(), 1..80));
        let outcome = runner.run(&strategy, |(rule, steps)| {
            let (rule, seen) = (&RULES[rule], &mut seen.borrow_mut());
            let mut time = TestTime::new(&server);
            runtime.block_on(async {
                if is_redis {
                    let store = |time: &TestTime| time.redis.clone();
                    follows_the_model(store, &mut time, rule, &steps, seen).await;
                } else {
                    let store = |time: &TestTime| time.memory.clone();
                    follows_the_model(store, &mut time, rule, &steps, seen).await;
                }
            });
            Ok(())
        });
        outcome.unwrap_or_else(|error| panic!("{error}"));
        let Seen {
            blocked,
            doubled,
            forgotten,
            spared,
        } = seen.into_inner();
        assert!(
            blocked > 20 && doubled > 8 && forgotten > 3 && spared > 3,
            "{blocked} {doubled} {forgotten} {spared}"
        );
    }
}

/// Blocks as many keys of a limiter in both stores, in Redis all at once. Returns how many.
fn list(time: &TestTime, server: &RedisServer, limiter: &Key, keys: u32) -> u32 {
    let mut command = redis::cmd("ZADD");
    command.arg("tollgate:v3:{blocks}");
    for number in 0..keys {
        let key = Key::from(number);
        let blocked = time
            .memory
            .block(Block::new(limiter, &key, HOUR).automatic());
        assert!(block_on(blocked).expect("room"));
        let member = format!("{},{number}", limiter.as_str());
        command.arg(time.now() + micros(HOUR)).arg(member);
    }
    let listed: u32 = command.query(&mut server.connect()).expect("ZADD answers");
    assert_eq!(listed, keys);
    keys
}

#[test]
fn a_flood_at_one_limiter_neither_stops_nor_lifts_blocks_of_another() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let _entered = runtime.enter();
    let time = TestTime::new(&server);
    let block = |limiter: &Key, numbers: std::ops::Range<u32>| {
        let blocked = numbers.filter(|number| {
            let key = Key::from(*number);
            let block = Block::new(limiter, &key, HOUR).automatic();
            let in_memory = runtime.block_on(time.memory.block(block));
            let in_redis = runtime.block_on(time.redis.block(block));
            let [in_memory, in_redis] = [in_memory, in_redis].map(|outcome| match outcome {
                Err(error) if error.kind() == ErrorKind::Full => None,
                outcome => Some(outcome.expect("an outcome")),
            });
            assert_eq!(in_memory, in_redis);
            in_memory == Some(true)
        });
        blocked.count()
    };
    let login = Key::from("login");
    assert_eq!(block(&login, 0..1), 1);
    // Its name begins with the other one.
    let flooded = Key::from("login,search");
    assert_eq!(block(&flooded, 0..950), 950);
    assert_eq!(block(&flooded, 950..1_100), 50, "1 000 keys of a limiter");
    assert_eq!(block(&login, 0..100), 99);
    for list in [
        time.memory.parts().block_list,
        time.redis.parts().block_list,
    ] {
        // An automatic block has no effect on a key that is blocked, and finds no room for another.
        let put = |limiter, key: u32| {
            let key = Key::from(key);
            list.put(Block::new(limiter, &key, HOUR).automatic())
        };
        assert!(!put(&login, 0).expect("a blocked key"));
        assert!(!put(&flooded, 999).expect("a blocked key"));
        let full = put(&flooded, 1_000).expect_err("a full list");
        assert_eq!(full.kind(), ErrorKind::Full);
    }
    // The limiters together leave room for operators.
    let others = (2..10).map(|limiter| {
        let limiter = Key::from(limiter);
        // To block so many keys one by one takes Redis half a minute. Every change waits for that with the last limiter.
        let listed = if is_all() || limiter == Key::from(9) {
            0
        } else {
            list(&time, &server, &limiter, 1_000)
        };
        listed as usize + block(&limiter, listed..1_010)
    });
    assert_eq!(others.sum::<usize>(), 9_000 - 1_000 - 100);
    let eve = Key::from("eve");
    let by_operator = Block::new(&flooded, &eve, HOUR);
    for store in [&time.memory as &dyn Store, &time.redis] {
        let blocked = runtime.block_on(store.block(by_operator));
        assert!(blocked.expect("room for operators"));
    }
}
