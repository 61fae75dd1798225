//! Checks of several keys, decided by one call on a single server and slot by slot on a cluster.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use tollgate::{
    Algorithm, Decision, Key, LevelCheck, Quota, RateLimiter, RedisStore, Source, Store,
};

use crate::support::costs::{calls, forget_calls};
use crate::support::redis_server::RedisServer;
use crate::support::store_on;
use crate::support::stored::name_of;
use crate::support::test_time::TestTime;

struct Tree {
    user: RateLimiter,
    tenant: RateLimiter,
    service: RateLimiter,
}

impl Tree {
    /// Limits of 50, 20 and 30 units.
    fn new(store: &(impl Store + Clone), window: Duration) -> Self {
        let limiter = |name: &'static str, limit| {
            RateLimiter::new(store.clone(), Quota::new(limit, window)).name(name)
        };
        Self {
            user: limiter("user", 50),
            tenant: limiter("tenant", 20),
            service: limiter("service", 30),
        }
    }

    fn levels(&self, user: &str, tenant: &str) -> [LevelCheck<'_>; 3] {
        [
            self.user.on(user),
            self.tenant.on(tenant),
            self.service.on(Key::global()),
        ]
    }

    async fn check(&self, user: &str, tenant: &str) -> Decision {
        RateLimiter::check_all(self.levels(user, tenant))
            .await
            .unwrap()
    }
}

const HOUR: Duration = Duration::from_secs(3_600);

fn refusing(decision: &Decision) -> Vec<&str> {
    let levels = decision.levels();
    let refusing = levels.filter(|level| level.is_asked() && !level.is_allowed());
    refusing.map(|level| level.limiter()).collect()
}

/// A check: how long to wait before it, and of each level the limiter, the key and the cost.
type Step = (u64, Vec<(usize, usize, u32)>);

#[test]
fn random_trees_are_decided_as_in_memory_and_refused_checks_are_charged_nowhere() {
    let server = RedisServer::start();
    let quota = (1_u32..8, 10_u64..200, 0_usize..Algorithm::ALL.len());
    let quotas = proptest::collection::vec(proptest::collection::vec(quota, 1..3), 3);
    let level = (0_usize..3, 0_usize..2, 0_u32..3);
    let step = (0_u64..60_000, proptest::collection::vec(level, 1..6));
    let steps = proptest::collection::vec(step, 1..20);
    let random = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(Config::with_cases(25), random);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let tested = runner.run(&(quotas, steps), |(quotas, steps)| {
        let limiters = |store: &dyn Fn(&str, Vec<Quota>) -> RateLimiter| -> Vec<RateLimiter> {
            let quota = |(limit, millis, algorithm): &(u32, u64, usize)| {
                let algorithm = Algorithm::ALL[*algorithm];
                Quota::new(*limit, Duration::from_millis(*millis)).with_algorithm(algorithm)
            };
            let names = ["user", "tenant", "service"].into_iter();
            let lists = quotas.iter().map(|list| list.iter().map(quota).collect());
            names
                .zip(lists)
                .map(|(name, list)| store(name, list))
                .collect()
        };
        let mut time = TestTime::new(&server);
        let (memory, redis) = (
            time.memory.clone(),
            time.redis.fork().refusal_cache(Duration::ZERO),
        );
        let memory = limiters(&|name, list| RateLimiter::new(memory.clone(), list).name(name));
        let redis = limiters(&|name, list| RateLimiter::new(redis.clone(), list).name(name));
        runtime.block_on(compare(&mut time, [&memory, &redis], &steps));
        Ok(())
    });
    tested.unwrap();
}

async fn compare(time: &mut TestTime, limiters: [&[RateLimiter]; 2], steps: &[Step]) {
    const KEYS: [&str; 2] = ["ada", "bob"];
    for (wait, levels) in steps {
        time.advance(Duration::from_micros(*wait));
        let mut distinct = levels.clone();
        distinct.sort_unstable();
        distinct.dedup_by_key(|(limiter, key, _)| (*limiter, *key));
        let mut seen = Vec::new();
        for limiters in limiters {
            let levels = distinct
                .iter()
                .map(|(limiter, key, cost)| limiters[*limiter].on(KEYS[*key]).cost(*cost));
            let checked = RateLimiter::check_all(levels).await;
            let checked = checked.map_err(|error| error.kind()).map(|decision| {
                let quotas = decision.quotas();
                let numbers: Vec<_> = quotas
                    .map(|quota| (quota.used(), quota.retry_after(), quota.reset_after()))
                    .collect();
                (decision.is_allowed(), decision.limit(), numbers)
            });
            let mut used = Vec::new();
            for limiter in limiters {
                for key in KEYS {
                    let counted = limiter.peek(key).await.unwrap();
                    used.extend(counted.quotas().map(|quota| quota.used()));
                }
            }
            seen.push((checked, used));
        }
        assert_eq!(seen[0], seen[1], "{distinct:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_in_between_never_sees_a_charge_of_a_refused_check() {
    let server = RedisServer::start();
    let store = store_on(&server).refusal_cache(Duration::ZERO);
    let tree = Arc::new(Tree::new(&store, HOUR));
    let _ = tree.tenant.check_n("acme", 20).await.unwrap();
    let is_done = Arc::new(AtomicBool::new(false));
    let mut connection = server.connect();
    let reader = std::thread::spawn({
        let is_done = Arc::clone(&is_done);
        move || {
            let all_of_tenant = (0..500).all(|_| {
                let keys: redis::RedisResult<Vec<String>> =
                    redis::cmd("KEYS").arg("*").query(&mut connection);
                keys.is_ok_and(|keys| keys.iter().all(|key| key.contains("tenant")))
            });
            is_done.store(true, Ordering::Relaxed);
            all_of_tenant
        }
    });
    let checks = (0..8).map(|task| {
        let (tree, is_done) = (Arc::clone(&tree), Arc::clone(&is_done));
        tokio::spawn(async move {
            let mut refusals = 0;
            while refusals < 200 || !is_done.load(Ordering::Relaxed) {
                let refused = tree.check(&format!("user{task}"), "acme").await;
                assert_eq!(refusing(&refused), ["tenant"]);
                refusals += 1;
            }
        })
    });
    for check in checks.collect::<Vec<_>>() {
        check.await.unwrap();
    }
    assert!(reader.join().unwrap(), "a user was charged");
}

/// A reader ends when it has seen this number of states.
const STATES: usize = 2_000;

const PAIR_WINDOW: Duration = Duration::from_secs(8_000 * 3_600);

/// A user and a tenant with equal quotas, of each algorithm whose count is one value. Their values are equal if both
/// were charged by the same checks.
fn pairs(store: &RedisStore) -> Vec<[RateLimiter; 2]> {
    let algorithms = Algorithm::ALL.iter().copied();
    let in_values = algorithms.filter(|algorithm| *algorithm != Algorithm::SortedSetLog);
    let pair = |(index, algorithm): (usize, Algorithm)| {
        let quota = Quota::new(1_000_000, PAIR_WINDOW).with_algorithm(algorithm);
        ["user", "tenant"].map(|name| {
            let limiter = RateLimiter::new(store.clone(), quota.clone());
            limiter.name(format!("{name}{index}"))
        })
    };
    in_values.enumerate().map(pair).collect()
}

/// Runs a reader beside sixteen tasks that check. Returns the reader's result.
async fn read_under_load<T: Send + 'static>(
    pairs: &[[RateLimiter; 2]],
    users: &'static [&'static str],
    reader: impl FnOnce() -> T + Send + 'static,
) -> T {
    let is_done = Arc::new(AtomicBool::new(false));
    let tasks = (0..16).map(|task: usize| {
        let [user, tenant] = pairs[task % pairs.len()].clone();
        let is_done = Arc::clone(&is_done);
        tokio::spawn(async move {
            for user_of_turn in users.iter().cycle() {
                let levels = [user.on(*user_of_turn), tenant.on("acme")];
                let checked = RateLimiter::check_all(levels).await.unwrap();
                assert!(checked.is_allowed());
                if is_done.load(Ordering::Relaxed) {
                    return;
                }
            }
        })
    });
    let tasks: Vec<_> = tasks.collect();
    let read = tokio::task::spawn_blocking(reader).await;
    is_done.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap();
    }
    read.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_of_the_stored_values_never_sees_one_level_charged_without_the_other() {
    let server = RedisServer::start();
    let pairs = pairs(&store_on(&server));
    let mut get = redis::cmd("MGET");
    for (index, [user, _]) in pairs.iter().enumerate() {
        let algorithm = user.quotas().iter().next().unwrap().algorithm();
        for tag in [
            format!("{{user{index},ada}}"),
            format!("{{tenant{index},acme}}"),
        ] {
            get.arg(name_of(&tag, algorithm, PAIR_WINDOW));
        }
    }
    let mut connection = server.connect();
    read_under_load(&pairs, &["ada"], move || {
        let (mut before, mut states) = (Vec::new(), 0);
        while states < STATES {
            let values: Vec<Option<Vec<u8>>> = get.query(&mut connection).unwrap();
            for pair in values.chunks(2) {
                assert_eq!(pair[0], pair[1]);
            }
            states += usize::from(values != before && values.iter().all(Option::is_some));
            before = values;
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_check_of_cost_0_in_between_never_sees_one_level_charged_without_the_other() {
    const USERS: [&str; 2] = ["ada", "bob"];
    let server = RedisServer::start();
    let runtime = tokio::runtime::Handle::current();
    let looking = pairs(&store_on(&server));
    read_under_load(&pairs(&store_on(&server)), &USERS, move || {
        let (mut before, mut states) = (Vec::new(), 0);
        while states < STATES {
            let levels = looking.iter().flat_map(|[user, tenant]| {
                [user.on(USERS[0]), user.on(USERS[1]), tenant.on("acme")]
            });
            let looks = levels.map(|level| level.cost(0));
            let looked = runtime.block_on(RateLimiter::check_all(looks)).unwrap();
            let used: Vec<u32> = looked.quotas().map(|quota| quota.used()).collect();
            for counts in used.chunks(3) {
                assert_eq!(counts[0] + counts[1], counts[2], "{used:?}");
            }
            states += usize::from(used != before);
            before = used;
        }
    })
    .await;
}

#[tokio::test]
async fn a_level_that_is_remembered_as_refused_refuses_others_without_asking_redis() {
    let server = RedisServer::start();
    let tree = Tree::new(&store_on(&server), HOUR);
    let _ = tree.tenant.check_n("acme", 20).await.unwrap();
    let asked = tree.check("ada", "acme").await;
    assert_eq!(
        (refusing(&asked), asked.source()),
        (vec!["tenant"], Source::Redis)
    );
    let mut connection = server.connect();
    forget_calls(&mut connection);
    for user in ["ada", "bob", "cem"] {
        let refused = tree.check(user, "acme").await;
        assert_eq!(refused.source(), Source::RefusalCache);
        assert_eq!(refusing(&refused), ["tenant"]);
        assert!(refused.retry_after() <= asked.retry_after());
    }
    assert!(calls(&mut connection).is_empty());
    assert!(tree.check("ada", "bolt").await.is_allowed());
    let calls = calls(&mut connection);
    assert_eq!(calls.get("evalsha"), Some(&1), "{calls:?}");
}

#[tokio::test]
async fn the_levels_of_one_check_take_one_call() {
    let server = RedisServer::start();
    let tree = Tree::new(&store_on(&server), HOUR);
    assert!(tree.check("ada", "acme").await.is_allowed());
    let mut connection = server.connect();
    forget_calls(&mut connection);
    assert!(tree.check("ada", "acme").await.is_allowed());
    assert_eq!(calls(&mut connection).get("evalsha"), Some(&1));
}

/// Checks by many tasks. Returns the admitted ones.
async fn race(tree: &Arc<Tree>) -> u32 {
    let checks = (0..16).map(|task| {
        let tree = Arc::clone(tree);
        tokio::spawn(async move {
            let (user, mut admitted) = (format!("user{}", task % 4), 0);
            for check in 0..10 {
                let tenant = ["acme", "bolt"][check % 2];
                admitted += u32::from(tree.check(&user, tenant).await.is_allowed());
            }
            admitted
        })
    });
    let mut admitted = 0;
    for check in checks.collect::<Vec<_>>() {
        admitted += check.await.unwrap();
    }
    admitted
}

/// The units of each key, by level.
async fn counted(tree: &Tree) -> [Vec<u32>; 3] {
    let used = async |limiter: &RateLimiter, keys: &[&str]| {
        let mut used = Vec::new();
        for key in keys {
            used.push(limiter.peek(*key).await.unwrap().used());
        }
        used
    };
    let service = tree.service.peek(Key::global()).await.unwrap().used();
    [
        used(&tree.user, &["user0", "user1", "user2", "user3"]).await,
        used(&tree.tenant, &["acme", "bolt"]).await,
        vec![service],
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_tasks_are_admitted_exactly_the_limit_of_the_bottleneck() {
    let server = RedisServer::start();
    let tree = Arc::new(Tree::new(&store_on(&server), HOUR));
    assert_eq!(race(&tree).await, 30);
    for level in counted(&tree).await {
        assert_eq!(level.iter().sum::<u32>(), 30);
    }
}

/// A cluster of one server: the keys of a tree are in several slots.
fn on_cluster(server: &RedisServer) -> RedisStore {
    store_on(server).refusal_cache(Duration::ZERO)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_cluster_no_limit_is_exceeded_and_nothing_stays_charged() {
    let server = RedisServer::start_cluster();
    let tree = Arc::new(Tree::new(&on_cluster(&server), HOUR));
    let admitted = race(&tree).await;
    assert!(admitted <= 30, "{admitted}");
    for level in counted(&tree).await {
        assert_eq!(level.iter().sum::<u32>(), admitted);
    }
    // Alone, nothing is in passing.
    let mut more = 0;
    while tree.check("user0", "acme").await.is_allowed()
        || tree.check("user1", "bolt").await.is_allowed()
    {
        more += 1;
    }
    assert!(more <= 30 - admitted);
    for level in counted(&tree).await {
        assert_eq!(level.iter().sum::<u32>(), 30);
    }
}

#[tokio::test]
async fn a_store_that_learns_of_the_cluster_from_a_check_decides_that_check() {
    let server = RedisServer::start_cluster();
    let tree = Tree::new(&on_cluster(&server), HOUR);
    let first = tree.check("ada", "acme").await;
    assert!(first.is_allowed());
    for level in first.levels() {
        assert_eq!(level.source(), Source::Redis);
    }
    let _ = tree.service.check_n(Key::global(), 29).await.unwrap();
    assert_eq!(refusing(&tree.check("ada", "acme").await), ["service"]);
    assert_eq!(tree.user.peek("ada").await.unwrap().used(), 1);
    assert_eq!(tree.tenant.peek("acme").await.unwrap().used(), 1);
}

/// The units of user, tenant and service.
async fn used(tree: &Tree) -> [u32; 3] {
    [
        crate::used(&tree.user, "ada").await,
        crate::used(&tree.tenant, "acme").await,
        crate::used(&tree.service, Key::global()).await,
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_levels_are_settled_by_one_limiter_also_at_the_same_time() {
    let server = RedisServer::start();
    let tree = Arc::new(Tree::new(&store_on(&server), HOUR));
    for _ in 0..40 {
        let decision = tree.check("ada", "acme").await;
        assert!(decision.is_allowed());
        tree.tenant.settle_all(decision, 0).await.unwrap();
    }
    assert_eq!(used(&tree).await, [0, 0, 0]);
    let settling = (0..15_u32).map(|number| {
        let tree = Arc::clone(&tree);
        tokio::spawn(async move {
            let decision = tree.check("ada", "acme").await;
            assert!(decision.is_allowed());
            let limiters = [&tree.user, &tree.tenant, &tree.service];
            let by = limiters[number as usize % 3];
            by.settle_all(decision, number % 2).await.unwrap();
        })
    });
    for settled in settling.collect::<Vec<_>>() {
        settled.await.unwrap();
    }
    assert_eq!(used(&tree).await, [7, 7, 7]);
    // More is charged at each level, as far as there is room.
    let decision = tree.check("ada", "acme").await;
    tree.user.settle_all(decision, 20).await.unwrap();
    assert_eq!(used(&tree).await, [27, 20, 27]);
}

#[tokio::test]
async fn all_levels_in_other_slots_of_a_cluster_are_settled() {
    let server = RedisServer::start_cluster();
    let store = store_on(&server).by_slot();
    let tree = Tree::new(&store, HOUR);
    for _ in 0..40 {
        let decision = tree.check("ada", "acme").await;
        assert!(decision.is_allowed());
        tree.service.settle_all(decision, 0).await.unwrap();
    }
    let decision = tree.check("ada", "acme").await;
    tree.service.settle_all(decision, 3).await.unwrap();
    assert_eq!(used(&tree).await, [3, 3, 3]);
}

#[tokio::test]
async fn levels_of_a_server_that_is_gone_are_named_in_one_error() {
    let mut server = RedisServer::start();
    let tree = Tree::new(&store_on(&server), HOUR);
    let decision = tree.check("ada", "acme").await;
    server.kill();
    let error = tree.tenant.settle_all(decision, 0).await.unwrap_err();
    let text = error.to_string();
    let start = r#"failed to settle the levels ["user", "tenant", "service"]: "#;
    assert!(text.starts_with(start), "{text}");
    assert!(
        error.kind() == tollgate::ErrorKind::Unavailable,
        "{error:?}"
    );
}
