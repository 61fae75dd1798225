//! Figures of speed are those that the benches printed.

use super::page::{Table, first_table, read, tables_of};

const RESULTS: &str = "benches/RESULTS.md";

/// The cell of a printed table: in the row that begins with these cells, under this head.
fn printed(file: &str, heading: &str, row: &[&str], head: &str) -> String {
    let text = read(file);
    let (_, section) = text
        .split_once(heading)
        .unwrap_or_else(|| panic!("{file} has no {heading}"));
    let table = first_table(section);
    let heads = &table[0];
    // Heads may be there twice: the first is meant.
    let column = heads.iter().position(|each| each == head);
    let column = column.unwrap_or_else(|| panic!("{heading} of {file} has no {head:?}: {heads:?}"));
    let of_row = |cells: &&Vec<String>| cells.iter().zip(row).all(|(cell, row)| cell == row);
    let found = table
        .iter()
        .find(of_row)
        .unwrap_or_else(|| panic!("{heading} has no {row:?}"));
    found[column].clone()
}

/// Compares a table of the page with what was printed: for each row the heading and the row there.
fn compare(table: &Table, heads: &[&str], of_row: impl Fn(&str) -> (String, String)) {
    assert_eq!(table[0].len(), heads.len() + 1, "{table:?}");
    for row in &table[1..] {
        let (heading, name) = of_row(row[0].trim_matches('`'));
        for (head, cell) in heads.iter().zip(&row[1..]) {
            let printed = printed(RESULTS, &heading, &[&name], head);
            assert_eq!(
                cell, &printed,
                "{} of {} in src/guide/speed.md",
                head, row[0]
            );
        }
    }
}

fn heading(text: &str) -> String {
    format!("**{text}**\n")
}

#[test]
fn what_a_check_costs_is_what_the_benches_printed() {
    let tables = tables_of("speed");
    let [in_memory, by_batch, hot, refused, by_algorithm] = &tables[..] else {
        panic!("{} tables", tables.len());
    };
    for row in &in_memory[1..] {
        let name = row[0].trim_matches('`');
        for (cell, head) in row[1..].iter().zip(["admitted, ns", "refused, ns"]) {
            let printed = printed(RESULTS, "## In process", &[name, "1"], head);
            assert_eq!(cell, &printed, "{head} of {name} in src/guide/speed.md");
        }
    }
    let heads = [
        "calls",
        "Redis CPU µs",
        "bytes in",
        "decisions/s",
        "p50 µs",
        "p99",
    ];
    compare(by_batch, &heads, |row| {
        let (at_a_time, name) = match row.split_once(", ") {
            None => (row, "SlidingLog"),
            Some((at, "each check a call")) => (at, "SlidingLog, each check a call"),
            Some((at, "the textbook's script")) => (at, "textbook sorted set"),
            Some((at, _)) => (at, "textbook, a connection a task"),
        };
        (
            heading(&format!("10 000 keys, all admitted; {at_a_time}")),
            name.to_owned(),
        )
    });
    compare(hot, &["Redis CPU µs", "decisions/s"], |row| {
        (
            heading(&format!("{row}, all admitted; 512 at a time")),
            "SlidingLog".to_owned(),
        )
    });
    compare(refused, &["calls", "Redis CPU µs", "p50 µs"], |row| {
        let name = if row.contains("textbook") {
            "textbook sorted set"
        } else {
            row
        };
        (
            heading("one key, all refused; 64 at a time"),
            name.to_owned(),
        )
    });
    compare(
        by_algorithm,
        &["Redis CPU µs", "decisions/s", "p50 µs"],
        |row| {
            (
                heading("10 000 keys, all admitted; 64 at a time"),
                row.to_owned(),
            )
        },
    );
}

#[test]
fn what_a_check_of_governor_costs_is_what_the_benches_printed() {
    let took = |row| printed(RESULTS, "## In process", &[row, "1"], "admitted, ns");
    let told = format!(
        "check takes {} ns where one of the default here takes {} ",
        took("governor, keyed"),
        took("SlidingLog")
    );
    let page = read("src/guide/moving_from_others.md");
    assert!(page.contains(&told), "the page on moving has no {told:?}");
}
