//! What the page on moving says of other limits comes to the same here.

use crate::guide::tests::behaviour;
use super::page::{numbers, read, tables_of};

/// Milliseconds of a time as the page writes it.
fn millis(text: &str) -> u64 {
    let number: u64 = numbers(text).concat().parse().expect("a number");
    if text.ends_with("ms") {
        number
    } else {
        1_000 * number
    }
}

#[test]
fn an_interval_and_a_burst_are_a_limit_of_the_burst_in_as_many_intervals() {
    for row in &tables_of("moving_from_others")[0][1..] {
        let [_, interval, burst, here] = &row[..] else {
            panic!("{row:?}");
        };
        let arguments = numbers(&here.replace('_', ""));
        let [limit, window] = &arguments[..] else {
            panic!("{here}");
        };
        let unit = if here.contains("from_millis") {
            "ms"
        } else {
            "s"
        };
        assert_eq!(limit, burst, "{row:?}");
        let burst: u64 = burst.parse().expect("a number");
        assert_eq!(
            millis(&format!("{window} {unit}")),
            burst * millis(interval),
            "{row:?}"
        );
    }
}

/// The code spans of a cell.
fn spans(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

#[test]
fn what_is_called_in_place_of_others_is_there() {
    let functions: Vec<String> = public_functions().collect();
    for (table, column) in [(0, 3), (1, 1), (3, 1)] {
        let table = &tables_of("moving_from_others")[table];
        let called = table[1..].iter().flat_map(|row| spans(&row[column]));
        let called = called.flat_map(|span| span.split_inclusive('('));
        let called = called.filter_map(|text| text.strip_suffix('('));
        for text in called {
            let name = text.rsplit(|each: char| !(each.is_ascii_alphanumeric() || each == '_'));
            let name = name.into_iter().next().unwrap_or_default();
            let is_there = name.is_empty() || functions.iter().any(|each| each == name);
            // Of the standard library.
            assert!(
                is_there || name.starts_with("from_"),
                "{name} is no function"
            );
        }
    }
}

fn public_functions() -> impl Iterator<Item = String> {
    let files = [
        "layer",
        "limiter",
        "quota",
        "identity",
        "decision",
        "key/client_ip",
        "key/peer_ip",
    ];
    let files = files.iter().chain(&["key/custom", "key/header"]);
    let source: String = files.map(|file| read(&format!("src/{file}.rs"))).collect();
    let named = |text: &str| text.split(['(', '<']).next().unwrap_or_default().to_owned();
    let names: Vec<String> = source.split("fn ").skip(1).map(named).collect();
    names.into_iter()
}

#[test]
fn clients_see_the_headers_that_are_told() {
    let refused = behaviour::refused();
    for row in &tables_of("moving_from_others")[2][1..] {
        let [what, _, here] = &row[..] else {
            panic!("{row:?}");
        };
        if what.starts_with("body") {
            assert_eq!(*here, behaviour::of("body"));
        } else if what.starts_with("status") {
            let missing = behaviour::of("missing key").replace("refused with ", "");
            let unknown = behaviour::of("unknown peer").replace("refused with ", "");
            assert_eq!(numbers(here), [missing, unknown]);
        } else {
            for name in spans(what) {
                let is_sent = *here != "not sent";
                assert_eq!(
                    refused.headers().contains_key(name),
                    is_sent,
                    "{name}: {here}"
                );
            }
        }
    }
}
