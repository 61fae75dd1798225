//! Sends the messages of a table: in place to a store that answers at once, else by a thread of the table.
//!
//! The thread has a runtime of its own. So messages, renewals and releases outlive callers, and no runtime of the program can
//! stop them.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Waker};
use std::time::Duration;
use std::{io, mem, thread};

#[cfg(not(tollgate_simulation))]
use tokio::runtime::Builder;
use tokio::time::timeout;

use super::message::{Message, Reply};
use super::table::{PermitTable, State};
use crate::error::{Code, Error};
use crate::store::join_all;

/// How long the thread stays when nothing is held or asked, in microseconds: its connections end with it.
const LINGER: u64 = 60_000_000;

impl PermitTable {
    /// Changes the state, and then sends what is due, or has the thread send it.
    pub(super) fn change<T>(self: &Arc<Self>, change: impl FnOnce(&mut State, u64) -> T) -> T {
        if self.ends_with_process {
            let outcome = self.with(change);
            loop {
                let messages = self.with(|state, now| state.due(self.holder, now));
                if messages.is_empty() {
                    return outcome;
                }
                for message in messages {
                    // It is ready at the first poll, or else the message fails.
                    let mut sent = pin!(send(Arc::clone(self), message));
                    let _ = sent.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                }
            }
        }
        let (outcome, started) = self.with(|state, now| {
            let outcome = change(state, now);
            (outcome, self.wake_thread(state))
        });
        if let Err(error) = started {
            let text =
                format!("failed to start the thread that sends messages about slots: {error}");
            let error = Error::coded(Code::TASK_DROPPED, text).with_source(error);
            self.with(|state, _| state.fail_questions(&error));
        }
        outcome
    }

    fn wake_thread(self: &Arc<Self>, state: &mut State) -> io::Result<()> {
        let Some(next) = state.next_look() else {
            return Ok(());
        };
        if state.looks_at.is_none() {
            start(Keeper(Arc::downgrade(self)))?;
        } else if state.looks_at > Some(next) {
            self.woken.notify_one();
        } else {
            return Ok(());
        }
        state.looks_at = Some(next);
        Ok(())
    }
}

/// Runs a keeper on a thread of its own.
#[cfg(not(tollgate_simulation))]
fn start(keeper: Keeper) -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let thread = thread::Builder::new().name("tollgate-slots".into());
    thread.spawn(move || runtime.block_on(keeper.run()))?;
    Ok(())
}

/// Runs a keeper on the runtime of a simulated process, which has one thread: see `crates/simulation`.
#[cfg(tollgate_simulation)]
fn start(keeper: Keeper) -> io::Result<()> {
    let runtime = tokio::runtime::Handle::try_current().map_err(io::Error::other)?;
    drop(runtime.spawn(keeper.run()));
    Ok(())
}

/// The thread of a table. If it panics, the next message starts another one.
struct Keeper(Weak<PermitTable>);

impl Keeper {
    async fn run(self) {
        let Some(table) = self.0.upgrade() else {
            return;
        };
        let mut idle_since = table.clock.now();
        let woken = Arc::clone(&table.woken);
        let mut table = Some(table);
        while let Some(in_use) = table.take().or_else(|| self.0.upgrade()) {
            let look = in_use.with(|state, now| {
                let messages = state.due(in_use.holder, now);
                let is_idle = state.keys.is_empty();
                if !is_idle {
                    idle_since = now;
                }
                let ends_at = idle_since + LINGER;
                state.looks_at = (now < ends_at).then(|| state.next_look().unwrap_or(ends_at));
                KeeperLook {
                    messages,
                    is_idle,
                    next_in: state.looks_at.map(|at| at.saturating_sub(now)),
                }
            });
            for message in look.messages {
                // A task, so that a store that panics or hangs stops no other message.
                tokio::spawn(send(Arc::clone(&in_use), message));
            }
            let Some(next_in) = look.next_in else { return };
            // An idle table goes with its last limiter, and the thread with it.
            table = (!look.is_idle).then_some(in_use);
            // Whichever comes first.
            let _ = timeout(Duration::from_micros(next_in), woken.notified()).await;
        }
    }
}

/// The finding of the thread when it looks at its table.
struct KeeperLook {
    messages: Vec<Message>,
    /// Whether nothing is held or asked.
    is_idle: bool,
    /// The time until the next look, in microseconds. `None` if the thread ends.
    next_in: Option<u64>,
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if let Some(table) = self.0.upgrade().filter(|_| thread::panicking()) {
            table.with(|state, _| state.looks_at = None);
        }
    }
}

/// A message that is under way. When this is dropped, the table takes in its replies. They are missing if the store panics:
/// then the keys may hold slots in the store without a permit.
struct Sent {
    table: Arc<PermitTable>,
    message: Message,
    replies: Vec<Reply>,
}

fn send(table: Arc<PermitTable>, message: Message) -> impl Future<Output = ()> + Send {
    // Before the first poll: a task may be dropped without any.
    let mut sent = Sent {
        table,
        message,
        replies: Vec::new(),
    };
    async move {
        let replies = join_all(sent.message.ask()).await;
        sent.replies.extend(replies);
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        let table = &self.table;
        let message = mem::take(&mut self.message);
        let replies = mem::take(&mut self.replies);
        if table.ends_with_process {
            // The next message follows.
            table.with(|state, now| state.complete(table, message, replies, now));
        } else {
            table.change(|state, now| state.complete(table, message, replies, now));
        }
    }
}
