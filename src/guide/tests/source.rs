//! The constants of the source, as they are written there.

use std::path::Path;

use super::page::read;

/// A constant that is a number or a time, and the file in `src` in which it is.
#[derive(Debug)]
pub(super) struct Constant {
    pub(super) file: String,
    pub(super) name: String,
    value: String,
}

/// In what a constant is told.
#[derive(Clone, Copy)]
enum Value {
    Count(u64),
    Micros(u64),
}

/// All constants outside of tests that are numbers or times.
pub(super) fn constants() -> Vec<Constant> {
    let mut files = Vec::new();
    collect(Path::new("src"), &mut files);
    files.iter().flat_map(|file| constants_of(file)).collect()
}

fn collect(directory: &Path, files: &mut Vec<String>) {
    let there = Path::new(env!("CARGO_MANIFEST_DIR")).join(directory);
    for entry in std::fs::read_dir(there).expect("a directory") {
        let path = directory.join(entry.expect("an entry").file_name());
        let path = path.to_str().expect("a name");
        if Path::new(env!("CARGO_MANIFEST_DIR")).join(path).is_dir() {
            collect(Path::new(path), files);
        } else if path.ends_with(".rs") && !path.contains("tests") {
            files.push(path.trim_start_matches("src/").to_owned());
        }
    }
}

/// The source of a file in `src`, without its tests.
pub(super) fn source_of(file: &str) -> String {
    let text = read(&format!("src/{file}"));
    let code = text.split_once("\nmod tests");
    code.map_or_else(|| text.clone(), |(code, _)| code.to_owned())
}

fn constants_of(file: &str) -> Vec<Constant> {
    let source = source_of(file);
    let mut constants = Vec::new();
    for declared in source.split("const ").skip(1) {
        let Some((declared, _)) = declared.split_once(';') else {
            continue;
        };
        let Some(((name, kind), value)) = declared
            .split_once('=')
            .and_then(|(left, value)| Some((left.split_once(':')?, value)))
        else {
            continue;
        };
        let kinds = ["u8", "u16", "u32", "u64", "u128", "usize", "Duration"];
        let is_name = name
            .chars()
            .all(|each| each.is_ascii_uppercase() || "_0123456789".contains(each));
        if is_name && kinds.contains(&kind.trim()) {
            constants.push(Constant {
                file: file.to_owned(),
                name: name.to_owned(),
                value: value.trim().to_owned(),
            });
        }
    }
    constants
}

/// How a constant of a file is told, in this unit.
pub(super) fn told(file: &str, name: &str, unit: &str) -> String {
    let value = value_of(file, name);
    match (unit, value) {
        ("", Value::Micros(micros)) => time(micros),
        ("µs", Value::Count(micros)) => time(micros),
        ("tenths", Value::Count(tenths)) => format!("{} µs", tenths / 10),
        ("s", Value::Count(seconds)) => format!("{seconds} s"),
        ("part", Value::Count(parts)) => format!("1/{parts}"),
        ("of-1024", Value::Count(parts)) => format!("1/{}", 1_024 / parts),
        ("plain", Value::Count(count)) => count.to_string(),
        ("", Value::Count(count)) => grouped(count),
        _ => panic!("{name} of {file} cannot be told in {unit:?}"),
    }
}

fn time(micros: u64) -> String {
    if micros.is_multiple_of(1_000_000) {
        format!("{} s", micros / 1_000_000)
    } else {
        format!("{} ms", micros / 1_000)
    }
}

fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let from_end = digits.len() % 3;
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && at % 3 == from_end {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

fn value_of(file: &str, name: &str) -> Value {
    let constants = constants_of(file);
    let found = constants.iter().find(|constant| constant.name == name);
    let found = found.unwrap_or_else(|| panic!("{file} has no constant {name}"));
    let millis = |text: &str| Some(Value::Micros(text.parse::<u64>().ok()? * 1_000));
    let value = found.value.replace('_', "");
    let inside = |name: &str| {
        value
            .strip_prefix(name)?
            .strip_prefix('(')?
            .strip_suffix(')')
    };
    inside("Duration::frommillis")
        .and_then(millis)
        .or_else(|| millis(&format!("{}000", inside("Duration::fromsecs")?)))
        .or_else(|| Some(Value::Count(value.parse().ok()?)))
        // Another one of the same file.
        .unwrap_or_else(|| value_of(file, &found.value))
}
