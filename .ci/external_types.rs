//! Fails if the public API has a type or a trait of another crate than those that are named: a major version of that crate would be
//! one of this crate, too.
//!
//! It reads what rustdoc writes as JSON, which is not stable yet. `.ci/lint` compiles and runs it, so it needs nothing but Rust:
//!
//!     rustc --edition 2024 -o target/external_types .ci/external_types.rs
//!     target/external_types target/doc/tollgate.json http bytes

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::{env, fs};

/// The crates of every program.
const STANDARD: [&str; 3] = ["alloc", "core", "std"];

fn main() -> ExitCode {
    let mut args = env::args().skip(1);
    let file = args.next().expect("the file that rustdoc has written");
    let allowed: Vec<String> = args.collect();
    let text = fs::read_to_string(&file).expect("text");
    let docs = Parser::new(&text).value();
    let mut exit_code = ExitCode::SUCCESS;
    let mut found: BTreeMap<&str, usize> = BTreeMap::new();
    let Json::Object(index) = docs.get("index") else {
        eprintln!("no items in {file}");
        return ExitCode::FAILURE;
    };
    for item in index.values().filter(|item| is_own(item)) {
        let mut named = Vec::new();
        add_named(item.get("inner"), &mut named);
        for id in named {
            let Some((name, path)) = external(&docs, id) else {
                continue;
            };
            *found.entry(name).or_default() += 1;
            if !allowed.iter().any(|allowed| allowed == name) && !STANDARD.contains(&name) {
                eprintln!(
                    "{} has {path}, and {name} is not in {allowed:?}",
                    place(item)
                );
                exit_code = ExitCode::FAILURE;
            }
        }
    }
    let unused = allowed
        .iter()
        .find(|allowed| !found.contains_key(allowed.as_str()));
    if let Some(unused) = unused {
        eprintln!("nothing of {unused} is in {file}");
        exit_code = ExitCode::FAILURE;
    }
    let counts: Vec<_> = found
        .iter()
        .map(|(name, count)| format!("{name} {count}"))
        .collect();
    println!("{}", counts.join(", "));
    exit_code
}

/// Returns whether this crate has written an item. What it has by rules for all types is not its own.
fn is_own(item: &Json) -> bool {
    let implementation = item.get("inner").get("impl");
    let is_by_rule = !implementation.get("blanket_impl").is_null()
        || implementation.get("is_synthetic").is_true();
    item.get("crate_id").number() == Some(0) && !is_by_rule
}

/// Adds the types, traits and re-exports that an item names.
fn add_named(value: &Json, named: &mut Vec<u64>) {
    match value {
        Json::Object(entries) => {
            if let Some(id) = value.get("id").number()
                && !(value.get("path").is_null() && value.get("source").is_null())
            {
                named.push(id);
            }
            entries.values().for_each(|inner| add_named(inner, named));
        }
        Json::Array(values) => values.iter().for_each(|inner| add_named(inner, named)),
        _ => {}
    }
}

/// Returns the name of the crate that an item comes from, and its path. `None` for an item of this crate.
fn external<'a>(docs: &'a Json, id: u64) -> Option<(&'a str, String)> {
    let path = docs.get("paths").get(&id.to_string());
    let number = path
        .get("crate_id")
        .number()
        .filter(|number| *number != 0)?;
    let of_crate = docs.get("external_crates").get(&number.to_string());
    let names: Vec<_> = path.get("path").values().iter().map(Json::text).collect();
    // A macro writes these for its own use.
    if names.contains(&"__private") {
        return None;
    }
    Some((of_crate.get("name").text(), names.join("::")))
}

fn place(item: &Json) -> String {
    let span = item.get("span");
    let line = span.get("begin").values().first().and_then(Json::number);
    format!(
        "{}:{}: {}",
        span.get("filename").text(),
        line.unwrap_or_default(),
        item.get("name").text()
    )
}

enum Json {
    Null,
    Bool(bool),
    /// A number that is not a whole one is 0: no id is.
    Number(u64),
    Text(String),
    Array(Vec<Json>),
    Object(BTreeMap<String, Json>),
}

impl Json {
    /// Returns the value of a key, or null.
    fn get(&self, key: &str) -> &Self {
        match self {
            Self::Object(entries) => entries.get(key).unwrap_or(&Self::Null),
            _ => &Self::Null,
        }
    }

    fn values(&self) -> &[Self] {
        match self {
            Self::Array(values) => values,
            _ => &[],
        }
    }

    fn number(&self) -> Option<u64> {
        match self {
            Self::Number(number) => Some(*number),
            _ => None,
        }
    }

    fn text(&self) -> &str {
        match self {
            Self::Text(text) => text,
            _ => "",
        }
    }

    fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    fn is_true(&self) -> bool {
        matches!(self, Self::Bool(true))
    }
}

struct Parser<'a> {
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Self {
        Self { rest: text }
    }

    fn value(&mut self) -> Json {
        self.rest = self.rest.trim_start();
        match self.rest.chars().next().expect("a value") {
            '{' => Json::Object(BTreeMap::from_iter(self.list('}', |parser| {
                let key = parser.text();
                parser.skip(':');
                (key, parser.value())
            }))),
            '[' => Json::Array(self.list(']', Self::value)),
            '"' => Json::Text(self.text()),
            _ => self.word(),
        }
    }

    fn list<T>(&mut self, end: char, item: impl Fn(&mut Self) -> T) -> Vec<T> {
        let mut items = Vec::new();
        self.rest = &self.rest[1..];
        while !self.rest.trim_start().starts_with(end) {
            items.push(item(self));
            if self.rest.trim_start().starts_with(',') {
                self.skip(',');
            }
        }
        self.skip(end);
        items
    }

    fn skip(&mut self, expected: char) {
        let rest = self.rest.trim_start().strip_prefix(expected);
        self.rest = rest.unwrap_or_else(|| panic!("{expected} in front of {:.40}", self.rest));
    }

    fn text(&mut self) -> String {
        self.skip('"');
        let mut text = String::new();
        let mut letters = self.rest.char_indices();
        while let Some((at, letter)) = letters.next() {
            match letter {
                '"' => {
                    self.rest = &self.rest[at + 1..];
                    return text;
                }
                // No name has an escape, so what it stands for does not matter.
                '\\' => text.extend(letters.next().map(|(_, escaped)| escaped)),
                _ => text.push(letter),
            }
        }
        panic!("a text without an end");
    }

    fn word(&mut self) -> Json {
        let end = self.rest.find([',', '}', ']']).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        match word.trim() {
            "null" => Json::Null,
            "true" => Json::Bool(true),
            "false" => Json::Bool(false),
            number => Json::Number(number.parse().unwrap_or_default()),
        }
    }
}
