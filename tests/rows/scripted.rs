//! Rows in memory that do what a test has planned.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;
use tollgate::store::{Batch, Rows, Written};
use tollgate::{Error, ErrorKind};

/// The act of one change of counts. Without one, it changes the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// Fails before it has read anything.
    FailBefore(ErrorKind),
    /// Writes, and fails then.
    FailAfter(ErrorKind),
    /// Decides, and rolls back.
    RollBack,
    /// Decides and writes nothing, and says so for the groups of the rows of this key.
    Lose(&'static str),
    /// Returns a group that the batch does not have.
    UnknownGroup,
    /// Returns without a decision.
    SkipDecision,
    /// Reads one value too few.
    ReadTooFew,
    Panic,
    /// Waits until the test opens the gate, before it has read anything.
    Wait,
}

/// One call of [`Rows::change`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChangeCall {
    pub(crate) is_of_blocks: bool,
    pub(crate) attempt: u32,
    pub(crate) names: Vec<String>,
    pub(crate) written: Vec<String>,
}

#[derive(Default)]
pub(crate) struct ScriptedState {
    pub(crate) rows: BTreeMap<String, Vec<u8>>,
    pub(crate) plans: VecDeque<Plan>,
    /// The plan of each change of blocked keys.
    pub(crate) blocks_plan: Option<Plan>,
    pub(crate) calls: Vec<ChangeCall>,
    pub(crate) now: i64,
}

/// Rows in memory, without locks: a change writes the rows that are as it has read them. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Scripted {
    state: Arc<Mutex<ScriptedState>>,
    pub(crate) gate: Arc<Notify>,
    /// Told when a change waits.
    pub(crate) waits: Arc<Notify>,
    pub(crate) answers_at_once: bool,
}

impl Scripted {
    pub(crate) fn new(plans: impl IntoIterator<Item = Plan>) -> Self {
        let scripted = Self::default();
        scripted.state().plans.extend(plans);
        scripted.state().now = 1_000_000_000_000_000;
        scripted
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, ScriptedState> {
        self.state.lock().unwrap()
    }

    /// Returns the calls for counts.
    pub(crate) fn count_calls(&self) -> Vec<ChangeCall> {
        let calls = self.state().calls.clone();
        calls
            .into_iter()
            .filter(|call| !call.is_of_blocks)
            .collect()
    }

    /// Returns the attempt of each call for counts.
    pub(crate) fn attempts(&self) -> Vec<u32> {
        self.count_calls().iter().map(|call| call.attempt).collect()
    }

    fn read(&self, batch: &Batch) -> Vec<Option<Vec<u8>>> {
        let state = self.state();
        let names = batch.names();
        names
            .map(|name| state.rows.get(name.as_str()).cloned())
            .collect()
    }
}

impl Rows for Scripted {
    async fn change(&self, batch: &mut Batch) -> Result<Written, Error> {
        let (plan, now, call) = {
            let mut state = self.state();
            let call = ChangeCall {
                is_of_blocks: batch.is_of_blocks(),
                attempt: batch.attempt(),
                names: batch.names().map(ToString::to_string).collect(),
                written: Vec::new(),
            };
            assert!(call.names.is_sorted_by(|one, next| one < next));
            state.calls.push(call);
            state.now += 1;
            let plan = if batch.is_of_blocks() {
                state.blocks_plan
            } else {
                state.plans.pop_front()
            };
            (plan, state.now, state.calls.len() - 1)
        };
        match plan {
            Some(Plan::FailBefore(kind)) => return Err(Error::new(kind, "before")),
            Some(Plan::SkipDecision) => return Ok(Written::All),
            Some(Plan::Panic) => panic!("the rows of the test panic"),
            Some(Plan::Wait) => {
                self.waits.notify_one();
                self.gate.notified().await;
            }
            _ => {}
        }
        let read = self.read(batch);
        if !self.answers_at_once {
            // Others come in between.
            tokio::task::yield_now().await;
        }
        let mut values = read.clone();
        if plan == Some(Plan::ReadTooFew) {
            values.pop();
        }
        let writes = batch.decide(now, values);
        let mut state = self.state();
        let names = writes.iter().map(|write| write.name.to_string());
        state.calls[call].written = names.collect();
        if plan == Some(Plan::RollBack) {
            return Ok(Written::Nothing);
        }
        let lost_key = match plan {
            Some(Plan::Lose(key)) => key,
            _ => "no key",
        };
        let mut lost = Vec::new();
        for write in &writes {
            let name = write.name.as_str();
            if name.contains(lost_key) || state.rows.get(name) != read[write.index].as_ref() {
                lost.push(write.group);
            }
        }
        for write in writes {
            let name = write.name.to_string();
            match write.value {
                _ if lost.contains(&write.group) => {}
                Some(value) => {
                    state.rows.insert(name, value);
                }
                None => {
                    state.rows.remove(&name);
                }
            }
        }
        match plan {
            Some(Plan::FailAfter(kind)) => Err(Error::new(kind, "after")),
            Some(Plan::UnknownGroup) => Ok(Written::Except(vec![1_000])),
            _ => Ok(Written::Except(lost)),
        }
    }

    fn answers_at_once(&self) -> bool {
        self.answers_at_once
    }
}
