//! The memory store and Redis decide checks of several levels alike, one at a time and many in one call.

use std::cell::Cell;
use std::time::Duration;

use proptest::prelude::*;
use tokio::runtime::Runtime;
use tollgate::store::Store;
use tollgate::store::protocol::{Answer, Answers, Change, Check, QuotaAnswer, Receipt, Subject};
use tollgate::{Algorithm, Key, Quota, Quotas};

use crate::support::redis_server::{RedisServer, run};
use crate::support::test_time::TestTime;
use crate::support::{ask, ask_in_one_call, holds_for_any, runtime};

const SECOND: Duration = Duration::from_secs(1);
const WINDOW: Duration = Duration::from_millis(100);

/// The levels, and how many keys each has. Two levels are of one limiter, with other keys.
const LEVELS: [(&str, usize); 5] = [
    ("user", 6),
    ("team", 3),
    ("tenant", 2),
    ("service", 1),
    ("user", 2),
];

/// The quotas that a level may have. A level that changes them goes on with the same counts.
fn plans(algorithm: Algorithm) -> Vec<Quotas> {
    let per = |limit, window| Quota::new(limit, window).with_algorithm(algorithm);
    let log = |limit, window| Quota::new(limit, window);
    vec![
        per(40, WINDOW).into(),
        per(90, SECOND).into(),
        per(7, WINDOW).into(),
        per(200, WINDOW).into(),
        [per(120, SECOND), per(40, WINDOW)].into(),
        [log(60, WINDOW), log(300, SECOND)].into(),
        [per(30, WINDOW), per(50, WINDOW)].into(),
        Quotas::from(Vec::new()),
        [
            log(300, 9 * WINDOW),
            Quota::new(80, SECOND).with_algorithm(Algorithm::Gcra),
        ]
        .into(),
        per(0, WINDOW).into(),
        [
            per(60, WINDOW),
            per(20, WINDOW).soft(),
            per(30, SECOND).soft(),
        ]
        .into(),
        per(25, WINDOW).soft().into(),
    ]
}

/// The usual plans come often, so that many calls are admitted as a whole.
fn plan() -> impl Strategy<Value = usize> {
    prop_oneof![12 => 0..2_usize, 6 => Just(3), 4 => 2..9_usize, 1 => Just(9), 6 => 10..12_usize]
}

/// What the checks of one call have in common: each level with its plan and cost.
type Shape = Vec<(usize, usize, u32)>;

#[derive(Clone, Debug)]
enum Step {
    /// Checks that are sent at the same time: of each the number that names its keys.
    Checks(Shape, Vec<usize>),
    Advance(Duration),
    SetBack(Duration),
    /// Gives back units of a level of an admitted check.
    Refund(usize, u32),
    ForgetScripts,
}

fn shape() -> impl Strategy<Value = Shape> {
    let level = (
        plan(),
        prop_oneof![6 => Just(1), 3 => 2..6_u32, 1 => Just(0)],
    );
    let levels = prop::collection::vec(level, LEVELS.len());
    let chosen = prop::sample::subsequence((0..LEVELS.len()).collect::<Vec<_>>(), 1..=LEVELS.len());
    (chosen, levels, any::<bool>()).prop_map(|(mut chosen, levels, is_reversed)| {
        if is_reversed {
            chosen.reverse();
        }
        let level = |index: usize| (index, levels[index].0, levels[index].1);
        chosen.into_iter().map(level).collect()
    })
}

fn step() -> impl Strategy<Value = Step> {
    let duration = prop_oneof![
        Just(Duration::from_micros(1)),
        Just(WINDOW / 10),
        Just(WINDOW),
        Just(Duration::from_secs(3_600)),
        (0..200_000_u64).prop_map(Duration::from_micros),
    ];
    let keys = prop_oneof![
        prop::collection::vec(0..36_usize, 1..2),
        prop::collection::vec(0..36_usize, 2..12),
    ];
    prop_oneof![
        16 => (shape(), keys).prop_map(|(shape, keys)| Step::Checks(shape, keys)),
        8 => duration.clone().prop_map(Step::Advance),
        1 => duration.prop_map(Step::SetBack),
        3 => (0..1_000_usize, 1..5_u32).prop_map(|(check, units)| Step::Refund(check, units)),
        1 => Just(Step::ForgetScripts),
    ]
}

/// A level of a check, and the answers of both stores.
struct Charged {
    level: usize,
    key: Key,
    plan: usize,
    cost: u32,
    answers: [Answer; 2],
}

struct Pair {
    time: TestTime,
    plans: Vec<Quotas>,
    limiters: Vec<Key>,
    runtime: Runtime,
    charged: Vec<Charged>,
    /// The calls of several checks that were admitted as a whole, and the others.
    whole: usize,
    partly: usize,
}

fn receipts(answers: &[Answer]) -> Vec<Vec<Receipt>> {
    let receipts = |answer: &Answer| answer.quotas().iter().map(QuotaAnswer::receipt).collect();
    answers.iter().map(receipts).collect()
}

/// Units used, wait, and time until more units are left.
type Numbers = (u32, Option<Duration>, Duration);

/// The numbers of each quota of each answer, and whether it admits.
fn numbers(answers: &[Answer]) -> Vec<Vec<(Numbers, bool)>> {
    let number = |quota: &QuotaAnswer| {
        let numbers = (quota.used(), quota.retry_after(), quota.reset_after());
        (numbers, quota.is_admitted())
    };
    let numbers = |answer: &Answer| answer.quotas().iter().map(number).collect();
    answers.iter().map(numbers).collect()
}

fn is_admitted(answers: &[Answer]) -> bool {
    answers.iter().all(Answer::is_admitted)
}

impl Pair {
    fn new(server: &RedisServer, algorithm: Algorithm) -> Self {
        Self {
            time: TestTime::new(server),
            plans: plans(algorithm),
            limiters: LEVELS.iter().map(|(name, _)| Key::from(*name)).collect(),
            runtime: runtime(),
            charged: Vec::new(),
            whole: 0,
            partly: 0,
        }
    }

    /// The keys of a check, by its number.
    fn keys(shape: &Shape, number: usize) -> Vec<Key> {
        let key = |(level, ..): &(usize, usize, u32)| {
            Key::from(format!("{level}:{}", number % LEVELS[*level].1))
        };
        shape.iter().map(key).collect()
    }

    fn checks<'a>(&'a self, shape: &Shape, keys: &'a [Key]) -> Vec<Check<'a>> {
        let levels = shape.iter().zip(keys);
        let check = |(&(level, plan, cost), key): (&(usize, usize, u32), &'a Key)| {
            Subject::new(&self.limiters[level], key, &self.plans[plan]).check(cost)
        };
        levels.map(check).collect()
    }

    fn in_memory(&self, shape: &Shape, keys: &[Key]) -> Answers {
        let decided = ask(&self.time.memory, &self.checks(shape, keys));
        self.runtime.block_on(decided).expect("an answer")
    }

    fn in_redis(&self, shape: &Shape, keys: &[Vec<Key>]) -> Vec<Answers> {
        let checks = keys.iter().map(|keys| self.checks(shape, keys));
        let checks: Vec<_> = checks.collect();
        let answers = ask_in_one_call(&self.time.redis, &checks);
        self.runtime.block_on(answers)
    }

    fn check(&mut self, shape: &Shape, numbers_of_checks: &[usize]) {
        let numbers_of_checks = numbers_of_checks.iter();
        let keys: Vec<_> = numbers_of_checks
            .map(|number| Self::keys(shape, *number))
            .collect();
        let redis = self.in_redis(shape, &keys);
        let is_whole = redis.iter().all(|answers| is_admitted(answers));
        let context = format!("{shape:?} {keys:?}");
        let mut memory: Vec<Answers> = vec![Answers::default(); keys.len()];
        // Whatever the order, those that are admitted have room for each other, and those that are refused have
        // none behind them.
        for admitted in [true, false] {
            for (index, keys) in keys.iter().enumerate() {
                if is_admitted(&redis[index]) == admitted {
                    memory[index] = self.in_memory(shape, keys);
                    assert_eq!(is_admitted(&memory[index]), admitted, "{context} {index}");
                }
            }
        }
        if is_whole || keys.len() == 1 {
            for (in_memory, in_redis) in memory.iter().zip(&redis) {
                assert_eq!(numbers(in_memory), numbers(in_redis), "{context}");
                if is_admitted(in_redis) {
                    // A level that only looks has no charge to refund.
                    let costs = || shape.iter().map(|(.., cost)| *cost);
                    let charged = |answers: &[Answer]| -> Vec<_> {
                        let receipts = costs().zip(receipts(answers));
                        receipts.filter(|(cost, _)| *cost > 0).collect()
                    };
                    assert_eq!(charged(in_memory), charged(in_redis), "{context}");
                }
            }
        }
        if keys.len() > 1 {
            *(if is_whole {
                &mut self.whole
            } else {
                &mut self.partly
            }) += 1;
        }
        for ((keys, in_memory), in_redis) in keys.iter().zip(memory).zip(redis) {
            if is_admitted(&in_redis) && (is_whole || self.charged.len() < 3) {
                let answers = in_memory.iter().zip(in_redis.iter());
                for ((answers, key), &(level, plan, cost)) in answers.zip(keys).zip(shape) {
                    self.charged.push(Charged {
                        level,
                        key: key.clone(),
                        plan,
                        cost,
                        answers: [answers.0.clone(), answers.1.clone()],
                    });
                }
            }
        }
    }

    /// Verifies that each key has the same counts in both stores.
    fn compare(&self) {
        for (level, (_, keys)) in LEVELS.iter().enumerate() {
            for number in 0..*keys {
                for plan in 0..self.plans.len() {
                    let shape = vec![(level, plan, 0)];
                    let keys = Self::keys(&shape, number);
                    let in_memory = self.in_memory(&shape, &keys);
                    let in_redis = self.in_redis(&shape, &[keys]).remove(0);
                    assert_eq!(
                        numbers(&in_memory),
                        numbers(&in_redis),
                        "{level} {number} {plan}"
                    );
                }
            }
        }
    }

    fn refund(&mut self, number: usize, units: u32) {
        if self.charged.is_empty() {
            return;
        }
        let charged = self.charged.swap_remove(number % self.charged.len());
        let (limiter, quotas) = (&self.limiters[charged.level], &self.plans[charged.plan]);
        let check = Subject::new(limiter, &charged.key, quotas).check(charged.cost);
        let [memory, redis] = &charged.answers;
        self.runtime.block_on(async {
            let refund = |answer| {
                check.adjust(Change::Refund {
                    answer,
                    cost: check.cost,
                    units,
                    held: 0,
                })
            };
            let in_memory = self.time.memory.adjust(refund(memory));
            in_memory.await.expect("a refund");
            let in_redis = self.time.redis.adjust(refund(redis));
            in_redis.await.expect("a refund");
        });
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Checks(shape, keys) => self.check(shape, keys),
            Step::Advance(duration) => self.time.advance(*duration),
            Step::SetBack(duration) => self.time.step_back(*duration),
            Step::Refund(check, units) => self.refund(*check, *units),
            Step::ForgetScripts => run(self.time.connection(), &["SCRIPT", "FLUSH"]),
        }
    }
}

fn same_decisions(algorithm: Algorithm) {
    let server = RedisServer::start();
    let (whole, partly) = (Cell::new(0), Cell::new(0));
    holds_for_any(80, &prop::collection::vec(step(), 1..60), |steps| {
        let mut pair = Pair::new(&server, algorithm);
        for step in &steps {
            pair.take(step);
        }
        pair.compare();
        whole.set(whole.get() + pair.whole);
        partly.set(partly.get() + pair.partly);
        Ok(())
    });
    println!(
        "{algorithm:?}: {} calls admitted, {} in part",
        whole.get(),
        partly.get()
    );
    assert!(whole.get() >= 10 && partly.get() >= 2);
}

test_each_algorithm!(same_decisions, buckets: 7);
