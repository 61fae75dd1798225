//! Shares of a quota: memory and Redis decide as a naive list of units does, to the microsecond.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::both::{Both, Outcome, outcome};
use crate::support::fakes::fake_store::FakeStore;
use crate::support::process::{Process, argument, report};
use crate::support::redis_server::RedisServer;
use crate::support::test_time::TestTime;
use crate::support::{holds_for_any, runtime};
use proptest::prelude::*;
use tokio::runtime::Runtime;
use tollgate::store::Store;
use tollgate::store::protocol::{Change, Check, Subject};
use tollgate::{
    Algorithm, Decision, ErrorKind, Key, MemoryStore, Quota, Quotas, RateLimiter, RedisStore,
    Share, Source,
};

const WINDOW: Duration = Duration::from_millis(100);
const MICROSECOND: Duration = Duration::from_micros(1);
const KEY: &str = "ada";

/// The shares that ask: the last one is in no quota.
const SHARES: [&str; 4] = ["a", "b", "c", "other"];

/// A limit, and the reserve and the bound of each share.
type Numbers = (u32, Vec<(&'static str, u32, u32)>);

const FREE: u32 = u32::MAX;

fn numbers() -> Vec<Numbers> {
    vec![
        (10, vec![("a", 3, FREE), ("b", 0, 4)]),
        (10, vec![("a", 6, FREE), ("c", 2, 5)]),
        (6, vec![("b", 2, FREE)]),
        (12, vec![("c", 4, 4), ("b", 4, FREE), ("a", 4, 6)]),
        (10, vec![]),
        // A log that Redis reads in pages.
        (1_500, vec![("a", 500, FREE), ("b", 0, 600)]),
    ]
}

fn quota(numbers: &Numbers, algorithm: Algorithm) -> Quota {
    let (limit, shares) = numbers;
    let share =
        |(name, reserve, most): &(&str, u32, u32)| Share::of(name).reserve(*reserve).at_most(*most);
    let quota = Quota::new(*limit, WINDOW).with_algorithm(algorithm);
    quota.shares(shares.iter().map(share))
}

#[derive(Clone, Debug)]
enum Step {
    Check {
        plan: usize,
        share: usize,
        cost: u32,
    },
    /// Checks. If refused with a wait, checks again a microsecond before its end, and at its end.
    CheckAndWait {
        plan: usize,
        share: usize,
        cost: u32,
    },
    /// Charges units without a check, also beyond the limit.
    Charge {
        plan: usize,
        share: usize,
        units: u32,
    },
    Refund {
        decision: usize,
        units: u32,
    },
    Credit {
        units: u32,
    },
    Advance(Duration),
    SetBack(Duration),
}

fn step() -> impl Strategy<Value = Step> {
    let (plan, share) = (0..numbers().len() + 1, 0..SHARES.len());
    let cost = prop_oneof![8 => 0..5_u32, 1 => 100..700_u32];
    let duration = prop_oneof![
        Just(Duration::ZERO),
        Just(MICROSECOND),
        Just(WINDOW / 10),
        Just(WINDOW - MICROSECOND),
        (0..60_000_u64).prop_map(Duration::from_micros),
    ];
    prop_oneof![
        12 => (plan.clone(), share.clone(), cost.clone())
            .prop_map(|(plan, share, cost)| Step::Check { plan, share, cost }),
        4 => (plan.clone(), share.clone(), cost)
            .prop_map(|(plan, share, cost)| Step::CheckAndWait { plan, share, cost }),
        1 => (plan, share, 0..40_u32).prop_map(|(plan, share, units)| Step::Charge { plan, share, units }),
        8 => duration.clone().prop_map(Step::Advance),
        2 => (0..1_000_usize, 0..5_u32).prop_map(|(decision, units)| Step::Refund { decision, units }),
        1 => (0..9_u32).prop_map(|units| Step::Credit { units }),
        1 => duration.prop_map(Step::SetBack),
    ]
}

/// The units that were charged, each with its time and the name of its share.
#[derive(Default)]
struct Model {
    units: Vec<(u64, &'static str)>,
    /// The length of a bucket; 0 for a log.
    bucket: u64,
}

impl Model {
    fn new(algorithm: Algorithm) -> Self {
        let bucket = match algorithm {
            Algorithm::SlidingBuckets(buckets) => micros(WINDOW).div_ceil(buckets.into()),
            _ => 0,
        };
        let units = Vec::new();
        Self { units, bucket }
    }

    /// The time from which a unit that is charged now counts for a window: in buckets, the last moment of this one.
    fn charge_time(&self, now: u64) -> u64 {
        let lasts = now.checked_rem(self.bucket).unwrap_or(0);
        now - lasts + self.bucket.saturating_sub(1)
    }

    /// Moves units in the future to now.
    fn rewind(&mut self, now: u64) {
        let (window, now) = (micros(WINDOW), self.charge_time(now));
        let newest = self.units.iter().map(|(time, _)| *time).max();
        if let Some(newest) = newest.filter(|newest| *newest > now) {
            self.units.retain(|(time, _)| *time + window > newest);
            for (time, _) in &mut self.units {
                *time = (*time).min(now);
            }
        }
    }

    /// Takes the newest units that count, of one time first those without a share. Returns whether that says which units
    /// remain: of several shares of one time, the log decides.
    fn credit(&mut self, now: u64, units: u32) -> bool {
        let used = u32::try_from(self.used(now, None)).unwrap();
        self.units
            .sort_by_key(|(time, share)| (*time, *share == "other"));
        let left = self.units.len() - units.min(used) as usize;
        let (before, taken) = (self.units.clone(), self.units.split_off(left));
        let Some((kept, first)) = self.units.last().zip(taken.first()) else {
            return true;
        };
        let named = |unit: &&(u64, &str)| unit.0 == kept.0 && unit.1 != "other";
        let mut of_run = before.iter().filter(named);
        kept.0 != first.0 || first.1 == "other" || of_run.all(|unit| unit.1 == first.1)
    }

    fn used(&self, now: u64, share: Option<&str>) -> i64 {
        let counts = |(time, own): &&(u64, &str)| {
            *time + micros(WINDOW) > now && share.is_none_or(|share| share == *own)
        };
        i64::try_from(self.units.iter().filter(counts).count()).unwrap()
    }

    /// Whether the design admits a cost, word by word. A cost of 0 is admitted by a share that may ever get a unit.
    fn admits(&self, numbers: &Numbers, share: &str, cost: i64, now: u64) -> bool {
        if cost == 0 {
            return Self::default().admits(numbers, share, 1, now);
        }
        let (limit, shares) = numbers;
        let limit = i64::from(*limit);
        let find = |name: &str| shares.iter().find(|(own, ..)| *own == name);
        let (reserve, most) = find(share).map_or((0, limit), |(_, reserve, most)| {
            (i64::from(*reserve), i64::from(*most))
        });
        let used = self.used(now, None);
        let named = shares.iter().map(|(name, ..)| self.used(now, Some(name)));
        let own = match find(share) {
            Some(_) => self.used(now, Some(share)),
            None => used - named.clone().sum::<i64>(),
        };
        let without = used - named.sum::<i64>() + if find(share).is_none() { cost } else { 0 };
        let sum: i64 = shares
            .iter()
            .map(|(name, reserve, _)| {
                let charged = if *name == share { cost } else { 0 };
                (self.used(now, Some(name)) + charged).max(i64::from(*reserve))
            })
            .sum();
        used + cost <= limit
            && own + cost <= most
            && (own + cost <= reserve || sum + without <= limit)
    }

    /// The highest cost that is admitted.
    fn remaining(&self, numbers: &Numbers, share: &str, now: u64) -> i64 {
        let mut costs = 1..=i64::from(numbers.0);
        costs
            .find(|cost| !self.admits(numbers, share, *cost, now))
            .map_or_else(|| numbers.0.into(), |cost| cost - 1)
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap()
}

struct Pair {
    algorithm: Algorithm,
    time: TestTime,
    model: Model,
    /// Whether the model knows what the stores know.
    has_model: bool,
    /// Whether a clock has stepped back, or the shares or the limit have changed.
    has_changed: bool,
    last_plan: usize,
    admitted: Vec<([Decision; 2], u64, &'static str)>,
    runtime: Runtime,
    promised: usize,
}

impl Pair {
    fn new(server: &RedisServer, algorithm: Algorithm, steps: &[Step]) -> Self {
        let has = |is: fn(&Step) -> bool| steps.iter().any(is);
        let gives_back = has(|step| matches!(step, Step::Refund { .. } | Step::Credit { .. }));
        let steps_back = has(|step| matches!(step, Step::SetBack(_)));
        let has_two = |step: &Step| match step {
            Step::Check { plan, .. }
            | Step::CheckAndWait { plan, .. }
            | Step::Charge { plan, .. } => *plan == numbers().len(),
            _ => false,
        };
        // A credit begins a generation of buckets, in which refunds find no earlier charges. After a step back, it depends on
        // the last trim whether units count that had returned within the bucket of the newest charge.
        let forgets = has(|step| matches!(step, Step::Refund { .. }))
            && has(|step| matches!(step, Step::Credit { .. }));
        let is_known = algorithm == Algorithm::SlidingLog || !(forgets || steps_back);
        Self {
            // The refunded unit may be the newest one, with which a step back compares the others.
            has_model: !(gives_back && steps_back) && is_known && !steps.iter().any(has_two),
            algorithm,
            time: TestTime::new(server),
            model: Model::new(algorithm),
            has_changed: false,
            last_plan: usize::MAX,
            admitted: Vec::new(),
            runtime: runtime(),
            promised: 0,
        }
    }

    fn limiters(&self, plan: usize) -> Both {
        let quotas = match numbers().get(plan) {
            Some(numbers) => Quotas::from(quota(numbers, self.algorithm)),
            // A window without shares in the same log.
            None => Quotas::from([
                quota(&numbers()[0], self.algorithm),
                Quota::new(14, 2 * WINDOW).with_algorithm(self.algorithm),
            ]),
        };
        Both::uncached(&self.time, quotas)
    }

    fn check(&mut self, plan: usize, share: &'static str, cost: u32) -> Result<Outcome, ErrorKind> {
        let Both(limiters) = self.limiters(plan);
        let [in_memory, in_redis] = limiters.each_ref().map(|limiter| {
            let level = limiter.level(KEY).cost(cost).share(share);
            self.runtime.block_on(RateLimiter::check_all([level]))
        });
        let (said, context) = (
            outcome(&in_memory),
            format!("{cost} of {share:?} in plan {plan}"),
        );
        assert_eq!(said, outcome(&in_redis), "{context}");
        self.has_changed |= self.last_plan != usize::MAX && self.last_plan != plan;
        self.last_plan = plan;
        let now = self.time.now();
        if self.has_model
            && let Some(numbers) = numbers().get(plan)
        {
            if said.is_ok() {
                // Of a cost that never passes, no store is asked.
                self.model.rewind(now);
            }
            self.compare(numbers, share, cost, now, &said);
        }
        if let (Ok(in_memory), Ok(in_redis)) = (in_memory, in_redis)
            && in_memory.held() > 0
        {
            // Quotas without such a share charge it as a request of no share.
            let of_plan = numbers();
            let of_plan = of_plan.get(plan).unwrap_or(&of_plan[0]);
            let is_known = of_plan.1.iter().any(|(own, ..)| *own == share);
            let share = if is_known { share } else { "other" };
            let time = self.model.charge_time(now);
            let units = (0..cost).map(|_| (time, share));
            self.model.units.extend(units);
            self.admitted.push(([in_memory, in_redis], time, share));
        }
        said
    }

    fn compare(
        &mut self,
        numbers: &Numbers,
        share: &str,
        cost: u32,
        now: u64,
        said: &Result<Outcome, ErrorKind>,
    ) {
        let admits = self.model.admits(numbers, share, cost.into(), now);
        let context = format!("{cost} of {share:?} at {now} in {numbers:?}: {said:?}");
        let Ok(said) = said else {
            let empty = Model::default();
            assert!(!empty.admits(numbers, share, cost.into(), now), "{context}");
            return;
        };
        assert_eq!(said.allowed, admits, "{context}");
        let charged = if said.allowed { i64::from(cost) } else { 0 };
        let left = self.model.remaining(numbers, share, now);
        let remaining = said.quotas[0].remaining;
        assert_eq!(i64::from(remaining), left - charged, "{context}");
        let find = numbers.1.iter().find(|(own, ..)| *own == share);
        if let Some((_, reserve, _)) = find
            && self.model.used(now, Some(share)) + i64::from(cost) <= i64::from(*reserve)
        {
            self.promised += 1;
            // Nobody below its reserve is refused, but where the limit itself is used.
            let is_full = self.model.used(now, None) + i64::from(cost) > i64::from(numbers.0);
            assert!(said.allowed || self.has_changed && is_full, "{context}");
        }
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Check { plan, share, cost } => {
                let _ = self.check(plan, SHARES[share], cost);
            }
            Step::CheckAndWait { plan, share, cost } => {
                self.check_and_wait(plan, SHARES[share], cost);
            }
            Step::Charge { plan, share, units } => self.charge(plan, SHARES[share], units),
            Step::Refund { decision, units } => self.refund(decision, units),
            Step::Credit { units } => {
                self.runtime.block_on(self.limiters(0).credit(KEY, units));
                self.has_model &= self.model.credit(self.time.now(), units);
            }
            Step::Advance(step) => {
                self.time.advance(step);
                // What has expired altogether is dropped sooner or later, which a step back would show.
                if self.model.used(self.time.now(), None) == 0 && self.has_model {
                    self.model.units.clear();
                    self.admitted.clear();
                    self.runtime.block_on(self.limiters(0).reset(KEY));
                    self.time.advance(Duration::ZERO);
                }
            }
            Step::SetBack(step) => {
                self.has_changed = true;
                self.time.step_back(step);
            }
        }
    }

    /// Charges units without a check: then everybody may have to wait, also below its reserve.
    fn charge(&mut self, plan: usize, share: &'static str, units: u32) {
        let Both(limiters) = self.limiters(plan);
        let (limiter, key) = (Key::from("default"), Key::from(KEY));
        let subject = Subject::new(&limiter, &key, limiters[0].quotas()).in_share(share);
        let charge = subject.adjust(Change::Charge { units });
        let (memory, redis) = (&self.time.memory, &self.time.uncached);
        self.runtime.block_on(async {
            memory.adjust(charge).await.unwrap();
            redis.adjust(charge).await.unwrap();
        });
        let now = self.time.now();
        self.model.rewind(now);
        let (time, share) = (
            self.model.charge_time(now),
            subject.share().unwrap_or("other"),
        );
        // The name has to live as long as the test.
        let share = SHARES.into_iter().find(|own| *own == share).unwrap();
        self.model.units.extend((0..units).map(|_| (time, share)));
        self.has_changed = true;
        let _ = self.check(plan, share, 0);
    }

    fn refund(&mut self, decision: usize, units: u32) {
        let limiters = self.limiters(0);
        let count = self.admitted.len().max(1);
        let Some((decisions, time, share)) = self.admitted.get_mut(decision % count) else {
            return;
        };
        let held = decisions[0].held();
        self.runtime.block_on(limiters.refund(decisions, units));
        let charge = (*time, *share);
        for _ in 0..held.min(units) {
            match self.model.units.iter().position(|unit| *unit == charge) {
                Some(unit) => drop(self.model.units.remove(unit)),
                // A credit took the unit. Without a column of its share, the log takes one of none that has the same time.
                None => self.has_model = false,
            }
        }
    }

    fn check_and_wait(&mut self, plan: usize, share: &'static str, cost: u32) {
        let Ok(first) = self.check(plan, share, cost) else {
            return;
        };
        let Some(wait) = first
            .quotas
            .iter()
            .filter_map(|quota| quota.retry_after)
            .max()
        else {
            return;
        };
        self.time.advance(wait - MICROSECOND);
        let early = self.check(plan, share, cost).unwrap();
        assert!(!early.allowed, "admitted before {wait:?} had passed");
        self.time.advance(MICROSECOND);
        let due = self.check(plan, share, cost).unwrap();
        assert!(due.allowed, "refused after {wait:?}");
    }
}

fn same_decisions(algorithm: Algorithm) {
    let server = RedisServer::start();
    let [modelled, promised, credited] = [0; 3].map(std::cell::Cell::new);
    let law = |mut steps: Vec<Step>, kind: u8| {
        // Sequences that the model knows, beside those with everything.
        match kind {
            0 => {
                let (is_log, keeps) = (algorithm == Algorithm::SlidingLog, steps.len() % 2);
                steps.retain(|step| match step {
                    Step::SetBack(_) => false,
                    Step::Credit { .. } => is_log || keeps == 0,
                    Step::Refund { .. } => is_log || keeps == 1,
                    _ => true,
                });
            }
            1 => steps.retain(|step| !matches!(step, Step::Refund { .. } | Step::Credit { .. })),
            _ => {}
        }
        if kind < 2 {
            for step in &mut steps {
                if let Step::Check { plan, .. }
                | Step::CheckAndWait { plan, .. }
                | Step::Charge { plan, .. } = step
                {
                    *plan %= numbers().len();
                }
            }
        }
        let mut pair = Pair::new(&server, algorithm, &steps);
        for step in &steps {
            pair.take(step);
        }
        modelled.set(modelled.get() + usize::from(pair.has_model));
        let credits = steps
            .iter()
            .filter(|step| matches!(step, Step::Credit { .. }));
        credited.set(credited.get() + if pair.has_model { credits.count() } else { 0 });
        promised.set(promised.get() + pair.promised);
    };
    let steps = || prop::collection::vec(step(), 1..120);
    holds_for_any(250, &(steps(), 0..3_u8), |(steps, kind)| {
        law(steps, kind);
        Ok(())
    });
    let one_plan = (steps(), 0..4_usize);
    holds_for_any(100, &one_plan, |(mut steps, only)| {
        for step in &mut steps {
            if let Step::Check { plan, .. } | Step::CheckAndWait { plan, .. } = step {
                *plan = only;
            }
        }
        law(steps, 0);
        Ok(())
    });
    println!(
        "{} sequences with a model, {} checks below a reserve, {} credits",
        modelled.get(),
        promised.get(),
        credited.get()
    );
    assert!(modelled.get() > 5 && promised.get() > 50 && credited.get() > 1);
}

#[test]
fn logs_decide_by_the_shares_as_a_list_of_units_does() {
    same_decisions(Algorithm::SlidingLog);
}

#[test]
fn buckets_decide_by_the_shares_as_a_list_of_units_does() {
    same_decisions(Algorithm::SlidingBuckets(7));
}

/// The message of the panic.
fn problem(shares: Vec<Share>) -> String {
    let quota = std::panic::catch_unwind(|| Quota::per_minute(10).shares(shares));
    *quota.unwrap_err().downcast().expect("text")
}

#[test]
fn shares_that_cannot_be_kept_are_errors() {
    let of = |name: &str, reserve, most| Share::of(name).reserve(reserve).at_most(most);
    for (shares, rule) in [
        (
            vec![of("a", 6, FREE), of("b", 5, FREE)],
            "at most the limit",
        ),
        (vec![of("a", 6, 5)], "at least its reserve"),
        (vec![of("a", 1, FREE), of("a", 2, FREE)], "two shares"),
        (vec![of("", 1, FREE)], "no spaces"),
        (vec![of("a b", 1, FREE)], "no spaces"),
        (vec![of("a<b", 1, FREE)], "none of < >"),
        (
            (0..17)
                .map(|share| of(&share.to_string(), 0, FREE))
                .collect(),
            "at most 16 shares",
        ),
    ] {
        let text = problem(shares);
        assert!(text.contains(rule), "{text}");
    }
    let sixteen = (0..16).map(|share| of(&share.to_string(), 0, FREE));
    let _ = Quota::per_minute(10).shares(sixteen);
    let others = Algorithm::ALL
        .iter()
        .map(|algorithm| Quota::per_minute(9).with_algorithm(*algorithm));
    for quota in others.chain([Quota::in_flight(9)]) {
        let has_shares = matches!(
            quota.algorithm(),
            Algorithm::SlidingLog | Algorithm::SlidingBuckets(_) | Algorithm::InFlight
        );
        let with_shares = std::panic::catch_unwind(|| quota.clone().shares([of("a", 1, FREE)]));
        assert_eq!(with_shares.is_ok(), has_shares, "{quota}");
        let Ok(text) = with_shares.map(|quota| quota.to_string()) else {
            let text = format!("{quota} a>=1");
            assert!(text.parse::<Quota>().is_err(), "{text}");
            continue;
        };
        // Nor does a quota with shares get another algorithm.
        assert!(text.parse::<Quota>().is_ok(), "{text}");
        let changed = std::panic::catch_unwind(|| {
            text.parse::<Quota>()
                .unwrap()
                .with_algorithm(Algorithm::Gcra)
        });
        assert!(changed.is_err(), "{text}");
    }
    let limiter = || {
        RateLimiter::new(
            MemoryStore::new(),
            "10/minute a>=1".parse::<Quota>().unwrap(),
        )
    };
    let lease = Duration::from_secs(1);
    let runtime = Runtime::new().unwrap();
    let error = runtime
        .block_on(limiter().lease(lease).check(KEY))
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    assert!(
        error
            .to_string()
            .contains("remove the lease, or the shares"),
        "{error}"
    );
}

#[test]
fn shares_are_text() {
    let quota = Quota::per_minute(1_000).shares([
        Share::of("critical").reserve(200),
        Share::of("batch").at_most(400),
        Share::of("free").reserve(50).at_most(100),
        Share::of("other"),
    ]);
    let text = "1000/minute critical>=200 batch<=400 free>=50<=100 other>=0";
    assert_eq!(quota.to_string(), text);
    assert_eq!(text.parse(), Ok(quota.clone()));
    assert_eq!(
        "1000 / 1 minute  critical>=200 batch<=400  free>=50<=100 other>=0 ".parse(),
        Ok(quota)
    );
    let buckets = "9/10s sliding-buckets:5 a>=2";
    assert_eq!(buckets.parse::<Quota>().unwrap().to_string(), buckets);
    let list = "9/10s a>=2, 5/second; 4/hour b<=3"
        .parse::<Quotas>()
        .unwrap();
    assert_eq!(list.to_string(), "9/10s a>=2, 5/second, 4/hour b<=3");
    for (wrong, rule) in [
        ("9/10s a>=2 b", "like critical>=200"),
        ("9/10s a>2", "like critical>=200"),
        ("9/10s a=2", "like critical>=200"),
        ("9/10s a<=2>=1", "like critical>=200"),
        ("9/10s a>=-1", "like critical>=200"),
        ("9/10s >=1", "no spaces"),
        ("9/10s gcra a>=1", "counted by a sliding-log"),
        ("9/10s a>=5 b>=5", "at most the limit"),
        ("a>=5", "LIMIT/WINDOW"),
    ] {
        let error = wrong.parse::<Quota>().unwrap_err().to_string();
        assert!(error.contains(rule), "{wrong}: {error}");
    }
}

#[cfg(feature = "serde")]
#[test]
fn shares_are_deserialized_from_text_and_maps() {
    let quota: Quota = "9/10s a>=2 b<=3".parse().unwrap();
    for (written, read) in [
        (serde_json::json!("9/10s a>=2 b<=3"), quota.clone()),
        (
            serde_json::json!({"limit": 9, "window": "10s", "name": "own", "shares": "a>=2 b<=3"}),
            quota.with_name("own"),
        ),
    ] {
        assert_eq!(serde_json::to_value(&read).unwrap(), written);
        assert_eq!(serde_json::from_value::<Quota>(written).unwrap(), read);
    }
    let wrong = serde_json::json!({"limit": 9, "window": "10s", "shares": "a>=10"});
    let error = serde_json::from_value::<Quota>(wrong)
        .unwrap_err()
        .to_string();
    assert!(error.contains("at most the limit"), "{error}");
}

/// A limit of 40, of which 10 are kept for `idle`.
fn contended(store: impl Store) -> RateLimiter {
    let quota = Quota::per_minute(40)
        .shares([Share::of("idle").reserve(10), Share::of("busy").at_most(25)]);
    RateLimiter::new(store, quota)
}

/// Checks as two shares and as none, from many tasks at once. Returns the units that were admitted.
async fn hammer(limiter: &RateLimiter, key: &str) -> u32 {
    let tasks = (0..16).map(|task| {
        let (limiter, key) = (limiter.clone(), key.to_owned());
        tokio::spawn(async move {
            let mut admitted = 0;
            for check in 0..6 {
                let level = limiter.level(&*key).cost(1 + check % 2);
                let level = if task % 2 == 0 {
                    level.share("busy")
                } else {
                    level
                };
                let decision = RateLimiter::check_all([level]).await.unwrap();
                admitted += if decision.is_allowed() {
                    1 + check % 2
                } else {
                    0
                };
            }
            admitted
        })
    });
    let mut admitted = 0;
    for task in tasks.collect::<Vec<_>>() {
        admitted += task.await.unwrap();
    }
    admitted
}

#[test]
fn threads_never_exceed_the_limit_and_an_idle_share_gets_its_reserve_at_once() {
    let server = RedisServer::start();
    let redis = RedisStore::open(&server.url())
        .unwrap()
        .deadline(Duration::from_secs(30));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build();
    runtime.unwrap().block_on(async {
        for limiter in [contended(MemoryStore::new()), contended(redis)] {
            for run in 0..50 {
                let key = run.to_string();
                let admitted = hammer(&limiter, &key).await;
                // Whatever came first: a cost of 2 may leave one unit.
                assert!((29..=30).contains(&admitted), "{admitted}");
                let idle = limiter.level(&*key).cost(10).share("idle");
                assert!(
                    RateLimiter::check_all([idle]).await.unwrap().is_allowed(),
                    "{run}"
                );
                let refused = RateLimiter::check_all([limiter.level(&*key).cost(2)]).await;
                assert!(!refused.unwrap().is_allowed());
            }
        }
    });
}

#[test]
fn processes_never_exceed_the_limit_and_an_idle_share_gets_its_reserve_at_once() {
    let runtime = Runtime::new().unwrap();
    let limiter = |url: &str| {
        contended(
            RedisStore::open(url)
                .unwrap()
                .deadline(Duration::from_secs(30)),
        )
    };
    if let Some(url) = argument() {
        let limiter = limiter(&url);
        let admitted = (0..20).map(|run| {
            let admitted = runtime.block_on(hammer(&limiter, &run.to_string()));
            admitted.to_string()
        });
        return report(admitted.collect::<Vec<_>>().join(" "));
    }
    let server = RedisServer::start();
    let test =
        "shares::processes_never_exceed_the_limit_and_an_idle_share_gets_its_reserve_at_once";
    let children = [(); 4].map(|()| Process::of(test, &server.url()));
    let mut admitted = [0_u32; 20];
    for child in children {
        for (admitted, units) in admitted.iter_mut().zip(child.report().split(' ')) {
            *admitted += units.parse::<u32>().unwrap();
        }
    }
    let limiter = limiter(&server.url());
    for (run, admitted) in admitted.into_iter().enumerate() {
        assert!((29..=30).contains(&admitted), "{admitted} in run {run}");
        let key = run.to_string();
        let idle = limiter.level(&*key).cost(10).share("idle");
        let idle = runtime.block_on(RateLimiter::check_all([idle]));
        assert!(idle.unwrap().is_allowed(), "{run}");
    }
}

#[tokio::test]
async fn a_refused_share_is_remembered_apart_from_the_others() {
    let server = RedisServer::start();
    let limiter = contended(
        RedisStore::open(&server.url())
            .unwrap()
            .deadline(Duration::from_secs(10)),
    );
    let check = |share: &'static str, cost| {
        let level = limiter.level(KEY).cost(cost).share(share);
        async { RateLimiter::check_all([level]).await.unwrap() }
    };
    assert!(check("busy", 25).await.is_allowed());
    assert!(!check("busy", 5).await.is_allowed());
    let again = check("busy", 5).await;
    assert_eq!(again.source(), Source::RefusalCache);
    assert_eq!(
        (again.remaining(), again.quotas().next().unwrap().share()),
        (0, Some("busy"))
    );
    let other = check("other", 5).await;
    assert!(other.is_allowed());
    assert_eq!(other.quotas().next().unwrap().share(), None);
    assert!(check("idle", 10).await.is_allowed());
}

#[tokio::test]
async fn what_is_given_back_belongs_to_the_share_that_was_charged() {
    let server = RedisServer::start();
    for limiter in [
        contended(MemoryStore::new()),
        contended(
            RedisStore::open(&server.url())
                .unwrap()
                .deadline(Duration::from_secs(10)),
        ),
    ] {
        let check = |share: &'static str, cost| {
            let level = limiter.level(KEY).cost(cost).share(share);
            async { RateLimiter::check_all([level]).await.unwrap() }
        };
        let mut busy = check("busy", 20).await;
        let idle = check("idle", 12).await;
        assert_eq!(check("busy", 0).await.remaining(), 5);
        busy.refund(15).await.unwrap();
        assert_eq!(check("busy", 0).await.remaining(), 20);
        idle.settle(4).await.unwrap();
        // 40 less 5 of busy, and 10 that are used or kept for idle.
        assert_eq!(check("other", 0).await.remaining(), 25);
        assert_eq!(check("idle", 0).await.remaining(), 31);
    }
}

/// The bytes of the log of the only key.
fn stored(server: &RedisServer) -> Vec<u8> {
    let mut connection = server.connect();
    let mut keys: Vec<String> = redis::cmd("KEYS")
        .arg("*:log")
        .query(&mut connection)
        .unwrap();
    let key = keys.pop().unwrap();
    redis::cmd("GET").arg(key).query(&mut connection).unwrap()
}

#[tokio::test]
async fn a_log_has_a_column_for_each_share_that_was_charged_and_callers_without_shares_copy_them() {
    let server = RedisServer::start();
    let store = RedisStore::open(&server.url())
        .unwrap()
        .deadline(Duration::from_secs(10));
    let shares = contended(store.clone());
    let plain = RateLimiter::new(store.clone(), Quota::per_minute(40));
    let check = |share: &'static str| {
        let level = shares.level(KEY).share(share);
        async { RateLimiter::check_all([level]).await.unwrap() }
    };
    let mut sizes = Vec::new();
    for _ in 0..2 {
        assert!(plain.check(KEY).await.unwrap().is_allowed());
        sizes.push(stored(&server).len());
    }
    for share in ["busy", "busy", "idle", "other"] {
        let _ = check(share).await;
        let value = stored(&server);
        assert_eq!(value[12], b's');
        sizes.push(value.len());
    }
    let left = check("idle").await.remaining();
    let _ = plain.check(KEY).await.unwrap();
    assert_eq!(check("idle").await.remaining(), left - 2);
    sizes.push(stored(&server).len());
    let bytes = |columns: usize, runs: usize| match columns {
        0 => 29 + 12 * runs,
        columns => 30 + 8 * columns + (12 + 4 * columns) * runs,
    };
    let expected = [(0, 1), (0, 2), (1, 3), (1, 4), (2, 5), (2, 6), (2, 9)];
    assert_eq!(sizes, expected.map(|(columns, runs)| bytes(columns, runs)));
}

#[test]
fn columns_without_units_go_with_the_next_trim_so_that_the_log_is_a_plain_one_again() {
    let server = RedisServer::start();
    let mut time = TestTime::new(&server);
    let quota = quota(&numbers()[0], Algorithm::SlidingLog);
    let shares = RateLimiter::new(time.redis.clone(), quota);
    let plain = RateLimiter::new(time.redis.clone(), Quota::new(10, WINDOW));
    let runtime = runtime();
    let _ = runtime
        .block_on(RateLimiter::check_all([shares.level(KEY).share("a")]))
        .unwrap();
    assert_eq!(stored(&server)[12], b's');
    for _ in 0..4 {
        time.advance(WINDOW / 2);
        let _ = runtime.block_on(plain.check(KEY)).unwrap();
    }
    assert_eq!(stored(&server)[12], b'l');
}

#[test]
fn a_share_without_a_column_is_counted_as_none_until_another_column_has_no_units() {
    const COLUMNS: usize = 64;
    let server = RedisServer::start();
    let mut time = TestTime::new(&server);
    let runtime = runtime();
    // Each plan has one share, and all plans have one log.
    let check = |store: Arc<dyn Store>, share: usize, cost: u32| {
        let name = format!("share-{share}");
        let quota = Quota::new(150, WINDOW).shares([Share::of(&name).at_most(2)]);
        let limiter = RateLimiter::new(store, quota);
        let level = limiter.level(KEY).cost(cost).share(name);
        runtime.block_on(RateLimiter::check_all([level])).unwrap()
    };
    let stores: [Arc<dyn Store>; 2] = [
        Arc::new(time.memory.clone()),
        Arc::new(time.uncached.clone()),
    ];
    for store in &stores {
        for share in 0..COLUMNS + 6 {
            let mut charged = check(store.clone(), share, 2);
            assert!(charged.is_allowed(), "{share}");
            let more = check(store.clone(), share, 1);
            assert_eq!(more.is_allowed(), share >= COLUMNS, "{share}: {more:?}");
            if more.is_allowed() {
                // What is given back is nobody's, too: two units of three.
                runtime.block_on(charged.refund(2)).unwrap();
            }
        }
        // 64 shares with two units, and seven units of none.
        assert!(check(store.clone(), 100, 1).is_allowed());
        let plain = RateLimiter::new(store.clone(), Quota::new(150, WINDOW));
        let used = runtime.block_on(plain.peek(KEY)).unwrap().used();
        assert_eq!(used, 64 * 2 + 6 + 1);
    }
    assert_eq!(stored(&server)[25], 64);
    time.advance(WINDOW);
    for store in &stores {
        assert!(check(store.clone(), 100, 2).is_allowed());
        assert!(!check(store.clone(), 100, 1).is_allowed());
    }
    assert_eq!(stored(&server)[25], 1);
}

/// The share and the lease of the requests that a store got.
type Requests = Arc<Mutex<Vec<(Option<String>, Duration)>>>;

/// Returns a store that notes the requests as it keeps them for later.
fn noting(requests: &Requests) -> FakeStore {
    let [of_checks, of_changes] = [(); 2].map(|()| Arc::clone(requests));
    FakeStore::in_memory()
        .checks_by(move |counts, checks| {
            let owned: Vec<_> = checks.iter().map(Check::owned).collect();
            let checks: Vec<_> = owned.iter().map(|check| check.check()).collect();
            for check in &checks {
                note(&of_checks, check.subject);
            }
            counts.check(&checks)
        })
        .adjusts_by(move |counts, adjust| {
            let owned = adjust.owned();
            note(&of_changes, owned.adjust().subject);
            counts.adjust(owned.adjust())
        })
}

fn note(requests: &Requests, subject: Subject<'_>) {
    let request = (subject.share().map(str::to_owned), subject.lease());
    requests.lock().unwrap().push(request);
}

#[tokio::test]
async fn a_store_reads_the_share_and_the_lease_of_checks_and_adjustments() {
    let requests = Requests::default();
    let told = || std::mem::take(&mut *requests.lock().unwrap());
    let of = |share: &str| (Some(share.to_owned()), Duration::ZERO);

    let shares = [Share::of("batch").at_most(400)];
    let jobs = RateLimiter::new(noting(&requests), Quota::per_minute(1_000).shares(shares));
    let check = |share| RateLimiter::check_all([jobs.level(KEY).cost(9).share(share)]);
    let mut decision = check("batch").await.unwrap();
    decision.refund(2).await.unwrap();
    // More than was charged: a charge.
    decision.settle(12).await.unwrap();
    assert_eq!(told(), ["batch"; 3].map(of));
    drop(check("of no quota").await.unwrap());
    assert_eq!(told(), [(None, Duration::ZERO)]);

    // At most a tenth of the shortest window, of the limiter's quotas or of a plan.
    let minute = Quota::per_minute(1_000);
    let leased =
        RateLimiter::new(noting(&requests), minute.clone()).lease(10 * Duration::from_secs(1));
    let plan = leased.level(KEY).quotas([minute, Quota::per_second(50)]);
    let mut decision = RateLimiter::check_all([plan]).await.unwrap();
    decision.refund(1).await.unwrap();
    assert_eq!(told(), vec![(None, Duration::from_millis(100)); 2]);
    leased.check(KEY).await.unwrap().settle(3).await.unwrap();
    leased.admin().credit(KEY, 1).await.unwrap();
    leased.admin().reset(KEY).await.unwrap();
    assert_eq!(told(), vec![(None, Duration::from_secs(6)); 4]);
    assert_eq!(*leased.quotas(), Quotas::from(Quota::per_minute(1_000)));
}

#[tokio::test]
async fn another_limiter_of_a_name_settles_a_charge_with_the_share_and_the_lease_it_was_made_with()
{
    let requests = Requests::default();
    let store = noting(&requests);
    let lease = Duration::from_secs(2);
    let limiter = |name| RateLimiter::new(store.clone(), Quota::per_minute(100)).name(name);
    let (user, tenant) = (limiter("user").lease(lease), limiter("tenant"));
    let levels = [user.level(KEY).cost(5), tenant.level(KEY).cost(5)];
    let decision = RateLimiter::check_all(levels).await.unwrap();
    decision.settle(7).await.unwrap();
    let told = std::mem::take(&mut *requests.lock().unwrap());
    let of = |lease| told.iter().filter(|(_, own)| *own == lease).count();
    // The check, and the charge of the settlement.
    assert_eq!([of(lease), of(Duration::ZERO)], [2, 2]);
    assert_eq!(user.peek(KEY).await.unwrap().used(), 7);
}
