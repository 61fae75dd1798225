//! Hash tags by the first part of a key: a tenant and its users are in one slot of a cluster.

use std::collections::HashSet;
use std::num::NonZeroU16;
use std::time::Duration;

use tollgate::key::{self, KeyExtractor};
use tollgate::store::HashTags;
use tollgate::store::Store;
use tollgate::store::protocol::Subject;
use tollgate::{Decision, Key, LevelCheck, Quota, Quotas, RateLimiter, RedisStore, Source};

use crate::support::costs::{algorithms, calls, forget_calls};
use crate::support::redis_server::RedisServer;
use crate::support::store_on;

const HOUR: Duration = Duration::from_secs(3_600);
const TAGS: NonZeroU16 = NonZeroU16::new(48).unwrap();

/// The extractors of a tenant and of its users.
type Extractors = (key::Header, (key::Header, key::Header));

/// Extractors whose keys are stored as they are, and extractors whose joined keys are hashed, since they are
/// longer than 64 bytes.
fn extractors() -> [Extractors; 2] {
    let [tenant, user] = ["t", "u"].map(key::header);
    let short = (
        tenant.clone().plain(),
        (tenant.clone().plain(), user.clone().plain()),
    );
    [short, (tenant.clone(), (tenant, user))]
}

/// The keys that a request of a user has.
fn keys((tenant, user): &Extractors, name_of_tenant: &str, name_of_user: &str) -> [Key; 2] {
    let request = http::Request::get("/")
        .header("t", name_of_tenant)
        .header("u", name_of_user);
    let (parts, ()) = request.body(()).unwrap().into_parts();
    [
        user.extract(&parts).unwrap(),
        tenant.extract(&parts).unwrap(),
    ]
}

struct Tree {
    user: RateLimiter,
    tenant: RateLimiter,
    service: RateLimiter,
}

impl Tree {
    /// Limits of 50, 20 and 10 units.
    fn new(store: &RedisStore) -> Self {
        let limiter = |name: &'static str, limit| {
            RateLimiter::new(store.clone(), Quota::new(limit, HOUR)).name(name)
        };
        Self {
            user: limiter("user", 50),
            tenant: limiter("tenant", 20),
            service: limiter("service", 10),
        }
    }

    fn levels(&self, [user, tenant]: &[Key; 2]) -> [LevelCheck<'_>; 2] {
        [self.user.level(user), self.tenant.level(tenant)]
    }

    async fn check(&self, keys: &[Key; 2]) -> Decision {
        let levels = self.levels(keys);
        RateLimiter::check_all(levels).await.unwrap()
    }

    async fn check_with_service(&self, keys: &[Key; 2]) -> Decision {
        let [user, tenant] = self.levels(keys);
        let levels = [user, tenant, self.service.level(Key::global())];
        RateLimiter::check_all(levels).await.unwrap()
    }

    async fn used(&self, [user, tenant]: &[Key; 2]) -> [u32; 2] {
        [
            self.user.peek(user).await.unwrap().used(),
            self.tenant.peek(tenant).await.unwrap().used(),
        ]
    }
}

/// A cluster of one server, and a store that knows it as a cluster.
async fn start(configure: impl FnOnce(RedisStore) -> RedisStore) -> (RedisServer, RedisStore) {
    let server = RedisServer::start_cluster();
    let store = configure(store_on(&server).refusal_cache(Duration::ZERO));
    // A call with keys of several slots tells the store that this is a cluster.
    let first = Tree::new(&store);
    let keys = [Key::from("nobody"), Key::from("nowhere")];
    assert!(first.check_with_service(&keys).await.is_allowed());
    first.service.admin().reset(Key::global()).await.unwrap();
    (server, store)
}

/// The calls of one check by one user of a tenant.
async fn calls_of_a_check(
    configure: impl FnOnce(RedisStore) -> RedisStore,
    extractors: &Extractors,
) -> u64 {
    let (server, store) = start(configure).await;
    let tree = Tree::new(&store);
    let mut connection = server.connect();
    forget_calls(&mut connection);
    assert!(
        tree.check(&keys(extractors, "acme", "ada"))
            .await
            .is_allowed()
    );
    calls(&mut connection).get("evalsha").copied().unwrap_or(0)
}

#[tokio::test]
async fn a_user_and_its_tenant_are_decided_by_one_call_on_a_cluster() {
    for extractors in extractors() {
        let by_prefix = |store: RedisStore| store.hash_tags(HashTags::ByPrefix(TAGS));
        assert_eq!(calls_of_a_check(by_prefix, &extractors).await, 1);
        assert_eq!(calls_of_a_check(|store| store, &extractors).await, 2);
    }
}

#[tokio::test]
async fn a_store_that_does_not_know_of_the_cluster_decides_a_tenant_by_one_call_too() {
    let server = RedisServer::start_cluster();
    for extractors in extractors() {
        let store = store_on(&server).hash_tags(HashTags::ByPrefix(TAGS));
        let tree = Tree::new(&store);
        let keys = keys(&extractors, "acme", "ada");
        let _ = tree.user.peek("nobody").await.unwrap();
        let mut connection = server.connect();
        forget_calls(&mut connection);
        assert!(tree.check(&keys).await.is_allowed());
        assert_eq!(calls(&mut connection).get("evalsha"), Some(&1));
        assert_eq!(tree.used(&keys).await, [1, 1]);
    }
}

#[tokio::test]
async fn a_full_tenant_refuses_its_users_and_charges_no_other_tenant() {
    let (_server, store) = start(|store| store.hash_tags(HashTags::ByPrefix(TAGS))).await;
    let tree = Tree::new(&store);
    for extractors in extractors() {
        let mut admitted = 0;
        for request in 0..30 {
            let user = format!("user{}", request % 3);
            let decision = tree.check(&keys(&extractors, "acme", &user)).await;
            admitted += u32::from(decision.is_allowed());
        }
        assert_eq!(admitted, 20);
        let used = tree.used(&keys(&extractors, "acme", "user0")).await;
        assert_eq!(used, [7, 20]);
        let other = keys(&extractors, "bolt", "user0");
        assert_eq!(tree.used(&other).await, [0, 0]);
        assert!(tree.check(&other).await.is_allowed());
    }
}

#[tokio::test]
async fn a_level_in_another_slot_is_asked_in_turn_and_its_refusal_refunds_user_and_tenant() {
    let (server, store) = start(|store| store.hash_tags(HashTags::ByPrefix(TAGS))).await;
    let tree = Tree::new(&store);
    let keys = keys(&extractors()[1], "acme", "ada");
    let (limiter, quotas) = (Key::from("any"), Quotas::from(Quota::per_hour(1)));
    let group = |key: &Key| store.atomic_group(Subject::new(&limiter, key, &quotas));
    assert_eq!(group(&keys[0]), group(&keys[1]));
    assert_ne!(group(&keys[1]), group(&Key::global()));
    let mut connection = server.connect();
    forget_calls(&mut connection);
    assert!(tree.check_with_service(&keys).await.is_allowed());
    assert_eq!(calls(&mut connection).get("evalsha"), Some(&2));
    let _ = tree.service.check_n(Key::global(), 9).await.unwrap();
    let refused = tree.check_with_service(&keys).await;
    assert!(!refused.is_allowed());
    assert_eq!(tree.used(&keys).await, [1, 1]);
    // If the tenant refuses, the service is not asked.
    let _ = tree.tenant.check_n(&keys[1], 19).await.unwrap();
    let refused = tree.check_with_service(&keys).await;
    let asked: Vec<bool> = refused.levels().map(|level| level.is_asked()).collect();
    assert_eq!(asked, [true, true, false]);
    assert_eq!(tree.used(&keys).await, [1, 20]);
}

#[tokio::test]
async fn a_key_that_an_operator_builds_or_reads_is_the_key_that_is_counted() {
    let (server, store) = start(|store| store.hash_tags(HashTags::ByPrefix(TAGS))).await;
    let tree = Tree::new(&store);
    // Another process.
    let tool = Tree::new(&store_on(&server).hash_tags(HashTags::ByPrefix(TAGS)));
    for extractors in extractors() {
        let keys = keys(&extractors, "acme", "ada");
        let (tenant, (_, user)) = &extractors;
        let built = tenant.of("acme").and(user.of("ada"));
        let read = Key::from_stored(keys[0].as_str()).unwrap();
        for (number, key) in (1..).zip([built, read]) {
            let admin = tool.user.admin();
            for _ in 0..4 {
                assert!(tree.check(&keys).await.is_allowed());
            }
            assert_eq!(admin.status(&key).await.unwrap().view.used(), 4);
            admin.credit(&key, 3).await.unwrap();
            assert_eq!(tree.used(&keys).await, [1, 4 * number]);
            admin.reset(&key).await.unwrap();
            assert_eq!(tree.used(&keys).await, [0, 4 * number]);

            let admin = tree.user.admin();
            admin.block(&key, HOUR).await.unwrap();
            let refused = tree.check(&keys).await;
            assert!(!refused.is_allowed());
            let mut levels = refused.levels();
            assert_eq!(levels.next().unwrap().source(), Source::Block);
            let blocked = admin.blocked().await.unwrap();
            assert_eq!(blocked[0].0, keys[0]);
            admin.unblock(&blocked[0].0).await.unwrap();
            assert_eq!(tree.used(&keys).await, [0, 4 * number]);
        }
        tree.tenant.admin().reset(&keys[1]).await.unwrap();
    }
}

#[tokio::test]
async fn a_refund_of_every_algorithm_reaches_the_key() {
    let (server, store) = start(|store| store.hash_tags(HashTags::ByPrefix(TAGS))).await;
    for (_, algorithm) in algorithms() {
        let quota = Quota::new(1_000, 300 * 24 * HOUR).with_algorithm(algorithm);
        let limiter = RateLimiter::new(store.clone(), quota).name(format!("{algorithm:?}"));
        for extractors in extractors() {
            let [user, _] = keys(&extractors, "acme", "ada");
            let mut decision = limiter.check_n(&user, 200).await.unwrap();
            decision.refund(150).await.unwrap();
            assert_eq!(
                limiter.peek(&user).await.unwrap().used(),
                50,
                "{algorithm:?}"
            );
        }
    }
    let names: Vec<String> = redis::cmd("KEYS")
        .arg("*:{*}:S*")
        .query(&mut server.connect())
        .unwrap();
    let slots: HashSet<u16> = names.iter().map(|name| slot_of(&server, name)).collect();
    // A slot for the plain key of the tenant, and one for its hashed key.
    assert_eq!((slots.len(), names.len()), (2, 8), "{names:?}");
}

fn slot_of(server: &RedisServer, name: &str) -> u16 {
    let mut keyslot = redis::cmd("CLUSTER");
    keyslot.arg("KEYSLOT").arg(name);
    keyslot.query(&mut server.connect()).unwrap()
}

#[cfg(feature = "cluster")]
mod on_three_masters {
    use super::*;
    use crate::support::cluster::Cluster;
    use crate::support::decided;
    use crate::support::node::Node;

    fn calls_of(node: &Node) -> u64 {
        let stats: String = node.ask(&["INFO", "commandstats"]);
        let calls = crate::support::costs::calls_in(&stats);
        ["eval", "evalsha"]
            .map(|name| calls.get(name).copied().unwrap_or(0))
            .iter()
            .sum()
    }

    #[tokio::test]
    async fn each_check_is_one_call_to_the_master_of_the_tenant_and_tenants_are_on_all_masters() {
        let cluster = Cluster::start();
        let store = RedisStore::open(&cluster.url())
            .unwrap()
            .deadline(Duration::from_secs(10))
            .block_list_refresh(Duration::ZERO)
            .hash_tags(HashTags::ByPrefix(TAGS));
        let tree = Tree::new(&store);
        let masters = &cluster.nodes[..3];
        for extractors in extractors() {
            for tenant in 0..30 {
                // All masters know the script.
                let _ = decided(&tree.user, &format!("nobody{tenant}")).await;
            }
            let mut tenants_of = [0; 3];
            for tenant in 0..30 {
                let asked = || -> Vec<u64> { masters.iter().map(calls_of).collect() };
                let before = asked();
                for user in ["ada", "bob"] {
                    let keys = keys(&extractors, &format!("tenant{tenant}"), user);
                    assert!(tree.check(&keys).await.is_allowed());
                }
                let asked: Vec<u64> = asked().iter().zip(before).map(|(n, m)| n - m).collect();
                let master = asked.iter().position(|calls| *calls > 0).unwrap();
                assert_eq!(asked.iter().sum::<u64>(), 2, "{asked:?}");
                assert_eq!(asked[master], 2, "{asked:?}");
                tenants_of[master] += 1;
                let keys = keys(&extractors, &format!("tenant{tenant}"), "bob");
                assert_eq!(tree.used(&keys).await, [1, 2]);
            }
            assert!(
                tenants_of.iter().all(|tenants| *tenants > 2),
                "{tenants_of:?}"
            );
        }
        for master in masters {
            let errors: String = master.ask(&["INFO", "errorstats"]);
            assert!(!errors.contains("CROSSSLOT"), "{errors}");
        }
    }
}
