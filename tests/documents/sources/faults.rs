//! Figures from the results of the chaos tests.

use std::path::Path;

use crate::markdown::{Block, Document, numbers, table};

/// The rows of the results: number, fault, figure and bound.
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

    /// Returns the part of a fault's figure between two texts. The second may be empty: up to the end.
    fn part(&self, fault: &str, before: &str, after: &str) -> &str {
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

pub(super) fn readme() -> String {
    let figures = Figures::read();
    let of = |fault, before, after| figures.part(fault, before, after);
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

/// Puts a space between the thousands of each whole number.
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

/// Guide: each number is in the figure of its fault.
pub(super) fn failovers(block: &Block) -> Result<(), String> {
    let Figures(printed) = Figures::read();
    for row in block.rows() {
        let found = printed.iter().find(|cells| cells[1] == row[0]);
        let found = found.ok_or_else(|| format!("no fault {:?} in the results", row[0]))?;
        let there = numbers(&found[2]);
        if let Some(number) = numbers(&row[1])
            .into_iter()
            .find(|each| !there.contains(each))
        {
            return Err(format!("{number} is not in {:?}", found[2]));
        }
    }
    Ok(())
}

/// Guide: each number is a bound that a chaos test holds.
pub(super) fn bounds(block: &Block) -> Result<(), String> {
    let Figures(printed) = Figures::read();
    let held: Vec<String> = printed.iter().flat_map(|row| numbers(&row[3])).collect();
    let mut written = block.rows().iter().flatten().flat_map(|cell| numbers(cell));
    match written.find(|number| !held.contains(number)) {
        Some(number) => Err(format!("{number} is in no bound of tests/chaos/RESULTS.md")),
        None => Ok(()),
    }
}
