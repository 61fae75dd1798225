//! `block_after`: which refusals count, what is blocked, and how often a store is asked.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tollgate::store::protocol::{
    Adjust, Block, Check, CircuitBreaker, StoreFuture, StoreId, StoreParts,
};
use tollgate::store::{TestClock, TestStore};
use tollgate::{
    BlockReason, BlockRule, Error, ErrorKind, FailurePolicy, Key, MemoryStore, Quota,
    RateLimitLayer, RateLimiter, Source, Store, key,
};

use crate::support::calls::{by_path, status};
use crate::support::fakes::fake_store::FakeStore;
use crate::support::log;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

/// Any refusal that counts blocks its key.
const AT_ONCE: BlockRule = BlockRule::refusals(1).block_for(HOUR);

const GROWING: BlockRule = BlockRule::refusals(3)
    .within(MINUTE)
    .block_for(HOUR)
    .doubling()
    .max_block(Duration::from_secs(4 * 3_600))
    .forget_after(DAY);

async fn source(limiter: &RateLimiter, key: &str) -> Source {
    limiter.check(key).await.expect("a decision").source()
}

/// Is refused by a quota until the key is blocked. Returns the number of refusals, and the duration of the block.
async fn refused_until_blocked(limiter: &RateLimiter, key: &str) -> (u32, Duration) {
    let mut refusals = 0;
    loop {
        let decision = limiter.check(key).await.expect("a decision");
        match decision.source() {
            Source::Block => {
                let status = limiter.admin().status(key).await.expect("a status");
                return (refusals, status.blocked_for.expect("a block"));
            }
            _ if !decision.is_allowed() => refusals += 1,
            _ => {}
        }
        assert!(refusals < 1_000, "never blocked");
    }
}

async fn reason(limiter: &RateLimiter, key: &str) -> Option<BlockReason> {
    let status = limiter.admin().status(key).await.expect("a status");
    status.block_reason
}

#[tokio::test]
async fn blocks_grow_and_the_growth_is_forgotten_after_a_quiet_time() {
    let clock = TestClock::new();
    let store = MemoryStore::with_clock(clock.clone());
    let limiter = RateLimiter::new(store, Quota::new(1, DAY)).block_after(GROWING);
    for (blocks, hours) in [(1, 1), (2, 2), (3, 4), (4, 4)] {
        assert_eq!(
            refused_until_blocked(&limiter, "ada").await,
            (3, hours * HOUR)
        );
        assert_eq!(
            reason(&limiter, "ada").await,
            Some(BlockReason::Refusals { blocks })
        );
        // Hammering while blocked counts nothing: afterwards, it takes as many refusals again.
        for _ in 0..50 {
            assert_eq!(source(&limiter, "ada").await, Source::Block);
        }
        clock.advance(hours * HOUR);
    }
    clock.advance(DAY);
    assert_eq!(refused_until_blocked(&limiter, "ada").await, (3, HOUR));
    clock.advance(HOUR + DAY - Duration::from_micros(1));
    assert_eq!(refused_until_blocked(&limiter, "ada").await, (3, 2 * HOUR));
    // Other keys are not affected.
    assert_eq!(refused_until_blocked(&limiter, "bob").await, (3, HOUR));
}

#[tokio::test]
async fn a_blocked_key_is_told_when_its_block_has_ended_and_its_quotas_admit_it() {
    let clock = TestClock::new();
    let store = MemoryStore::with_clock(clock.clone());
    for (block, told) in [(10 * SECOND, 50 * SECOND), (HOUR, HOUR)] {
        let limiter = RateLimiter::new(store.clone(), Quota::per_minute(1))
            .block_after(BlockRule::refusals(3).block_for(block));
        let limiter = limiter.name(format!("{block:?}"));
        let tree = [limiter.level("ada")];
        assert!(limiter.check("ada").await.expect("a decision").is_allowed());
        clock.advance(10 * SECOND);
        let _ = refused_until_blocked(&limiter, "ada").await;
        for decision in [
            limiter.check("ada").await.expect("a decision"),
            RateLimiter::check_all(tree).await.expect("a decision"),
        ] {
            assert_eq!(decision.source(), Source::Block);
            assert_eq!(decision.retry_after(), Some(told));
        }
        // What an operator says is told as it is said.
        let admin = limiter.admin();
        admin.block("bob", SECOND).await.expect("a block");
        let blocked = limiter.check("bob").await.expect("a decision");
        assert_eq!(blocked.retry_after(), Some(SECOND));
        // One microsecond earlier it is refused, be it by the block or by the quota.
        clock.advance(told - Duration::from_micros(1));
        let early = limiter.check("ada").await.expect("a decision");
        assert_eq!(early.retry_after(), Some(Duration::from_micros(1)));
        clock.advance(Duration::from_micros(1));
        assert!(limiter.check("ada").await.expect("a decision").is_allowed());
    }
}

#[tokio::test]
async fn refusals_that_are_further_apart_than_the_time_never_block() {
    let clock = TestClock::new();
    let store = MemoryStore::with_clock(clock.clone());
    let limiter = RateLimiter::new(store, Quota::new(1, DAY)).block_after(GROWING);
    let _ = limiter.check("ada").await.expect("a decision");
    for _ in 0..100 {
        assert_eq!(source(&limiter, "ada").await, Source::Memory);
        assert_eq!(source(&limiter, "ada").await, Source::Memory);
        clock.advance(MINUTE);
    }
    assert_eq!(reason(&limiter, "ada").await, None);
}

#[tokio::test]
async fn a_wait_in_vain_for_the_slot_of_a_tenant_blocks_no_user() {
    let store = MemoryStore::new();
    let wait = SECOND / 50;
    let user = RateLimiter::new(store.clone(), Quota::per_minute(1_000)).name("user");
    let user = user.block_after(AT_ONCE).max_wait(wait);
    let tenant = RateLimiter::new(store, Quota::in_flight(1)).name("tenant");
    let blocked_tenant = tenant.clone().block_after(AT_ONCE).max_wait(wait);
    let tenant = tenant.max_wait(wait);
    let _held = tenant.acquire("acme").await.expect("a permit");
    for _ in 0..4 {
        let levels = [user.level("ada"), tenant.level("acme")];
        let error = RateLimiter::acquire_all(levels).await.expect_err("no slot");
        assert_eq!(error.kind(), ErrorKind::MaxWait);
        assert!(error.to_string().contains("\"tenant\""), "{error}");
        assert_eq!(reason(&user, "ada").await, None);
    }
    let levels = [user.level("ada"), blocked_tenant.level("acme")];
    let error = RateLimiter::acquire_all(levels).await.expect_err("no slot");
    assert_eq!(error.kind(), ErrorKind::MaxWait);
    assert_eq!(reason(&user, "ada").await, None);
    let blocked = Some(BlockReason::Refusals { blocks: 1 });
    assert_eq!(reason(&blocked_tenant, "acme").await, blocked);
}

#[tokio::test(start_paused = true)]
async fn only_refusals_by_a_quota_that_a_wait_would_end_count() {
    let store = TestStore::new();
    let limiter = |name: &str, limit| {
        let limiter = RateLimiter::new(store.clone(), Quota::per_hour(limit));
        limiter.name(name).block_after(AT_ONCE)
    };
    let layer = |limiter: &RateLimiter| RateLimitLayer::from(limiter.clone()).key(by_path());

    let looked_at = limiter("cost 0", 0);
    let _ = looked_at.check_n("/ada", 0).await.expect("a decision");
    let _ = looked_at.peek("/ada").await.expect("a decision");
    assert_eq!(status(&layer(&looked_at).cost(|_| 0), "/ada").await, 429);

    let too_large = limiter("cost above the limit", 5);
    assert_eq!(status(&layer(&too_large).cost(|_| 6), "/ada").await, 429);
    assert!(too_large.check_n("/ada", 6).await.is_err());
    let nothing = limiter("limit 0", 0);
    assert_eq!(status(&layer(&nothing), "/ada").await, 429);

    let dry = limiter("dry run", 1);
    for _ in 0..3 {
        assert_eq!(status(&layer(&dry).dry_run(), "/ada").await, 200);
    }

    let keyless = limiter("no key", 1);
    let without_key = RateLimitLayer::from(keyless.clone()).key(key::header("x-api-key"));
    for _ in 0..3 {
        assert_eq!(status(&without_key, "/ada").await, 400);
    }

    let closed = limiter("closed", 1).on_failure(FailurePolicy::closed());
    let falls_back = limiter("falls back", 1).on_failure(FailurePolicy::fall_back());
    store.fail_all(ErrorKind::Unavailable);
    for _ in 0..3 {
        assert_eq!(status(&layer(&closed), "/ada").await, 503);
        let _ = falls_back.check("/ada").await.expect("a decision");
    }
    assert_eq!(source(&falls_back, "/ada").await, Source::Fallback);
    store.recover();
    store.clock().advance(HOUR);
    // The probe runs in the background.
    while limiter("probe", 1).check("/ada").await.is_err() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    // Refusals that were kept while the breaker was open would be sent now.
    tokio::time::sleep(3 * SECOND).await;
    for limiter in [
        looked_at, too_large, nothing, dry, keyless, closed, falls_back,
    ] {
        assert_eq!(reason(&limiter, "/ada").await, None, "{limiter:?}");
    }
    // The same way, a refusal that counts blocks.
    let counted = limiter("counted", 1);
    assert_eq!(status(&layer(&counted), "/ada").await, 200);
    assert_eq!(status(&layer(&counted), "/ada").await, 429);
    assert_eq!(
        reason(&counted, "/ada").await,
        Some(BlockReason::Refusals { blocks: 1 })
    );
    let waited = limiter("waited", 1);
    let _ = waited.check("/ada").await.expect("a decision");
    let _ = waited.until_ready("/ada", 1, SECOND).await;
    assert!(reason(&waited, "/ada").await.is_some());
}

#[tokio::test]
async fn the_key_of_each_level_that_refused_is_blocked_and_no_other() {
    let store = MemoryStore::new();
    let limiter = |name: &str, limit| {
        let limiter = RateLimiter::new(store.clone(), Quota::per_hour(limit));
        limiter.name(name).block_after(AT_ONCE)
    };
    let (user, tenant, service) = (limiter("user", 1), limiter("tenant", 2), limiter("all", 9));
    let layer = RateLimitLayer::from(user.clone())
        .key(by_path())
        .and(tenant.clone(), key::from_fn(|_| Some(Key::from("acme"))))
        .and(service.clone(), key::global());
    assert_eq!(status(&layer, "/ada").await, 200);
    assert_eq!(status(&layer, "/ada").await, 429);
    assert!(reason(&user, "/ada").await.is_some());
    assert_eq!(reason(&tenant, "acme").await, None);
    assert_eq!(status(&layer, "/bob").await, 200);
    // Both refuse.
    assert_eq!(status(&layer, "/bob").await, 429);
    assert!(reason(&user, "/bob").await.is_some() && reason(&tenant, "acme").await.is_some());
    assert_eq!(reason(&service, Key::global().as_str()).await, None);

    // The same without HTTP.
    let (user, tenant) = (limiter("user of jobs", 9), limiter("tenant of jobs", 1));
    for _ in 0..2 {
        let levels = [user.level("ada"), tenant.level("acme")];
        let _ = RateLimiter::check_all(levels).await.expect("a decision");
    }
    assert_eq!(reason(&user, "ada").await, None);
    assert!(reason(&tenant, "acme").await.is_some());
}

#[tokio::test]
async fn an_operator_sees_and_lifts_a_block_and_its_growth_is_forgotten() {
    let clock = TestClock::new();
    let store = MemoryStore::with_clock(clock.clone());
    let layer = RateLimitLayer::new(store, Quota::new(1, 300 * DAY))
        .name("before")
        .block_after(GROWING)
        // Named afterwards: the rule stays.
        .name("reports");
    let limiter = layer.limiter().clone();
    let admin = limiter.admin();
    for hours in [1, 2] {
        assert_eq!(refused_until_blocked(&limiter, "ada").await.1, hours * HOUR);
        clock.advance(hours * HOUR);
    }
    let _ = refused_until_blocked(&limiter, "ada").await;
    admin.block("bob", 9 * HOUR).await.expect("a block");
    let blocks = admin.blocked().await.expect("the blocks");
    let blocked = ["bob", "ada"].map(Key::from).into_iter();
    assert!(blocks.into_iter().eq(blocked.zip([9 * HOUR, 4 * HOUR])));
    let by_refusals = BlockReason::Refusals { blocks: 3 };
    assert_eq!(reason(&limiter, "ada").await, Some(by_refusals));
    assert_eq!(reason(&limiter, "bob").await, Some(BlockReason::Operator));

    admin.unblock("ada").await.expect("unblocked");
    assert_eq!(source(&limiter, "ada").await, Source::Memory);
    assert_eq!(reason(&limiter, "ada").await, None);
    // One refusal was counted by the check above.
    assert_eq!(refused_until_blocked(&limiter, "ada").await, (2, HOUR));

    // A block by an operator replaces an automatic one, also if it is shorter.
    admin.block("ada", MINUTE).await.expect("a block");
    assert_eq!(reason(&limiter, "ada").await, Some(BlockReason::Operator));
    clock.advance(MINUTE);
    assert_eq!(refused_until_blocked(&limiter, "ada").await, (3, HOUR));
}

#[tokio::test]
async fn refusals_by_the_old_plan_count_under_the_new_one_until_an_operator_unblocks_the_key() {
    for is_unblocked in [false, true] {
        let store = MemoryStore::with_clock(TestClock::new());
        let limiter = RateLimiter::new(store, Quota::per_day(1)).block_after(GROWING);
        let upgraded = Quota::per_day(2);
        let ask = async |plan: &Quota| {
            let level = limiter.level("acme").quotas(plan.clone());
            RateLimiter::check_all([level]).await.expect("a decision")
        };
        let old = limiter.quotas().iter().next().expect("a quota").clone();
        assert!(ask(&old).await.is_allowed());
        for _ in 0..2 {
            assert!(!ask(&old).await.is_allowed());
        }
        if is_unblocked {
            let admin = limiter.admin().quotas(upgraded.clone());
            admin.unblock("acme").await.expect("unblocked");
        }
        assert!(ask(&upgraded).await.is_allowed());
        assert!(!ask(&upgraded).await.is_allowed());
        assert_eq!(reason(&limiter, "acme").await.is_none(), is_unblocked);
    }
}

#[tokio::test]
async fn a_flood_of_invented_keys_does_not_end_the_growth_of_a_block() {
    const RULE: BlockRule = GROWING.block_for(Duration::from_secs(10)).max_block(HOUR);
    let clock = TestClock::new();
    let store = MemoryStore::with_clock(clock.clone());
    let limiter = RateLimiter::new(store, Quota::new(1, 10 * SECOND)).block_after(RULE);
    for seconds in [10, 20, 40] {
        let (_, block) = refused_until_blocked(&limiter, "ada").await;
        assert_eq!(block, seconds * SECOND);
        clock.advance(block);
    }
    for invented in 0..12_000 {
        // Before the list of blocks is full.
        if invented % 900 == 899 {
            clock.advance(10 * SECOND);
        }
        for _ in 0..4 {
            let _ = limiter.check(invented).await.expect("a decision");
        }
    }
    let (_, block) = refused_until_blocked(&limiter, "ada").await;
    assert_eq!(block, 80 * SECOND);
}

#[tokio::test]
async fn a_test_store_refuses_the_checks_of_the_test_and_not_those_that_count_refusals() {
    let store = TestStore::new();
    let limiter = RateLimiter::new(store.clone(), Quota::per_day(100)).block_after(GROWING);
    store.refuse_next(5, SECOND);
    assert_eq!(refused_until_blocked(&limiter, "ada").await, (3, HOUR));
    let received = store.take_checks();
    let checks = received.iter();
    // Three were refused, and two looks tell the status.
    assert!(
        checks
            .clone()
            .all(|check| *check.limiter() == Key::from("default"))
    );
    assert_eq!(checks.filter(|check| check.cost() == 1).count(), 3);
    store.refuse_all(SECOND);
    assert_eq!(refused_until_blocked(&limiter, "bob").await, (3, HOUR));
}

#[tokio::test]
async fn in_a_full_memory_store_nobody_is_blocked_for_the_refusals_of_others() {
    let store = MemoryStore::with_max_keys(1_000);
    // Each key is at its limit, so that none makes room.
    let filling = RateLimiter::new(store.clone(), Quota::per_day(1)).name("filling");
    for key in 0..2_000 {
        let _ = filling.check(key).await.expect("a decision");
    }
    let limiter = RateLimiter::new(store, Quota::per_day(1)).block_after(GROWING);
    for key in 0..500 {
        for _ in 0..3 {
            assert_eq!(source(&limiter, &format!("{key}")).await, Source::Memory);
        }
    }
    assert_eq!(limiter.admin().blocked().await.expect("a list"), []);
}

#[tokio::test]
async fn a_block_is_logged_once_without_its_key() {
    log::keep();
    let store = MemoryStore::new();
    let limiter = RateLimiter::new(store, Quota::per_hour(1)).name("search");
    let limiter = limiter.block_after(GROWING);
    let _ = refused_until_blocked(&limiter, "ada.lovelace").await;
    let _ = refused_until_blocked(&limiter, "ada.lovelace").await;
    let lines = log::all_kept();
    let of_blocks: Vec<_> = lines
        .iter()
        .filter(|line| line.contains("key blocked"))
        .collect();
    assert_eq!(of_blocks.len(), 1, "{lines:?}");
    let line = of_blocks[0];
    for part in [
        " INFO ",
        "tollgate::block:",
        "limiter=\"search\"",
        "key_alias=",
        "duration=3600",
        "blocks=1",
    ] {
        assert!(line.contains(part), "{line}");
    }
    assert!(!line.contains("lovelace"), "{line}");
}

#[tokio::test]
async fn a_flood_of_blocks_is_ten_lines_a_second_and_each_counts_those_left_out() {
    log::keep();
    let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_hour(1)).name("search");
    let limiter = limiter.block_after(AT_ONCE);
    let begin = Instant::now();
    for key in 0..900 {
        for _ in 0..2 {
            let _ = limiter.check(key).await.expect("a decision");
        }
    }
    // In the next second, a line counts the others.
    tokio::time::sleep(SECOND).await;
    let _ = refused_until_blocked(&limiter, "last").await;
    let seconds = usize::try_from(begin.elapsed().as_secs()).expect("few") + 2;
    let lines = log::all_kept();
    let at_info = lines.iter().filter(|line| line.contains("key blocked"));
    let at_info: Vec<_> = at_info.filter(|line| line.contains(" INFO ")).collect();
    let lines = at_info.len();
    assert!((11..=10 * seconds).contains(&lines), "{lines} lines");
    let left_out: usize = at_info.iter().map(|line| field(line, "left_out=")).sum();
    assert_eq!(lines + left_out, 901, "{at_info:?}");
}

fn field(line: &str, name: &str) -> usize {
    let (_, value) = line.split_once(name).expect(name);
    let digits: String = value.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

#[tokio::test]
async fn a_store_that_cannot_count_refusals_goes_on_and_is_logged_once() {
    log::keep();
    let limiter = RateLimiter::new(FakeStore::in_memory(), Quota::per_hour(1));
    let limiter = limiter.name("own").block_after(AT_ONCE);
    for _ in 0..10 {
        assert_eq!(source(&limiter, "ada").await, Source::Memory);
    }
    let lines = log::kept();
    let [line] = &lines[..] else {
        panic!("{lines:?}");
    };
    assert!(
        line.contains(
            "failed to count refusals, so no key is blocked automatically: this store cannot block keys"
        ),
        "{line}"
    );
    assert!(limiter.admin().blocked().await.expect("a list").is_empty());
}

/// A store that counts refusals a moment later, as a remote one does.
#[derive(Clone)]
struct Later {
    counts: MemoryStore,
    circuit_breaker: CircuitBreaker,
    /// The refusals that were sent, with the time.
    sent: Arc<Mutex<Vec<(tokio::time::Instant, u32)>>>,
    /// How many of the next counts of refusals fail.
    fails: Arc<AtomicU32>,
    /// Whether checks fail.
    is_down: Arc<AtomicBool>,
}

impl Later {
    fn new() -> Self {
        Self::on_clock(TestClock::new())
    }

    /// Its circuit breaker lives by a clock.
    fn on_clock(clock: TestClock) -> Self {
        Self {
            counts: MemoryStore::new(),
            circuit_breaker: CircuitBreaker::new().with_clock(clock),
            sent: Arc::default(),
            fails: Arc::default(),
            is_down: Arc::default(),
        }
    }

    /// Returns the refusals that were sent at each time since the last call.
    fn calls(&self) -> Vec<Vec<u32>> {
        let sent = std::mem::take(&mut *self.sent.lock().expect("nobody panics"));
        let calls = sent.chunk_by(|(time, _), (other, _)| time == other);
        calls
            .map(|call| call.iter().map(|(_, count)| *count).collect())
            .collect()
    }
}

impl Store for Later {
    fn id(&self) -> StoreId {
        self.counts.id()
    }

    fn check(&self, checks: &[Check<'_>]) -> StoreFuture {
        if self.is_down.load(Ordering::Relaxed) {
            let error = Error::new(ErrorKind::Unavailable, "down");
            return StoreFuture::ready(Err(error));
        }
        let Some(check) = checks
            .iter()
            .find(|check| check.limiter.as_str() == "blocks=default")
        else {
            return self.counts.check(checks);
        };
        if check.cost > 0 {
            let sent = (tokio::time::Instant::now(), check.cost);
            self.sent.lock().expect("nobody panics").push(sent);
        }
        let fails = self
            .fails
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |fails| {
                fails.checked_sub(1)
            });
        let answers = match fails {
            Ok(_) => Err(Error::new(ErrorKind::Timeout, "lost")),
            Err(_) => {
                let counted = self.counts.check(checks).try_ready();
                counted.expect("an answer at once")
            }
        };
        StoreFuture::boxed(async move {
            tokio::time::sleep(Duration::from_millis(1)).await;
            answers
        })
    }

    fn adjust(&self, adjust: Adjust<'_>) -> StoreFuture<()> {
        self.counts.adjust(adjust)
    }

    fn block(&self, block: Block<'_>) -> StoreFuture<bool> {
        self.counts.block(block)
    }

    fn parts(&self) -> StoreParts {
        let mut parts = self.counts.parts();
        parts.circuit_breaker = self.circuit_breaker.clone();
        parts
    }
}

#[tokio::test(start_paused = true)]
async fn refusals_are_sent_once_a_second_and_none_is_lost() {
    let store = Later::new();
    let limiter = RateLimiter::new(store.clone(), Quota::per_day(1));
    let limiter = limiter.block_after(BlockRule::refusals(1_000_000));
    for key in ["ada", "bob"] {
        let _ = limiter.check(key).await.expect("a decision");
    }
    for _ in 0..3_000 {
        for key in ["ada", "bob"] {
            assert_eq!(source(&limiter, key).await, Source::Memory);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::time::sleep(10 * SECOND).await;
    let calls = store.calls();
    assert!((4..=5).contains(&calls.len()), "{calls:?}");
    assert_eq!(calls[0], [1]);
    assert_eq!(calls.concat().iter().sum::<u32>(), 6_000);
    // Each of the other calls has both keys.
    assert!(calls[1..].iter().all(|call| call.len() == 2), "{calls:?}");
    // After a pause, a refusal is sent at once.
    let _ = limiter.check("ada").await.expect("a decision");
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(store.calls(), [[1]]);
    // The task ends with the limiter.
    drop(limiter);
    tokio::time::sleep(10 * SECOND).await;
    assert!(store.calls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn refusals_of_a_failed_call_are_not_sent_again_and_a_lasting_failure_is_logged() {
    log::keep();
    let store = Later::new();
    let limiter = RateLimiter::new(store.clone(), Quota::per_day(1));
    let limiter = limiter.block_after(BlockRule::refusals(5));
    let refuse = async |refusals: u32| {
        for _ in 0..refusals {
            assert_eq!(source(&limiter, "ada").await, Source::Memory);
        }
        tokio::time::sleep(10 * SECOND).await;
    };
    let _ = limiter.check("ada").await.expect("a decision");
    store.fails.store(3, Ordering::Relaxed);
    for _ in 0..3 {
        refuse(1).await;
    }
    assert_eq!(store.calls(), [[1], [1], [1]]);
    let lines = log::kept();
    assert_eq!(lines.len(), 1, "{lines:?}");
    for part in ["WARN", "failed to count refusals", "tollgate::W019"] {
        assert!(lines[0].contains(part), "{lines:?}");
    }
    refuse(4).await;
    assert_eq!(reason(&limiter, "ada").await, None);
    let lines = log::kept();
    assert!(
        lines.len() == 1 && lines[0].contains("refusals are counted again"),
        "{lines:?}"
    );
    refuse(1).await;
    assert!(limiter.admin().blocked().await.expect("a list").len() == 1);
}

#[tokio::test(start_paused = true)]
async fn refusals_are_kept_while_the_breaker_is_open_and_sent_when_it_has_closed() {
    let clock = TestClock::new();
    let store = Later::on_clock(clock.clone());
    let limiter = RateLimiter::new(store.clone(), Quota::per_day(1));
    let limiter = limiter.block_after(BlockRule::refusals(5));
    let _ = limiter.check("ada").await.expect("a decision");
    for _ in 0..4 {
        assert_eq!(source(&limiter, "ada").await, Source::Memory);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(store.calls(), [[1]]);
    store.is_down.store(true, Ordering::Relaxed);
    for _ in 0..50 {
        assert!(limiter.check("ada").await.is_err());
    }
    tokio::time::sleep(30 * SECOND).await;
    assert!(store.calls().is_empty());
    store.is_down.store(false, Ordering::Relaxed);
    clock.advance(MINUTE);
    while limiter.check_n("ada", 0).await.is_err() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!(store.calls(), [[3]]);
    let _ = limiter.check("ada").await.expect("a decision");
    tokio::time::sleep(2 * SECOND).await;
    assert_eq!(source(&limiter, "ada").await, Source::Block);
}

#[test]
fn limiters_on_several_threads_block_a_key_once() {
    let store = MemoryStore::new();
    let limiter = || RateLimiter::new(store.clone(), Quota::per_day(1)).block_after(GROWING);
    for key in 0..50 {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let limiter = limiter();
                    for _ in 0..20 {
                        // No runtime is needed: the store answers at once.
                        let _ = limiter.check(key).now_or_never().expect("at once");
                    }
                });
            }
        });
        let admin = limiter().admin();
        let status = admin.status(key).now_or_never().expect("at once");
        let reason = status.expect("a status").block_reason;
        assert_eq!(reason, Some(BlockReason::Refusals { blocks: 1 }));
    }
}
