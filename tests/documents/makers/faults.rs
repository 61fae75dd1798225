//! What the README picks out of what came of the faults.

use std::path::Path;

use crate::markdown::{Document, table};

/// The figures of a fault, of which texts can be taken.
struct Figures(Vec<Vec<String>>);

impl Figures {
    fn read() -> Self {
        let results = Document::read(Path::new("tests/chaos/RESULTS.md"));
        Self(
            results
                .blocks
                .iter()
                .flat_map(|block| block.rows().to_vec())
                .collect(),
        )
    }

    /// What stands between two texts in the figure of a fault, or all that follows the first.
    fn of(&self, fault: &str, before: &str, after: &str) -> &str {
        let mut rows = self.0.iter();
        let row = rows.find(|cells| cells[1].contains(fault));
        let figure = &row.unwrap_or_else(|| panic!("no fault {fault:?}"))[2];
        let rest = figure.split_once(before).map(|(_, rest)| rest);
        let found = rest.and_then(|rest| Some(rest.split_once(after)?.0));
        found.unwrap_or_else(|| panic!("no {before:?} … {after:?} in {figure:?}"))
    }
}

pub(super) fn faults() -> String {
    let figures = Figures::read();
    let of = |fault, before, after| figures.of(fault, before, after);
    let rows = [
        (
            "Redis hangs for 5 s",
            format!(
                "no request waits longer than {} at a deadline of {}; later ones, with the breaker open, {} \
                 in the middleware at p99; {} it goes on",
                of("SIGSTOP", "most ", ","),
                of("SIGSTOP", "deadline of ", ";"),
                of("the breaker open", "p99 ", " in"),
                of("after SIGCONT", "", "ms").replace("after ", "") + "ms after",
            ),
        ),
        (
            "it is killed, and started again",
            format!(
                "{} requests answered by the policy meanwhile, the slowest in {}; exact {} after the port answers",
                of("kill -9 and restart", "", " requests"),
                of("kill -9 and restart", "slowest in ", ";"),
                of("kill -9 and restart", "exact ", " after"),
            ),
        ),
        (
            "packets vanish",
            format!(
                "a new connection after {}; no request took more than {}",
                of("the old connection vanishes", "replaced after ", ";"),
                of("the old connection vanishes", "took more than ", "ms").to_owned() + "ms",
            ),
        ),
        (
            "scripts flushed and clients killed, ten times a second",
            format!(
                "{} checks: at most {} admitted",
                of("SCRIPT FLUSH", "blows, ", " checks"),
                of("SCRIPT FLUSH", "at most ", " admitted"),
            ),
        ),
        (
            "connections cut before the reply",
            format!(
                "{} cuts in {} checks; {} counted twice",
                of("connection cut", "checks, ", " cuts"),
                of("connection cut", "", " checks"),
                of("connection cut", "too; ", " twice"),
            ),
        ),
        (
            "memory is full, under `noeviction`",
            format!(
                "{} refusals by Redis, {} correct; admissions by the policy",
                of("maxmemory reached", "", " refusals"),
                of("maxmemory reached", "Redis, ", " correct"),
            ),
        ),
        (
            "Sentinel promotes a replica",
            format!(
                "counting {} later; {} admitted",
                of("Sentinel failover", "enforcing ", " later"),
                of("Sentinel failover", "meanwhile; ", " admitted"),
            ),
        ),
        (
            "a master of a cluster dies, or its slots move",
            format!(
                "{} requests to other shards failed, {} during the move",
                of("master killed", "", " requests"),
                of("slots moved", "moved, ", " requests"),
            ),
        ),
        (
            "the server's clock steps by an hour",
            format!(
                "no key locked for longer than {}, refusals that are remembered included",
                of("refusals remembered for a second", "longest lock ", ";"),
            ),
        ),
    ];
    let rows = rows.map(|(fault, seen)| vec![fault.to_owned(), seen]);
    table(&["fault", "seen"], 0, rows)
}
