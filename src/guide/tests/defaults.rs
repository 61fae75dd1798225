//! The page of defaults: each value is that of the code, and none is left out.

use crate::guide::tests::behaviour;
use super::page::{numbers, read, tables_of};
use super::source::{constants, source_of, told};

/// Constants that decide nothing of what an application sees: forms of storing, of writing and of
/// counting. All others are on the page. A file that ends with a slash is a directory.
const UNTOLD: &[(&str, &[&str])] = &[
    ("algorithm/", &[]),
    ("decision/", &[]),
    ("headers/", &[]),
    (
        "quota.rs",
        &[
            "MICROS_PER_SECOND",
            "MIN_WINDOW_MICROS",
            "MAX_WINDOW_MICROS",
        ],
    ),
    ("error.rs", &["MOST"]),
    ("identity.rs", &["V4", "V6"]),
    ("identity/fingerprint.rs", &["APART"]),
    ("key/authorization.rs", &["CHUNK"]),
    ("limiter/settle.rs", &["ROUNDS"]),
    ("rejection.rs", &["HEADERS"]),
    ("rejection/grpc.rs", &[]),
    ("failure/outage.rs", &["FINE", "FAILS", "MISCONFIGURED"]),
    ("notice/suspicion.rs", &["MINUTE"]),
    ("store/redis/blocking.rs", &["LONGEST"]),
    ("clock.rs", &["START"]),
    ("store/blocks/filter.rs", &["WORDS"]),
    (
        "store/guard/breaker.rs",
        &["SECOND", "CALM", "WARY", "OPEN"],
    ),
    (
        "store/memory/table.rs",
        &["MIN_KEYS_PER_SHARD", "MAX_SHARDS"],
    ),
    (
        "store/memory/overflow.rs",
        &["MIN_NETWORKS", "MAX_SHARED_COUNTS", "WARNING_INTERVAL"],
    ),
    (
        "store/memory/shard.rs",
        &["SWEPT_PER_STRANGER", "CHECKS_PER_SWEPT"],
    ),
    ("store/redis/protocol/encode.rs", &[]),
    ("store/redis/denials.rs", &["PARTS"]),
    ("store/redis/doctor/memory.rs", &["NEARLY_FULL_PERCENT", "MEBIBYTE"]),
    ("store/redis/doctor/timing.rs", &["MAX_OFFSET", "MAX_DRIFT"]),
    ("store/redis/doctor/script_trial.rs", &["UNITS", "SLOTS_TRIED"]),
    ("store/redis/mod.rs", &["SLOTS", "LONGEST_DEADLINE"]),
    ("store/redis/protocol/key_names.rs", &["SLOTS"]),
    (
        "store/redis/queue.rs",
        &["WORK_OF_ENTRY", "WORK_OF_CHECK", "WORK_OF_UNIT"],
    ),
    ("store/redis/script/scripts.rs", &["NUMBER_LENGTH"]),
    ("telemetry/busiest.rs", &["EMPTY_PLACES", "MOST_AT_FIRST"]),
];

/// What is chosen by the methods that take and return a whole, by the file in which they are.
const BUILDERS: &[(&str, &str)] = &[
    ("failure.rs", "crate::limiter::FailurePolicy"),
    ("headers.rs", "crate::middleware::Headers"),
    ("layer.rs", "crate::middleware::RateLimitLayer"),
    ("limiter.rs", "crate::limiter::RateLimiter"),
    ("quota.rs", "crate::quota::Quota"),
    ("store/guard/mod.rs", "crate::store::Guard"),
    ("store/memory/mod.rs", "crate::store::MemoryStore"),
    ("store/redis/mod.rs", "crate::store::RedisStore"),
    ("key/client_ip.rs", "crate::key::ClientIp"),
    ("key/peer_ip.rs", "crate::key::PeerIp"),
];

/// What they do that has no default: they add to something, or are of tests.
const NO_DEFAULT: &[&str] = &[
    "and",
    "checked",
    "with_clock",
    "with_clock_source",
    "dry_run_header",
];

/// A part of a cell, and the comment behind it that says where it is from.
fn parts(cell: &str) -> (Vec<(&str, &str)>, &str) {
    let mut parts = Vec::new();
    let mut rest = cell;
    while let Some((text, behind)) = rest.split_once("<!-- ") {
        let (from, behind) = behind.split_once(" -->").expect("a comment ends");
        parts.push((text, from));
        rest = behind;
    }
    (parts, rest)
}

/// Nothing where a text tells what the source it names does.
fn wrong(text: &str, from: &str) -> Option<String> {
    let expected = if let Some(name) = from.strip_prefix("= ") {
        behaviour::of(name)
    } else if let Some((file, line)) = from.split_once(" has ") {
        if !source_of(file).contains(line) {
            return Some(format!("{file} has no {line:?}"));
        }
        let line = line.replace("NonZeroUsize::MIN", "1");
        let unknown = numbers(text)
            .into_iter()
            .find(|number| !line.contains(number));
        return unknown.map(|number| format!("{number} is not in {line:?}"));
    } else {
        let mut words = from.split(' ');
        let (file, name) = (words.next()?, words.next()?);
        told(file, name, words.next().unwrap_or_default())
    };
    let is_told = text.contains(&expected) && numbers(text) == numbers(&expected);
    (!is_told).then(|| format!("{text:?} should be {expected:?}"))
}

/// What follows the name of each public function, with it.
fn public_functions(source: &str) -> Vec<String> {
    let source = source.replace("pub const fn ", "pub fn ");
    source.split("pub fn ").skip(1).map(str::to_owned).collect()
}

#[test]
fn each_default_is_the_one_of_the_code() {
    let mut faults = Vec::new();
    for row in tables_of("defaults").iter().flat_map(|table| &table[1..]) {
        let (parts, rest) = parts(&row[1]);
        if parts.is_empty() || !numbers(rest).is_empty() {
            faults.push(format!(
                "{}: nothing says where {:?} is from",
                row[0], row[1]
            ));
        }
        let wrong = parts.iter().filter_map(|(text, from)| wrong(text, from));
        faults.extend(wrong.map(|fault| format!("{}: {fault}", row[0])));
    }
    assert!(faults.is_empty(), "src/guide/defaults.md: {faults:#?}");
}

#[test]
fn no_constant_of_the_code_is_left_out() {
    let page = read("src/guide/defaults.md");
    let is_untold = |file: &str, name: &str| {
        UNTOLD.iter().any(|(of, names)| {
            let is_there = if of.ends_with('/') {
                file.starts_with(of)
            } else {
                file == *of
            };
            is_there && (names.is_empty() || names.contains(&name))
        })
    };
    let mut left_out = constants();
    for (of, names) in UNTOLD {
        for name in *names {
            let is_there = left_out
                .iter()
                .any(|constant| constant.file == *of && constant.name == *name);
            assert!(is_there, "UNTOLD names {name} of {of}, which is gone");
        }
    }
    assert!(
        left_out.len() > 60,
        "only {} constants were found",
        left_out.len()
    );
    left_out.retain(|constant| {
        let (file, name) = (&*constant.file, &*constant.name);
        let is_told = [" -->", " "]
            .iter()
            .any(|end| page.contains(&format!("{file} {name}{end}")));
        !is_told && !is_untold(file, name)
    });
    assert!(
        left_out.is_empty(),
        "tell these in src/guide/defaults.md with their reason, or name them in UNTOLD: {left_out:#?}"
    );
}

#[test]
fn nothing_that_can_be_chosen_is_left_out() {
    let page = read("src/guide/defaults.md");
    let mut found = 0;
    let mut left_out = Vec::new();
    for (file, of) in BUILDERS {
        for declared in public_functions(&source_of(file)) {
            let name = declared.split(['(', '<']).next().expect("a name");
            let behind = &declared[declared.find('(').expect("arguments")..];
            let head = behind.split_once('{').map_or(behind, |(head, _)| head);
            let takes = ["(self,", "(mut self,", "(self)", "(mut self)"];
            let is_builder =
                takes.iter().any(|takes| head.starts_with(takes)) && head.contains("-> Self");
            if !is_builder || NO_DEFAULT.contains(&name) {
                continue;
            }
            found += 1;
            if !page.contains(&format!("]({of}::{name})")) {
                left_out.push(format!("{of}::{name}"));
            }
        }
    }
    assert!(found > 30, "only {found} methods were found");
    assert!(
        left_out.is_empty(),
        "src/guide/defaults.md does not link to {left_out:#?}"
    );
}
