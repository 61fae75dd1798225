//! The record of the clients, by which the promises are judged.

use std::collections::{BTreeMap, VecDeque};

/// An admitted check.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    pub(crate) units: u32,
    /// When the client called, and when it had the answer.
    pub(crate) sent: u64,
    pub(crate) answered: u64,
}

/// The time for which a permit was held and not lost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldSpan {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// A permit that is held.
#[derive(Clone, Debug)]
pub(crate) struct HeldPermit {
    pub(crate) process: usize,
    pub(crate) limiter: &'static str,
    pub(crate) key: &'static str,
    pub(crate) from: u64,
    /// Whether its client sees at once that it is lost.
    pub(crate) is_watched: bool,
}

/// A call that asks for slots or units, and may have to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) at: u64,
    pub(crate) units: u32,
    /// When the server had last run a command of its process about the key.
    pub(crate) ran_at: u64,
}

/// How a call was overtaken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Overtaken {
    /// The time after which it may not wait any more.
    pub(crate) until: u64,
    /// The later call, and whether it would have waited.
    pub(crate) by: u64,
    pub(crate) by_waiting: bool,
}

/// The units that were charged to a key: at least, and at most, as of calls without an answer it is unknown.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ChargedUnits {
    pub(crate) least: i64,
    pub(crate) most: i64,
}

/// The time in which an operator gave units back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CreditSpan {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// A block by an operator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockedSpan {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

/// Why a limit may be granted once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Excuse {
    /// Data was lost.
    Loss,
    /// The clock of the server stepped.
    Step,
}

/// A limiter and a key. Names of processes are part of a key where each counts on its own.
pub(crate) type CountedKey = (&'static str, String);

/// The outcomes of all calls.
#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(crate) uses: BTreeMap<CountedKey, Vec<Use>>,
    /// When an operator gave units back, so that they may be admitted once more.
    pub(crate) credits: BTreeMap<CountedKey, Vec<CreditSpan>>,
    pub(crate) charged: BTreeMap<CountedKey, ChargedUnits>,
    pub(crate) held: BTreeMap<u64, HeldPermit>,
    pub(crate) spans: BTreeMap<(&'static str, &'static str), Vec<HeldSpan>>,
    /// The calls of each process that wait for a key, in the order of their arrival.
    pub(crate) lines: BTreeMap<(usize, &'static str, &'static str), VecDeque<u64>>,
    /// Calls that a later one has overtaken.
    pub(crate) overtaken: BTreeMap<u64, Overtaken>,
    pub(crate) asked: BTreeMap<u64, Asked>,
    /// When the server last ran a command about a limiter and key, by process.
    pub(crate) ran_at: BTreeMap<String, BTreeMap<usize, u64>>,
    /// When a slot of a key was last taken or given back.
    pub(crate) changed_at: BTreeMap<(&'static str, &'static str), u64>,
    pub(crate) blocks: Vec<BlockedSpan>,
    /// The checks of the blocked key that were not refused by a block.
    pub(crate) unblocked_uses: Vec<Use>,
    /// When a limit may have been granted once more, and why.
    pub(crate) excuses: Vec<(u64, Excuse)>,
}

impl Record {
    pub(crate) fn add_use(&mut self, limiter: &'static str, key: String, used: Use) {
        self.uses.entry((limiter, key)).or_default().push(used);
    }

    /// Begins to give units back. Returns the number of this time.
    pub(crate) fn begin_credit(
        &mut self,
        limiter: &'static str,
        key: &str,
        from: u64,
        to: u64,
    ) -> usize {
        let credits = self.credits.entry((limiter, key.to_owned())).or_default();
        credits.push(CreditSpan { from, to });
        credits.len() - 1
    }

    /// Takes in that units were given back by this time.
    pub(crate) fn end_credit(&mut self, limiter: &'static str, key: &str, index: usize, to: u64) {
        let credits = self.credits.entry((limiter, key.to_owned())).or_default();
        credits[index].to = to;
    }

    /// Returns when the server last ran a command of a process about a limiter and key.
    pub(crate) fn ran_for(&self, limiter: &str, key: &str, process: usize) -> u64 {
        let ran_at = self.ran_at.get(&format!("{limiter},{key}"));
        let own = ran_at.and_then(|ran_at| ran_at.get(&process));
        own.copied().unwrap_or(0)
    }

    /// Returns when the server last ran a command of another process about a limiter and key.
    pub(crate) fn ran_for_others(&self, limiter: &str, key: &str, process: usize) -> u64 {
        let ran_at = self.ran_at.get(&format!("{limiter},{key}"));
        let others = ran_at
            .into_iter()
            .flatten()
            .filter(|(by, _)| **by != process);
        others.map(|(_, at)| *at).max().unwrap_or(0)
    }

    pub(crate) fn charged(&mut self, limiter: &'static str, key: &str) -> &mut ChargedUnits {
        self.charged.entry((limiter, key.to_owned())).or_default()
    }

    /// Ends the time for which a permit was certainly held.
    pub(crate) fn end_permit(&mut self, call: u64, to: u64) {
        if let Some(permit) = self.held.remove(&call) {
            self.changed_at.insert((permit.limiter, permit.key), to);
            let of_key = self.spans.entry((permit.limiter, permit.key)).or_default();
            of_key.push(HeldSpan {
                from: permit.from,
                to: to.max(permit.from),
            });
        }
    }

    /// Forgets a permit that was lost, or may have been, at an unknown time.
    pub(crate) fn forget_permit(&mut self, call: u64) {
        self.held.remove(&call);
    }

    /// Ends all that a killed process has.
    pub(crate) fn end_process(&mut self, process: usize, to: u64) {
        let held = self
            .held
            .iter()
            .filter(|(_, permit)| permit.process == process);
        let held: Vec<(u64, bool)> = held
            .map(|(call, permit)| (*call, permit.is_watched))
            .collect();
        for (call, is_watched) in held {
            if is_watched {
                self.end_permit(call, to);
            } else {
                self.forget_permit(call);
            }
        }
        let gone = self.lines.iter().filter(|((of, ..), _)| *of == process);
        let gone: Vec<u64> = gone.flat_map(|(_, line)| line.iter().copied()).collect();
        self.lines.retain(|(of, ..), _| *of != process);
        self.overtaken.retain(|call, _| !gone.contains(call));
    }

    /// Returns how often data was lost or the clock stepped from one time to another.
    pub(crate) fn excuses(&self, from: u64, to: u64) -> u32 {
        self.excuses
            .iter()
            .filter(|(at, _)| (from..=to).contains(at))
            .count() as u32
    }

    /// Returns whether data was lost since a time.
    pub(crate) fn has_lost_since(&self, from: u64) -> bool {
        self.excuses
            .iter()
            .any(|(at, excuse)| *excuse == Excuse::Loss && *at >= from)
    }
}
