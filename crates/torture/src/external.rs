//! A contestant in another process, in any language. The README has the words of the line protocol.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::contestant::{Contestant, Description, Failure, Reply, Setup, Verdict};
use crate::history::micros;
use crate::server::Clock;

type Waiting = HashMap<u64, oneshot::Sender<String>>;

/// A contestant in another process. It is killed where it is dropped.
pub(crate) struct Program {
    pub(crate) description: Description,
    child: Mutex<Child>,
    requests: Mutex<ChildStdin>,
    /// The calls without a reply. `None` once the program has ended.
    waiting: Arc<Mutex<Option<Waiting>>>,
    last_id: AtomicU64,
}

impl Program {
    /// Starts the program, with another wall clock if there is one, and reads its description.
    pub(crate) fn start(command: &[String], clock: Option<&Clock>) -> Result<Self, Failure> {
        let (name, arguments) = command
            .split_first()
            .ok_or_else(|| Failure::new("no command"))?;
        let mut starting = Command::new(name);
        starting.args(arguments);
        starting.stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some(clock) = clock {
            clock.preload(&mut starting);
        }
        let started = starting.spawn();
        let mut child = started.map_err(|error| Failure::new(format!("{name}: {error}")))?;
        let (Some(requests), Some(replies)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Failure::new("the program has no pipes"));
        };
        let mut replies = BufReader::new(replies);
        let mut line = String::new();
        let description = match replies.read_line(&mut line) {
            Ok(_) => Description::parse(&line),
            Err(error) => Err(error.into()),
        };
        let description = description.inspect_err(|_| {
            // It may have ended.
            let _ = child.kill();
            let _ = child.wait();
        })?;
        if let Some(clock) = clock {
            clock.is_loaded_by(child.id()).inspect_err(|_| {
                let _ = child.kill();
                let _ = child.wait();
            })?;
        }
        let waiting = Arc::new(Mutex::new(Some(Waiting::new())));
        let reading = Arc::clone(&waiting);
        thread::spawn(move || {
            for line in replies.lines().map_while(Result::ok) {
                let (id, reply) = line.split_once(' ').unwrap_or((&line, ""));
                let mut waiting = reading.lock().unwrap_or_else(PoisonError::into_inner);
                let caller = id.parse().ok().and_then(|id| waiting.as_mut()?.remove(&id));
                if let Some(caller) = caller {
                    // The caller may have been cancelled.
                    let _ = caller.send(reply.to_owned());
                }
            }
            // Drops the senders: all who wait get an error.
            *reading.lock().unwrap_or_else(PoisonError::into_inner) = None;
        });
        Ok(Self {
            description,
            child: Mutex::new(child),
            requests: Mutex::new(requests),
            waiting,
            last_id: AtomicU64::new(0),
        })
    }

    pub(crate) async fn set_up(&self, setup: &Setup) -> Result<(), Failure> {
        let (limit, window) = (setup.limit, micros(setup.window));
        let reply = self
            .call(&format!("setup {limit} {window} {}", setup.redis))
            .await?;
        match reply.as_str() {
            "done" => Ok(()),
            _ => Err(unexpected(&reply)),
        }
    }

    /// Ends the program at once, as a crash does.
    pub(crate) fn kill(&self) {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        // It may have ended.
        let _ = child.kill();
        let _ = child.wait();
    }

    async fn call(&self, request: &str) -> Result<String, Failure> {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let (sender, receiver) = oneshot::channel();
        let ended = || Failure::new("the program has ended");
        {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.as_mut().ok_or_else(ended)?.insert(id, sender);
        }
        {
            let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
            requests.write_all(format!("{id} {request}\n").as_bytes())?;
        }
        receiver.await.map_err(|_| ended())
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}

fn unexpected(reply: &str) -> Failure {
    Failure::new(reply.strip_prefix("failed ").unwrap_or(reply))
}

impl Contestant for Program {
    fn check<'a>(&'a self, key: &'a str, cost: u32) -> Reply<'a, Verdict> {
        Box::pin(async move {
            let reply = self.call(&format!("check {key} {cost}")).await?;
            let (word, rest) = reply.split_once(' ').unwrap_or((&reply, ""));
            match word {
                "admitted" => {
                    Ok(Verdict::admitted().with_receipt(rest.parse().unwrap_or_default()))
                }
                "refused" => Ok(Verdict::refused(
                    rest.parse().ok().map(Duration::from_micros),
                )),
                _ => Err(unexpected(&reply)),
            }
        })
    }

    fn refund<'a>(&'a self, key: &'a str, receipt: u64, units: u32) -> Reply<'a, ()> {
        Box::pin(async move {
            let reply = self
                .call(&format!("refund {key} {receipt} {units}"))
                .await?;
            (reply == "done")
                .then_some(())
                .ok_or_else(|| unexpected(&reply))
        })
    }

    fn acquire<'a>(&'a self, key: &'a str) -> Reply<'a, Option<u64>> {
        Box::pin(async move {
            let reply = self.call(&format!("acquire {key}")).await?;
            match reply.split_once(' ') {
                Some(("admitted", slot)) => Ok(Some(slot.parse()?)),
                _ if reply == "refused" => Ok(None),
                _ => Err(unexpected(&reply)),
            }
        })
    }

    fn release<'a>(&'a self, key: &'a str, slot: u64) -> Reply<'a, ()> {
        Box::pin(async move {
            let reply = self.call(&format!("release {key} {slot}")).await?;
            (reply == "done")
                .then_some(())
                .ok_or_else(|| unexpected(&reply))
        })
    }
}
