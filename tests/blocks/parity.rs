//! The memory store and Redis count refusals and block keys as a plain model does: a list of all refusals that may
//! still count.

use std::time::Duration;

use crate::support::redis_server::RedisServer;
use crate::support::test_time::TestTime;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tollgate::store::{Block, RefusalOutcome, Refusals, Store};
use tollgate::{BlockRule, Key};

const SECOND: Duration = Duration::from_secs(1);
const MICRO: Duration = Duration::from_micros(1);

/// 5 refusals within 10 s, for 20 s, 40 s, 80 s, 100 s; forgotten after a minute.
const DOUBLING: BlockRule = BlockRule::refusals(5)
    .within(Duration::from_secs(10))
    .block_for(Duration::from_secs(20))
    .doubling()
    .max_block(Duration::from_secs(100))
    .forget_after(Duration::from_secs(60));

const CONSTANT: BlockRule = BlockRule::refusals(3)
    .within(Duration::from_millis(12_345))
    .block_for(Duration::from_secs(7));

const KEYS: usize = 2;

#[derive(Clone, Debug)]
enum Step {
    /// Refusals of each key, the first of them that long ago.
    Refuse([u32; KEYS], Duration),
    Advance(Duration),
    /// An operator blocks a key, or unblocks it.
    Operator(usize, Duration),
}

fn step() -> impl Strategy<Value = Step> {
    let counts = prop::array::uniform2(prop_oneof![2 => Just(0), 5 => 1..4_u32, 1 => 1..40_u32]);
    let age = prop_oneof![
        5 => Just(Duration::ZERO),
        3 => (0..1_000_000_u64).prop_map(Duration::from_micros),
        1 => (0..200_u64).prop_map(Duration::from_secs),
    ];
    let step = prop_oneof![
        Just(Duration::ZERO),
        Just(MICRO),
        Just(SECOND),
        Just(9 * SECOND),
        Just(20 * SECOND - MICRO),
        Just(20 * SECOND),
        Just(40 * SECOND),
        Just(60 * SECOND),
        (0..3_000_000_u64).prop_map(Duration::from_micros),
        (0..200_u64).prop_map(Duration::from_secs),
    ];
    let duration = prop_oneof![Just(Duration::ZERO), Just(9 * SECOND), Just(3_600 * SECOND)];
    prop_oneof![
        10 => (counts, age).prop_map(|(counts, age)| Step::Refuse(counts, age)),
        6 => step.prop_map(Step::Advance),
        1 => (0..KEYS, duration).prop_map(|(key, duration)| Step::Operator(key, duration)),
    ]
}

/// The record that the stores should have of a key. Times are microseconds.
#[derive(Default)]
struct Model {
    refused: Vec<u64>,
    blocks: u32,
    /// The end of the last automatic block.
    until: u64,
    /// The end of an operator's block.
    by_operator: u64,
}

impl Model {
    fn refuse(&mut self, rule: &BlockRule, count: u32, age: Duration, now: u64) -> RefusalOutcome {
        let left = self.until.saturating_sub(now);
        if left > 0 {
            return RefusalOutcome::StillBlocked {
                left: Duration::from_micros(left),
                blocks: self.blocks,
            };
        }
        if count == 0 {
            return RefusalOutcome::Counted;
        }
        let at = now.saturating_sub(micros(age));
        if at >= self.until {
            self.refused.extend((0..count).map(|_| at));
        }
        // A refusal counts while its tenth of the time is among the last ten.
        let part = part_of(rule);
        self.refused.retain(|at| at / part + 10 > now / part);
        if self.refused.len() < refusals_of(rule) || self.by_operator > now {
            return RefusalOutcome::Counted;
        }
        if now >= self.until + forgotten_after(rule) {
            self.blocks = 0;
        }
        let duration = duration_of(rule, self.blocks);
        self.refused.clear();
        self.blocks += 1;
        self.until = now + micros(duration);
        RefusalOutcome::Blocked {
            duration,
            blocks: self.blocks,
        }
    }

    fn decided_by_operator(&mut self, duration: Duration, now: u64) {
        *self = Self {
            by_operator: now + micros(duration),
            ..Self::default()
        };
    }

    fn blocked_for(&self, now: u64) -> Option<Duration> {
        let left = self.until.max(self.by_operator).checked_sub(now)?;
        (left > 0).then(|| Duration::from_micros(left))
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).expect("a short time")
}

fn part_of(rule: &BlockRule) -> u64 {
    if *rule == DOUBLING {
        1_000_000
    } else {
        1_234_500
    }
}

fn refusals_of(rule: &BlockRule) -> usize {
    if *rule == DOUBLING { 5 } else { 3 }
}

fn forgotten_after(rule: &BlockRule) -> u64 {
    micros(if *rule == DOUBLING {
        60 * SECOND
    } else {
        86_400 * SECOND
    })
}

fn duration_of(rule: &BlockRule, earlier: u32) -> Duration {
    let doubled = [20, 40, 80, 100];
    let seconds = doubled[usize::try_from(earlier).expect("few").min(3)];
    if *rule == DOUBLING {
        seconds * SECOND
    } else {
        7 * SECOND
    }
}

#[derive(Default)]
struct Seen {
    blocked: u32,
    doubled: u32,
    forgotten: u32,
}

#[test]
fn memory_and_redis_block_as_the_model_does() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime");
    let _entered = runtime.enter();
    let mut seen = Seen::default();
    let mut runner = TestRunner::new(Config::with_cases(150));
    let strategy = (any::<bool>(), prop::collection::vec(step(), 1..120));
    let seen_in = std::cell::RefCell::new(&mut seen);
    let outcome = runner.run(&strategy, |(is_doubling, steps)| {
        let mut time = TestTime::new(&server);
        let rule = if is_doubling { DOUBLING } else { CONSTANT };
        let limiter = Key::from("a,b");
        let keys = ["ada", "bob {}\n"].map(Key::from);
        let mut models: [Model; KEYS] = Default::default();
        let mut passed = 0;
        for step in steps {
            // The test clock starts at a time of its own.
            let now = time.now();
            match step {
                Step::Advance(step) => {
                    time.advance(step);
                    passed += micros(step);
                }
                Step::Operator(key, duration) => {
                    let block = Block::new(&limiter, &keys[key], duration);
                    runtime.block_on(time.memory.block(block)).expect("a block");
                    runtime.block_on(time.redis.block(block)).expect("a block");
                    models[key].decided_by_operator(duration, now);
                }
                Step::Refuse(counts, age) => {
                    let refusals: Vec<_> = keys
                        .iter()
                        .zip(counts)
                        .map(|(key, count)| Refusals::new(&limiter, key, &rule, count).aged(age))
                        .collect();
                    let expected: Vec<_> = models
                        .iter_mut()
                        .zip(counts)
                        .map(|(model, count)| model.refuse(&rule, count, age, now))
                        .collect();
                    let in_memory = runtime.block_on(time.memory.count_refusals(&refusals));
                    let in_redis = runtime.block_on(time.redis.count_refusals(&refusals));
                    prop_assert_eq!(&in_memory.expect("outcomes"), &expected, "in memory");
                    prop_assert_eq!(&in_redis.expect("outcomes"), &expected, "in Redis");
                    let mut seen = seen_in.borrow_mut();
                    for outcome in expected {
                        if let RefusalOutcome::Blocked { blocks, .. } = outcome {
                            seen.blocked += 1;
                            seen.doubled += u32::from(blocks > 1);
                            seen.forgotten += u32::from(blocks == 1 && passed > 200_000_000);
                        }
                    }
                }
            }
            let now = time.now();
            for (key, model) in keys.iter().zip(&models) {
                for list in [time.memory.block_list(), time.redis.block_list()] {
                    prop_assert_eq!(list.blocked_for(&limiter, key), model.blocked_for(now));
                }
            }
        }
        Ok(())
    });
    outcome.unwrap_or_else(|error| panic!("{error}"));
    let Seen {
        blocked,
        doubled,
        forgotten,
    } = seen;
    assert!(
        blocked > 150 && doubled > 25 && forgotten > 10,
        "{blocked} {doubled} {forgotten}"
    );
}

#[test]
fn a_flood_at_one_limiter_neither_stops_nor_lifts_blocks_of_another() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let _entered = runtime.enter();
    let time = TestTime::new(&server);
    let count = |limiter: &Key, numbers: std::ops::Range<u32>| {
        let keys: Vec<_> = numbers.map(Key::from).collect();
        let refusals = keys
            .iter()
            .map(|key| Refusals::new(limiter, key, &DOUBLING, 5));
        let refusals: Vec<_> = refusals.collect();
        let in_memory = runtime.block_on(time.memory.count_refusals(&refusals));
        let in_redis = runtime.block_on(time.redis.count_refusals(&refusals));
        let (in_memory, in_redis) = (in_memory.expect("outcomes"), in_redis.expect("outcomes"));
        assert_eq!(in_memory, in_redis);
        let is_blocked =
            |outcome: &&RefusalOutcome| matches!(outcome, RefusalOutcome::Blocked { .. });
        in_memory.iter().filter(is_blocked).count()
    };
    let login = Key::from("login");
    assert_eq!(count(&login, 0..1), 1);
    // Its name begins with the other one.
    let flooded = Key::from("login,search");
    assert_eq!(count(&flooded, 0..950), 950);
    assert_eq!(count(&flooded, 950..9_100), 50, "1 000 keys of a limiter");
    assert_eq!(count(&login, 1..100), 99);
    for list in [time.memory.block_list(), time.redis.block_list()] {
        assert!(list.blocked_for(&login, &Key::from(0)).is_some());
        assert!(list.blocked_for(&flooded, &Key::from(999)).is_some());
        assert!(list.blocked_for(&flooded, &Key::from(1_000)).is_none());
    }
    // The limiters together leave room for operators.
    let others: usize = (2..10)
        .map(|limiter| count(&Key::from(limiter), 0..1_000))
        .sum();
    assert_eq!(others, 9_000 - 1_000 - 100);
    let (eve, hour) = (Key::from("eve"), 3_600 * SECOND);
    let block = Block::new(&flooded, &eve, hour);
    runtime
        .block_on(time.memory.block(block))
        .expect("room for operators");
    runtime
        .block_on(time.redis.block(block))
        .expect("room for operators");
}
