//! Checks of several keys, decided by one call on a single server and slot by slot on a cluster.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tollgate::{
    Algorithm, Decision, Key, LevelCheck, Quota, RateLimiter, RedisStore, Source, Store,
};

use crate::refusing;
use crate::support::cases::some_or_all;
use crate::support::costs::{calls, forget_calls};
use crate::support::redis_server::RedisServer;
use crate::support::store_on;
use crate::support::stored::name_of;

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
            self.user.level(user),
            self.tenant.level(tenant),
            self.service.level(Key::global()),
        ]
    }

    async fn check(&self, user: &str, tenant: &str) -> Decision {
        RateLimiter::check_all(self.levels(user, tenant))
            .await
            .unwrap()
    }
}

const HOUR: Duration = Duration::from_secs(3_600);

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
fn states_to_see() -> usize {
    some_or_all(600, 2_000)
}

const PAIR_WINDOW: Duration = Duration::from_secs(8_000 * 3_600);

/// A user and a tenant with equal quotas, of each algorithm whose count is one value. Their values are equal if both
/// were charged by the same checks.
fn pairs(store: &RedisStore) -> Vec<[RateLimiter; 2]> {
    let algorithms = Algorithm::ALL.iter().copied();
    let in_values = algorithms.filter(|algorithm| *algorithm != Algorithm::SortedSetLog);
    let pair = |(index, algorithm): (usize, Algorithm)| {
        // With gcra, each key gets a unit back in five minutes, and two keys get two.
        let quota = Quota::new(100_000, PAIR_WINDOW).with_algorithm(algorithm);
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
                let levels = [user.level(*user_of_turn), tenant.level("acme")];
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
        while states < states_to_see() {
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
        while states < states_to_see() {
            let levels = looking.iter().flat_map(|[user, tenant]| {
                [
                    user.level(USERS[0]),
                    user.level(USERS[1]),
                    tenant.level("acme"),
                ]
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

#[tokio::test]
async fn the_levels_of_a_request_are_read_in_one_call() {
    let server = RedisServer::start();
    let tree = Tree::new(&store_on(&server), HOUR);
    let levels = || [tree.user.level("ada"), tree.tenant.level("acme")];
    assert!(RateLimiter::peek_all(levels()).await.is_ok());
    let mut connection = server.connect();
    forget_calls(&mut connection);
    let status = RateLimiter::peek_all(levels()).await.unwrap();
    assert_eq!(status.view.levels().len(), 2);
    let calls = calls(&mut connection);
    assert_eq!(calls.get("evalsha"), Some(&1), "{calls:?}");
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
async fn all_levels_are_settled_also_at_the_same_time() {
    let server = RedisServer::start();
    let tree = Arc::new(Tree::new(&store_on(&server), HOUR));
    for _ in 0..40 {
        let decision = tree.check("ada", "acme").await;
        assert!(decision.is_allowed());
        decision.settle(0).await.unwrap();
    }
    assert_eq!(used(&tree).await, [0, 0, 0]);
    let settling = (0..15_u32).map(|number| {
        let tree = Arc::clone(&tree);
        tokio::spawn(async move {
            let decision = tree.check("ada", "acme").await;
            assert!(decision.is_allowed());
            decision.settle(number % 2).await.unwrap();
        })
    });
    for settled in settling.collect::<Vec<_>>() {
        settled.await.unwrap();
    }
    assert_eq!(used(&tree).await, [7, 7, 7]);
    // More is charged at each level, also beyond the limit of the tenant.
    let decision = tree.check("ada", "acme").await;
    decision.settle(20).await.unwrap();
    assert_eq!(used(&tree).await, [27, 27, 27]);
}

#[tokio::test]
async fn all_levels_in_other_slots_of_a_cluster_are_settled() {
    let server = RedisServer::start_cluster();
    let store = store_on(&server).by_slot();
    let tree = Tree::new(&store, HOUR);
    for _ in 0..40 {
        let decision = tree.check("ada", "acme").await;
        assert!(decision.is_allowed());
        decision.settle(0).await.unwrap();
    }
    let decision = tree.check("ada", "acme").await;
    decision.settle(3).await.unwrap();
    assert_eq!(used(&tree).await, [3, 3, 3]);
}

#[tokio::test]
async fn levels_of_a_server_that_is_gone_are_named_in_one_error() {
    let mut server = RedisServer::start();
    let tree = Tree::new(&store_on(&server), HOUR);
    let decision = tree.check("ada", "acme").await;
    server.kill();
    let error = decision.settle(0).await.unwrap_err();
    let text = error.to_string();
    let start = r#"failed to settle the levels ["user", "tenant", "service"]: "#;
    assert!(text.starts_with(start), "{text}");
    assert!(
        error.kind() == tollgate::ErrorKind::Unavailable,
        "{error:?}"
    );
}
