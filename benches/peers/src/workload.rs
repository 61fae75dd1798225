//! The workloads, the same for all contestants.

use std::time::Duration;

#[derive(Clone, Copy)]
pub(crate) struct Workload {
    pub(crate) name: &'static str,
    pub(crate) told: &'static str,
    /// How many values the header has, in turn.
    pub(crate) keys: usize,
    pub(crate) limit: u32,
    pub(crate) window: Duration,
    pub(crate) connections: usize,
    /// Whether the limit is never reached.
    pub(crate) admits: bool,
}

/// A window of a second, so that logs forget as fast as they grow, as they do in life.
const SECOND: Duration = Duration::from_secs(1);

pub(crate) const WORKLOADS: [Workload; 4] = [
    Workload {
        name: "many",
        told: "10 000 keys, all admitted: 10 000 a second each",
        keys: 10_000,
        limit: 10_000,
        window: SECOND,
        connections: 64,
        admits: true,
    },
    Workload {
        name: "hot",
        told: "one hot key, all admitted: a million a second",
        keys: 1,
        limit: 1_000_000,
        window: SECOND,
        connections: 64,
        admits: true,
    },
    Workload {
        name: "refused",
        told: "one key far over its limit: 10 a minute",
        keys: 1,
        limit: 10,
        window: Duration::from_secs(60),
        connections: 64,
        admits: false,
    },
    Workload {
        name: "one",
        told: "one connection, one request at a time, all admitted",
        keys: 1,
        limit: 1_000_000,
        window: SECOND,
        connections: 1,
        admits: true,
    },
];

impl Workload {
    pub(crate) fn named(name: &str) -> Result<Self, String> {
        let found = WORKLOADS.iter().find(|workload| workload.name == name);
        found.copied().ok_or_else(|| {
            let known = WORKLOADS.map(|workload| workload.name).join(", ");
            format!("{name} is not one of {known}, alone, idle")
        })
    }

    pub(crate) fn key(number: usize) -> String {
        format!("key-{number:07}")
    }
}
