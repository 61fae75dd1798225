//! The memory of a key: the bytes requested from the allocator by the whole store, divided by the keys.

use tollgate::{MemoryStore, Quota, RateLimiter};

use crate::contestants::{algorithms, at_once};

/// Each unit has a different time.
const UNITS: u32 = 10;

pub(crate) fn print() {
    println!("| counted by | limit | bytes a key, of 10 000 | of 100 000 |");
    println!("|---|--:|--:|--:|");
    for (name, algorithm) in algorithms() {
        for limit in [10, 100] {
            let quota = Quota::per_hour(limit).with_algorithm(algorithm);
            let few = if crate::is_tried() { 100 } else { 1 };
            let bytes = [10_000, 100_000].map(|keys| bytes_a_key(&quota, keys / few));
            println!("| {name} | {limit} | {:.0} | {:.0} |", bytes[0], bytes[1]);
        }
    }
    println!();
}

fn bytes_a_key(quota: &Quota, keys: u32) -> f64 {
    let mut filled = None;
    let counted = allocation_counter::measure(|| filled = Some(fill(quota, keys)));
    drop(filled);
    counted.bytes_current as f64 / f64::from(keys)
}

/// Returns what holds the counts, so that it is there when what it takes is read.
fn fill(quota: &Quota, keys: u32) -> RateLimiter {
    let limiter = RateLimiter::new(MemoryStore::with_max_keys(1_000_000), quota.clone());
    for _ in 0..UNITS {
        for key in 0..keys {
            let decision = at_once(limiter.check(format!("user:{key:05}")));
            assert!(decision.expect("an answer").is_allowed());
        }
    }
    limiter
}
