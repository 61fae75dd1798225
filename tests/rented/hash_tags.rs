//! A proxy before a cluster that does not know hash tags: it sees the keys of one check in several slots.

use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use tollgate::store::HashTags;
use tollgate::{Algorithm, Error, ErrorKind, Quota, RateLimiter, RedisStore};

use crate::support::proxy::{Proxy, Wire};
use crate::support::redis_server::RedisServer;

const DEADLINE: Duration = Duration::from_secs(10);

/// Two limiters whose checks have two keys each.
fn limiters(store: &RedisStore) -> [RateLimiter; 2] {
    let quotas = [
        Quota::per_hour(9),
        Quota::per_hour(9).with_algorithm(Algorithm::Gcra),
    ];
    ["user", "tenant"].map(|name| RateLimiter::new(store.clone(), quotas.clone()).name(name))
}

#[tokio::test]
async fn a_proxy_that_ignores_hash_tags_is_named_at_once() {
    let server = RedisServer::start_cluster();
    let proxy = Proxy::before(server.port()).await;
    let one_slot = HashTags::Shared(NonZeroU16::MIN);
    for settings in ["", "?slots=on"] {
        let store = RedisStore::open(&format!("{}{settings}", proxy.url())).unwrap();
        let store = store.deadline(DEADLINE).hash_tags(one_slot);
        let store = store.block_list_refresh(Duration::ZERO);
        store.ping().await.unwrap();
        proxy.set(Wire::WithoutHashTags);
        let [user, tenant] = limiters(&store);
        let begin = Instant::now();
        let checks = (0..20).map(|number| {
            let (user, tenant) = (user.clone(), tenant.clone());
            tokio::spawn(async move {
                let key = number.to_string();
                let of_one = user.check(key.as_str()).await;
                let levels = [user.level(key.as_str()), tenant.level("acme")];
                [of_one, RateLimiter::check_all(levels).await]
            })
        });
        let mut errors: Vec<Error> = Vec::new();
        for check in checks.collect::<Vec<_>>() {
            errors.extend(check.await.unwrap().map(Result::unwrap_err));
        }
        let took = begin.elapsed();
        for error in &errors {
            assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
            let text = error.to_string();
            assert!(
                text.contains("remove the proxy in front of it, which ignores hash tags"),
                "{text}"
            );
        }
        assert!(took < DEADLINE / 2, "{took:?}");
        proxy.set(Wire::Whole);
    }
}
