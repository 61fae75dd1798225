//! The record of an attack: all that an oracle sees, and all that a history file keeps.

use std::fmt;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::contestant::Failure;
use crate::lock::lock;

/// One call of the contestant, or one fault. Times are microseconds since the attack began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    pub(crate) id: u64,
    /// Before the call was made.
    pub(crate) start: u64,
    /// After its answer had come.
    pub(crate) end: u64,
    pub(crate) caller: u64,
    pub(crate) key: String,
    pub(crate) action: Action,
    pub(crate) outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// A check of so many units.
    Check(u32),
    /// Gives units of an earlier check back.
    Refund {
        of: u64,
        units: u32,
    },
    Acquire,
    /// Gives the slot of an earlier acquisition back, or loses it with the process that held it.
    Release {
        of: u64,
    },
    /// The server lost all counts between start and end.
    Loss,
    /// Something else was done to the server.
    Fault,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Admitted,
    /// With the microseconds to wait.
    Refused(Option<u64>),
    /// Without a decision: the call may have been charged.
    Failed(String),
    /// The caller gave up: the call may have been charged.
    Cancelled,
    Done,
}

impl Event {
    pub(crate) fn is_admitted(&self) -> bool {
        self.outcome == Outcome::Admitted
    }

    pub(crate) fn is_refused(&self) -> bool {
        matches!(self.outcome, Outcome::Refused(_))
    }

    /// Whether it may have been charged without being admitted.
    pub(crate) fn is_unknown(&self) -> bool {
        matches!(self.outcome, Outcome::Failed(_) | Outcome::Cancelled)
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            id,
            start,
            end,
            caller,
            key,
            ..
        } = self;
        write!(f, "{id} {start} {end} {caller} {key} ")?;
        match self.action {
            Action::Check(cost) => write!(f, "check {cost} 0"),
            Action::Refund { of, units } => write!(f, "refund {units} {of}"),
            Action::Acquire => write!(f, "acquire 1 0"),
            Action::Release { of } => write!(f, "release 1 {of}"),
            Action::Loss => write!(f, "loss 0 0"),
            Action::Fault => write!(f, "fault 0 0"),
        }?;
        match &self.outcome {
            Outcome::Admitted => write!(f, " admitted"),
            Outcome::Refused(None) => write!(f, " refused"),
            Outcome::Refused(Some(wait)) => write!(f, " refused {wait}"),
            Outcome::Failed(text) => write!(f, " failed {}", text.replace(['\n', '\r'], " ")),
            Outcome::Cancelled => write!(f, " cancelled"),
            Outcome::Done => write!(f, " done"),
        }
    }
}

impl FromStr for Event {
    type Err = Failure;

    fn from_str(line: &str) -> Result<Self, Failure> {
        let words: Vec<_> = line.splitn(10, ' ').collect();
        let [
            id,
            start,
            end,
            caller,
            key,
            action,
            units,
            of,
            outcome,
            ref rest @ ..,
        ] = words[..]
        else {
            return Err(malformed(line));
        };
        let units = units.parse()?;
        let of = of.parse()?;
        let action = match action {
            "check" => Action::Check(units),
            "refund" => Action::Refund { of, units },
            "acquire" => Action::Acquire,
            "release" => Action::Release { of },
            "loss" => Action::Loss,
            "fault" => Action::Fault,
            _ => return Err(malformed(line)),
        };
        let outcome = match (outcome, rest.first()) {
            ("admitted", _) => Outcome::Admitted,
            ("refused", None) => Outcome::Refused(None),
            ("refused", Some(wait)) => Outcome::Refused(Some(wait.parse()?)),
            ("failed", text) => Outcome::Failed(text.copied().unwrap_or_default().to_owned()),
            ("cancelled", _) => Outcome::Cancelled,
            ("done", _) => Outcome::Done,
            _ => return Err(malformed(line)),
        };
        Ok(Self {
            id: id.parse()?,
            start: start.parse()?,
            end: end.parse()?,
            caller: caller.parse()?,
            key: key.to_owned(),
            action,
            outcome,
        })
    }
}

fn malformed(line: &str) -> Failure {
    Failure::new(format!("not an event: {line:?}"))
}

/// Records events of all callers.
#[derive(Debug)]
pub(crate) struct Recorder {
    origin: Instant,
    last_id: AtomicU64,
    events: Mutex<Vec<Event>>,
}

impl Recorder {
    pub(crate) fn new() -> Self {
        Self {
            origin: Instant::now(),
            last_id: AtomicU64::new(0),
            events: Mutex::default(),
        }
    }

    /// Microseconds since the attack began.
    pub(crate) fn now(&self) -> u64 {
        micros(self.origin.elapsed())
    }

    /// Returns the event, which is recorded only by [`keep`](Self::keep).
    pub(crate) fn event(&self, caller: u64, key: &str, action: Action) -> Event {
        Event {
            id: self.last_id.fetch_add(1, Ordering::Relaxed) + 1,
            start: self.now(),
            end: 0,
            caller,
            key: key.to_owned(),
            action,
            outcome: Outcome::Done,
        }
    }

    /// Ends an event now.
    pub(crate) fn end(&self, event: &mut Event, outcome: Outcome) {
        // The end is rounded up, as the start is rounded down: the call happened within.
        event.end = self.now() + 1;
        event.outcome = outcome;
    }

    pub(crate) fn keep(&self, event: Event) {
        let mut events = lock(&self.events);
        events.push(event);
    }

    /// Returns all events so far, by their start.
    pub(crate) fn events(&self) -> Vec<Event> {
        let events = lock(&self.events);
        let mut events = events.clone();
        events.sort_by_key(|event| (event.start, event.id));
        events
    }
}

pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
