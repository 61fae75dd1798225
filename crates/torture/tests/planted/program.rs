//! Limiters with one planted fault each, and correct ones, as contestants.

mod memory;
mod on_redis;

use std::process::ExitCode;

use tollgate_torture::{Bound, Description, Entry, Offer};

use memory::{Memory, OpenedWindow, TokenBucket};
use on_redis::OnRedis;

/// All attacks on a limiter in memory, and all on one in Redis.
const IN_MEMORY: [&str; 6] = ["threads", "edges", "costs", "cancelled", "slots", "waits"];
const ON_REDIS: [&str; 12] = [
    "threads",
    "processes",
    "edges",
    "costs",
    "cancelled",
    "cut",
    "paused",
    "killed",
    "emptied",
    "full",
    "clock",
    "skew",
];

fn main() -> ExitCode {
    let memory = [
        "exact",
        "fixed-window",
        "refunds-twice",
        "poisoned",
        "answers-at-once",
        "leaks-a-slot",
        "short-wait",
        "long-wait",
        "tells-no-wait",
    ];
    let memory = memory.map(|fault| {
        let offers = [
            Offer::Costs,
            Offer::Refunds,
            Offer::Slots,
            Offer::Waits,
            Offer::ExactWaits,
            Offer::Cancel,
        ];
        // Only one of these waits for something.
        let cancels = ["poisoned", "answers-at-once"].contains(&fault);
        let offers = &offers[..if cancels { 6 } else { 5 }];
        let description = Description::new(fault, "0", Bound::Sliding).offers(offers);
        let description = description.promises(&IN_MEMORY);
        Entry::new(description, move |setup| async move {
            Ok(Memory::new(fault, &setup))
        })
    });
    let redis = [
        "exact-redis",
        "charges-again",
        "charges-again-with-breaker",
        "fails-open",
        "fails-closed",
        "script-once",
        "restarts-on-step",
        "own-clock",
    ];
    let redis = redis.map(|fault| {
        let offers = [Offer::Cancel, Offer::Costs, Offer::Redis];
        let description = Description::new(fault, "0", Bound::Sliding).offers(&offers);
        let description = description.promises(&ON_REDIS);
        Entry::new(description, move |setup| OnRedis::connect(fault, setup))
    });
    let buckets = ["bucket", "clock-before-lock"].map(|fault| {
        let description = Description::new(fault, "0", Bound::Bucket).promises(&["threads"]);
        Entry::new(description, move |setup| async move {
            Ok(TokenBucket::new(fault, &setup))
        })
    });
    let windows = ["opened-window", "check-then-act"].map(|fault| {
        let description = Description::new(fault, "0", Bound::FixedFromRequest);
        let description = description.promises(&["threads", "edges"]);
        Entry::new(description, move |setup| async move {
            Ok(OpenedWindow::new(fault, &setup))
        })
    });
    let alone = Description::new("counts-alone", "0", Bound::Sliding);
    let alone = alone.offers(&[Offer::Redis]).promises(&["processes"]);
    let alone = Entry::new(
        alone,
        |setup| async move { Ok(Memory::new("exact", &setup)) },
    );
    tollgate_torture::main(
        memory
            .into_iter()
            .chain(redis)
            .chain(buckets)
            .chain(windows)
            .chain([alone]),
    )
}
