//! The events of a world: their hash, and those that a trace shows.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::{self, Write};

use crate::server::Reply;

/// The most events of a trace.
const TRACED: usize = 20_000;

/// The most violations that are told.
const VIOLATIONS: usize = 5;

/// The events of a world.
#[derive(Debug)]
pub(crate) struct Log {
    hash: u64,
    /// The time of the world, in milliseconds.
    now: u64,
    counts: BTreeMap<&'static str, u64>,
    codes: BTreeSet<String>,
    violations: Vec<String>,
    traced: Option<TracedKey>,
    trace: VecDeque<String>,
}

impl Log {
    pub(crate) fn new(traced: Option<&str>) -> Self {
        Self {
            hash: 0xcbf2_9ce4_8422_2325,
            now: 0,
            counts: BTreeMap::new(),
            codes: BTreeSet::new(),
            violations: Vec::new(),
            traced: traced.map(TracedKey::new),
            trace: VecDeque::new(),
        }
    }

    pub(crate) fn set_time(&mut self, now: u64) {
        self.now = now;
    }

    /// Adds bytes to the hash.
    pub(crate) fn hash(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.hash = (self.hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// Adds a reply to the hash.
    pub(crate) fn hash_reply(&mut self, reply: &Reply) {
        match reply {
            Reply::Nil => self.hash(b"nil"),
            Reply::Int(number) => self.hash(&number.to_be_bytes()),
            Reply::Bulk(bytes) => self.hash(bytes),
            Reply::Status(word) => self.hash(word.as_bytes()),
            Reply::Error(text) => self.hash(text.as_bytes()),
            Reply::Array(items) => items.iter().for_each(|item| self.hash_reply(item)),
        }
    }

    /// Adds an event.
    pub(crate) fn note(&mut self, event: fmt::Arguments<'_>) {
        self.hash(&self.now.to_be_bytes());
        let _ = HashWriter(self).write_fmt(event);
        self.trace(event);
    }

    /// Adds an event to the trace alone: its bytes have been hashed in another form.
    pub(crate) fn trace(&mut self, event: fmt::Arguments<'_>) {
        // The events that led to the first violation are those that matter.
        let Some(traced) = self.traced.as_ref().filter(|_| self.violations.is_empty()) else {
            return;
        };
        let event = event.to_string();
        if traced.shows(&event) {
            self.trace.push_back(format!("{:>6} ms  {event}", self.now));
            if self.trace.len() > TRACED {
                self.trace.pop_front();
            }
        }
    }

    pub(crate) fn is_traced(&self) -> bool {
        self.traced.is_some()
    }

    pub(crate) fn count(&mut self, what: &'static str) {
        self.count_many(what, 1);
    }

    pub(crate) fn count_many(&mut self, what: &'static str, number: u64) {
        *self.counts.entry(what).or_default() += number;
    }

    /// Counts the code of an error.
    pub(crate) fn failed(&mut self, error: &tollgate::Error) {
        self.count("failed");
        self.codes.insert(error.code().to_owned());
    }

    /// Tells that a promise is broken.
    pub(crate) fn violated(&mut self, text: fmt::Arguments<'_>) {
        self.trace(format_args!("VIOLATION {text}"));
        if self.violations.len() < VIOLATIONS {
            let now = self.now;
            self.violations.push(format!("at {now} ms: {text}"));
        }
    }

    pub(crate) fn into_report(self, branches: BTreeSet<String>) -> Report {
        Report {
            hash: self.hash,
            counts: self
                .counts
                .into_iter()
                .map(|(name, count)| (name.to_owned(), count))
                .collect(),
            codes: self.codes,
            branches,
            violations: self.violations,
            trace: self.trace.into(),
        }
    }
}

/// The key whose events are kept, in the forms in which events name it.
#[derive(Debug)]
struct TracedKey([String; 3]);

impl TracedKey {
    /// Takes a limiter and a key, such as `slots,x`.
    fn new(name: &str) -> Self {
        let (limiter, key) = name.split_once(',').unwrap_or((name, ""));
        let in_command = format!("{{{limiter},{key}}}");
        let in_charge = format!("({limiter:?}, {key:?}");
        Self([in_command, in_charge, format!("{limiter} {key}")])
    }

    fn shows(&self, event: &str) -> bool {
        let is_named = self.0.iter().any(|form| event.contains(form.as_str()));
        let of_all = ["fault:", "the clock steps", "VIOLATION"];
        is_named || of_all.iter().any(|begin| event.starts_with(begin))
    }
}

/// Writes text into the hash, without a copy.
struct HashWriter<'a>(&'a mut Log);

impl Write for HashWriter<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.hash(text.as_bytes());
        Ok(())
    }
}

/// The outcome of a world.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The hash of all commands, replies, decisions and faults, in their order.
    pub hash: u64,
    /// How often what happened.
    pub counts: BTreeMap<String, u64>,
    /// The codes of errors that clients got.
    pub codes: BTreeSet<String>,
    /// The branches of scripts that ran.
    pub branches: BTreeSet<String>,
    /// The promises that broke.
    pub violations: Vec<String>,
    /// The last events of the key that is traced.
    pub trace: Vec<String>,
}

impl Report {
    /// Writes the report as lines, each with its kind in front.
    #[must_use]
    pub fn to_lines(&self) -> String {
        let mut lines = vec![format!("hash {}", self.hash)];
        lines.extend(
            self.counts
                .iter()
                .map(|(name, count)| format!("count {count} {name}")),
        );
        lines.extend(self.codes.iter().map(|code| format!("code {code}")));
        lines.extend(
            self.branches
                .iter()
                .map(|branch| format!("branch {branch}")),
        );
        lines.extend(
            self.violations
                .iter()
                .map(|text| format!("violation {text}")),
        );
        lines.extend(self.trace.iter().map(|event| format!("event {event}")));
        lines.join("\n")
    }

    /// Reads the lines of another process. A process that has died has told no hash: that is a violation, too.
    #[must_use]
    pub fn from_lines(lines: &str) -> Self {
        let mut report = Self::default();
        for line in lines.lines() {
            match line.split_once(' ') {
                Some(("hash", hash)) => report.hash = hash.parse().unwrap_or_default(),
                Some(("count", count)) => {
                    let (number, name) = count.split_once(' ').unwrap_or(("0", count));
                    let number = number.parse().unwrap_or_default();
                    report.counts.insert(name.to_owned(), number);
                }
                Some(("code", code)) => drop(report.codes.insert(code.to_owned())),
                Some(("branch", branch)) => drop(report.branches.insert(branch.to_owned())),
                Some(("violation", text)) => report.violations.push(text.to_owned()),
                Some(("event", event)) => report.trace.push(event.to_owned()),
                _ => {}
            }
        }
        if report.hash == 0 {
            report.violations.push("the world has panicked".to_owned());
        }
        report
    }

    /// Adds the numbers of another world.
    pub fn add(&mut self, other: &Self) {
        for (name, count) in &other.counts {
            *self.counts.entry(name.clone()).or_default() += count;
        }
        self.codes.extend(other.codes.iter().cloned());
        self.branches.extend(other.branches.iter().cloned());
    }
}
