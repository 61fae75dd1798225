//! The memory store and Redis answer the same messages of holders alike, one at a time and many in one call.

use std::time::Duration;

use proptest::prelude::*;
use tokio::runtime::Runtime;
use tollgate::store::protocol::{Answer, Answers, Change, Check, Holding, Subject};
use tollgate::{Algorithm, Key, Quota, Quotas, Share};

use crate::support::redis_server::{RedisServer, run};
use crate::support::test_time::TestTime;
use crate::support::{ask, ask_in_one_call, holds_for_any, runtime};

const LEASES: [Duration; 3] = [
    Duration::from_secs(5),
    Duration::from_secs(15),
    Duration::from_secs(60),
];

/// The longest time to live of an entry: twice the longest lease, and a second.
const LONGEST_LIFE: i128 = 121_000;

const WINDOW: Duration = Duration::from_secs(8);

/// The quotas that a level may have, which go on with the same counts.
fn plans() -> Vec<Quotas> {
    let slots = Quota::in_flight;
    let rate = |limit, algorithm| Quota::new(limit, WINDOW).with_algorithm(algorithm);
    vec![
        slots(3).into(),
        [slots(9), slots(5).slot_lease(LEASES[0]), slots(7)].into(),
        slots(0).into(),
        [rate(6, Algorithm::SlidingLog), slots(6)].into(),
        [slots(5), rate(9, Algorithm::FixedWindow)].into(),
        [rate(7, Algorithm::Gcra), slots(12)].into(),
        [
            slots(8),
            rate(8, Algorithm::SortedSetLog),
            rate(20, Algorithm::SlidingBuckets(4)),
            slots(4),
            rate(11, Algorithm::SlidingCounter),
        ]
        .into(),
        Quota::new(10, WINDOW).into(),
        [
            slots(6).shares([Share::of("a").reserve(3), Share::of("b").at_most(2)]),
            slots(9),
        ]
        .into(),
    ]
}

const PLANS: usize = 9;

/// The plan with shares, which the holder without a share asks. Others hold slots of shares by the other plans.
const WITH_SHARES: usize = 8;

/// The last bytes of each holder: no share, `a` (its name as 32-bit FNV-1a), and one that no quota has.
const SHARES: [[u8; 4]; HOLDERS] = [[0; 4], [0xe4, 0x0c, 0x29, 0x2c], [2; 4]];

const HOLDERS: usize = 3;

/// A level of a check.
#[derive(Clone, Debug)]
struct Level {
    plan: usize,
    cost: u32,
    /// `None` for a look at the slots.
    message: Option<Message>,
}

/// What a holder says.
#[derive(Clone, Debug)]
struct Message {
    holder: usize,
    /// Behind the latest one of the holder; -1 for a new one.
    behind: i64,
    held: u32,
    wanted: u32,
    lease: usize,
    is_stated: bool,
}

#[derive(Clone, Debug)]
enum Step {
    /// Checks of one level or two that are sent at the same time, each so many times.
    Checks(Vec<(Vec<Level>, usize)>),
    Advance(Duration),
    SetBack(Duration),
    Reset(usize),
    ForgetScripts,
}

fn message() -> impl Strategy<Value = Message> {
    let behind = prop_oneof![6 => Just(-1), 3 => Just(0), 1 => 1..3_i64];
    let wanted = prop_oneof![1 => Just(0), 6 => Just(1), 2 => 2..5_u32, 1 => Just(13)];
    let held = prop_oneof![3 => 0..2_u32, 1 => 2..7_u32, 1 => Just(u32::MAX)];
    let held = (held, any::<u8>()).prop_map(|(held, rare)| match held {
        u32::MAX if rare > 20 => 1,
        held => held,
    });
    let parts = (
        0..HOLDERS,
        behind,
        held,
        wanted,
        0..LEASES.len(),
        any::<bool>(),
    );
    parts.prop_map(|(holder, behind, held, wanted, lease, is_stated)| Message {
        holder,
        behind,
        held,
        wanted,
        lease,
        is_stated,
    })
}

fn level() -> impl Strategy<Value = Level> {
    let message = prop_oneof![7 => message().prop_map(Some), 1 => Just(None)];
    let cost = prop_oneof![1 => Just(0), 5 => Just(1), 1 => 2..4_u32];
    (0..PLANS, cost, message).prop_map(|(plan, cost, mut message)| {
        if plan == WITH_SHARES {
            message.iter_mut().for_each(|message| message.holder = 0);
        }
        Level {
            plan,
            cost,
            message,
        }
    })
}

fn step() -> impl Strategy<Value = Step> {
    let duration = prop_oneof![
        Just(Duration::from_micros(1)),
        (0..4_000_u64).prop_map(Duration::from_millis),
        (0..20_000_000_u64).prop_map(Duration::from_micros),
        Just(LEASES[0]),
        Just(LEASES[1]),
        (0..130_u64).prop_map(Duration::from_secs),
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
        16 => checks.prop_map(Step::Checks),
        6 => duration.clone().prop_map(Step::Advance),
        2 => duration.prop_map(Step::SetBack),
        1 => (0..PLANS).prop_map(Step::Reset),
        1 => Just(Step::ForgetScripts),
    ]
}

/// Units used, wait, time until more units are left, whether it is admitted, and the note about the holder.
type Numbers = (u32, Option<Duration>, Duration, bool, u64);

/// The numbers of each quota of each level.
fn numbers(levels: &[(Check<'_>, Answer)]) -> Vec<Vec<Numbers>> {
    let of_level = |(check, answer): &(Check<'_>, Answer)| {
        assert_eq!(answer.quotas().len(), check.quotas.len());
        let quotas = check.quotas.iter().zip(answer.quotas());
        let numbers = quotas.map(|(quota, answer)| {
            // The receipt of a rate identifies its charge.
            let note = match quota.algorithm() {
                Algorithm::InFlight => answer.receipt().generation,
                _ => 0,
            };
            let (wait, reset) = (answer.retry_after(), answer.reset_after());
            (answer.used(), wait, reset, answer.is_admitted(), note)
        });
        numbers.collect()
    };
    levels.iter().map(of_level).collect()
}

/// The highest note of several answers.
fn note_of(answers: &[Vec<Vec<Numbers>>]) -> u64 {
    let numbers = answers.iter().flatten().flatten();
    numbers.map(|numbers| numbers.4).max().unwrap_or(0)
}

/// An answer with no notes.
fn without_note(levels: &[Vec<Numbers>]) -> Vec<Vec<Numbers>> {
    let mut levels = levels.to_vec();
    for numbers in levels.iter_mut().flatten() {
        numbers.4 = 0;
    }
    levels
}

/// A check of one level or two: of each its limiter, plan, cost and holding.
type OwnCheck = Vec<(usize, usize, u32, Option<Holding>)>;

struct Pair {
    time: TestTime,
    plans: Vec<Quotas>,
    limiters: [Key; 2],
    key: Key,
    /// The latest sequence of each holder.
    sequences: [u64; HOLDERS],
    runtime: Runtime,
    seen: Seen,
}

/// How often something happened.
#[derive(Debug, Default)]
struct Seen {
    admitted: usize,
    refused: usize,
    partly: usize,
    missing: usize,
    superseded: usize,
}

impl Seen {
    /// Counts the answers to identical checks.
    fn add(&mut self, answers: &[Vec<Vec<Numbers>>]) {
        let is_admitted = |answer: &&Vec<Vec<Numbers>>| {
            let mut numbers = answer.iter().flatten();
            numbers.all(|numbers| numbers.3)
        };
        let admitted = answers.iter().filter(is_admitted).count();
        self.admitted += admitted;
        self.refused += answers.len() - admitted;
        self.partly += usize::from(admitted > 0 && admitted < answers.len());
        self.missing += usize::from(note_of(answers) == 1);
        self.superseded += usize::from(note_of(answers) == 2);
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
            runtime: runtime(),
            seen: Seen::default(),
        }
    }

    fn holding(&mut self, message: &Message) -> Holding {
        let latest = &mut self.sequences[message.holder];
        *latest += u64::from(message.behind < 0);
        let sequence = *latest - u64::try_from(message.behind.max(0)).unwrap();
        let mut holder = [u8::try_from(message.holder + 1).unwrap(); 16];
        holder[12..].copy_from_slice(&SHARES[message.holder]);
        let lease = LEASES[message.lease];
        let holding = Holding::new(holder, sequence, message.held, message.wanted, lease);
        if message.is_stated {
            holding.stated()
        } else {
            holding
        }
    }

    fn levels<'a>(&'a self, check: &'a OwnCheck) -> Vec<Check<'a>> {
        let level = |(limiter, plan, cost, holding): &'a (usize, usize, u32, Option<Holding>)| {
            let (limiter, quotas) = (&self.limiters[*limiter], &self.plans[*plan]);
            let check = Subject::new(limiter, &self.key, quotas).check(*cost);
            match holding {
                Some(holding) => check.with_holding(holding),
                None => check,
            }
        };
        check.iter().map(level).collect()
    }

    fn numbers(&self, check: &OwnCheck, answers: &Answers) -> Vec<Vec<Numbers>> {
        let levels = self.levels(check);
        let levels: Vec<_> = levels.into_iter().zip(answers.iter().cloned()).collect();
        numbers(&levels)
    }

    /// Decides checks in both stores, and compares the answers. Returns them.
    fn check(&mut self, checks: &[OwnCheck]) -> Vec<Answers> {
        let levels: Vec<_> = checks.iter().map(|check| self.levels(check)).collect();
        let answers = ask_in_one_call(&self.time.redis, &levels);
        let answers = self.runtime.block_on(answers);
        let mut in_redis = checks.iter().zip(&answers);
        for alike in checks.chunk_by(|check, next| check == next) {
            let context = format!("{} times {:?} in {checks:?}", alike.len(), alike[0]);
            let in_redis = in_redis.by_ref().take(alike.len());
            let in_redis: Vec<_> = in_redis
                .map(|(check, answers)| self.numbers(check, answers))
                .collect();
            let in_memory: Vec<_> = alike
                .iter()
                .map(|check| {
                    let answers = ask(&self.time.memory, &self.levels(check));
                    let answers = self.runtime.block_on(answers).expect("an answer");
                    self.numbers(check, &answers)
                })
                .collect();
            // Identical checks are one entry of a call, with one note: the entry of a holder is missing before the first of
            // them only.
            assert_eq!(note_of(&in_memory), note_of(&in_redis), "{context}");
            if alike.len() == 1 {
                assert_eq!(in_memory, in_redis, "{context}");
            } else {
                let expected = in_memory.iter().map(|levels| without_note(levels));
                let said = in_redis.iter().map(|levels| without_note(levels));
                assert!(
                    expected.clone().eq(said.clone()),
                    "{:?}\n{:?}\n{context}",
                    expected.collect::<Vec<_>>(),
                    said.collect::<Vec<_>>()
                );
            }
            self.seen.add(&in_memory);
        }
        answers
    }

    /// Returns the slots of the first limiter, after verifying that they are the same in both stores.
    fn used(&mut self) -> u32 {
        let answers = self.check(&[vec![(0, 1, 0, None)]]);
        answers[0][0].quotas()[0].used()
    }

    /// Verifies that both stores have the same slots.
    fn compare(&mut self) {
        for limiter in 0..self.limiters.len() {
            self.check(&[vec![(limiter, 1, 0, None)]]);
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
                            let holding = level.message.as_ref().map(|said| self.holding(said));
                            (limiter, level.plan, level.cost, holding)
                        })
                        .collect();
                    sent.extend((0..*times).map(|_| check.clone()));
                }
                self.check(&sent);
            }
            Step::Advance(duration) => self.time.advance(*duration),
            Step::SetBack(duration) => self.time.step_back(*duration),
            Step::Reset(plan) => self.reset(*plan),
            Step::ForgetScripts => run(self.time.connection(), &["SCRIPT", "FLUSH"]),
        }
    }

    /// Resets, and credits a unit: the slots stay.
    fn reset(&mut self, plan: usize) {
        use tollgate::store::Store;
        let (limiter, quotas) = (&self.limiters[0], &self.plans[plan]);
        let other = &self.limiters[1];
        self.runtime.block_on(async {
            let reset = Subject::new(limiter, &self.key, quotas).adjust(Change::Reset);
            self.time.memory.adjust(reset).await.expect("a reset");
            self.time.redis.adjust(reset).await.expect("a reset");
            let credit = Subject::new(other, &self.key, quotas).adjust(Change::Credit { units: 1 });
            self.time.memory.adjust(credit).await.expect("a credit");
            self.time.redis.adjust(credit).await.expect("a credit");
        });
        self.time.advance(Duration::ZERO);
    }
}

#[test]
fn memory_and_redis_answer_holders_alike() {
    let server = RedisServer::start();
    let total = std::cell::RefCell::new(Seen::default());
    let law = |steps: Vec<Step>| {
        let mut pair = Pair::new(&server);
        let mut stepped_back = 0;
        for step in &steps {
            pair.take(step);
            // A look would drop what has ended, before the clock steps back.
            if !matches!(step, Step::Advance(_)) {
                pair.compare();
            }
            if let Step::SetBack(by) = step {
                stepped_back += i128::try_from(by.as_millis()).unwrap() + 1;
            }
            for (key, millis) in pair.time.times_to_live() {
                let most = LONGEST_LIFE + stepped_back;
                assert!(
                    (1..=most).contains(&millis),
                    "{key} lives for {millis} ms after {step:?}"
                );
            }
        }
        let (mut total, seen) = (total.borrow_mut(), &pair.seen);
        total.admitted += seen.admitted;
        total.refused += seen.refused;
        total.partly += seen.partly;
        total.missing += seen.missing;
        total.superseded += seen.superseded;
        Ok(())
    };
    holds_for_any(150, &prop::collection::vec(step(), 20..60), law);
    let Seen {
        admitted,
        refused,
        partly,
        missing,
        superseded,
    } = total.into_inner();
    let seen = [admitted, refused, partly, missing, superseded];
    assert!(seen.iter().all(|times| *times > 3), "{seen:?}");
}

/// A step that takes a slot for this lease.
fn take_slot(holder: usize, lease: usize) -> Step {
    let message = Message {
        holder,
        behind: -1,
        held: 0,
        wanted: 1,
        lease,
        is_stated: false,
    };
    let level = Level {
        plan: 1,
        cost: 1,
        message: Some(message),
    };
    Step::Checks(vec![(vec![level], 1)])
}

#[test]
fn a_value_lives_for_twice_the_longest_lease_after_its_last_change_in_both_stores() {
    let server = RedisServer::start();
    let mut pair = Pair::new(&server);
    let seconds = Duration::from_secs;
    pair.take(&take_slot(0, 0));
    // Ended, but nobody has asked.
    pair.take(&Step::Advance(seconds(10)));
    pair.take(&Step::SetBack(seconds(9)));
    assert_eq!(pair.used(), 1);

    pair.take(&Step::Advance(seconds(20)));
    assert_eq!(pair.used(), 0);
    for lease in [0, 2] {
        pair.take(&take_slot(lease, lease));
    }
    // The end of the shorter lease is a change, too.
    pair.take(&Step::Advance(seconds(6)));
    assert_eq!(pair.used(), 1);
    pair.take(&Step::Advance(seconds(118)));
    pair.take(&Step::SetBack(seconds(70)));
    assert_eq!(pair.used(), 1);
    pair.take(&Step::Advance(seconds(60)));
    assert_eq!(pair.used(), 0);
}

#[test]
fn slots_return_within_one_lease_after_a_step_back_though_every_message_is_refused() {
    let server = RedisServer::start();
    let mut pair = Pair::new(&server);
    for (holder, lease) in [(0, 0), (1, 1)] {
        pair.take(&take_slot(holder, lease));
    }
    pair.take(&Step::SetBack(Duration::from_secs(3_600)));
    // It wants more than the limit, states nothing, and so writes nothing of its own.
    let refused = |pair: &mut Pair| {
        let holding = pair.holding(&Message {
            holder: 2,
            behind: -1,
            held: 0,
            wanted: 13,
            lease: 2,
            is_stated: false,
        });
        let answers = pair.check(&[vec![(0, 1, 1, Some(holding))]]);
        let answer = &answers[0][0].quotas()[0];
        assert!(!answer.is_admitted());
        answer.used()
    };
    // The first message after the step back is the one that sees it.
    assert_eq!(refused(&mut pair), 2);
    let (mut passed, step) = (Duration::ZERO, Duration::from_millis(500));
    let mut returned = Vec::new();
    for expected in [1, 0] {
        while refused(&mut pair) > expected {
            assert!(passed <= LEASES[1], "{expected} expected after {passed:?}");
            pair.take(&Step::Advance(step));
            passed += step;
        }
        returned.push(passed);
    }
    assert_eq!(returned, LEASES[..2]);
}
