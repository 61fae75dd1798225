//! A check of alternatives charges the first that has room, and nothing else.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;
use tollgate::store::TestStore;
use tollgate::store::protocol::{Answer, Change, Check, Counters, Subject};
use tollgate::{
    Algorithm, Decision, Error, ErrorKind, FailurePolicy, Key, MemoryStore, Quota, Quotas,
    RateLimiter, Source, Store,
};

use crate::support::algorithms::quota_by;
use crate::support::cases::some_or_all;
use crate::support::costs::{calls, forget_calls};
use crate::support::holds_for_any;
use crate::support::process::{Process, argument, report};
use crate::support::redis_server::RedisServer;
use crate::support::test_time::TestTime;
use crate::support::{runtime, store_on};

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

/// The idle time of the totals in histories. A history has 15 acts, of at most 0.9 s.
const IDLE: Duration = Duration::from_secs(20);

fn limiter(store: &(impl Store + Clone), name: &str, quota: Quota) -> RateLimiter {
    RateLimiter::new(store.clone(), quota).name(name)
}

async fn used(limiter: &RateLimiter, key: &str) -> u32 {
    limiter.peek(key).await.unwrap().used()
}

#[tokio::test]
async fn the_first_alternative_with_room_for_all_its_levels_is_charged_and_nothing_else() {
    let store = MemoryStore::new();
    let allowance = limiter(&store, "allowance", Quota::per_day(1_000));
    let credits = limiter(&store, "credits", Quota::total(8, 30 * DAY));
    let service = limiter(&store, "service", Quota::per_hour(3));
    let ask = async || {
        let chosen = RateLimiter::check_first([
            vec![
                allowance.level("ada").cost(600),
                service.level(Key::global()),
            ],
            vec![credits.level("ada").cost(5), service.level(Key::global())],
        ]);
        chosen.await.unwrap()
    };
    let used_units = async || {
        let of_keys = [used(&allowance, "ada").await, used(&credits, "ada").await];
        (of_keys, service.peek(Key::global()).await.unwrap().used())
    };
    for (alternative, units) in [
        (Some(0), ([600, 0], 1)),
        (Some(1), ([600, 5], 2)),
        (None, ([600, 5], 2)),
    ] {
        let decision = ask().await;
        assert_eq!(decision.alternative(), alternative);
        assert_eq!(decision.is_allowed(), alternative.is_some());
        assert_eq!(used_units().await, units);
    }
    // A day is shorter than the wait for credits, which never ends.
    let refused = ask().await;
    assert_eq!(refused.limit(), 1_000);
    assert!(refused.retry_after().is_some_and(|wait| wait <= DAY));
}

#[tokio::test]
async fn a_settlement_and_a_refund_go_to_the_alternative_that_was_charged() {
    let store = MemoryStore::new();
    let pool = limiter(&store, "pool", Quota::per_hour(10));
    let ask = async |cost| {
        let keys = ["a", "b"].map(|key| [pool.level(key).cost(cost)]);
        RateLimiter::check_first(keys).await.unwrap()
    };
    let first = ask(8).await;
    let mut second = ask(8).await;
    assert_eq!(
        (first.alternative(), second.alternative()),
        (Some(0), Some(1))
    );
    let key = second.levels().next().map(|level| level.key().clone());
    assert_eq!(key, Some(Key::from("b")));
    second.refund(3).await.unwrap();
    assert_eq!([used(&pool, "a").await, used(&pool, "b").await], [8, 5]);
    second.settle(9).await.unwrap();
    assert_eq!([used(&pool, "a").await, used(&pool, "b").await], [8, 9]);
    first.settle(0).await.unwrap();
    assert_eq!([used(&pool, "a").await, used(&pool, "b").await], [0, 9]);
}

#[tokio::test]
async fn if_all_refuse_the_numbers_are_those_of_the_shortest_wait() {
    let store = MemoryStore::new();
    let hour = limiter(&store, "hour", Quota::per_hour(1));
    let minute = limiter(&store, "minute", Quota::per_minute(1));
    let total = limiter(&store, "total", Quota::total(1, DAY));
    let day = limiter(&store, "day", Quota::per_day(1));
    for limiter in [&hour, &minute, &total, &day] {
        let _ = limiter.check("ada").await.unwrap();
    }
    let decision = RateLimiter::check_first([
        vec![total.level("ada")],
        // An alternative waits for its longest level.
        vec![minute.level("ada"), day.level("ada")],
        vec![hour.level("ada")],
    ]);
    let decision = decision.await.unwrap();
    assert_eq!((decision.alternative(), decision.limit()), (None, 1));
    let levels: Vec<_> = decision.levels().map(|level| level.limiter()).collect();
    assert_eq!(levels, ["hour"]);
    assert!(
        decision
            .retry_after()
            .is_some_and(|wait| wait <= SECOND * 3_600)
    );
    let never = RateLimiter::check_first([[total.level("ada")], [hour.level("ada").cost(2)]]);
    assert_eq!(never.await.unwrap().retry_after(), None);
}

#[tokio::test]
async fn a_check_without_alternatives_has_one() {
    let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_hour(1));
    assert_eq!(limiter.check("ada").await.unwrap().alternative(), Some(0));
    assert_eq!(limiter.check("ada").await.unwrap().alternative(), None);
}

#[tokio::test]
async fn keys_that_are_blocked_or_paused_cost_no_call() {
    let store = TestStore::new();
    let pool = limiter(&store, "pool", Quota::per_hour(9));
    pool.admin().block("a", SECOND * 60).await.unwrap();
    let answer = http::Response::builder()
        .status(429)
        .header("retry-after", "30")
        .body(())
        .unwrap();
    assert!(
        pool.observe("b", answer.status(), answer.headers())
            .is_some()
    );
    let pooled = || ["a", "b", "c"].map(|key| [pool.level(key)]);
    let chosen = RateLimiter::check_first(pooled()).await.unwrap();
    assert_eq!(chosen.alternative(), Some(2));
    let asked = store.take_checks();
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].key(), &Key::from("c"));
    // All refuse: the pause ends first.
    store.refuse_next(1, SECOND * 90);
    let refused = RateLimiter::check_first(pooled()).await.unwrap();
    assert_eq!(refused.source(), Source::Paused);
    assert!(refused.retry_after() <= Some(SECOND * 30));
}

#[tokio::test]
async fn a_store_that_fails_at_the_second_alternative_charges_nothing_more() {
    for kind in [ErrorKind::Timeout, ErrorKind::Unavailable] {
        for policy in [None, Some(FailurePolicy::closed())] {
            let store = TestStore::new();
            let mut pool = limiter(&store, "pool", Quota::per_hour(9));
            if let Some(policy) = policy {
                pool = pool.on_failure(policy);
            }
            store.refuse_next(1, SECOND);
            store.fail_next(1, kind);
            let pooled = ["a", "b", "c"].map(|key| [pool.level(key)]);
            let error = RateLimiter::check_first(pooled).await.unwrap_err();
            assert_eq!(error.kind(), kind);
            let asked: Vec<_> = store.take_checks();
            let asked: Vec<_> = asked
                .iter()
                .map(|check| check.key().as_str().to_owned())
                .collect();
            assert_eq!(asked, ["a", "b"]);
            for key in ["a", "b", "c"] {
                assert_eq!(used(&pool, key).await, 0, "{key}");
            }
        }
    }
}

#[tokio::test]
async fn an_open_policy_takes_the_alternative_at_which_the_store_fails() {
    let store = TestStore::new();
    let pool = limiter(&store, "pool", Quota::per_hour(9)).on_failure(FailurePolicy::open());
    store.refuse_next(1, SECOND);
    store.fail_next(1, ErrorKind::Unavailable);
    let chosen = RateLimiter::check_first(["a", "b", "c"].map(|key| [pool.level(key)]));
    let chosen = chosen.await.unwrap();
    assert_eq!(
        (chosen.alternative(), chosen.source()),
        (Some(1), Source::None)
    );
}

/// The store may have charged the alternative at which it failed, so no later one asks it.
#[tokio::test]
async fn a_fallback_decides_the_later_alternatives_too_without_the_store() {
    let store = TestStore::new();
    let pool = limiter(&store, "pool", Quota::per_hour(1)).on_failure(FailurePolicy::fall_back());
    let ask = async |fails: usize| {
        store.fail_next(fails, ErrorKind::Timeout);
        let chosen = RateLimiter::check_first(["a", "b", "c"].map(|key| [pool.level(key)]));
        let chosen = chosen.await.unwrap();
        (
            chosen.alternative(),
            chosen.source(),
            store.take_checks().len(),
        )
    };
    for (alternative, source) in [
        (Some(0), Source::Fallback),
        (Some(1), Source::Fallback),
        (Some(2), Source::Fallback),
        (None, Source::Fallback),
    ] {
        assert_eq!(ask(1).await, (alternative, source, 1));
        // The circuit breaker counts failures in a row.
        let _ = pool.peek("a").await.unwrap();
        let _ = store.take_checks();
    }
    assert_eq!(ask(0).await, (Some(0), Source::Memory, 1));
}

fn text_of(result: Result<Decision, Error>) -> String {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    error.to_string()
}

#[tokio::test]
async fn what_no_alternative_can_have_is_an_error_before_anything_is_charged() {
    let store = TestStore::new();
    let pool = limiter(&store, "pool", Quota::per_hour(9));
    let leased = limiter(&store, "leased", Quota::per_hour(9)).lease(SECOND);
    let slots = limiter(&store, "slots", Quota::in_flight(9));
    let soft = limiter(&store, "soft", Quota::per_hour(9).soft());
    let elsewhere = limiter(&MemoryStore::new(), "elsewhere", Quota::per_hour(9));
    for (limiter, what) in [
        (&leased, "a lease"),
        (&slots, "slots in flight"),
        (&soft, "soft quotas"),
        (&elsewhere, "clones of one store"),
    ] {
        let text =
            text_of(RateLimiter::check_first([[pool.level("a")], [limiter.level("a")]]).await);
        assert!(text.contains(what), "{text}");
    }
    let same = vec![pool.level("b"), pool.level("b")];
    let text = text_of(RateLimiter::check_first([vec![pool.level("a")], same]).await);
    assert!(
        text.contains("under the same name") || text.contains("own name"),
        "{text}"
    );
    let keys = || (0..9_u64).map(|key| pool.level(key));
    let text = text_of(RateLimiter::check_first(keys().map(|level| [level])).await);
    assert!(text.contains("9 alternatives"), "{text}");
    let text = text_of(RateLimiter::check_first([vec![pool.level("a")], keys().collect()]).await);
    assert!(text.contains("9 levels"), "{text}");
    let text = text_of(RateLimiter::check_first([vec![pool.level("a")], Vec::new()]).await);
    assert!(text.contains("0 levels"), "{text}");
    let none: [[_; 1]; 0] = [];
    let text = text_of(RateLimiter::check_first::<[tollgate::LevelCheck<'_>; 1]>(none).await);
    assert!(text.contains("0 alternatives"), "{text}");
    assert!(store.take_checks().is_empty());
}

/// Goal: fewer than 1.2 calls a decision while the first three alternatives are used up.
#[tokio::test]
async fn alternatives_that_are_used_up_are_remembered_and_mostly_cost_no_call() {
    const DECISIONS: u64 = 400;
    let server = RedisServer::start();
    let mut connection = server.connect();
    let store = store_on(&server);
    let pool = limiter(&store, "pool", Quota::per_day(1_000));
    for key in ["a", "b", "c"] {
        pool.charge(key, 1_000).await.unwrap();
    }
    let _ = pool.check("d").await.unwrap();
    forget_calls(&mut connection);
    for _ in 0..DECISIONS {
        let pooled = ["a", "b", "c", "d"].map(|key| [pool.level(key)]);
        let chosen = RateLimiter::check_first(pooled).await.unwrap();
        assert_eq!(chosen.alternative(), Some(3));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let calls = calls(&mut connection).get("evalsha").copied().unwrap_or(0);
    println!("{DECISIONS} decisions, {calls} calls");
    assert!(calls >= DECISIONS);
    assert!(calls * 10 < DECISIONS * 12, "{calls} calls");
}

/// Eight processes share a pool of four keys.
#[tokio::test]
async fn processes_that_share_a_pool_charge_no_key_more_than_its_limit() {
    const LIMIT: u32 = 200;
    let keys = ["a", "b", "c", "d"];
    let on = |store| RateLimiter::new(store, Quota::per_day(LIMIT)).name("pool");
    if let Some(url) = argument() {
        let store = tollgate::RedisStore::open(&url).unwrap();
        let pool = on(store.deadline(SECOND * 10));
        let mut counts = [0; 4];
        for _ in 0..160 {
            let chosen = RateLimiter::check_first(keys.map(|key| [pool.level(key)]));
            if let Some(alternative) = chosen.await.unwrap().alternative() {
                counts[alternative] += 1;
            }
        }
        report(counts.map(|count: u32| count.to_string()).join(" "));
        return;
    }
    let server = RedisServer::start();
    let test = "first::processes_that_share_a_pool_charge_no_key_more_than_its_limit";
    let processes: Vec<_> = (0..8).map(|_| Process::of(test, &server.url())).collect();
    let reports = processes.into_iter().map(Process::report);
    let mut admitted = [0; 4];
    for report in reports.collect::<Vec<_>>() {
        for (sum, count) in admitted.iter_mut().zip(report.split(' ')) {
            *sum += count.parse::<u32>().unwrap();
        }
    }
    // 1 280 checks of 800 units.
    assert_eq!(admitted, [LIMIT; 4]);
    let pool = on(store_on(&server));
    for key in keys {
        assert_eq!(used(&pool, key).await, LIMIT);
    }
}

const LIMITERS: [&str; 4] = ["first", "second", "third", "fourth"];
const KEYS: usize = 2;

/// The limiter and the key of a level, and its cost.
type LevelCost = ((usize, usize), u32);

#[derive(Clone, Debug)]
enum Act {
    CheckFirst(Vec<Vec<LevelCost>>),
    Refund(usize, u32),
    Credit((usize, usize), u32),
    Reset((usize, usize)),
    Advance(Duration),
}

fn quotas() -> impl Strategy<Value = Vec<Quota>> {
    let algorithms = [
        Algorithm::SlidingLog,
        Algorithm::SlidingBuckets(4),
        Algorithm::SlidingCounter,
        Algorithm::FixedWindow,
        Algorithm::Gcra,
        Algorithm::Total,
    ];
    let algorithm = prop::sample::select(algorithms.to_vec());
    let quota = (0_u32..9, 20_u64..3_000, algorithm).prop_map(|(limit, millis, algorithm)| {
        let window = match algorithm {
            // Not forgotten within a history: a refusal that is remembered does not know of it.
            Algorithm::Total => IDLE,
            _ => Duration::from_millis(millis),
        };
        quota_by(algorithm, limit, window)
    });
    prop::collection::vec(quota, 1..3)
}

fn act() -> impl Strategy<Value = Act> {
    let key = || (0..LIMITERS.len(), 0..KEYS);
    let levels = prop::collection::btree_map(key(), 0..5_u32, 1..4);
    let levels = levels.prop_map(|levels| levels.into_iter().collect());
    let alternatives = prop::collection::vec(levels, 1..=8);
    prop_oneof![
        10 => alternatives.prop_map(Act::CheckFirst),
        2 => (0..9_usize, 0..6_u32).prop_map(|(decision, units)| Act::Refund(decision, units)),
        1 => (key(), 0..6_u32).prop_map(|(key, units)| Act::Credit(key, units)),
        1 => key().prop_map(Act::Reset),
        4 => (0..900_000_u64).prop_map(|micros| Act::Advance(Duration::from_micros(micros))),
    ]
}

/// The rule, one alternative after the other, on counters of its own.
struct Twin {
    quotas: Vec<Quotas>,
    counters: HashMap<(usize, usize), Counters>,
}

impl Twin {
    fn with<T>(
        &mut self,
        ((limiter, key), cost): LevelCost,
        decide: impl FnOnce(&mut Counters, Check<'_>) -> T,
    ) -> T {
        let limiter_key = Key::from(LIMITERS[limiter]);
        let name = Key::from(format!("key {key}"));
        let check = Subject::new(&limiter_key, &name, &self.quotas[limiter]).check(cost);
        decide(self.counters.entry((limiter, key)).or_default(), check)
    }

    /// Returns the alternative that is charged with the answer of each of its levels, or the shortest wait of those that refuse.
    fn decide(
        &mut self,
        alternatives: &[Vec<LevelCost>],
        now: u64,
    ) -> Result<(usize, Vec<Answer>), Option<Duration>> {
        let mut shortest = Duration::MAX;
        for (index, levels) in alternatives.iter().enumerate() {
            let judged: Vec<Answer> = levels
                .iter()
                .map(|level| {
                    self.with(*level, |counters, check| {
                        counters.clone().decide(check, Source::Memory, now)
                    })
                })
                .collect();
            if judged.iter().all(Answer::is_admitted) {
                let charged = levels.iter().map(|level| {
                    self.with(*level, |counters, check| {
                        counters.check(check, Source::Memory, now)
                    })
                });
                return Ok((index, charged.collect()));
            }
            let waits = judged
                .iter()
                .flat_map(Answer::quotas)
                .filter(|quota| !quota.is_admitted())
                .map(|quota| quota.retry_after().unwrap_or(Duration::MAX));
            shortest = shortest.min(waits.max().unwrap_or(Duration::MAX));
        }
        Err((shortest < Duration::MAX).then_some(shortest))
    }
}

/// A check that was admitted: the decisions of both stores, and of each level of the twin the answer.
struct Charged {
    decisions: [Decision; 2],
    levels: Vec<(LevelCost, Answer)>,
}

struct History<'a> {
    time: &'a mut TestTime,
    name: String,
    /// Whether Redis is not asked what it has refused.
    remembers: bool,
    twin: Twin,
    /// In memory, and in Redis.
    limiters: [Vec<RateLimiter>; 2],
    charged: Vec<Charged>,
    later: u32,
    refused: u32,
    remembered: u32,
}

impl<'a> History<'a> {
    fn new(time: &'a mut TestTime, name: String, quotas: Vec<Vec<Quota>>, remembers: bool) -> Self {
        // No key of an earlier history is left.
        time.advance(3 * IDLE);
        let redis = if remembers {
            &time.redis
        } else {
            &time.uncached
        };
        let named = |limiter: &dyn Fn(Vec<Quota>) -> RateLimiter| {
            let limiters = LIMITERS.iter().zip(&quotas);
            let limiters = limiters.map(|(name, quotas)| limiter(quotas.clone()).name(*name));
            limiters.collect()
        };
        Self {
            limiters: [
                named(&|quotas| RateLimiter::new(time.memory.clone(), quotas)),
                named(&|quotas| RateLimiter::new(redis.clone(), quotas)),
            ],
            twin: Twin {
                quotas: quotas.into_iter().map(Quotas::from).collect(),
                counters: HashMap::new(),
            },
            time,
            name,
            remembers,
            charged: Vec::new(),
            later: 0,
            refused: 0,
            remembered: 0,
        }
    }

    fn key(&self, key: usize) -> String {
        format!("{} {key}", self.name)
    }

    async fn check_first(&mut self, alternatives: &[Vec<LevelCost>]) {
        let now = self.time.now();
        let expected = self.twin.decide(alternatives, now);
        let mut decisions = Vec::new();
        for limiters in &self.limiters {
            let asked = alternatives.iter().map(|levels| {
                let levels = levels.iter().map(|((limiter, key), cost)| {
                    limiters[*limiter].level(self.key(*key)).cost(*cost)
                });
                levels.collect::<Vec<_>>()
            });
            decisions.push(RateLimiter::check_first(asked).await.unwrap());
        }
        let decisions = <[Decision; 2]>::try_from(decisions).unwrap();
        let chosen = expected.as_ref().ok().map(|(index, _)| *index);
        for decision in &decisions {
            assert_eq!(decision.alternative(), chosen, "{alternatives:?}");
        }
        let (index, answers) = match expected {
            Ok(chosen) => chosen,
            Err(wait) => return self.compare_waits(wait, &decisions),
        };
        self.later += u32::from(index > 0);
        let used = answers.iter().flat_map(Answer::quotas);
        let used: Vec<_> = used.map(|quota| quota.used()).collect();
        for decision in &decisions {
            let found: Vec<_> = decision.quotas().map(|quota| quota.used()).collect();
            assert_eq!(found, used, "{alternatives:?}");
        }
        let levels = alternatives[index].iter().copied().zip(answers).collect();
        self.charged.push(Charged { decisions, levels });
    }

    /// If a refusal of an alternative is remembered, its other levels are not asked: its wait is at least that of the
    /// level that is.
    fn compare_waits(&mut self, expected: Option<Duration>, decisions: &[Decision; 2]) {
        let longest = |wait: Option<Duration>| wait.unwrap_or(Duration::MAX);
        let [in_memory, in_redis] = decisions.each_ref().map(|decision| decision.retry_after());
        assert_eq!(in_memory, expected);
        assert!(longest(in_redis) <= longest(expected), "{in_redis:?}");
        assert!(self.remembers || in_redis == expected, "{in_redis:?}");
        self.refused += 1;
        let is_remembered = decisions[1].source() == Source::RefusalCache;
        self.remembered += u32::from(is_remembered);
    }

    async fn refund(&mut self, index: usize, units: u32) {
        let count = self.charged.len();
        if count == 0 {
            return;
        }
        let Charged { decisions, levels } = self.charged.swap_remove(index % count);
        for mut decision in decisions {
            decision.refund(units).await.unwrap();
        }
        let now = self.time.now();
        for (level, answer) in levels.iter().filter(|((_, cost), _)| *cost > 0) {
            let cost = level.1;
            self.twin.with(*level, |counters, check| {
                let refund = check.subject.refund(answer, cost, units.min(cost));
                counters.adjust(refund, now);
            });
        }
    }

    /// Compares what counts against each key.
    async fn compare(&mut self) {
        let now = self.time.now();
        for (limiter, name) in LIMITERS.iter().enumerate() {
            for key in 0..KEYS {
                let looked = self.twin.with(((limiter, key), 0), |counters, check| {
                    counters.check(check, Source::Memory, now)
                });
                let expected: Vec<_> = looked.quotas().iter().map(|quota| quota.used()).collect();
                for limiters in &self.limiters {
                    let looked = limiters[limiter].peek(self.key(key)).await.unwrap();
                    let used: Vec<_> = looked.quotas().map(|quota| quota.used()).collect();
                    assert_eq!(used, expected, "{name} {key}");
                }
            }
        }
    }

    async fn act(&mut self, act: &Act) {
        let now = self.time.now();
        match act {
            Act::CheckFirst(alternatives) => self.check_first(alternatives).await,
            Act::Refund(index, units) => self.refund(*index, *units).await,
            Act::Credit((limiter, key), units) => {
                for limiters in &self.limiters {
                    let admin = limiters[*limiter].admin();
                    admin.credit(self.key(*key), *units).await.unwrap();
                }
                self.twin.with(((*limiter, *key), 0), |counters, check| {
                    let credit = Change::Credit { units: *units };
                    counters.adjust(check.subject.adjust(credit), now);
                });
            }
            Act::Reset((limiter, key)) => {
                for limiters in &self.limiters {
                    let limiter = &limiters[*limiter];
                    limiter.admin().reset(self.key(*key)).await.unwrap();
                }
                self.twin.counters.remove(&(*limiter, *key));
            }
            Act::Advance(step) => self.time.advance(*step),
        }
        // A count that begins anew has another time.
        self.time.advance(Duration::from_micros(1));
    }
}

#[test]
fn histories_are_decided_as_by_a_twin_one_alternative_after_the_other() {
    let server = RedisServer::start();
    let runtime = runtime();
    let time = RefCell::new(TestTime::new(&server));
    let histories = Cell::new(0_u32);
    let counts = Cell::new((0_u32, 0_u32, 0_u32));
    let quotas = prop::collection::vec(quotas(), LIMITERS.len());
    let input = (quotas, prop::collection::vec(act(), 1..16), any::<bool>());
    let cases = some_or_all(2_400, 100_000);
    holds_for_any(cases, &input, |(quotas, acts, remembers)| {
        let number = histories.get();
        histories.set(number + 1);
        let mut time = time.borrow_mut();
        let mut history = History::new(&mut time, number.to_string(), quotas, remembers);
        for act in &acts {
            runtime.block_on(history.act(act));
        }
        runtime.block_on(history.compare());
        let (later, refused, remembered) = counts.get();
        counts.set((
            later + history.later,
            refused + history.refused,
            remembered + history.remembered,
        ));
        Ok(())
    });
    let (later, refused, remembered) = counts.get();
    let histories = histories.get();
    println!(
        "{histories} histories: {later} by a later alternative, {refused} refused, {remembered} of them remembered"
    );
    assert!(later > histories / 2 && refused > histories / 4 && remembered > histories / 50);
}
