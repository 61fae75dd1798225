//! Finds the metric names and labels in a `PromQL` expression. Prometheus validates the syntax.

use std::collections::BTreeSet;
use std::iter::Peekable;
use std::vec::IntoIter;

#[derive(Debug, Default, PartialEq)]
pub(crate) struct Asked {
    pub(crate) series: Vec<Series>,
    /// The labels that results are told apart by.
    pub(crate) grouped_by: BTreeSet<String>,
}

#[derive(Debug, Default, PartialEq)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) labels: Vec<Wanted>,
}

/// A label that must have a value, or one of several.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Wanted {
    pub(crate) label: String,
    pub(crate) values: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Word(String),
    Text(String),
    Sign(char),
}

use Token::{Sign, Text, Word};

/// Words that stand before labels.
const GROUPING: [&str; 6] = [
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
];

/// Words between expressions.
const BETWEEN: [&str; 5] = ["and", "or", "unless", "offset", "bool"];

pub(crate) fn asked(expr: &str) -> Asked {
    let mut asked = Asked::default();
    let mut tokens = tokens(expr).into_iter().peekable();
    while let Some(token) = tokens.next() {
        match token {
            // For how long: `[5m]`.
            Sign('[') => drop(until(&mut tokens, ']')),
            // The name is one of the labels.
            Sign('{') => {
                let all = wanted(&until(&mut tokens, '}'));
                let (names, labels): (Vec<_>, Vec<_>) =
                    all.into_iter().partition(|each| each.label == "__name__");
                let names = names.into_iter().flat_map(|each| each.values);
                asked.series.extend(names.map(|name| Series {
                    name,
                    labels: labels.clone(),
                }));
            }
            Word(word) if GROUPING.contains(&&*word) => {
                if tokens.next_if_eq(&Sign('(')).is_some() {
                    let labels = until(&mut tokens, ')').into_iter();
                    asked.grouped_by.extend(labels.filter_map(word_of));
                }
            }
            Word(word) if BETWEEN.contains(&&*word) => {}
            Word(name) => match tokens.peek() {
                // A function, or `sum by (…)`.
                Some(Sign('(')) => {}
                Some(Word(next)) if GROUPING.contains(&&**next) => {}
                Some(Sign('{')) => {
                    tokens.next();
                    let labels = wanted(&until(&mut tokens, '}'));
                    asked.series.push(Series { name, labels });
                }
                _ => asked.series.push(Series {
                    name,
                    labels: Vec::new(),
                }),
            },
            Text(_) | Sign(_) => {}
        }
    }
    asked
}

fn until(tokens: &mut Peekable<IntoIter<Token>>, end: char) -> Vec<Token> {
    tokens
        .by_ref()
        .take_while(|token| *token != Sign(end))
        .collect()
}

fn word_of(token: Token) -> Option<String> {
    match token {
        Word(word) => Some(word),
        Text(_) | Sign(_) => None,
    }
}

/// `outcome="refused"`, `outcome=~"refused|failed"`: what stands between braces.
fn wanted(matchers: &[Token]) -> Vec<Wanted> {
    let matchers = matchers.split(|token| *token == Sign(','));
    let matchers = matchers.filter_map(|matcher| match matcher {
        [Word(label), .., Text(values)] => Some(Wanted {
            label: label.clone(),
            values: values.split('|').map(str::to_owned).collect(),
        }),
        [] => None,
        other => panic!("no matcher: {other:?}"),
    });
    matchers.collect()
}

fn tokens(expr: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = expr.trim_start();
    while let Some(first) = rest.chars().next() {
        let len = if first == '"' {
            let len = rest[1..].find('"').expect("a text ends") + 2;
            assert!(!rest[..len].contains('\\'), "not read here: {expr}");
            tokens.push(Text(rest[1..len - 1].to_owned()));
            len
        } else if is_of_word(first) || first.is_ascii_digit() {
            let of_word = |each: char| is_of_word(each) || each.is_ascii_digit() || each == '.';
            let len = rest.find(|each| !of_word(each)).unwrap_or(rest.len());
            // Numbers, and times like `5m`, say nothing of metrics.
            if is_of_word(first) {
                tokens.push(Word(rest[..len].to_owned()));
            }
            len
        } else {
            tokens.push(Sign(first));
            first.len_utf8()
        };
        rest = rest[len..].trim_start();
    }
    tokens
}

fn is_of_word(each: char) -> bool {
    each.is_ascii_alphabetic() || each == '_' || each == ':'
}

#[test]
fn metrics_labels_and_values_are_read_out_of_an_expression() {
    let expr = r#"histogram_quantile(0.99, sum by (store, le) (rate(a_bucket{job=~".*", kind!="x,}"}[5m] offset 1h)))
        / on (job) group_left b > 2 * sum(c) without (instance) or {__name__=~"d|e", job="api"} and vector(0)"#;
    let wanted = |label: &str, value: &str| Wanted {
        label: label.into(),
        values: vec![value.into()],
    };
    let series = |name: &str, labels: Vec<Wanted>| Series {
        name: name.into(),
        labels,
    };
    let Asked {
        series: all,
        grouped_by,
    } = asked(expr);
    assert_eq!(
        all,
        [
            series("a_bucket", vec![wanted("job", ".*"), wanted("kind", "x,}")]),
            series("b", vec![]),
            series("c", vec![]),
            series("d", vec![wanted("job", "api")]),
            series("e", vec![wanted("job", "api")]),
        ]
    );
    let labels: Vec<_> = grouped_by.iter().map(String::as_str).collect();
    assert_eq!(labels, ["instance", "job", "le", "store"]);
}
