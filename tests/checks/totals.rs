//! Totals: no unit returns with time, and a total is forgotten one to two idle times after its last charge.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;
use tollgate::{Decision, ErrorKind, MemoryStore, Quota, RateLimiter};

use crate::support::both::{Both, Outcome, outcome};
use crate::support::cases::some_or_all;
use crate::support::redis_server::RedisServer;
use crate::support::test_time::TestTime;
use crate::support::{block_on, holds_for_any, runtime};

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);
const MICROSECOND: Duration = Duration::from_micros(1);

fn total(limit: u32, idle: Duration) -> RateLimiter {
    RateLimiter::new(MemoryStore::new(), Quota::total(limit, idle))
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_an_exhausted_total_ends_at_once_with_the_refusal() {
    let limiter = total(5, DAY);
    assert!(limiter.check_n("ada", 4).await.unwrap().is_allowed());
    let begun = tokio::time::Instant::now();
    let refused = limiter.until_ready("ada", 2, 7 * DAY).await.unwrap();
    assert!(!refused.is_allowed());
    assert_eq!(refused.retry_after(), None);
    assert_eq!(refused.reset_after(), Duration::ZERO);
    assert_eq!(begun.elapsed(), Duration::ZERO);
    // A cost that fits is still admitted.
    let admitted = limiter.until_ready("ada", 1, 7 * DAY).await.unwrap();
    assert_eq!((admitted.is_allowed(), admitted.remaining()), (true, 0));
    assert_eq!(admitted.reset_after(), Duration::ZERO);
    let looked = limiter.peek("ada").await.unwrap();
    assert_eq!((looked.is_allowed(), looked.retry_after()), (false, None));
}

#[tokio::test]
async fn an_acquisition_beside_a_total_that_is_used_up_fails_at_once_and_names_it() {
    let quotas = [Quota::in_flight(2), Quota::total(1, DAY)];
    let jobs = RateLimiter::new(MemoryStore::new(), quotas).max_wait(DAY);
    drop(jobs.acquire("ada").await.unwrap());
    let error = jobs.acquire("ada").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MaxWait);
    assert!(
        error.to_string().contains("its total is used up"),
        "{error}"
    );
}

#[tokio::test]
async fn a_total_has_no_lease() {
    let error = total(5, DAY).lease(SECOND).check("ada").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    let text = error.to_string();
    assert!(text.contains("totals are not held in advance"), "{text}");
}

#[test]
fn a_charge_is_given_back_however_old_it_is() {
    let server = RedisServer::start();
    let mut time = TestTime::new(&server);
    let both = Both::uncached(&time, Quota::total(9, 366 * DAY));
    let charge = |cost| {
        let charged = block_on(both.check("ada", cost));
        charged.map(|decision| decision.expect("a decision"))
    };
    let mut first = charge(5);
    time.advance(300 * DAY);
    let _ = charge(3);
    time.advance(300 * DAY);
    block_on(both.refund(&mut first, 5));
    assert_eq!(block_on(both.decide("ada", 0)).used(), 3);
    // After a reset, the units of earlier charges belong to nobody.
    let mut second = charge(4);
    block_on(both.reset("ada"));
    time.advance(MICROSECOND);
    let _ = charge(6);
    block_on(both.refund(&mut second, 4));
    assert_eq!(block_on(both.decide("ada", 0)).used(), 6);
}

#[test]
fn a_total_is_forgotten_one_to_two_idle_times_after_its_last_charge() {
    let server = RedisServer::start();
    // The second charge comes so many seconds after the first. It renews the time to live if less than an idle time is left.
    for (second, dies) in [(30, 81), (45, 45 + 81)] {
        let mut time = TestTime::new(&server);
        let both = Both::uncached(&time, Quota::total(9, 40 * SECOND));
        let used = || block_on(both.decide("ada", 0)).used();
        assert!(block_on(both.decide("ada", 4)).allowed);
        time.advance(second * SECOND);
        assert!(block_on(both.decide("ada", 4)).allowed);
        time.advance(40 * SECOND);
        assert_eq!(used(), 8, "an idle time after the last charge");
        // A refusal is no charge.
        assert!(!block_on(both.decide("ada", 2)).allowed);
        time.advance((dies - second - 40) * SECOND - MICROSECOND);
        assert_eq!(used(), 8);
        // The stores agree to the millisecond.
        time.advance(Duration::from_millis(2));
        assert_eq!(used(), 0);
    }
}

#[test]
fn the_idle_time_of_a_living_total_can_be_changed() {
    let server = RedisServer::start();
    let mut time = TestTime::new(&server);
    let with_idle =
        |time: &TestTime, seconds: u32| Both::uncached(time, Quota::total(9, seconds * SECOND));
    let [short, long] = [10, 1_000].map(|seconds| with_idle(&time, seconds));
    let used = || block_on(short.decide("ada", 0)).used();
    assert!(block_on(long.decide("ada", 2)).allowed);
    // A shorter one does not shorten the life of the total.
    assert!(block_on(short.decide("ada", 3)).allowed);
    time.advance(1_000 * SECOND);
    assert_eq!(used(), 5);
    time.advance(1_100 * SECOND);
    assert_eq!(used(), 0, "two idle times");
    // A longer one counts from the next charge.
    assert!(block_on(short.decide("ada", 2)).allowed);
    assert!(block_on(long.decide("ada", 1)).allowed);
    time.advance(1_000 * SECOND);
    assert_eq!(used(), 3);
}

#[test]
fn two_limits_of_a_total_compare_the_same_units() {
    let server = RedisServer::start();
    let time = TestTime::new(&server);
    let both = Both::uncached(&time, [Quota::total(8, DAY), Quota::total(5, 7 * DAY)]);
    assert!(block_on(both.decide("ada", 4)).allowed);
    let refused = block_on(both.decide("ada", 2));
    let left: Vec<_> = refused.quotas.iter().map(|quota| quota.remaining).collect();
    assert_eq!((refused.allowed, left), (false, vec![4, 1]));
    // A plan that was topped up.
    let more = Both::uncached(&time, Quota::total(20, DAY));
    let admitted = block_on(more.decide("ada", 16));
    assert_eq!((admitted.allowed, admitted.used()), (true, 20));
}

#[test]
fn a_total_stands_beside_rates_and_is_charged_with_all_or_none() {
    let server = RedisServer::start();
    let mut time = TestTime::new(&server);
    let quotas: tollgate::Quotas = "3/second, 4/second fixed-window, 5 total:7d"
        .parse()
        .unwrap();
    let both = Both::uncached(&time, quotas);
    assert!(block_on(both.decide("ada", 3)).allowed);
    let refused = block_on(both.decide("ada", 1));
    assert!(
        refused.wait().is_some(),
        "the rate refuses, and a wait helps"
    );
    time.advance(SECOND);
    assert!(block_on(both.decide("ada", 2)).allowed);
    time.advance(SECOND);
    let refused = block_on(both.decide("ada", 1));
    assert_eq!((refused.allowed, refused.wait()), (false, None));
    let used: Vec<_> = refused.quotas.iter().map(|quota| quota.used).collect();
    assert_eq!(used, [0, 0, 5]);
}

const LIMITERS: [&str; 3] = ["session", "run", "child"];
const KEYS: usize = 2;
const IDLE: Duration = Duration::from_secs(20);

/// The key of a level: the limiter, and the number of its key.
type LevelKey = (usize, usize);

/// An act on a tree of totals: sessions, their runs, and the children of these.
#[derive(Clone, Debug)]
enum Act {
    /// The levels with their costs, and whether each is asked with a raised limit.
    Check(Vec<(LevelKey, u32)>, bool),
    /// Reports what an earlier check has used, of which at most twice the cost.
    Settle(usize, u32),
    Refund(usize, u32),
    Charge(LevelKey, u32),
    Credit(LevelKey, u32),
    Reset(LevelKey),
    Advance(Duration),
    StepBack(Duration),
}

fn level_key() -> impl Strategy<Value = LevelKey> {
    (0..LIMITERS.len(), 0..KEYS)
}

fn act() -> impl Strategy<Value = Act> {
    let costs = prop::collection::btree_map(0..LIMITERS.len(), (0..KEYS, 0..5_u32), 1..4);
    let check = (costs, any::<bool>()).prop_map(|(levels, is_raised)| {
        let levels = levels.into_iter();
        let levels = levels.map(|(limiter, (key, cost))| ((limiter, key), cost));
        Act::Check(levels.collect(), is_raised)
    });
    prop_oneof![
        10 => check,
        3 => (0..9_usize, 0..9_u32).prop_map(|(check, used)| Act::Settle(check, used)),
        3 => (0..9_usize, 0..9_u32).prop_map(|(check, units)| Act::Refund(check, units)),
        1 => (level_key(), 0..12_u32).prop_map(|(key, units)| Act::Charge(key, units)),
        1 => (level_key(), 0..12_u32).prop_map(|(key, units)| Act::Credit(key, units)),
        1 => level_key().prop_map(Act::Reset),
        4 => (0..30_000_u64).prop_map(|millis| Act::Advance(Duration::from_millis(millis))),
        1 => (0..9_000_u64).prop_map(|millis| Act::StepBack(Duration::from_millis(millis))),
    ]
}

/// A total by its definition: what was charged and not given back.
#[derive(Clone, Debug, Default)]
struct Twin {
    used: u32,
    /// Counts the times at which the total began anew, so that earlier charges have no units in it.
    begun: usize,
    /// Whether more was charged than a check admits.
    is_overrun: bool,
    charged_at: Duration,
}

impl Twin {
    fn charge(&mut self, units: u32, now: Duration) {
        if units > 0 {
            self.begun += usize::from(self.used == 0);
            self.used += units;
            self.charged_at = now;
        }
    }

    fn give_back(&mut self, units: u32, begun: usize) {
        if begun == self.begun {
            self.used = self.used.saturating_sub(units);
        }
    }
}

/// A check that was admitted: the decisions of both stores, and of each level what is left to give back, and to which total.
struct Charged {
    decisions: [Decision; 2],
    levels: Vec<(LevelKey, u32, usize)>,
}

/// The limiters in both stores.
type Limiters = [[RateLimiter; 2]; 3];

/// The stores of all histories, each of which has keys of its own.
struct Stores {
    time: TestTime,
    /// By the lower limits, and by the raised ones.
    limiters: [Limiters; 2],
}

const LIMITS: [u32; 3] = [9, 6, 4];
const RAISE: u32 = 3;

impl Stores {
    fn new(server: &RedisServer) -> Self {
        let time = TestTime::new(server);
        let limiter = |index: usize, raise: u32| {
            let quota = Quota::total(LIMITS[index] + raise, IDLE);
            let Both(limiters) = Both::uncached(&time, quota);
            limiters.map(|own| own.name(LIMITERS[index]))
        };
        let limiters = [0, RAISE].map(|raise| [0, 1, 2].map(|index| limiter(index, raise)));
        Self { time, limiters }
    }
}

struct Tree<'a> {
    stores: &'a mut Stores,
    name: String,
    twins: HashMap<LevelKey, Twin>,
    charged: Vec<Charged>,
    now: Duration,
    stepped_back: Duration,
    refused: u32,
    forgotten: u32,
}

impl<'a> Tree<'a> {
    fn new(stores: &'a mut Stores, name: String) -> Self {
        // No key of an earlier history is left.
        stores.time.advance(3 * IDLE);
        Self {
            stores,
            name,
            twins: HashMap::new(),
            charged: Vec::new(),
            now: Duration::ZERO,
            stepped_back: Duration::ZERO,
            refused: 0,
            forgotten: 0,
        }
    }

    fn key(&self, key: usize) -> String {
        format!("{} {key}", self.name)
    }

    fn twin(&mut self, key: LevelKey) -> &mut Twin {
        self.twins.entry(key).or_default()
    }

    async fn check(&mut self, levels: &[(LevelKey, u32)], is_raised: bool) {
        let raise = if is_raised { RAISE } else { 0 };
        let mut decisions = Vec::new();
        for store in 0..2 {
            let limiters = &self.stores.limiters[usize::from(is_raised)];
            let levels = levels.iter().map(|((limiter, key), cost)| {
                limiters[*limiter][store].level(self.key(*key)).cost(*cost)
            });
            decisions.push(RateLimiter::check_all(levels).await);
        }
        let outcomes: Vec<Outcome> = decisions
            .iter()
            .map(|decision| outcome(decision).expect("a decision"))
            .collect();
        assert_eq!(outcomes[0], outcomes[1], "{levels:?}");
        let fits = levels.iter().all(|((limiter, key), cost)| {
            let used = self
                .twins
                .get(&(*limiter, *key))
                .map_or(0, |twin| twin.used);
            *cost == 0 || used + cost <= LIMITS[*limiter] + raise
        });
        assert_eq!(outcomes[0].allowed, fits, "{levels:?}: {:?}", self.twins);
        assert_eq!(outcomes[0].wait(), None);
        self.refused += u32::from(!fits);
        let now = self.now;
        if fits {
            let charging = levels.iter().filter(|(_, cost)| *cost > 0);
            let charged = charging.map(|(key, cost)| {
                let twin = self.twins.entry(*key).or_default();
                twin.charge(*cost, now);
                (*key, *cost, twin.begun)
            });
            let levels = charged.collect();
            let decisions = decisions.into_iter().map(|decision| decision.expect("one"));
            let decisions = decisions.collect::<Vec<_>>().try_into().expect("two");
            self.charged.push(Charged { decisions, levels });
        }
        for (key, quota) in levels.iter().map(|(key, _)| key).zip(&outcomes[0].quotas) {
            assert_eq!(quota.used, self.twin(*key).used, "{levels:?}");
            let is_overrun = self.twin(*key).is_overrun;
            assert!(quota.used <= LIMITS[key.0] + RAISE || is_overrun, "{key:?}");
        }
    }

    async fn act(&mut self, act: &Act) {
        let now = self.now;
        match act {
            Act::Check(levels, is_raised) => self.check(levels, *is_raised).await,
            Act::Settle(check, used) if !self.charged.is_empty() => {
                let index = check % self.charged.len();
                let Charged { decisions, levels } = self.charged.remove(index);
                for decision in decisions {
                    decision.settle(*used).await.expect("a settlement");
                }
                for (key, left, begun) in levels {
                    let twin = self.twin(key);
                    twin.give_back(left.saturating_sub(*used), begun);
                    twin.charge(used.saturating_sub(left), now);
                    twin.is_overrun |= *used > left;
                }
            }
            Act::Refund(check, units) if !self.charged.is_empty() => {
                let index = check % self.charged.len();
                let Charged { decisions, levels } = &mut self.charged[index];
                for decision in decisions {
                    decision.refund(*units).await.expect("a refund");
                }
                for (key, left, begun) in levels {
                    let returned = (*units).min(*left);
                    *left -= returned;
                    self.twins
                        .entry(*key)
                        .or_default()
                        .give_back(returned, *begun);
                }
            }
            Act::Settle(..) | Act::Refund(..) => {}
            Act::Charge((limiter, key), units) => {
                let name = self.key(*key);
                for own in &self.stores.limiters[0][*limiter] {
                    own.charge(&*name, *units).await.expect("a charge");
                }
                let twin = self.twin((*limiter, *key));
                twin.charge(*units, now);
                twin.is_overrun |= *units > 0;
            }
            Act::Credit((limiter, key), units) => {
                let name = self.key(*key);
                for own in &self.stores.limiters[0][*limiter] {
                    own.admin().credit(&*name, *units).await.expect("a credit");
                }
                let twin = self.twin((*limiter, *key));
                twin.used = twin.used.saturating_sub(*units);
            }
            Act::Reset((limiter, key)) => {
                let name = self.key(*key);
                for own in &self.stores.limiters[0][*limiter] {
                    own.admin().reset(&*name).await.expect("a reset");
                }
                self.twin((*limiter, *key)).used = 0;
            }
            Act::Advance(step) => {
                self.now += *step;
                self.stores.time.advance(*step);
            }
            Act::StepBack(step) => {
                self.stepped_back += *step;
                self.stores.time.step_back(*step);
            }
        }
        // A total that begins anew has another time.
        self.now += MICROSECOND;
        self.stores.time.advance(MICROSECOND);
        self.compare(0).await;
    }

    /// Compares all totals of a store with the twins. Those that it has forgotten are forgotten here, too: it may do so from
    /// one idle time to two and a second after the last charge.
    async fn compare(&mut self, store: usize) {
        let (now, stepped_back) = (self.now, self.stepped_back);
        for (limiter, name) in LIMITERS.iter().enumerate() {
            for key in 0..KEYS {
                let own = &self.stores.limiters[0][limiter][store];
                let used = own.peek(self.key(key)).await.expect("a look").used();
                let twin = self.twin((limiter, key));
                let age = now - twin.charged_at;
                let is_forgotten = used == 0 && twin.used > 0 && age >= IDLE;
                if is_forgotten {
                    twin.used = 0;
                    twin.is_overrun = false;
                }
                assert_eq!(used, twin.used, "{name} {key}: {twin:?}");
                let longest = 2 * IDLE + 2 * SECOND + stepped_back;
                assert!(twin.used == 0 || age <= longest, "{age:?}: {twin:?}");
                self.forgotten += u32::from(is_forgotten);
            }
        }
    }
}

#[test]
fn trees_of_totals_are_decided_as_by_the_sums_of_their_charges() {
    let server = RedisServer::start();
    let runtime = runtime();
    let stores = RefCell::new(Stores::new(&server));
    let histories = Cell::new(0);
    let refused = Cell::new(0);
    let forgotten = Cell::new(0);
    let cases = some_or_all(2_400, 100_000);
    holds_for_any(cases, &prop::collection::vec(act(), 1..24), |acts| {
        let mut stores = stores.borrow_mut();
        let mut tree = Tree::new(&mut stores, histories.get().to_string());
        for act in &acts {
            runtime.block_on(tree.act(act));
        }
        runtime.block_on(tree.compare(1));
        histories.set(histories.get() + 1);
        refused.set(refused.get() + tree.refused);
        forgotten.set(forgotten.get() + tree.forgotten);
        Ok(())
    });
    let histories = histories.get();
    let refused = refused.get();
    let forgotten = forgotten.get();
    println!("{histories} histories, {refused} refusals, {forgotten} totals forgotten");
    assert!(refused > histories / 4 && forgotten > histories / 50);
}
