//! The limits of a login, each of which stops another attack.

#![expect(unreachable_pub, reason = "the page shows a module of its own")]

use std::net::IpAddr;

use tollgate::{MemoryStore, key};

// page: shown
use std::time::Duration;

use tollgate::{BlockRule, Decision, Error, FailurePolicy, Key, Quota, RateLimiter, Store};

const QUARTER_HOUR: Duration = Duration::from_secs(15 * 60);
const HOUR: Duration = Duration::from_secs(60 * 60);

#[derive(Clone)]
pub struct Login {
    account: RateLimiter,
    address: RateLimiter,
    anywhere: RateLimiter,
}

impl Login {
    pub fn new(store: impl Store + Clone) -> Self {
        Self {
            account: RateLimiter::new(store.clone(), Quota::new(5, QUARTER_HOUR))
                .name("login-account")
                .block_after(BlockRule::refusals(20).block_for(HOUR).doubling())
                .on_failure(FailurePolicy::fall_back()),
            address: RateLimiter::new(store.clone(), Quota::new(20, QUARTER_HOUR))
                .name("login-address")
                .on_failure(FailurePolicy::fall_back()),
            // Soft: it refuses nobody, and tells the handler.
            anywhere: RateLimiter::new(store, Quota::new(50, QUARTER_HOUR).soft())
                .name("login-anywhere")
                .on_failure(FailurePolicy::fall_back()),
        }
    }

    /// Charges an attempt to all three keys, or to none. If the decision is not allowed, do not verify the password.
    /// If it is exceeded, verify a second factor before the password.
    pub async fn attempt(&self, account: &Key, address: &Key) -> Result<Decision, Error> {
        let levels = [
            self.account.level(account.and(address)),
            self.address.level(address),
            self.anywhere.level(account),
        ];
        RateLimiter::check_all(levels).await
    }

    pub async fn succeeded(
        &self,
        attempt: Decision,
        account: &Key,
        address: &Key,
    ) -> Result<(), Error> {
        attempt.settle(0).await?; // the attempt is free
        // And the failures before it from this address are forgotten.
        self.account.admin().reset(account.and(address)).await
    }
}
// page: end

fn address(last: u8) -> Key {
    key::peer_ip().of(IpAddr::from([192, 0, 2, last]))
}

#[tokio::test]
async fn a_success_clears_the_failures_of_the_account_from_its_address() -> Result<(), Error> {
    let login = Login::new(MemoryStore::new());
    let ada = Key::from("ada");
    let home = address(1);
    for _ in 0..4 {
        assert!(login.attempt(&ada, &home).await?.is_allowed());
    }
    let attempt = login.attempt(&ada, &home).await?;
    assert!(!login.attempt(&ada, &home).await?.is_allowed());
    login.succeeded(attempt, &ada, &home).await?;
    let again = login.attempt(&ada, &home).await?;
    // Four failures and this attempt.
    assert!(again.is_allowed());
    assert_eq!(login.account.peek(ada.and(&home)).await?.used(), 1);
    assert_eq!(login.address.peek(&home).await?.used(), 5);
    assert_eq!(login.anywhere.peek(&ada).await?.used(), 5);
    Ok(())
}

#[tokio::test]
async fn an_account_that_fails_on_is_blocked_from_that_address_alone() -> Result<(), Error> {
    let login = Login::new(MemoryStore::new());
    let ada = Key::from("ada");
    for _ in 0..25 {
        let _ = login.attempt(&ada, &address(1)).await?;
    }
    let blocked = login.account.admin().status(ada.and(address(1))).await?;
    assert!(blocked.blocked_for.is_some_and(|left| left <= HOUR));
    assert!(login.attempt(&ada, &address(2)).await?.is_allowed());
    assert!(
        login
            .attempt(&Key::from("bob"), &address(1))
            .await?
            .is_allowed()
    );
    Ok(())
}
