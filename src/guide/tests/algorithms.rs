//! What the page on algorithms tells of them is what was seen and printed.

use super::page::{first_table, numbers, read, tables_of};

/// The name of an algorithm in a cell, with so many buckets for `n`.
fn name_in(cell: &str, buckets: &str) -> String {
    let name = cell.split('`').nth(1).expect("a name");
    name.replace("(n)", &format!("({buckets})"))
}

#[test]
fn what_was_seen_of_each_is_what_the_picture_shows() {
    let picture = read("docs/boundary.svg");
    for row in &tables_of("choosing_an_algorithm")[0][1..] {
        // The two logs decide alike and share a panel.
        let name = name_in(&row[0], "10").replace("SortedSetLog", "SlidingLog");
        let caption = format!("\n{name}: at most {}\n", row[2]);
        assert!(picture.contains(&caption), "{caption}");
    }
}

/// How many commands a cell lists.
fn commands(cell: &str) -> usize {
    cell.matches('`').count() / 2 + cell.matches("` twice").count()
}

#[test]
fn what_each_costs_in_redis_is_what_the_bench_printed() {
    let results = read("benches/RESULTS.md");
    let (_, section) = results
        .split_once("## Memory and commands")
        .expect("a section");
    let printed = first_table(section);
    let cell = |name: &str, head: &str| {
        let column = printed[0]
            .iter()
            .position(|each| each == head)
            .expect("a head");
        let row = printed.iter().find(|row| row[0] == name);
        row.unwrap_or_else(|| panic!("no row {name}"))[column].replace(' ', "")
    };
    let bytes = |name: &str, head: &str| cell(name, head).parse::<f64>().expect("a number");

    for row in &tables_of("choosing_an_algorithm")[1][1..] {
        let name = name_in(&row[0], "60");
        let admitted = commands(&row[2]);
        let refused = match row[3].strip_prefix("all but ") {
            Some(missing) => admitted - commands(missing),
            None => commands(&row[3]),
        };
        assert_eq!(admitted.to_string(), cell(&name, "admitted"), "{name}");
        assert_eq!(refused.to_string(), cell(&name, "refused"), "{name}");

        let told: Vec<f64> = numbers(&row[1])
            .iter()
            .map(|number| number.replace(' ', "").parse().expect("one"))
            .collect();
        let told_nearly = |told: f64, bytes: f64| {
            assert!(
                (told - bytes).abs() <= bytes / 8.0,
                "{name}: {told} is told, {bytes} printed"
            );
        };
        match &*name {
            "SlidingLog" => told_nearly(told[0], bytes(&name, "a unit of 10 000")),
            "SortedSetLog" => told_nearly(told[3], bytes(&name, "a unit of 10 000")),
            "SlidingBuckets(60)" => {
                assert_eq!(told.last(), Some(&60.0));
                told_nearly(
                    told[told.len() - 2],
                    bytes("the same, no bucket empty", "limit 10 000"),
                );
            }
            _ => told_nearly(told[0], bytes(&name, "limit 10 000")),
        }
    }
}
