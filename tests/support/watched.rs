//! The queries of the dashboard and the alerts of the example `observability`.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use super::files;

/// A query, and the panel, alert or recorded series that has it.
#[derive(Clone, Debug)]
pub(crate) struct Query {
    pub(crate) of: String,
    pub(crate) expr: String,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Alert {
    pub(crate) name: String,
    pub(crate) expr: String,
    /// How long it must hold.
    pub(crate) wait: String,
    pub(crate) severity: String,
}

/// A file of the example.
pub(crate) fn path(name: &str) -> PathBuf {
    files::root().join("examples/observability").join(name)
}

pub(crate) fn text(name: &str) -> String {
    let path = path(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub(crate) fn dashboard() -> Value {
    serde_json::from_str(&text("dashboard.json")).expect("JSON")
}

/// All panels that ask for something; rows do not.
pub(crate) fn panels() -> Vec<Value> {
    let mut panels = list(&dashboard(), "panels");
    panels.retain(|panel| panel["type"] != "row");
    panels
}

/// What panels ask, as Grafana sends it when everything is chosen.
pub(crate) fn of_panels() -> Vec<Query> {
    let queries = |panel: Value| {
        let targets = list(&panel, "targets").into_iter();
        targets.map(move |target| Query {
            of: text_of(&panel, "title").to_owned(),
            expr: filled_in(text_of(&target, "expr")),
        })
    };
    panels().into_iter().flat_map(queries).collect()
}

/// From what the choices of the dashboard are made: `label_values(series, label)` asks for a label of series.
pub(crate) fn of_choices() -> Vec<Query> {
    let choices = list(&dashboard()["templating"], "list");
    let choices = choices.iter().filter(|choice| choice["type"] == "query");
    let query = |choice: &Value| {
        let asked = text_of(choice, "definition");
        let of_series = asked.strip_prefix("label_values(");
        let of_series = of_series.and_then(|rest| rest.strip_suffix(')')?.rsplit_once(", "));
        let (series, label) = of_series.expect(asked);
        Query {
            of: text_of(choice, "label").to_owned(),
            expr: format!("count by ({label}) ({})", filled_in(series)),
        }
    };
    choices.map(query).collect()
}

fn filled_in(expr: &str) -> String {
    let filled_in = expr.replace("$__rate_interval", "5m");
    let filled_in = ["$job", "$limiter", "$store"]
        .into_iter()
        .fold(filled_in, |expr, choice| expr.replace(choice, ".*"));
    assert!(!filled_in.contains('$'), "{expr}");
    filled_in
}

pub(crate) fn list(value: &Value, name: &str) -> Vec<Value> {
    let list = value[name].as_array();
    list.unwrap_or_else(|| panic!("no list {name}: {value}"))
        .clone()
}

pub(crate) fn text_of<'a>(value: &'a Value, name: &str) -> &'a str {
    let text = value[name].as_str();
    text.unwrap_or_else(|| panic!("no text {name}: {value}"))
}

/// The fields of one rule.
type Rule = BTreeMap<String, String>;

/// The rules. Of YAML this reads what their file is written in; Prometheus reads it too, and sees the same.
fn rules() -> Vec<Rule> {
    let text = text("alerts.yml");
    let mut rules: Vec<Rule> = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        let field = line.trim().trim_start_matches("- ");
        if field != line.trim() {
            rules.push(Rule::new());
        }
        let (Some((name, value)), Some(rule)) = (field.split_once(": "), rules.last_mut()) else {
            continue;
        };
        let deeper = |next: &&str| indent(next) > indent(line);
        let value = if value == ">-" {
            let mut parts = Vec::new();
            while let Some(next) = lines.next_if(deeper) {
                parts.push(next.trim());
            }
            parts.join(" ")
        } else {
            value.to_owned()
        };
        rule.insert(name.to_owned(), value);
    }
    rules
}

pub(crate) fn alerts() -> Vec<Alert> {
    let alert = |mut rule: Rule| {
        let mut field = |name: &str| rule.remove(name);
        Some(Alert {
            name: field("alert")?,
            expr: field("expr")?,
            wait: field("for")?,
            severity: field("severity")?,
        })
    };
    rules().into_iter().filter_map(alert).collect()
}

/// The series that recording rules add.
pub(crate) fn recorded() -> Vec<Query> {
    let recorded = |mut rule: Rule| {
        let mut field = |name: &str| rule.remove(name);
        Some(Query {
            of: field("record")?,
            expr: field("expr")?,
        })
    };
    rules().into_iter().filter_map(recorded).collect()
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}
