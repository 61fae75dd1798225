//! The memory store and Redis answer the same messages of processes that hold units alike, one at a time and many in one call.

use std::cell::RefCell;
use std::time::Duration;

use proptest::prelude::*;
use tokio::runtime::Runtime;
use tollgate::store::protocol::{Answer, Answers, Change, Check, Holding, Subject};
use tollgate::{Algorithm, Key, MemoryStore, Quota, Quotas, RateLimiter};

use crate::support::redis_server::{RedisServer, run};
use crate::support::test_time::TestTime;
use crate::support::{ask, ask_in_one_call, holds_for_any, runtime};

const LEASES: [Duration; 3] = [
    Duration::from_secs(5),
    Duration::from_secs(15),
    Duration::from_secs(60),
];

const WINDOW: Duration = Duration::from_secs(40);

const IDLE: Duration = Duration::from_secs(9_000);

const HOLDERS: usize = 3;

/// The quotas that a level may have, which go on with the same counts.
fn plans() -> Vec<Quotas> {
    let rate = |limit, algorithm| Quota::new(limit, WINDOW).with_algorithm(algorithm);
    let lists = [
        vec![Quota::total(60, IDLE)],
        vec![rate(20, Algorithm::SlidingLog)],
        vec![rate(20, Algorithm::SlidingBuckets(8))],
        vec![rate(15, Algorithm::FixedWindow)],
        vec![rate(25, Algorithm::SlidingCounter)],
        vec![rate(12, Algorithm::Gcra)],
        vec![rate(0, Algorithm::SlidingLog)],
        // A log that is read in pages.
        vec![Quota::new(2_000, WINDOW)],
        // Three values, and two counters in one of them.
        vec![
            rate(30, Algorithm::SlidingLog),
            Quota::total(200, IDLE),
            rate(18, Algorithm::SlidingBuckets(4)),
            rate(22, Algorithm::FixedWindow),
        ],
    ];
    let held = |(index, quotas): (usize, Vec<Quota>)| {
        let limiter = RateLimiter::new(MemoryStore::new(), quotas);
        let limiter = limiter.reserve_lease(LEASES[index % LEASES.len()]);
        limiter.quotas().clone()
    };
    let mut plans: Vec<_> = lists.into_iter().enumerate().map(held).collect();
    // A level beside which nothing is held.
    plans.push(Quota::new(25, WINDOW).into());
    plans
}

const PLANS: usize = 10;

const WITHOUT_HELD: usize = PLANS - 1;

/// A level of a check.
#[derive(Clone, Debug)]
struct Level {
    plan: usize,
    cost: u32,
    /// `None` for a check that is charged beside what is held.
    message: Option<Message>,
}

/// What a holder says.
#[derive(Clone, Debug)]
struct Message {
    holder: usize,
    /// Behind the latest one of the holder; -1 for a new one.
    behind: i64,
    held: u32,
    /// The units that it has used since its last message.
    used: u64,
    /// How much of what it has spent is not acknowledged.
    unknown: u64,
    lease: usize,
    is_stated: bool,
}

#[derive(Clone, Debug)]
enum Step {
    /// Checks of one level or two that are sent at the same time, each so many times.
    Checks(Vec<(Vec<Level>, usize)>),
    Advance(Duration),
    SetBack(Duration),
    SetForward(Duration),
    Reset(usize),
    ForgetScripts,
    LoseData,
}

fn message() -> impl Strategy<Value = Message> {
    let behind = prop_oneof![6 => Just(-1), 2 => Just(0), 1 => 1..3_i64];
    let held = prop_oneof![2 => Just(0), 3 => 0..7_u32, 1 => 0..40_u32];
    let used = prop_oneof![3 => Just(0), 3 => 1..5_u64, 1 => 1..60_u64];
    let unknown = prop_oneof![3 => Just(0), 2 => 1..5_u64, 1 => 1..90_u64];
    let parts = (
        0..HOLDERS,
        behind,
        held,
        used,
        unknown,
        0..LEASES.len(),
        any::<bool>(),
    );
    parts.prop_map(
        |(holder, behind, held, used, unknown, lease, is_stated)| Message {
            holder,
            behind,
            held,
            used,
            unknown,
            lease,
            is_stated,
        },
    )
}

fn level() -> impl Strategy<Value = Level> {
    let message = prop_oneof![3 => message().prop_map(Some), 1 => Just(None)];
    let cost = prop_oneof![2 => Just(0), 5 => 1..6_u32, 1 => 6..30_u32];
    (0..PLANS, cost, message).prop_map(|(plan, cost, message)| Level {
        plan,
        cost,
        message: message.filter(|_| plan != WITHOUT_HELD),
    })
}

fn step() -> impl Strategy<Value = Step> {
    let duration = prop_oneof![
        3 => Just(Duration::from_micros(1)),
        6 => (0..4_000_u64).prop_map(Duration::from_millis),
        6 => (0..20_000_000_u64).prop_map(Duration::from_micros),
        2 => Just(LEASES[0]),
        2 => Just(LEASES[1]),
        2 => (0..130_u64).prop_map(Duration::from_secs),
        1 => (3_500..3_800_u64).prop_map(Duration::from_secs),
    ];
    let check = || {
        let times = prop_oneof![4 => Just(1), 1 => 2..9_usize];
        (prop::collection::vec(level(), 1..3), times)
    };
    let checks = prop_oneof![
        2 => prop::collection::vec(check(), 1..2),
        1 => prop::collection::vec(check(), 2..7),
    ];
    prop_oneof![
        20 => checks.prop_map(Step::Checks),
        6 => duration.clone().prop_map(Step::Advance),
        2 => duration.clone().prop_map(Step::SetBack),
        1 => duration.prop_map(Step::SetForward),
        1 => (0..PLANS).prop_map(Step::Reset),
        1 => Just(Step::ForgetScripts),
        1 => Just(Step::LoseData),
    ]
}

/// Units used, wait, time until more units are left, whether it is admitted, and the note about the holder.
type Numbers = (u32, Option<Duration>, Duration, bool, u64);

/// The numbers of each quota of a level, and of what is held beside them.
fn numbers(check: &Check<'_>, answer: &Answer) -> Vec<Numbers> {
    let quotas = check.quotas.len();
    let answers = answer.quotas().iter().enumerate();
    answers
        .map(|(index, answer)| {
            // The receipt of a rate identifies its charge.
            let is_of_held = index == quotas;
            let note = if is_of_held {
                answer.receipt().generation
            } else {
                0
            };
            let wait = answer.retry_after();
            let reset = answer.reset_after();
            (answer.used(), wait, reset, answer.is_admitted(), note)
        })
        .collect()
}

/// A check of one level or two: of each its limiter, plan, cost and holding.
type OwnCheck = Vec<(usize, usize, u32, Option<Holding>)>;

struct Pair {
    time: TestTime,
    plans: Vec<Quotas>,
    limiters: [Key; 2],
    key: Key,
    /// The latest sequence of each holder, and what it has spent.
    sequences: [u64; HOLDERS],
    spent: [u64; HOLDERS],
    runtime: Runtime,
    seen: Seen,
}

/// How often something happened.
#[derive(Debug, Default)]
struct Seen {
    admitted: usize,
    refused: usize,
    /// Only what was held kept a check from its room.
    kept: usize,
    missing: usize,
    superseded: usize,
    spent: usize,
}

impl Seen {
    fn all(&self) -> [usize; 6] {
        [
            self.admitted,
            self.refused,
            self.kept,
            self.missing,
            self.superseded,
            self.spent,
        ]
    }

    fn add(&mut self, levels: &[Vec<Numbers>]) {
        let mut all = levels.iter().flatten();
        let is_admitted = all.clone().all(|numbers| numbers.3);
        self.admitted += usize::from(is_admitted);
        self.refused += usize::from(!is_admitted);
        let micro = Some(Duration::from_micros(1));
        self.kept += usize::from(all.clone().any(|numbers| numbers.1 == micro));
        self.missing += usize::from(all.clone().any(|numbers| numbers.4 == 1));
        self.superseded += usize::from(all.any(|numbers| numbers.4 == 2));
    }
}

impl Pair {
    fn new(server: &RedisServer) -> Self {
        Self {
            time: TestTime::new(server),
            plans: plans(),
            limiters: ["user", "tenant"].map(Key::from),
            key: Key::from("ada"),
            sequences: [1_000; HOLDERS],
            spent: [0; HOLDERS],
            runtime: runtime(),
            seen: Seen::default(),
        }
    }

    fn holding(&mut self, message: &Message, wanted: u32) -> Holding {
        let latest = &mut self.sequences[message.holder];
        *latest += u64::from(message.behind < 0);
        let sequence = *latest - u64::try_from(message.behind.max(0)).unwrap();
        let spent = &mut self.spent[message.holder];
        *spent += message.used;
        self.seen.spent += usize::from(message.used > 0);
        let holder = [u8::try_from(message.holder + 1).unwrap(); 16];
        let lease = LEASES[message.lease];
        let holding = Holding::new(holder, sequence, message.held, wanted, lease)
            .with_spent(*spent, spent.saturating_sub(message.unknown));
        if message.is_stated {
            holding.stated()
        } else {
            holding
        }
    }

    fn levels<'a>(&'a self, check: &'a OwnCheck) -> Vec<Check<'a>> {
        check
            .iter()
            .map(|(limiter, plan, cost, holding)| {
                let quotas = &self.plans[*plan];
                let check = Subject::new(&self.limiters[*limiter], &self.key, quotas).check(*cost);
                match holding {
                    Some(holding) => check.with_holding(holding),
                    None => check,
                }
            })
            .collect()
    }

    fn numbers(&self, check: &OwnCheck, answers: &Answers) -> Vec<Vec<Numbers>> {
        let levels = self.levels(check);
        let pairs = levels.iter().zip(answers.iter());
        pairs
            .map(|(level, answer)| {
                let held = usize::from(level.quotas.len() < answer.quotas().len());
                assert_eq!(answer.quotas().len(), level.quotas.len() + held);
                numbers(level, answer)
            })
            .collect()
    }

    /// Decides checks in both stores, and compares the answers.
    fn check(&mut self, checks: &[OwnCheck]) {
        let levels: Vec<_> = checks.iter().map(|check| self.levels(check)).collect();
        let answers = ask_in_one_call(&self.time.redis, &levels);
        let answers = self.runtime.block_on(answers);
        for (number, (check, answers)) in checks.iter().zip(&answers).enumerate() {
            let in_redis = self.numbers(check, answers);
            let answers = ask(&self.time.memory, &self.levels(check));
            let answers = self.runtime.block_on(answers).expect("an answer");
            let in_memory = self.numbers(check, &answers);
            assert_eq!(in_memory, in_redis, "check {number} of {checks:?}");
            self.seen.add(&in_memory);
        }
    }

    /// Verifies that both stores have the same units, used and held.
    fn compare(&mut self) {
        for limiter in 0..self.limiters.len() {
            for plan in 0..PLANS {
                self.check(&[vec![(limiter, plan, 0, None)]]);
            }
        }
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Checks(checks) => {
                let mut sent = Vec::new();
                for (levels, times) in checks {
                    let check: OwnCheck = levels
                        .iter()
                        .enumerate()
                        .map(|(limiter, level)| {
                            let said = level.message.as_ref();
                            let holding = said.map(|said| self.holding(said, level.cost));
                            (limiter, level.plan, level.cost, holding)
                        })
                        .collect();
                    sent.extend((0..*times).map(|_| check.clone()));
                }
                self.check(&sent);
            }
            Step::Advance(duration) => self.time.advance(*duration),
            Step::SetBack(duration) => self.time.step_back(*duration),
            Step::SetForward(duration) => self.time.step_forward(*duration),
            Step::Reset(plan) => self.change(*plan),
            Step::ForgetScripts => run(self.time.connection(), &["SCRIPT", "FLUSH"]),
            Step::LoseData => self.lose_data(),
        }
    }

    /// Resets, and credits two units: what is held stays.
    fn change(&mut self, plan: usize) {
        use tollgate::store::Store;
        let quotas = &self.plans[plan];
        self.runtime.block_on(async {
            let reset = Subject::new(&self.limiters[0], &self.key, quotas).adjust(Change::Reset);
            self.time.memory.adjust(reset).await.expect("a reset");
            self.time.redis.adjust(reset).await.expect("a reset");
            let credit = Change::Credit { units: 2 };
            let credit = Subject::new(&self.limiters[1], &self.key, quotas).adjust(credit);
            self.time.memory.adjust(credit).await.expect("a credit");
            self.time.redis.adjust(credit).await.expect("a credit");
        });
        self.time.advance(Duration::ZERO);
    }

    /// All that is kept dies, with what is held.
    fn lose_data(&mut self) {
        self.time.advance(2 * IDLE + Duration::from_secs(2));
    }
}

#[test]
fn memory_and_redis_answer_holders_of_units_alike() {
    let server = RedisServer::start();
    let total = RefCell::new([0; 6]);
    let law = |steps: Vec<Step>| {
        let mut pair = Pair::new(&server);
        for step in &steps {
            pair.take(step);
            // A look would write what has ended, before the clock steps back.
            if !matches!(step, Step::Advance(_) | Step::SetForward(_)) {
                pair.compare();
            }
        }
        let mut total = total.borrow_mut();
        for (total, seen) in total.iter_mut().zip(pair.seen.all()) {
            *total += seen;
        }
        Ok(())
    };
    holds_for_any(120, &prop::collection::vec(step(), 15..40), law);
    let seen = total.into_inner();
    println!("admitted, refused, kept, missing, superseded, spent: {seen:?}");
    assert!(seen.iter().all(|times| *times > 3), "{seen:?}");
}
