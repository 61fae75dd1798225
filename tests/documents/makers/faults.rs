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
        let found = rest.and_then(|rest| match after {
            "" => Some(rest),
            after => Some(rest.split_once(after)?.0),
        });
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
                "{} checks: at most {} admitted; {} of the checks without a decision",
                of("SCRIPT FLUSH", "blows, ", " checks"),
                of("SCRIPT FLUSH", "at most ", " admitted"),
                of("SCRIPT FLUSH", "keys, ", " without a decision"),
            ),
        ),
        (
            "connections cut before the reply",
            format!(
                "{} cuts in {} checks; {} counted twice; {} refused, {} of them counted too",
                of("connection cut", "checks, ", " cuts"),
                of("connection cut", "", " checks"),
                of("connection cut", "too; ", " twice"),
                of("connection cut", "counted, ", " refused"),
                of("connection cut", "refused, ", " of them counted too"),
            ),
        ),
        (
            "memory is full, under `noeviction`",
            format!(
                "{} refusals by Redis, {} correct; {} admissions left to the policy",
                of("maxmemory reached", "", " refusals"),
                of("maxmemory reached", "Redis, ", " correct"),
                of(
                    "maxmemory reached",
                    "correct; ",
                    " admissions left to the policy"
                ),
            ),
        ),
        (
            "Sentinel promotes a replica",
            format!(
                "counting {} later; {} requests refused meanwhile; {} admitted",
                of("Sentinel failover", "enforcing ", " later"),
                of(
                    "Sentinel failover",
                    "later; ",
                    " requests refused meanwhile"
                ),
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
                "no key locked for longer than {}, refusals that are remembered included; {}, {} where \
                 refusals are remembered",
                of("refusals remembered for a second", "longest lock ", ";"),
                of("every check asked", "; ", ""),
                of(
                    "refusals remembered for a second",
                    "; ",
                    " units more than promised"
                ),
            ),
        ),
    ];
    let rows = rows.map(|(fault, seen)| vec![fault.to_owned(), grouped(&seen)]);
    table(&["fault", "seen"], 0, rows)
}

/// With a space between the thousands of each whole number.
fn grouped(text: &str) -> String {
    let is_digit = |at: usize| text.as_bytes().get(at).is_some_and(u8::is_ascii_digit);
    let mut grouped = String::new();
    for (at, each) in text.char_indices() {
        let before = (0..at).rev().take_while(|at| is_digit(*at)).count();
        let left = (at..).take_while(|at| is_digit(*at)).count();
        let is_fraction = text[..at - before].ends_with('.');
        if before > 0 && left > 0 && left % 3 == 0 && !is_fraction {
            grouped.push(' ');
        }
        grouped.push(each);
    }
    grouped
}
