//! Features of a layer beyond counting: plans, waiting, settling, dry runs, skipped requests and diagnostics.

#[path = "../support/mod.rs"]
mod support;

mod any_service;
mod clamping;
mod codes;
mod contract;
mod diagnostics;
mod dry_run;
mod free;
mod in_handler;
mod law_of_settling;
mod many_requests;
mod nesting;
mod overruns;
mod plans;
mod responders;
mod settling;
mod shares;
mod skipping;
mod soft;
mod switched_off;
mod waiting;

use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use tollgate::{Algorithm, IntoKey, RateLimiter};

use support::calls::{ask, by_path, status, to, told};

/// Returns each algorithm, with 10 buckets.
fn algorithms() -> impl Iterator<Item = Algorithm> {
    support::algorithms::algorithms(10)
}

/// The units that count for a key.
async fn used(limiter: &RateLimiter, key: impl IntoKey) -> u32 {
    limiter.peek(key).await.expect("the store answers").used()
}

/// Waits until this many units count. Settlements run in the background.
async fn counts(limiter: &RateLimiter, key: impl IntoKey + Copy, units: u32) {
    let patience = Instant::now() + Duration::from_secs(10);
    loop {
        let used = used(limiter, key).await;
        if used == units {
            return;
        }
        assert!(Instant::now() < patience, "{used} units, not {units}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// A future that a test polls by hand.
struct ByHand<F>(Pin<Box<F>>);

fn by_hand<F: Future>(future: F) -> ByHand<F> {
    ByHand(Box::pin(future))
}

impl<F: Future> ByHand<F> {
    /// Polls it once with a waker that does nothing.
    fn poll(&mut self) -> Poll<F::Output> {
        let mut nobody = Context::from_waker(Waker::noop());
        self.0.as_mut().poll(&mut nobody)
    }

    async fn end(self) -> F::Output {
        self.0.await
    }
}
