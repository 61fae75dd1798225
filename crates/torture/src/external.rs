//! A contestant in another process, in any language. The README has the words of the line protocol.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::contestant::{Contestant, Description, Failure, Reply, Setup, Verdict};
use crate::history::micros;
use crate::lock::lock;
use crate::server::Clock;

type Waiting = HashMap<u64, oneshot::Sender<String>>;

/// How long a program may take for its description, and for its setup, in seconds.
const PATIENCE: u64 = 30;

/// A contestant in another process. It is killed where it is dropped.
pub(crate) struct Program {
    pub(crate) description: Description,
    process: Process,
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
        let requests = child.stdin.take().ok_or_else(no_pipes)?;
        let replies = child.stdout.take().ok_or_else(no_pipes)?;
        let id = child.id();
        let process = Process(Mutex::new(child));
        let (first, description) = mpsc::channel();
        let waiting = Arc::new(Mutex::new(Some(Waiting::new())));
        let reading = Arc::clone(&waiting);
        thread::spawn(move || {
            let mut lines = BufReader::new(replies).lines().map_while(Result::ok);
            // Nobody waits for it any more if it is late.
            let _ = first.send(lines.next().unwrap_or_default());
            for line in lines {
                let (id, reply) = line.split_once(' ').unwrap_or((&line, ""));
                let mut waiting = lock(&reading);
                let caller = id.parse().ok().and_then(|id| waiting.as_mut()?.remove(&id));
                if let Some(caller) = caller {
                    // The caller may have been cancelled.
                    let _ = caller.send(reply.to_owned());
                }
            }
            // Drops the senders: all who wait get an error.
            *lock(&reading) = None;
        });
        let description = description.recv_timeout(Duration::from_secs(PATIENCE));
        let description = description.map_err(|_| late(&format!("description from {name}")))?;
        let description = Description::parse(&description)?;
        if let Some(clock) = clock {
            clock.is_loaded_by(id)?;
        }
        Ok(Self {
            description,
            process,
            requests: Mutex::new(requests),
            waiting,
            last_id: AtomicU64::new(0),
        })
    }

    pub(crate) async fn set_up(&self, setup: &Setup) -> Result<(), Failure> {
        let window = micros(setup.window);
        let request = format!("setup {} {window} {}", setup.limit, setup.redis);
        let call = timeout(Duration::from_secs(PATIENCE), self.call(&request));
        let reply = call.await.map_err(|_| late("reply to `setup`"))??;
        match reply.as_str() {
            "done" => Ok(()),
            _ => Err(unexpected(&reply)),
        }
    }

    /// Ends the program at once, as a crash does.
    pub(crate) fn kill(&self) {
        self.process.kill();
    }

    async fn call(&self, request: &str) -> Result<String, Failure> {
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let (sender, receiver) = oneshot::channel();
        {
            let mut waiting = lock(&self.waiting);
            waiting.as_mut().ok_or_else(has_ended)?.insert(id, sender);
        }
        {
            let mut requests = lock(&self.requests);
            requests.write_all(format!("{id} {request}\n").as_bytes())?;
        }
        receiver.await.map_err(|_| has_ended())
    }
}

/// A process that is killed where it is dropped.
struct Process(Mutex<Child>);

impl Process {
    fn kill(&self) {
        let mut child = lock(&self.0);
        // It may have ended.
        let _ = child.kill();
        let _ = child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

fn no_pipes() -> Failure {
    Failure::new("the program has no pipes")
}

fn has_ended() -> Failure {
    Failure::new("the program has ended")
}

fn late(missing: &str) -> Failure {
    Failure::new(format!(
        "no {missing} within {PATIENCE} s; does the program flush its output?"
    ))
}

fn unexpected(reply: &str) -> Failure {
    Failure::new(reply.strip_prefix("failed ").unwrap_or(reply))
}

impl Contestant for Program {
    fn check<'a>(&'a self, key: &'a str, cost: u32) -> Reply<'a, Verdict> {
        Box::pin(async move {
            let reply = self.call(&format!("check {key} {cost}")).await?;
            let (word, rest) = reply.split_once(' ').unwrap_or((&reply, ""));
            let number = if rest.is_empty() {
                None
            } else {
                Some(rest.parse().map_err(|_| unexpected(&reply))?)
            };
            match word {
                "admitted" => Ok(Verdict::admitted().with_receipt(number.unwrap_or_default())),
                "refused" => Ok(Verdict::refused(number.map(Duration::from_micros))),
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
