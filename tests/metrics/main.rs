//! The dashboard, the alerts and the guide use only metrics, labels and values that exist, and mention all of
//! them.

mod emitted;
mod promql;
#[path = "../support/mod.rs"]
mod support;

use std::collections::{BTreeMap, BTreeSet};

use metrics::Unit;

use emitted::{CROWD, EMITTED, Family, WHO};
use promql::{Asked, Series, asked};
use support::watched::{self, Query, list, text_of};
use tracing::Level;

/// Labels that Prometheus adds.
const OF_PROMETHEUS: [&str; 2] = ["job", "instance"];

/// Labels with names from the application as values.
const NAMES: [&str; 3] = ["limiter", "store", "share"];

/// The metric that a series belongs to: of a histogram, several do.
fn family_of(series: &str) -> Option<(&'static str, &'static Family)> {
    let suffixes = ["_bucket", "_sum", "_count"].into_iter();
    let mut of_histogram = suffixes.filter_map(|suffix| {
        let name = series.strip_suffix(suffix)?;
        let (name, family) = EMITTED.metrics.get_key_value(name)?;
        (family.kind == "histogram").then_some((name, family))
    });
    let itself = EMITTED.metrics.get_key_value(series);
    let itself = itself.filter(|(_, family)| family.kind != "histogram");
    let (name, family) = itself.or_else(|| of_histogram.next())?;
    Some((name, family))
}

/// What is wrong with an expression.
fn complaints(expr: &str) -> Vec<String> {
    let Asked { series, grouped_by } = asked(expr);
    let mut complaints: Vec<String> = series.iter().filter_map(complaint).collect();
    let known: BTreeSet<String> = series
        .iter()
        .flat_map(|each| labels_of(&each.name))
        .collect();
    let unknown = grouped_by.difference(&known);
    complaints.extend(unknown.map(|label| format!("nothing has a label {label}")));
    complaints
}

/// The rule that records a series.
fn recorded(series: &str) -> Option<Query> {
    let mut recorded = watched::recorded().into_iter();
    recorded.find(|recorded| recorded.of == series)
}

/// The labels that a rule gives to what it records: those that it groups by, or all of what it asks for.
fn labels_of_recorded(rule: &Query) -> BTreeSet<String> {
    let Asked { series, grouped_by } = asked(&rule.expr);
    let of_series = series.iter().flat_map(|each| labels_of(&each.name));
    if grouped_by.is_empty() {
        of_series.collect()
    } else {
        grouped_by
    }
}

fn labels_of(series: &str) -> BTreeSet<String> {
    if let Some(rule) = recorded(series) {
        return labels_of_recorded(&rule);
    }
    let family = family_of(series).into_iter();
    let mut labels: BTreeSet<String> = family
        .flat_map(|(_, family)| family.labels.keys().cloned())
        .collect();
    labels.extend(OF_PROMETHEUS.map(str::to_owned));
    if series.ends_with("_bucket") {
        labels.insert("le".to_owned());
    }
    labels
}

fn complaint(Series { name, labels }: &Series) -> Option<String> {
    let family = family_of(name).map(|(_, family)| family);
    if family.is_none() && recorded(name).is_none() {
        return Some(format!("there is no metric {name}"));
    }
    for wanted in labels {
        let label = &wanted.label;
        if !labels_of(name).contains(label) {
            return Some(format!("{name} has no label {label}"));
        }
        let values = family.and_then(|family| family.labels.get(label));
        let Some(values) = values.filter(|_| !is_name(label)) else {
            continue;
        };
        for value in &wanted.values {
            if !values.contains(value) {
                return Some(format!("{label} of {name} is never {value}"));
            }
        }
    }
    None
}

fn is_name(label: &str) -> bool {
    NAMES.contains(&label)
}

#[test]
fn the_dashboard_and_the_alerts_ask_for_what_is_told() {
    let alerts = watched::alerts().into_iter().map(|alert| Query {
        of: alert.name,
        expr: alert.expr,
    });
    let mut queries = watched::of_panels();
    queries.extend(watched::of_choices());
    queries.extend(alerts);
    queries.extend(watched::recorded());
    assert!(queries.len() > 20, "{queries:?}");
    for Query { of, expr } in queries {
        assert_eq!(complaints(&expr), [""; 0], "{of}: {expr}");
    }
}

#[test]
fn an_expression_that_asks_for_what_is_not_told_is_found() {
    for (expr, says) in [
        (
            "rate(tollgate_check_total[5m])",
            "no metric tollgate_check_total",
        ),
        (
            "tollgate_store_duration_seconds > 1",
            "no metric tollgate_store_duration_seconds",
        ),
        ("tollgate_keys_count", "no metric tollgate_keys_count"),
        (
            r#"tollgate_keys{limiter="a"}"#,
            "tollgate_keys has no label limiter",
        ),
        (
            r#"tollgate_keys{holds=~"counts|sums"}"#,
            "holds of tollgate_keys is never sums",
        ),
        ("sum by (le) (tollgate_keys)", "nothing has a label le"),
        (
            "job_limiter:tollgate_checks:increase7m",
            "no metric job_limiter:tollgate_checks:increase7m",
        ),
        (
            r#"job_limiter:tollgate_checks:increase5m{outcome="failed"}"#,
            "increase5m has no label outcome",
        ),
    ] {
        let found = complaints(expr);
        assert!(
            found.len() == 1 && found[0].contains(says),
            "{expr}: {found:?}"
        );
    }
}

#[test]
fn every_metric_is_on_the_dashboard() {
    let queries = watched::of_panels().into_iter();
    let series = queries.flat_map(|query| asked(&query.expr).series);
    let shown: BTreeSet<&str> = series
        .filter_map(|each| Some(family_of(&each.name)?.0))
        .collect();
    let told: BTreeSet<&str> = EMITTED.metrics.keys().map(String::as_str).collect();
    assert_eq!(shown, told);
}

#[test]
fn each_panel_says_what_it_answers_and_in_which_unit() {
    let mut ids = BTreeSet::new();
    let mut taken = BTreeSet::new();
    for panel in list(&watched::dashboard(), "panels") {
        assert!(
            ids.insert(panel["id"].as_u64().expect("a number")),
            "{panel}"
        );
        let place = |name: &str| panel["gridPos"][name].as_u64().expect("a number");
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(x < 24 && taken.insert((x, y)), "{panel} stands on another");
            }
        }
    }
    for panel in watched::panels() {
        let defaults = &panel["fieldConfig"]["defaults"];
        assert!(text_of(&panel, "description").len() > 20, "{panel}");
        let units = ["percentunit", "reqps", "s", "short", "none"];
        assert!(units.contains(&text_of(defaults, "unit")), "{panel}");
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{panel}");
        for target in list(&panel, "targets") {
            let Asked { mut grouped_by, .. } = asked(text_of(&target, "expr"));
            grouped_by.remove("le");
            let legend = text_of(&target, "legendFormat");
            let told = legend.split("{{").skip(1);
            let told: BTreeSet<String> = told
                .map(|rest| rest.split("}}").next().expect("a label").to_owned())
                .collect();
            assert_eq!(told, grouped_by, "{legend} tells lines apart: {target}");
        }
    }
}

/// The rows of the tables of the guide that begin with this head, without its code's quotes.
fn rows(head: &str) -> Vec<Vec<String>> {
    let guide = include_str!("../../src/guide/monitoring.md");
    let cells = |line: &str| -> Vec<String> {
        let line = line.trim().trim_matches('|');
        line.split('|')
            .map(|cell| cell.trim().replace('`', ""))
            .collect()
    };
    let tables = guide.split("<!-- from: metrics -->\n").skip(1);
    let tables = tables.map(|rest| rest.split("\n\n").next().expect("a table"));
    let rows = tables
        .filter(|table| cells(table.lines().next().expect("a head"))[0] == head)
        .flat_map(|table| table.lines().skip(2).map(cells));
    let rows: Vec<_> = rows.collect();
    assert!(!rows.is_empty(), "no table of {head}");
    rows
}

#[test]
fn the_guide_tells_each_metric_with_its_type_and_labels() {
    let told: BTreeMap<String, (String, BTreeSet<String>)> = rows("metric")
        .into_iter()
        .map(|cells| {
            let labels = cells[2].split(", ").map(str::to_owned).collect();
            (cells[0].clone(), (cells[1].clone(), labels))
        })
        .collect();
    let there = EMITTED.metrics.iter().map(|(name, family)| {
        let labels = family.labels.keys().cloned().collect();
        (name.clone(), (family.kind.to_owned(), labels))
    });
    assert_eq!(told, there.collect());
}

#[test]
fn the_guide_tells_each_value_of_each_label() {
    let mut told: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut label = String::new();
    for cells in rows("label") {
        if !cells[0].is_empty() {
            label.clone_from(&cells[0]);
        }
        let label = label.split(' ').next().expect("a label").to_owned();
        let values = cells[1].split(", ").map(str::to_owned);
        told.entry(label).or_default().extend(values);
    }
    let labels = EMITTED.metrics.values().flat_map(|family| &family.labels);
    let mut there: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (label, values) in labels.filter(|(label, _)| !is_name(label)) {
        let values = values.iter().cloned();
        there.entry(label.clone()).or_default().extend(values);
    }
    assert_eq!(told, there);
}

#[test]
fn the_guide_reads_leases_by_what_is_told() {
    let guide = include_str!("../../src/guide/monitoring.md");
    let (_, leases) = guide.split_once("\n## Leases\n").expect("a chapter");
    let (leases, _) = leases.split_once("\n# Alerts\n").expect("the next one");
    let expressions = leases.lines().filter(|line| line.starts_with("sum"));
    let expressions: Vec<_> = expressions.collect();
    assert_eq!(expressions.len(), 3);
    for expr in expressions {
        assert_eq!(complaints(expr), [""; 0], "{expr}");
    }
}

#[test]
fn the_guide_tells_each_alert() {
    let told = rows("alert").into_iter().map(|mut cells| {
        cells.truncate(3);
        cells
    });
    let there = watched::alerts().into_iter();
    let there = there.map(|alert| vec![alert.name, alert.wait, alert.severity]);
    assert_eq!(told.collect::<Vec<_>>(), there.collect::<Vec<_>>());
}

/// The lists of numbers of a text.
fn buckets(text: &str) -> BTreeSet<Vec<String>> {
    let lists = text.split('[').filter_map(|rest| rest.split(']').next());
    let numbers = |list: &str| -> Option<Vec<String>> {
        let numbers = list.split(',').map(|number| number.trim().replace('_', ""));
        let numbers: Vec<_> = numbers.filter(|number| !number.is_empty()).collect();
        let are_numbers = numbers.iter().all(|number| number.parse::<f64>().is_ok());
        (are_numbers && numbers.len() > 2).then_some(numbers)
    };
    lists.filter_map(numbers).collect()
}

#[test]
fn the_example_and_the_guide_have_the_same_buckets_for_each_histogram() {
    let example = watched::text("record.rs");
    let guide = include_str!("../../src/guide/monitoring.md");
    let histograms = EMITTED.metrics.iter();
    let histograms = histograms.filter(|(_, family)| family.kind == "histogram");
    let names: Vec<_> = histograms.map(|(name, _)| name).collect();
    for name in &names {
        assert!(example.contains(&format!("of(\"{name}\")")), "{name}");
        let set = format!("Matcher::Full(\"{name}\".into())");
        assert!(guide.contains(&set), "{name}");
    }
    let (_, guide) = guide.split_once("PrometheusBuilder::new()").expect("code");
    let (guide, _) = guide.split_once("install_recorder").expect("its end");
    assert_eq!(buckets(&example), buckets(guide));
    assert_eq!(buckets(&example).len(), names.len());
}

#[test]
fn names_follow_the_conventions_of_prometheus() {
    for (name, family) in &EMITTED.metrics {
        assert!(name.starts_with("tollgate_"), "{name}");
        let labels = family.labels.keys();
        for word in labels.chain([name]) {
            let is_snake = |each: char| each.is_ascii_lowercase() || each == '_';
            assert!(word.chars().all(is_snake) && !word.contains("__"), "{word}");
        }
        let is_counter = family.kind == "counter";
        assert_eq!(name.ends_with("_total"), is_counter, "{name}");
        let is_time = family.unit == Some(Unit::Seconds);
        assert_eq!(name.ends_with("_seconds"), is_time, "{name}");
        let is_base = [Some(Unit::Seconds), Some(Unit::Count)].contains(&family.unit);
        assert!(is_base, "{name}: {:?}", family.unit);
        for suffix in ["_count", "_sum", "_bucket", "_info", "_created"] {
            assert!(!name.ends_with(suffix), "{name}: Prometheus adds it");
        }
    }
}

#[test]
fn the_guide_tells_each_field_of_the_events() {
    let told: BTreeSet<String> = rows("field")
        .into_iter()
        .map(|cells| cells[0].clone())
        .collect();
    let there = EMITTED
        .events
        .iter()
        .flat_map(|event| event.fields.keys().cloned());
    assert_eq!(told, there.collect());
}

#[test]
fn only_refusals_are_told_at_info_and_no_key_and_no_part_of_one_is() {
    let mut levels: BTreeMap<Level, BTreeSet<&str>> = BTreeMap::new();
    for event in &EMITTED.events {
        let outcome = event.fields["outcome"].trim_matches('"');
        levels.entry(event.level).or_default().insert(outcome);
        for (name, value) in &event.fields {
            assert!(
                !WHO.split('.').any(|part| value.contains(part)),
                "{name} is {value}"
            );
        }
    }
    assert_eq!(
        levels.remove(&Level::INFO),
        Some(BTreeSet::from(["refused"]))
    );
    let others = levels.remove(&Level::DEBUG).expect("events");
    let words = &EMITTED.metrics["tollgate_checks_total"].labels["outcome"];
    let words: BTreeSet<&str> = words.iter().map(String::as_str).collect();
    assert!(others.is_subset(&words), "{others:?}");
    assert!(levels.is_empty(), "{levels:?}");
}

#[test]
fn of_a_crowd_that_is_refused_ten_a_second_are_told_at_info() {
    let events = EMITTED.events.iter();
    let of_crowd = events.filter(|event| event.fields["limiter"] == "\"crowd\"");
    let refused = of_crowd.filter(|event| event.fields["outcome"] == "\"refused\"");
    let (at_info, others): (Vec<_>, Vec<_>) = refused.partition(|event| event.level == Level::INFO);
    assert_eq!(at_info.len() + others.len(), CROWD);
    // It may come at the turn of a second.
    assert!((10..=20).contains(&at_info.len()), "{}", at_info.len());
}

#[test]
fn an_admission_is_told_at_each_level_with_the_numbers_of_its_tightest_quota() {
    for (limiter, expected) in [
        ("\"user of a level\"", ["1", "7", "6"]),
        ("\"tenant of a level\"", ["2", "5", "3"]),
    ] {
        let events = EMITTED.events.iter();
        let events = events.filter(|event| event.fields["limiter"] == limiter);
        let told = events.map(|event| {
            assert_eq!(event.fields["outcome"], "\"admitted\"");
            ["cost", "limit", "remaining"].map(|name| event.fields[name].as_str())
        });
        assert_eq!(told.collect::<Vec<_>>(), [expected]);
    }
}
