//! Slots in flight: what runs at the same time, over all processes.

#[path = "../support/mod.rs"]
mod support;

#[cfg(feature = "cluster")]
mod cluster;
mod failures;
mod fairness;
mod in_vain;
mod layer;
mod leaving;
mod lines;
mod messages;
mod parity;
mod permits;
mod redis;
mod runtimes;
mod shares;
mod shutdown;
mod stored;
mod surface;

use tollgate::{Acquired, Permit, RateLimiter};

/// The permit of a key, if a slot is free.
async fn taken(limiter: &RateLimiter, key: &str) -> Option<Permit> {
    match limiter.try_acquire(key).await.unwrap() {
        Acquired::Permit(permit) => Some(permit),
        Acquired::Refused(_) => None,
    }
}
