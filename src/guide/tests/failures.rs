//! What the pages tell of failures is what the tests of chaos printed and hold, and what is answered.

use crate::guide::tests::behaviour;
use super::page::{first_table, numbers, read, tables_of};

#[test]
fn what_failovers_cost_is_what_the_tests_printed() {
    let results = read("tests/chaos/RESULTS.md");
    let printed = first_table(&results);
    for row in &tables_of("cluster_and_sentinel")[0][1..] {
        let found = printed.iter().find(|cells| cells[1] == row[0]);
        let found = found.unwrap_or_else(|| panic!("tests/chaos/RESULTS.md has no {:?}", row[0]));
        let there = numbers(&found[2]);
        let gone = numbers(&row[1])
            .into_iter()
            .find(|number| !there.contains(number));
        assert_eq!(
            gone, None,
            "{:?} of src/guide/cluster_and_sentinel.md",
            row[0]
        );
    }
}

#[test]
fn times_in_the_table_of_faults_are_bounds_that_tests_hold() {
    let printed = first_table(&read("tests/chaos/RESULTS.md"));
    let held: Vec<String> = printed[1..]
        .iter()
        .flat_map(|row| numbers(&row[3]))
        .collect();
    for row in &tables_of("when_redis_fails")[0][1..] {
        let unheld = row
            .iter()
            .flat_map(|cell| numbers(cell))
            .find(|number| !held.contains(number));
        assert_eq!(unheld, None, "{row:?}");
    }
}

#[test]
fn a_call_of_grpc_is_refused_as_the_page_shows() {
    let page = read("src/guide/grpc_and_clients.md");
    let (_, block) = page
        .split_once("<!-- from: guide-tests -->\n```text\n")
        .expect("a block");
    let (block, _) = block.split_once("```").expect("its end");
    let refused = behaviour::refused_grpc();
    assert_eq!(refused.status(), 200);
    assert_eq!(block.lines().count(), 4);
    for line in block.lines() {
        let (name, rest) = line.split_once(": ").expect("a header");
        let told = rest.split("  ").next().expect("a value").trim();
        let sent = refused.headers()[name].to_str().expect("text");
        assert!(sent == told || told == "…", "{name}: {sent}, told {told}");
    }
}

#[test]
fn the_oldest_redis_that_is_told_is_the_oldest_that_the_tests_were_run_on() {
    let results = read("tests/compat/RESULTS.md");
    let passed = results.lines().filter(|line| line.contains(" passed "));
    let versions = passed.filter_map(|line| line.split_once(" Redis ")?.1.split(' ').next());
    let oldest = versions.min_by_key(|version| {
        let parts = version
            .split('.')
            .map(|part| part.parse().expect("a number"));
        parts.collect::<Vec<u32>>()
    });
    let told = format!("seen to pass from {},", oldest.expect("a version"));
    for page in ["src/guide/what_this_does_not_do.md", "README.md"] {
        assert!(read(page).contains(&told), "{page} has no {told:?}");
    }
}
