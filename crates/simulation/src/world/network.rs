//! The connections of the processes to the server, and what is under way on them.

use std::collections::BTreeMap;

use redis::aio::ConnectionLike;
use redis::{Cmd, Pipeline, RedisFuture, RedisResult, Value};
use tokio::sync::oneshot;

use super::budgets::budget_of;
use super::clients::plain_key;
use super::shared::SharedWorld;
use crate::random::Random;
use crate::server::lost_connection;
use crate::wire;

/// A message of a connection. Each has the number of its call.
pub(crate) enum Message {
    Request {
        call: u64,
        command: Vec<Vec<u8>>,
    },
    Reply {
        call: u64,
        reply: RedisResult<Value>,
    },
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToServer,
    ToProcess,
}

/// A call without a reply.
struct PendingCall {
    process: usize,
    answer: oneshot::Sender<RedisResult<Value>>,
}

/// How bad the network is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Quality {
    /// The longest time of a message, in milliseconds. Most take none.
    pub(crate) slowness: u64,
    /// The messages of a hundred that take up to this time.
    pub(crate) slow: u64,
    /// The messages of a thousand that are lost.
    pub(crate) losses: u64,
    /// The messages about slots or reserved units, of a thousand, that arrive twice.
    pub(crate) repeats: u64,
    /// The calls of a thousand that get the reply to an earlier one.
    pub(crate) mixed: u64,
}

/// The messages under way between processes and the server.
pub(crate) struct Network {
    random: Random,
    now: u64,
    latest: u64,
    /// By the time of arrival and a number.
    queue: BTreeMap<(u64, u64), Message>,
    pending: BTreeMap<u64, PendingCall>,
    /// The calls of processes that were killed: they get no answer.
    abandoned: Vec<PendingCall>,
    /// The earliest next arrival of each process at the server and back: a connection keeps the order.
    earliest: Vec<[u64; 2]>,
    /// The last reply to each process.
    last_reply: Vec<Option<Value>>,
    /// Until when each process is cut off.
    parted_until: Vec<u64>,
    pub(crate) quality: Quality,
    /// Whether the server refuses connections, as while it restarts.
    pub(crate) is_down: bool,
}

impl Network {
    pub(crate) fn new(random: Random, processes: usize, quality: Quality) -> Self {
        Self {
            random,
            now: 0,
            latest: 0,
            queue: BTreeMap::new(),
            pending: BTreeMap::new(),
            abandoned: Vec::new(),
            earliest: vec![[0; 2]; processes],
            last_reply: vec![None; processes],
            parted_until: vec![0; processes],
            quality,
            is_down: false,
        }
    }

    pub(crate) fn set_time(&mut self, now: u64) {
        self.now = now;
    }

    /// Returns a number that was not used.
    pub(crate) fn number(&mut self) -> u64 {
        self.latest += 1;
        self.latest
    }

    /// Sends a command. The receiver gets the reply.
    fn send(
        &mut self,
        process: usize,
        command: Vec<Vec<u8>>,
    ) -> oneshot::Receiver<RedisResult<Value>> {
        let (answer, receiver) = oneshot::channel();
        let call = self.number();
        self.pending.insert(call, PendingCall { process, answer });
        if self.is_down {
            let reply = Err(lost_connection());
            self.enqueue(
                process,
                Direction::ToProcess,
                Message::Reply { call, reply },
            );
        } else if self.passes(process) {
            self.repeat_later(process, &command);
            self.enqueue(
                process,
                Direction::ToServer,
                Message::Request { call, command },
            );
        }
        receiver
    }

    /// Lets a message about slots or reserved units alone arrive a second time. Only these may: they state absolute numbers, and
    /// TCP repeats nothing. A call may carry checks beside them, which would be charged twice.
    fn repeat_later(&mut self, process: usize, command: &[Vec<u8>]) {
        let keys: Vec<_> = command
            .iter()
            .filter(|arg| arg.starts_with(b"tollgate:"))
            .collect();
        let plain = format!(",{}", plain_key(process));
        let is_about_slots = keys.iter().all(|key| key.ends_with(b":slots"));
        let is_about_units = keys.iter().any(|key| key.ends_with(b":held"))
            && keys.iter().all(|key| {
                budget_of(key)
                    .is_some_and(|(_, limiter_and_key)| !limiter_and_key.ends_with(&plain))
            });
        let is_about_holders = !keys.is_empty() && (is_about_slots || is_about_units);
        if is_about_holders && self.random.below(1_000) < self.quality.repeats {
            let at = self.now + 1 + self.random.below(super::limits::SLOT_LEASE);
            let number = self.number();
            let command = command.to_vec();
            // No call has this number.
            self.queue
                .insert((at, number), Message::Request { call: 0, command });
        }
    }

    /// Replies to a call, if its process still waits.
    pub(crate) fn reply(&mut self, call: u64, reply: RedisResult<Value>) {
        let process = self.pending.get(&call).map(|pending| pending.process);
        if let Some(process) = process
            && self.passes(process)
        {
            let is_mixed = self.random.below(1_000) < self.quality.mixed;
            let earlier = self.last_reply[process].clone().filter(|_| is_mixed);
            self.last_reply[process] = reply.as_ref().ok().cloned();
            let reply = earlier.map_or(reply, Ok);
            self.enqueue(
                process,
                Direction::ToProcess,
                Message::Reply { call, reply },
            );
        }
    }

    fn passes(&mut self, process: usize) -> bool {
        let is_lost = self.random.below(1_000) < self.quality.losses;
        !is_lost && self.parted_until[process] <= self.now
    }

    fn enqueue(&mut self, process: usize, direction: Direction, message: Message) {
        let roll = self.random.below(100);
        let delay = match roll {
            0..70 => 0,
            _ if roll + self.quality.slow < 100 => self.random.below(4),
            _ => self.random.below(self.quality.slowness),
        };
        let earliest = &mut self.earliest[process][direction as usize];
        let at = (self.now + delay).max(*earliest);
        *earliest = at;
        let number = self.number();
        self.queue.insert((at, number), message);
    }

    /// Returns the next message that has arrived. Requests stay on their way while the server hangs.
    pub(crate) fn next_arrival(&mut self, server_hangs: bool) -> Option<Message> {
        let arrived = self.queue.range(..=(self.now, u64::MAX));
        let mut taken = arrived.filter(|(_, message)| {
            let is_request = matches!(message, Message::Request { .. });
            !(is_request && server_hangs)
        });
        let key = *taken.next()?.0;
        self.queue.remove(&key)
    }

    /// Gives a reply to the call that waits for it, unless the process was killed or the connection cut.
    pub(crate) fn deliver(&mut self, call: u64, reply: RedisResult<Value>) {
        if let Some(pending) = self.pending.remove(&call) {
            let _ = pending.answer.send(reply);
        }
    }

    /// Returns the process of a call that waits for its reply.
    pub(crate) fn sender(&self, call: u64) -> Option<usize> {
        self.pending.get(&call).map(|pending| pending.process)
    }

    fn open_calls(&self, process: usize) -> Vec<u64> {
        let calls = self
            .pending
            .iter()
            .filter(|(_, pending)| pending.process == process);
        calls.map(|(call, _)| *call).collect()
    }

    /// Cuts the connection of a process: its calls fail, and half of its requests still arrive.
    pub(crate) fn cut(&mut self, process: usize) {
        let calls = self.open_calls(process);
        let requests = self.queue.iter().filter(
            |(_, message)| matches!(message, Message::Request { call, .. } if calls.contains(call)),
        );
        let requests: Vec<_> = requests.map(|(key, _)| *key).collect();
        for key in requests {
            if self.random.one_in(2) {
                self.queue.remove(&key);
            }
        }
        for call in calls {
            self.deliver(call, Err(lost_connection()));
        }
        self.earliest[process] = [self.now; 2];
    }

    /// Cuts a process off from the server until this time: nothing arrives, and nothing fails.
    pub(crate) fn part(&mut self, process: usize, until: u64) {
        self.parted_until[process] = until;
    }

    /// Leaves the calls of a killed process without an answer. Its requests still arrive.
    pub(crate) fn abandon(&mut self, process: usize) {
        for call in self.open_calls(process) {
            self.abandoned.extend(self.pending.remove(&call));
        }
    }

    /// Cuts all connections, as a server does that restarts. Nothing arrives that is under way.
    pub(crate) fn cut_all(&mut self) {
        self.queue.clear();
        for process in 0..self.earliest.len() {
            self.cut(process);
        }
    }

    /// Ends all faults of the network.
    pub(crate) fn heal(&mut self) {
        self.quality = Quality::default();
        self.parted_until.fill(0);
    }
}

/// A connection of a process to the simulated server.
#[derive(Clone)]
pub(crate) struct Connection {
    pub(crate) world: SharedWorld,
    pub(crate) process: usize,
    pub(crate) life: u64,
}

impl ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        let mut world = self.world.lock();
        // What a killed process drops sends nothing.
        let lives = world.lives[self.process] == self.life;
        let reply = lives.then(|| world.network.send(self.process, wire::arguments(command)));
        drop(world);
        Box::pin(async move {
            match reply {
                Some(reply) => reply.await.unwrap_or_else(|_| Err(lost_connection())),
                None => std::future::pending().await,
            }
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        _: &'a Pipeline,
        _: usize,
        _: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        unreachable!("the store sends no pipelines")
    }

    fn get_db(&self) -> i64 {
        0
    }
}
