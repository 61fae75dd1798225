//! The promise under contention: many threads check one key at once, and no span as long as the window has
//! more admissions than the algorithm promises.
//!
//! Every thread records when a check started and ended. An admission counts in a span only if the whole check
//! is inside it, so a counted admission was certainly in the span.

mod adversary;
mod runtime;

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tollgate::{Algorithm, MemoryStore};

use crate::support::algorithms::promised;
use crate::support::cases::some_or_all;
use crate::support::redis_server::RedisServer;
use crate::support::store_on;
use adversary::{Traffic, Wait, is_kept};
use runtime::Runtime;

/// A store in memory answers at once.
struct AtOnce;

impl Wait for AtOnce {
    fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => output,
            Poll::Pending => panic!("a store in memory answers at once"),
        }
    }
}

const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

const TRAFFIC: Traffic = Traffic {
    threads: 8,
    limits: &[50],
    window: millis(20),
    duration: millis(500),
    work: Duration::ZERO,
    rest: Duration::ZERO,
    refunds: false,
};

/// More threads than cores; limits of 10 to 100, windows of 10 ms to 1 s, with and without work between
/// checks, with refunds, and with callers whose limits differ. Every change waits for the first half.
const IN_MEMORY: [Traffic; 6] = [
    TRAFFIC,
    Traffic {
        threads: 16,
        limits: &[20],
        window: millis(100),
        work: Duration::from_micros(20),
        refunds: true,
        ..TRAFFIC
    },
    Traffic {
        limits: &[100, 10],
        window: millis(100),
        rest: millis(30),
        refunds: true,
        ..TRAFFIC
    },
    Traffic {
        limits: &[100],
        window: millis(10),
        refunds: true,
        ..TRAFFIC
    },
    Traffic {
        threads: 16,
        limits: &[100],
        window: millis(500),
        duration: millis(1_000),
        work: Duration::from_micros(20),
        ..TRAFFIC
    },
    Traffic {
        threads: 4,
        limits: &[10],
        window: millis(1_000),
        duration: millis(1_500),
        ..TRAFFIC
    },
];

// Limits that the threads reach with both cores busy, when a call takes milliseconds. Every change waits for the first two;
// callers whose limits differ are in `tests/rented`, too.
const IN_REDIS: [Traffic; 3] = [
    Traffic {
        limits: &[50],
        window: millis(100),
        ..TRAFFIC
    },
    Traffic {
        limits: &[10],
        window: millis(100),
        work: Duration::from_micros(20),
        refunds: true,
        ..TRAFFIC
    },
    Traffic {
        limits: &[100, 10],
        window: millis(500),
        duration: millis(1_500),
        rest: millis(150),
        ..TRAFFIC
    },
];

fn holds_in_memory(algorithm: Algorithm) {
    let traffics = IN_MEMORY.iter().take(some_or_all(3, 6));
    let broken = traffics.filter_map(|traffic| {
        let outcome = traffic.run(algorithm, &MemoryStore::new(), |_| AtOnce);
        is_kept(algorithm, traffic, &outcome).err()
    });
    let broken: Vec<_> = broken.collect();
    assert!(broken.is_empty(), "{broken:#?}");
}

fn holds_in_redis(algorithm: Algorithm) {
    let server = RedisServer::start();
    // With refunds, what this process remembers of refusals has to be forgotten.
    let store_for = |traffic: &Traffic| match traffic.refunds {
        false => store_on(&server).refusal_cache(Duration::ZERO),
        true => store_on(&server),
    };
    let traffics = IN_REDIS.iter().take(some_or_all(2, 3));
    let broken = traffics.enumerate().filter_map(|(index, traffic)| {
        let store = store_for(traffic).prefix(index.to_string());
        let outcome = traffic.run(algorithm, &store, Runtime::new);
        is_kept(algorithm, traffic, &outcome).err()
    });
    let broken: Vec<_> = broken.collect();
    assert!(broken.is_empty(), "{broken:#?}");
}

macro_rules! holds {
    ($($name:ident: $algorithm:expr;)*) => {
        mod in_memory {
            use super::*;
            $(#[test] fn $name() { holds_in_memory($algorithm); })*
        }

        mod in_redis {
            use super::*;
            $(#[test] fn $name() { holds_in_redis($algorithm); })*
        }
    };
}

holds! {
    sliding_log_admits_the_limit_in_any_window: Algorithm::SlidingLog;
    sorted_set_log_admits_the_limit_in_any_window: Algorithm::SortedSetLog;
    sliding_buckets_admit_the_limit_in_any_window: Algorithm::SlidingBuckets(10);
    sliding_counter_admits_below_twice_the_limit_in_any_window: Algorithm::SlidingCounter;
    fixed_window_admits_twice_the_limit_in_any_window: Algorithm::FixedWindow;
    gcra_admits_below_twice_the_limit_in_any_window: Algorithm::Gcra;
}
