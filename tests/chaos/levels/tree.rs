//! A tree of keys: several users have a team, several teams a tenant, and all of them the service.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tollgate::{Algorithm, Decision, Error, Quota, Quotas, RateLimiter, Store};

/// So long that no unit returns and no aligned window ends during a test.
pub(super) const LASTING: Duration = Duration::from_secs(300 * 86_400);

/// Levels, from the users up. A check names a user, and has one key of each level.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Tree(pub(super) Vec<Level>);

#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Level {
    /// The name of the limiter.
    pub(super) name: String,
    pub(super) keys: Vec<String>,
    /// As text. The last one is [`LASTING`].
    quotas: String,
    #[serde(default)]
    pub(super) lease: Option<Duration>,
}

impl Level {
    pub(super) fn new(name: String, keys: Vec<String>, quotas: impl Into<Quotas>) -> Self {
        let quotas: Quotas = quotas.into();
        let quotas = quotas.to_string();
        Self {
            name,
            keys,
            quotas,
            lease: None,
        }
    }

    pub(super) fn lease(self, lease: Duration) -> Self {
        let lease = Some(lease);
        Self { lease, ..self }
    }

    pub(super) fn quotas(&self) -> Quotas {
        self.quotas.parse().expect("quotas")
    }

    /// The limit for the whole test.
    pub(super) fn lasting_limit(&self) -> u32 {
        self.quotas().iter().last().expect("a quota").limit()
    }
}

impl Tree {
    pub(super) fn longest_lease(&self) -> Option<Duration> {
        self.0.iter().filter_map(|level| level.lease).max()
    }

    pub(super) fn users(&self) -> usize {
        self.0[0].keys.len()
    }

    /// The index of the key of a user at a level.
    pub(super) fn key_of(&self, user: usize, level: usize) -> usize {
        user * self.0[level].keys.len() / self.users()
    }

    pub(super) fn limiters(&self, store: &(impl Store + Clone)) -> Limiters {
        let limiter = |level: &Level| {
            let limiter = RateLimiter::new(store.clone(), level.quotas());
            let limiter = limiter.name(level.name.as_str());
            limiter.lease(level.lease.unwrap_or_default())
        };
        Limiters {
            limiters: self.0.iter().map(limiter).collect(),
            tree: self.clone(),
        }
    }
}

/// The limiters of a tree.
pub(super) struct Limiters {
    pub(super) tree: Tree,
    limiters: Vec<RateLimiter>,
}

impl Limiters {
    /// Checks all levels of a user.
    pub(super) async fn check(&self, user: usize, cost: u32) -> Result<Decision, Error> {
        if let ([limiter], [level]) = (&*self.limiters, &*self.tree.0) {
            return limiter.check_n(level.keys[user].as_str(), cost).await;
        }
        let levels = self.limiters.iter().enumerate().map(|(level, limiter)| {
            let key = self.tree.key_of(user, level);
            limiter
                .level(self.tree.0[level].keys[key].as_str())
                .cost(cost)
        });
        RateLimiter::check_all(levels).await
    }

    /// Connects to the servers of all levels.
    pub(super) async fn ask_each_level(&self) -> Result<(), Error> {
        for (level, limiter) in self.tree.0.iter().zip(&self.limiters) {
            let _ = limiter.peek(level.keys[0].as_str()).await?;
        }
        Ok(())
    }

    /// The units of each key that the lasting quota counts, level by level.
    pub(super) async fn counted(&self) -> Result<Vec<Vec<u32>>, Error> {
        let mut counted = Vec::new();
        for (level, limiter) in self.tree.0.iter().zip(&self.limiters) {
            let mut of_level = Vec::new();
            for key in &level.keys {
                let peeked = limiter.peek(key.as_str()).await?;
                of_level.push(peeked.quotas().last().expect("a quota").used());
            }
            counted.push(of_level);
        }
        Ok(counted)
    }
}

/// A different algorithm for each index.
pub(super) fn algorithm(index: usize) -> Algorithm {
    Algorithm::ALL[index % Algorithm::ALL.len()]
}

/// A quota for the whole test.
pub(super) fn lasting(limit: u32, algorithm: Algorithm) -> Quota {
    Quota::new(limit, LASTING).with_algorithm(algorithm)
}
