//! The memory store and Redis charge the same number of units for a check that asks for more than its cost.

use std::time::Duration;

use proptest::prelude::*;
use tollgate::store::Store;
use tollgate::store::protocol::{Answer, Answers, Change, Subject};
use tollgate::{Algorithm, Error, ErrorKind, Key, Quota, Quotas};

use crate::support::redis_server::RedisServer;
use crate::support::test_time::TestTime;
use crate::support::{ask, holds_for_any, runtime};

const WINDOW: Duration = Duration::from_millis(100);
const SECOND: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
enum Step {
    Check {
        quotas: usize,
        cost: u32,
        more: u32,
        eighths: u32,
    },
    /// Gives back units of an earlier charge.
    Refund {
        charge: usize,
        units: u32,
    },
    Advance(Duration),
    SetBack(Duration),
}

fn step() -> impl Strategy<Value = Step> {
    let duration = prop_oneof![
        Just(Duration::from_micros(1)),
        Just(WINDOW),
        (0..60_000_u64).prop_map(Duration::from_micros),
        (0..3_000_u64).prop_map(Duration::from_millis),
    ];
    let more = prop_oneof![Just(0), 1..20_u32, 1..500_u32, Just(u32::MAX)];
    prop_oneof![
        6 => (0..4_usize, 0..9_u32, more, 1..9_u32)
            .prop_map(|(quotas, cost, more, eighths)| Step::Check { quotas, cost, more, eighths }),
        2 => (0..1_000_usize, 0..60_u32).prop_map(|(charge, units)| Step::Refund { charge, units }),
        4 => duration.clone().prop_map(Step::Advance),
        1 => duration.prop_map(Step::SetBack),
    ]
}

/// Lists of quotas that one key has at different times.
fn lists(algorithm: Algorithm) -> [Quotas; 4] {
    let per = |limit, window| Quota::new(limit, window).with_algorithm(algorithm);
    [
        per(300, WINDOW).into(),
        per(90, WINDOW).into(),
        [per(2_000, SECOND), per(100, WINDOW)].into(),
        [per(150, WINDOW), Quota::new(400, SECOND), per(120, WINDOW)].into(),
    ]
}

type Numbers = (u32, Vec<(u32, Option<Duration>, Duration)>);

/// The units beyond the cost, and the numbers of each quota.
fn numbers(answer: &Result<Answer, Error>) -> Result<Numbers, ErrorKind> {
    let answer = answer.as_ref().map_err(Error::kind)?;
    let quotas = answer.quotas().iter();
    let quotas = quotas.map(|quota| (quota.used(), quota.retry_after(), quota.reset_after()));
    Ok((answer.extra_units(), quotas.collect()))
}

/// The answer to the only check.
fn only(answers: Result<Answers, Error>) -> Result<Answer, Error> {
    answers.map(|answers| answers[0].clone())
}

/// An earlier charge, as each store answered it.
struct Charge {
    quotas: usize,
    cost: u32,
    answers: [Answer; 2],
    held: u32,
}

fn same_grants(algorithm: Algorithm) {
    let server = RedisServer::start();
    let runtime = runtime();
    let lists = lists(algorithm);
    let (limiter, extras) = (Key::from("l"), std::cell::Cell::new(0_u64));
    let steps = prop::collection::vec(step(), 1..60);
    let case = std::cell::Cell::new(0);
    let law = |steps: Vec<Step>| {
        case.set(case.get() + 1);
        let key = Key::from(format!("key {}", case.get()));
        // Every other key is counted for longer than its windows.
        let lease = WINDOW / 10 * (case.get() % 2);
        let mut time = TestTime::new(&server);
        let mut charges: Vec<Charge> = Vec::new();
        for step in steps {
            match step {
                Step::Check {
                    quotas,
                    cost,
                    more,
                    eighths,
                } => {
                    let subject = Subject::new(&limiter, &key, &lists[quotas]);
                    let check = subject.with_lease(lease).check(cost);
                    let check = check.with_extra_units(more, eighths);
                    let answers = runtime.block_on(async {
                        [
                            only(ask(&time.memory, &[check]).await),
                            only(ask(&time.redis, &[check]).await),
                        ]
                    });
                    prop_assert_eq!(numbers(&answers[0]), numbers(&answers[1]));
                    let [Ok(memory), Ok(redis)] = answers else {
                        continue;
                    };
                    let extra = memory.extra_units();
                    extras.set(extras.get() + u64::from(extra));
                    prop_assert!(extra <= more && (cost > 0 || extra == 0));
                    if memory.is_admitted() {
                        // The eighths of what was left after the cost. More than the limit may be used before a cost of 0.
                        let charged = memory.quotas().iter().filter(|_| cost > 0);
                        for (quota, answer) in lists[quotas].iter().zip(charged) {
                            let left = quota.limit() + extra - answer.used();
                            prop_assert!(extra <= left * eighths / 8);
                        }
                        let held = cost + extra;
                        charges.push(Charge {
                            quotas,
                            cost,
                            answers: [memory, redis],
                            held,
                        });
                    } else {
                        prop_assert_eq!(extra, 0);
                    }
                }
                Step::Refund { charge, units } => {
                    let count = charges.len().max(1);
                    let Some(charge) = charges.get_mut(charge % count) else {
                        continue;
                    };
                    let units = units.min(charge.held);
                    charge.held -= units;
                    let subject = Subject::new(&limiter, &key, &lists[charge.quotas]);
                    let check = subject.with_lease(lease).check(charge.cost);
                    let [memory, redis] = &charge.answers;
                    let held = charge.held;
                    let refund = |answer| Change::Refund {
                        answer,
                        cost: check.cost + answer.extra_units(),
                        units,
                        held,
                    };
                    let [memory, redis] =
                        [refund(memory), refund(redis)].map(|change| check.adjust(change));
                    runtime.block_on(async {
                        time.memory.adjust(memory).await.unwrap();
                        time.redis.adjust(redis).await.unwrap();
                    });
                }
                Step::Advance(duration) => time.advance(duration),
                Step::SetBack(duration) => time.step_back(duration),
            }
        }
        Ok(())
    };
    holds_for_any(60, &steps, law);
    assert!(extras.get() > 50, "{} units were granted", extras.get());
}

test_each_algorithm!(same_grants, buckets: 10);
