//! The commands of a store: what is sent to Redis, and how replies are read.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, Value};
use tokio::runtime::Handle;

use super::breakers::{Breakers, NodeProbe};
use super::protocol::{
    BatchEntry, EntryAnswers, KeyNames, ServerName, Value as CountedValue, decode_replies,
    encode_adjust, encode_checks, errors as error, key_slot,
};
use super::script::{Script, ScriptCall, Scripts};
use super::transport::{Deployment, Failure, Line, Node, Route};
use crate::decision::Holding;
use crate::error::{Act, Code, Error, ErrorKind};
use crate::store::circuit_breaker::CircuitBreaker;
use crate::store::future::StoreFuture;
use crate::store::redis::real_time::{Deadline, Late};
use crate::store::requests::{Adjust, Change, Check, Subject};
use crate::telemetry::StoreMeter;

/// Sends the commands of one store.
#[derive(Clone)]
pub(super) struct Client {
    pub(super) deployment: Arc<Deployment>,
    pub(super) scripts: Arc<Scripts>,
    pub(super) names: KeyNames,
    /// Whether the server is known to divide its keys into the slots of a cluster from the first check on.
    pub(super) by_slot: bool,
    pub(super) deadline: Duration,
    pub(super) meter: StoreMeter,
    pub(super) breakers: Arc<Breakers>,
}

impl Client {
    pub(super) fn slot(&self, subject: Subject<'_>) -> Option<u16> {
        self.deployment
            .is_cluster()
            .then(|| self.names.slot(subject))
    }

    pub(super) fn key_slot(&self, key: &str) -> Option<u16> {
        self.deployment
            .is_cluster()
            .then(|| key_slot(key.as_bytes()))
    }

    pub(super) fn block_list_slot(&self) -> Option<u16> {
        self.key_slot(&self.names.block_list())
    }

    /// Whether the server divides its keys into slots: known from the URL or a setting, or learned from an error reply.
    pub(super) fn has_slots(&self) -> bool {
        self.by_slot || self.deployment.has_slots()
    }

    pub(super) fn route_from(&self, runtime: &Handle, slot: Option<u16>) -> Route {
        self.deployment.route(runtime, &self.names, slot)
    }

    pub(super) fn route(&self, slot: Option<u16>) -> Result<Route, Error> {
        Ok(self.route_from(&current_runtime()?, slot))
    }

    /// Starts a task that calls the server with the keys of a slot. The caller waits for at most the deadline.
    ///
    /// The call goes on without the caller: its line is free at its end, and a silent server is noticed.
    pub(super) fn start<T: Send + 'static, F>(
        self: &Arc<Self>,
        slot: Option<u16>,
        call: impl FnOnce(Arc<Self>, Route) -> F + Send + 'static,
    ) -> StoreFuture<T>
    where
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let runtime = match current_runtime() {
            Ok(runtime) => runtime,
            Err(error) => return StoreFuture::ready(Err(error)),
        };
        let route = self.route_from(&runtime, slot);
        let (sender, future) = StoreFuture::channel();
        let client = Arc::clone(self);
        let deadline = self.deadline;
        runtime.spawn(async move {
            let mut call = pin!(call(client, route.clone()));
            match Deadline::new(deadline).wait(call.as_mut()).await {
                Ok(outcome) => sender.send(outcome),
                Err(late) => {
                    let error = match route.obstacle() {
                        Some(obstacle) => obstacle.into_error(deadline),
                        None => error::timeout(&route.server(), deadline, late),
                    };
                    sender.send(Err(error));
                    let _ = call.await;
                }
            }
        });
        future
    }

    pub(super) fn error(&self, failure: Failure) -> Error {
        failure.into_error(self.deadline)
    }

    pub(super) async fn begin(&self, route: &Route) -> Result<Line, Error> {
        route
            .reserve(&mut Deadline::new(self.deadline))
            .await
            .map_err(|failure| self.unsent(route, failure))
    }

    /// Waits for another line of a call, which is recorded at its end, or for that of a command that is not recorded.
    pub(super) async fn reserve(&self, route: &Route) -> Result<Line, Error> {
        route
            .reserve(&mut Deadline::new(self.deadline))
            .await
            .map_err(|failure| self.error(failure))
    }

    /// The error of a call that got no line. It counts as a failed call, unless it only waited for its turn.
    pub(super) fn unsent(&self, route: &Route, failure: Failure) -> Error {
        let error = match failure.late() {
            Some(late) => self.late_error(route, late, None),
            None => self.error(failure),
        };
        self.record(route, None, Err(&error));
        error
    }

    /// Returns the circuit breaker of the node that has a key now. `None` stands for the one of the store.
    pub(super) fn circuit_breaker(&self, subject: Subject<'_>) -> Option<CircuitBreaker> {
        if !self.deployment.is_cluster() || !self.breakers.has_failed() {
            return None;
        }
        let node = self.route(self.slot(subject)).ok()?.node()?;
        Some(self.breakers.get(node.server()))
    }

    /// Records a call in the circuit breaker of the server that was asked, or else of the one that has the keys: no server
    /// has run it.
    pub(super) fn record(
        &self,
        route: &Route,
        asked: Option<&Arc<Node>>,
        outcome: Result<(), &Error>,
    ) {
        let node = if self.deployment.is_cluster() {
            asked.cloned().or_else(|| route.node())
        } else {
            None
        };
        let server = node.as_deref().map(Node::server);
        // A key that moves is decided by another node, so its error says nothing about this one.
        let outcome = outcome.or_else(|error| match error.act() {
            Act::Moving => Ok(()),
            _ => Err(error),
        });
        self.breakers.record(server, route.slot, outcome);
    }

    pub(super) async fn decide(
        &self,
        route: &Route,
        line: Line,
        entries: &[BatchEntry<'_>],
    ) -> Result<Vec<Result<EntryAnswers, Error>>, Error> {
        let mut replies = match self.call(route, line, entries).await {
            // A cluster that is moving the slot, and has only some of the keys, has not run the call. A full server has
            // written nothing, since it refuses the first write of a script or none. A call that one entry has failed was
            // not sent. So each entry goes in a call of its own: what can be decided does not wait for the slot or fail
            // with another, and what is refused is refused exactly.
            Err(error)
                if entries.len() > 1
                    && (error.act() == Act::Moving
                        || error.kind() == ErrorKind::Full
                        || error.concerns_one_check()) =>
            {
                let mut replies = Vec::with_capacity(entries.len());
                for entry in entries {
                    replies.push(self.call_alone(route, entry).await);
                }
                replies
            }
            replies => replies?,
        };
        for (reply, entry) in replies.iter_mut().zip(entries) {
            let error = reply.as_ref().err();
            // The script wrote nothing for an entry without the window of a calendar. It is rare: the clock of this process
            // differs from the server's clock by more than a window.
            if let Some(time) = error.and_then(error::time_without_window) {
                self.deployment.clock.learn(time);
                *reply = self.call_alone(route, entry).await;
            }
        }
        let is_replica = replies
            .iter()
            .filter_map(|reply| reply.as_ref().err())
            .any(|error| error.act() == Act::Replica);
        if is_replica {
            route.give_up();
        }
        Ok(replies)
    }

    async fn call_alone(
        &self,
        route: &Route,
        entry: &BatchEntry<'_>,
    ) -> Result<EntryAnswers, Error> {
        let line = self.begin(route).await?;
        let replies = Box::pin(self.call(route, line, &[*entry])).await?;
        replies
            .into_iter()
            .next()
            .unwrap_or_else(|| Err(error::malformed_reply("no answer", &route.server())))
    }

    async fn call(
        &self,
        route: &Route,
        mut line: Line,
        entries: &[BatchEntry<'_>],
    ) -> Result<Vec<Result<EntryAnswers, Error>>, Error> {
        let (script, call, plan) =
            encode_checks(&self.scripts, &self.names, &self.deployment.clock, entries);
        let replies = self
            .eval(route, &mut line, script, &call, entries)
            .await
            .and_then(|reply| decode_replies(reply, &route.server(), entries, &plan));
        self.record(route, line.asked(), call_outcome(&replies));
        replies
    }

    pub(super) fn adjust(self: &Arc<Self>, adjust: Adjust<'_>) -> StoreFuture<()> {
        if let Change::Charge { units } = adjust.change {
            return self.charge(adjust.subject.check(units));
        }
        let script = &self.scripts.refund;
        let Some(call) = encode_adjust(script, &self.names, &self.deployment.clock, adjust) else {
            return StoreFuture::ready(Ok(()));
        };
        self.start(self.slot(adjust.subject), move |client, route| async move {
            let reply = client.run(&route, &client.scripts.refund, call).await;
            if let Some(time) = reply.as_ref().err().and_then(error::time_without_window) {
                client.deployment.clock.learn(time);
            }
            reply.map(drop)
        })
    }

    /// Charges the cost of a check even beyond the limits, by the script that decides checks.
    fn charge(self: &Arc<Self>, check: Check<'_>) -> StoreFuture<()> {
        let levels = [check.owned()];
        self.start(self.slot(check.subject), move |client, route| async move {
            let charge = BatchEntry {
                levels: &levels,
                count: 0,
                may_repeat: false,
            };
            let line = client.begin(&route).await?;
            let replies = client.decide(&route, line, &[charge]).await?;
            replies.into_iter().try_for_each(|reply| reply.map(drop))
        })
    }

    pub(super) fn holders(self: &Arc<Self>, subject: Subject<'_>) -> StoreFuture<Vec<Holding>> {
        let mut call = self.scripts.holders.call(1, 1, 0);
        let key = self.names.value(subject, CountedValue::InFlight);
        call.command.arg(key).arg(call.number.get());
        self.start(self.slot(subject), move |client, route| async move {
            let reply = client.run(&route, &client.scripts.holders, call).await?;
            parse_holders(reply)
                .ok_or_else(|| error::malformed_reply("no holders of slots", &route.server()))
        })
    }

    /// Runs a script that decides no check.
    pub(super) async fn run(
        &self,
        route: &Route,
        script: &Script,
        call: ScriptCall,
    ) -> Result<Value, Error> {
        let mut line = self.begin(route).await?;
        let reply = self.eval(route, &mut line, script, &call, &[]).await;
        self.record(route, line.asked(), reply.as_ref().map(drop));
        reply
    }

    pub(super) async fn query(&self, route: &Route, command: &Cmd) -> Result<Value, Error> {
        route
            .query(command, self.deadline)
            .await
            .map_err(|failure| self.error(failure))
    }

    pub(super) fn ping_all(self: &Arc<Self>) -> StoreFuture<Vec<()>> {
        self.ask_all(|node, max_wait| async move { node.ping(&mut Deadline::new(max_wait)).await })
    }

    /// Sends a command without keys to each server, for a caller that waits for at most the deadline. Returns the replies.
    pub(super) fn query_all(
        self: &Arc<Self>,
        command: Cmd,
    ) -> StoreFuture<Vec<(ServerName, Value)>> {
        self.ask_all(move |node, max_wait| {
            let command = command.clone();
            async move {
                let reply = node.query(&command, &mut Deadline::new(max_wait)).await?;
                Ok((node.server().clone(), reply))
            }
        })
    }

    fn ask_all<T: Send + 'static, F>(
        self: &Arc<Self>,
        ask: impl Fn(Arc<Node>, Duration) -> F + Send + Sync + 'static,
    ) -> StoreFuture<Vec<T>>
    where
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        // Each server has this deadline, which ends before that of the caller: so an error names the one that is late.
        let mut deadline = Deadline::new(self.deadline);
        self.start(None, move |client, route| async move {
            let replies = async {
                // The nodes of a cluster are known when one of them is connected.
                drop(route.reserve(&mut deadline).await?);
                let mut replies = Vec::new();
                for node in route.nodes() {
                    replies.push(ask(node, deadline.left()).await?);
                }
                Ok::<_, Failure>(replies)
            };
            replies.await.map_err(|failure| client.error(failure))
        })
    }

    /// Returns the time before its deadline from which a check is not sent any more, because the reply would come
    /// too late: two round trips, but at most half of the deadline.
    ///
    /// Otherwise, a queue that is too long would hold only checks that cannot be answered in time. If the server
    /// is silent, its round trip is unknown, and checks are sent until their deadline.
    pub(super) fn reply_margin(&self, route: &Route) -> Duration {
        let half = self.deadline / 2;
        match route.node().zip(Instant::now().checked_sub(half)) {
            Some((node, recently)) if node.has_replied_since(recently) => {
                half.min(node.round_trip() * 2)
            }
            _ => Duration::ZERO,
        }
    }

    /// The error of a check or a call that has reached its deadline. `sent_at` is missing if it was never sent.
    ///
    /// A check that waited here for at least half of the deadline says nothing about a server that has answered other
    /// calls meanwhile.
    pub(super) fn late_error(&self, route: &Route, late: Late, sent_at: Option<Instant>) -> Error {
        let is_unsent = sent_at.is_none();
        let sent_at = sent_at.unwrap_or_else(Instant::now);
        let waited = sent_at.saturating_duration_since(late.since);
        let server = route.server();
        let node = route.node().filter(|_| waited >= self.deadline / 2);
        if node.is_some_and(|node| node.has_replied_since(late.since)) {
            return error::queue_timeout(&server, self.deadline, late);
        }
        if is_unsent && let Some(obstacle) = route.obstacle() {
            return self.error(obstacle);
        }
        error::timeout(&server, self.deadline, late)
    }
}

fn parse_holders(reply: Value) -> Option<Vec<Holding>> {
    let holders: Vec<(Vec<u8>, u32, u64)> = redis::from_redis_value(reply).ok()?;
    holders
        .into_iter()
        .map(|(holder, slots, left)| {
            let id = holder.try_into().ok()?;
            Some(Holding::new(id, 0, slots, 0, Duration::from_micros(left)))
        })
        .collect()
}

/// A call has failed if each of its entries has, as on a server that takes no writes.
fn call_outcome<T>(replies: &Result<Vec<Result<T, Error>>, Error>) -> Result<(), &Error> {
    let entries = replies.as_ref()?;
    match entries.split_first() {
        Some((Err(first), others)) if others.iter().all(Result::is_err) => Err(first),
        _ => Ok(()),
    }
}

/// Returns what probes servers. The outcome is recorded by the circuit breaker that asks.
pub(super) fn prober(
    deployment: &Arc<Deployment>,
    names: &KeyNames,
    deadline: Duration,
) -> Arc<NodeProbe> {
    let deployment = Arc::clone(deployment);
    let names = names.clone();
    Arc::new(move |slot| {
        let deployment = Arc::clone(&deployment);
        let names = names.clone();
        StoreFuture::boxed(async move {
            deployment
                .route(&current_runtime()?, &names, slot)
                .ping(deadline)
                .await
                .map_err(|failure| failure.into_error(deadline))
        })
    })
}

pub(super) fn current_runtime() -> Result<Handle, Error> {
    Handle::try_current().map_err(|_| {
        Error::coded(
            Code::NO_RUNTIME,
            "cannot use a RedisStore outside of a tokio runtime: call it from a task, or in `block_on`",
        )
    })
}
