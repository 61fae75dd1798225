//! Free requests of a day, then credits that were bought.

use tollgate::{MemoryStore, RedisStore};

use crate::support::redis_server::RedisServer;

// page: shown
use std::time::Duration;

use tollgate::{Decision, Error, Key, Quota, RateLimiter, Store};

const YEAR: Duration = Duration::from_secs(366 * 86_400);

struct Billing {
    allowance: RateLimiter,
    credits: RateLimiter,
    service: RateLimiter,
}

impl Billing {
    fn new(store: impl Store + Clone) -> Self {
        Self {
            allowance: RateLimiter::new(store.clone(), Quota::per_day(100)).name("allowance"),
            credits: RateLimiter::new(store.clone(), Quota::total(0, YEAR)).name("credits"),
            service: RateLimiter::new(store, Quota::per_second(2_000)).name("service"),
        }
    }

    /// `bought` are all credits that the user ever bought, by the ledger in your database.
    async fn charge(&self, user: &str, bought: u32) -> Result<Decision, Error> {
        let service = || self.service.level(Key::global());
        let plan = Quota::total(bought, YEAR);
        let credits = self.credits.level(user).cost(5).quotas(plan);
        let free = self.allowance.level(user);
        RateLimiter::check_first([[free, service()], [credits, service()]]).await
    }

    async fn reconcile(&self, user: &str, written_off: u32) -> Result<(), Error> {
        let missing = written_off.saturating_sub(self.credits.peek(user).await?.used());
        self.credits.charge(user, missing).await
    }
}
// page: end

#[tokio::test]
async fn free_requests_go_before_credits_and_the_ledger_restores_what_was_lost() {
    let server = RedisServer::start();
    let redis = RedisStore::open(&server.url()).expect("a URL");
    let redis = redis.deadline(Duration::from_secs(30));
    for billing in [Billing::new(MemoryStore::new()), Billing::new(redis)] {
        let mut taken = Vec::new();
        for _ in 0..104 {
            let decision = billing.charge("ada", 10).await.expect("a decision");
            // Either way, the service has a limit.
            let last = decision.levels().last().expect("a level");
            assert_eq!(last.limiter(), "service");
            taken.push(decision.alternative());
        }
        let (free, rest) = taken.split_at(100);
        assert!(free.iter().all(|alternative| *alternative == Some(0)));
        // Ten credits are two requests.
        assert_eq!(rest, [Some(1), Some(1), None, None]);

        let lost = billing.credits.admin().reset("ada").await;
        lost.expect("an answer");
        for _ in 0..2 {
            billing.reconcile("ada", 10).await.expect("an answer");
        }
        let counted = billing.credits.peek("ada").await.expect("an answer");
        assert_eq!(counted.used(), 10);
        // A purchase raises what was bought.
        let decision = billing.charge("ada", 15).await.expect("a decision");
        assert_eq!(decision.alternative(), Some(1));
    }
}
