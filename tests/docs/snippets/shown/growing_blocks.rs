//! A login with blocks that grow.

use std::net::IpAddr;

use tollgate::{MemoryStore, key};

// page: shown
use std::time::Duration;

use tollgate::{BlockRule, Decision, Error, Key, Quota, RateLimiter, Store};

struct Login {
    account: RateLimiter,
    address: RateLimiter,
}

impl Login {
    fn new(store: impl Store + Clone) -> Self {
        let quarter = |failures| Quota::new(failures, Duration::from_secs(15 * 60));
        let account = RateLimiter::new(store.clone(), quarter(5)).name("login-account");
        let hour = Duration::from_secs(60 * 60);
        Self {
            account: account.block_after(BlockRule::refusals(20).block_for(hour).doubling()),
            address: RateLimiter::new(store, quarter(20)).name("login-address"),
        }
    }

    /// Charges an attempt. Verify the password only if the decision is allowed.
    async fn attempt(&self, account: &Key, address: &Key) -> Result<Decision, Error> {
        RateLimiter::check_all([self.account.on(account), self.address.on(address)]).await
    }

    async fn succeeded(&self, attempt: Decision, account: &Key) -> Result<(), Error> {
        self.account.settle_all(attempt, 0).await?; // the attempt is free
        self.account.admin().reset(account).await // and the failures before it are forgotten
    }
}
// page: end

#[tokio::test]
async fn a_success_clears_the_failures_of_the_account() -> Result<(), Error> {
    let login = Login::new(MemoryStore::new());
    let address = key::peer_ip().of(IpAddr::from([192, 0, 2, 1]));
    let account = Key::from("ada").and(&address);
    for _ in 0..4 {
        assert!(login.attempt(&account, &address).await?.is_allowed());
    }
    let attempt = login.attempt(&account, &address).await?;
    assert!(!login.attempt(&account, &address).await?.is_allowed());
    login.succeeded(attempt, &account).await?;
    let again = login.attempt(&account, &address).await?;
    let of_address = login.address.peek(&address).await?.used();
    assert_eq!([again.remaining(), of_address], [4, 5]);
    Ok(())
}
