//! Where a contestant meets an attack: servers, callers and the record of what happens.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::case::{Case, KEY, LIMIT};
use crate::contestant::{Contestant, Failure, Offer, Reply, Setup, Verdict};
use crate::entry::Entry;
use crate::external::Program;
use crate::history::{Action, Event, Outcome, Recorder, micros};
use crate::random::Random;
use crate::server::{Clock, Server};

/// How long all callers stay with a key, in microseconds.
const TURN: u64 = 2_000;

/// No limiter needs that long for an answer, unless it never answers.
const PATIENCE: Duration = Duration::from_secs(10);

/// One attack on one contestant.
pub(crate) struct Arena<'a> {
    pub(crate) entry: &'a Entry,
    pub(crate) case: Case,
    pub(crate) seed: u64,
    pub(crate) runtime: Handle,
    pub(crate) recorder: Arc<Recorder>,
}

impl Arena<'_> {
    pub(crate) fn window(&self) -> Duration {
        self.case.window()
    }

    /// How long callers attack.
    pub(crate) fn duration(&self) -> Duration {
        let (windows, least) = if self.case.is_short {
            (2, 700)
        } else {
            (4, 3_000)
        };
        (self.window() * windows).max(Duration::from_millis(least))
    }

    /// Starts a server if the contestant needs one.
    pub(crate) fn server(&self) -> Result<Option<Server>, Failure> {
        if !self.case.description.has(Offer::Redis) {
            return Ok(None);
        }
        Server::start(&self.entry.server_arguments).map(Some)
    }

    /// Makes the contestant with the usual limit.
    pub(crate) fn contestant(
        &self,
        server: &Option<Server>,
    ) -> Result<Arc<dyn Contestant>, Failure> {
        self.contestant_with(LIMIT, self.window(), url(server))
    }

    pub(crate) fn contestant_with(
        &self,
        limit: u32,
        window: Duration,
        redis: String,
    ) -> Result<Arc<dyn Contestant>, Failure> {
        let setup = Setup::new(limit, window, redis);
        self.runtime.block_on(self.entry.make(setup))
    }

    /// Makes the contestant in a process of its own, with another clock if there is one.
    pub(crate) fn process(
        &self,
        limit: u32,
        server: &Option<Server>,
        clock: Option<&Clock>,
    ) -> Result<Arc<Program>, Failure> {
        let program = Program::start(&self.entry.command, clock)?;
        let setup = Setup::new(limit, self.window(), url(server));
        self.runtime.block_on(program.set_up(&setup))?;
        Ok(Arc::new(program))
    }

    pub(crate) fn caller<'b>(&'b self, id: u64, contestant: &'b dyn Contestant) -> Caller<'b> {
        Caller {
            runtime: &self.runtime,
            recorder: &self.recorder,
            contestant,
            id,
            random: Random::new(self.seed, id),
            refused: String::new(),
        }
    }

    /// Lets this many callers act on a thread each until the time is over. They take the contestants in turn.
    pub(crate) fn crowd(
        &self,
        contestants: &[Arc<dyn Contestant>],
        callers: u64,
        duration: Duration,
        act: impl Fn(&mut Caller<'_>) + Sync,
    ) {
        let end = Instant::now() + duration;
        thread::scope(|scope| {
            for (id, contestant) in (1..=callers).zip(contestants.iter().cycle()) {
                let mut caller = self.caller(id, &**contestant);
                let act = &act;
                scope.spawn(move || {
                    while Instant::now() < end {
                        act(&mut caller);
                    }
                });
            }
        });
    }

    /// Checks the key until it admits again, after a quiet time in which its units come back.
    pub(crate) fn recover(&self, contestant: &dyn Contestant, windows: u32) {
        thread::sleep(self.window() * windows);
        let mut caller = self.caller(99, contestant);
        let patience = Instant::now() + Duration::from_secs(5);
        while Instant::now() < patience {
            if matches!(caller.check(KEY, 1), Ok(verdict) if verdict.admitted) {
                return;
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Records what was done to a server.
    pub(crate) fn fault(
        &self,
        action: Action,
        fault: impl FnOnce() -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let mut event = self.recorder.event(0, "server", action);
        fault()?;
        self.recorder.end(&mut event, Outcome::Done);
        self.recorder.keep(event);
        Ok(())
    }
}

/// Returns the URL of a server, or nothing.
pub(crate) fn url(server: &Option<Server>) -> String {
    server.as_ref().map(Server::url).unwrap_or_default()
}

/// Polls a call until its answer or this moment, and drops it then. A timer would round up to a millisecond, by when most
/// calls are answered.
async fn poll_until<T>(end: Instant, mut call: Reply<'_, T>) -> Option<Result<T, Failure>> {
    let mut is_polled = false;
    poll_fn(|context| {
        if is_polled && Instant::now() >= end {
            return Poll::Ready(None);
        }
        is_polled = true;
        let reply = call.as_mut().poll(context).map(Some);
        if reply.is_pending() {
            // The connection may need this core.
            thread::yield_now();
            context.waker().wake_by_ref();
        }
        reply
    })
    .await
}

/// One caller. It makes one call at a time, and records it.
pub(crate) struct Caller<'a> {
    runtime: &'a Handle,
    recorder: &'a Recorder,
    contestant: &'a dyn Contestant,
    pub(crate) id: u64,
    pub(crate) random: Random,
    /// The key of the last check if it was refused: the same refusal is not recorded again and again.
    refused: String,
}

/// An admitted or refused check, with the number of its event.
pub(crate) struct Checked {
    pub(crate) event: u64,
    pub(crate) verdict: Verdict,
    pub(crate) end: u64,
}

impl std::ops::Deref for Checked {
    type Target = Verdict;

    fn deref(&self) -> &Verdict {
        &self.verdict
    }
}

fn check_outcome(verdict: Verdict) -> Outcome {
    if verdict.admitted {
        Outcome::Admitted
    } else {
        Outcome::Refused(verdict.retry_after.map(micros))
    }
}

impl Caller<'_> {
    /// Checks, and records the call unless it repeats a refusal.
    pub(crate) fn check(&mut self, key: &str, cost: u32) -> Result<Checked, Failure> {
        self.check_within(key, cost, PATIENCE)
    }

    /// Checks and records the call, also if it repeats a refusal.
    pub(crate) fn check_and_keep(&mut self, key: &str, cost: u32) -> Result<Checked, Failure> {
        self.refused.clear();
        self.check(key, cost)
    }

    /// Checks, and gives up after this time.
    pub(crate) fn check_within(
        &mut self,
        key: &str,
        cost: u32,
        time: Duration,
    ) -> Result<Checked, Failure> {
        let (event, result) = self.call(
            key,
            Action::Check(cost),
            time,
            || self.contestant.check(key, cost),
            check_outcome,
        );
        let checked = result.map(|verdict| Checked {
            event: event.id,
            verdict,
            end: event.end,
        });
        let is_failed = matches!(event.outcome, Outcome::Failed(_));
        if !event.is_refused() {
            self.refused.clear();
            self.recorder.keep(event);
        } else if self.refused != key {
            key.clone_into(&mut self.refused);
            self.recorder.keep(event);
        }
        if is_failed {
            // A dead server fails at once, a thousand times a millisecond.
            thread::sleep(Duration::from_millis(1));
        }
        checked
    }

    /// Gives units of an admitted check back.
    pub(crate) fn refund(&mut self, key: &str, checked: &Checked, units: u32) {
        let of = checked.event;
        let (event, _) = self.call(
            key,
            Action::Refund { of, units },
            PATIENCE,
            || self.contestant.refund(key, checked.receipt, units),
            |()| Outcome::Done,
        );
        self.recorder.keep(event);
    }

    /// Tries to take a slot. Returns the number of the event, and the slot.
    pub(crate) fn acquire(&mut self, key: &str, time: Option<Duration>) -> Option<(u64, u64)> {
        let time = time.unwrap_or(PATIENCE);
        let (event, slot) = self.call(
            key,
            Action::Acquire,
            time,
            || self.contestant.acquire(key),
            |slot| slot.map_or(Outcome::Refused(None), |_| Outcome::Admitted),
        );
        let number = event.id;
        self.recorder.keep(event);
        Some((number, slot.ok()??))
    }

    pub(crate) fn release(&mut self, key: &str, (of, slot): (u64, u64)) {
        let (event, _) = self.call(
            key,
            Action::Release { of },
            PATIENCE,
            || self.contestant.release(key, slot),
            |()| Outcome::Done,
        );
        self.recorder.keep(event);
    }

    /// Makes a call, within this time, and returns its event. The event begins before `call`: a limiter in memory may
    /// decide there.
    fn call<'c, T: Copy>(
        &self,
        key: &str,
        action: Action,
        time: Duration,
        call: impl FnOnce() -> Reply<'c, T>,
        outcome: impl FnOnce(T) -> Outcome,
    ) -> (Event, Result<T, Failure>) {
        let mut event = self.recorder.event(self.id, key, action);
        let call = call();
        let reply = if time < PATIENCE {
            let end = Instant::now() + time;
            self.runtime.block_on(poll_until(end, call))
        } else {
            let answered = async { timeout(time, call).await.ok() };
            self.runtime.block_on(answered)
        };
        let outcome = match &reply {
            Some(Ok(answer)) => outcome(*answer),
            Some(Err(error)) => Outcome::Failed(error.to_string()),
            None if time < PATIENCE => Outcome::Cancelled,
            None => Outcome::Failed("no answer".to_owned()),
        };
        let result = reply.unwrap_or_else(|| Err(Failure::new("no answer")));
        self.recorder.end(&mut event, outcome);
        (event, result)
    }

    /// Waits until a moment of the record, exactly.
    pub(crate) fn wait_until(&self, moment: u64) {
        // A thread that sleeps wakes up late.
        let early = moment.saturating_sub(self.recorder.now() + 1_000);
        thread::sleep(Duration::from_micros(early));
        while self.recorder.now() < moment {
            std::hint::spin_loop();
        }
    }

    pub(crate) fn now(&self) -> u64 {
        self.recorder.now()
    }

    /// Returns the key that all callers use now: the usual one, or a new one. A race is for the last unit of a window, and
    /// new keys have more of them than time has windows.
    pub(crate) fn contested_key(&self) -> String {
        let turn = self.now() / TURN;
        match turn % 2 {
            0 => KEY.to_owned(),
            _ => format!("new-{turn}"),
        }
    }
}
