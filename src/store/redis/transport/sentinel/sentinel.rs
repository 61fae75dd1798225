//! One sentinel: a node that is asked for the master, and that sends the events of a failover.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind, FromRedisValue, PushInfo, PushKind, RedisError, Value, from_redis_value};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::super::connection::{Boxed, Connection, ConnectionOwner, OnPush};
use super::super::dial::{Dial, Server};
use super::super::failure::{Failure, Fate};
use super::super::node::{Line, Node};

use crate::store::redis::protocol::{SENTINEL, ServerName};
use crate::store::redis::real_time::{Deadline, Late};

/// The limit on a query of a sentinel that is connected. One that hangs takes no longer, and is not waited for if a majority
/// agrees.
pub(super) const QUERY_TIMEOUT: Duration = Duration::from_millis(250);

/// The host and port of a server.
pub(super) type Address = (String, u16);

/// A sentinel names another master.
const SWITCHED: &str = "+switch-master";

/// A sentinel has seen that the replica is the master, and names it.
const PROMOTED: &str = "+promoted-slave";

/// A sentinel has sent the replica the command to be the master.
const PROMOTING: &str = "+failover-state-wait-promotion";

/// A reason to ask the sentinels.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The sentinels may name another master than the one that is known.
    Changed,
    /// A replica has the command to take over from a master.
    Promoting { replica: Address, master: Address },
}

/// A sentinel, and its answer when it was asked last.
pub(super) struct Sentinel {
    dial: SentinelDial,
    pub(super) node: Arc<Node>,
    /// Its id, as another sentinel reported it. Missing for a sentinel in the URL.
    pub(super) found_as: Option<String>,
    pub(super) answer: Result<Vote, Failure>,
}

/// The answer of a sentinel.
pub(super) struct Vote {
    pub(super) master: Address,
    /// Its id, if it tells it and the others.
    pub(super) id: Option<String>,
    /// The sentinels that it can reach, by their ids.
    pub(super) others: Vec<(String, Address)>,
}

/// Connects to a sentinel, and subscribes to its events.
#[derive(Clone)]
pub(super) struct SentinelDial {
    pub(super) server: Server,
    /// The sentinels' name for the master.
    pub(super) service: Arc<str>,
    pub(super) events: mpsc::Sender<Event>,
}

impl Sentinel {
    /// A sentinel whose connection belongs to `runtime`. Does not connect yet.
    pub(super) fn new(dial: SentinelDial, found_as: Option<String>, runtime: &Handle) -> Self {
        Self {
            node: Node::new(dial.clone(), runtime),
            answer: Err(Failure::from_deadline(
                dial.server(),
                Late::now(),
                Fate::NotRun,
            )),
            dial,
            found_as,
        }
    }

    pub(super) fn is_at(&self, dial: &SentinelDial) -> bool {
        self.dial.server.info().addr() == dial.server.info().addr()
    }

    pub(super) fn others(&self) -> impl Iterator<Item = (String, SentinelDial)> {
        let others = self.answer.iter().flat_map(|vote| &vote.others);
        others.map(|(id, (host, port))| {
            let server = self.dial.server.at(SENTINEL, host, *port);
            let dial = self.dial.clone();
            (id.clone(), SentinelDial { server, ..dial })
        })
    }

    /// Asks for the master. Without a connection, waits for one for this long.
    pub(super) async fn asked(mut self, max_wait: Duration) -> Self {
        self.answer = self.vote(max_wait).await;
        self
    }

    async fn vote(&self, max_wait: Duration) -> Result<Vote, Failure> {
        let service = &*self.dial.service;
        let line = self.node.line(&mut Deadline::new(max_wait)).await?;
        let reply = ask(&line, &["GET-MASTER-ADDR-BY-NAME", service]).await?;
        let Some(master) = reply else {
            let text = "no master has this name";
            let error = (ErrorKind::InvalidClientConfig, text, service.to_owned());
            return Err(Failure::to_connect(line.server(), RedisError::from(error)));
        };
        // A sentinel that does not describe itself is not asked again: it would log each time that a right is missing.
        let mut vote = Vote {
            master,
            id: None,
            others: Vec::new(),
        };
        if matches!(&self.answer, Ok(Vote { id: None, .. })) {
            return Ok(vote);
        }
        match self.describe(&line).await {
            Ok((id, others)) => {
                vote.id = Some(id);
                vote.others = others;
            }
            // The right is missing. Sentinels older than Redis 6.2 do not know the command.
            Err(failure) if failure.fate == Fate::Answered => {}
            // Without a reply, nobody knows whether it describes itself.
            Err(failure) => return Err(failure),
        }
        Ok(vote)
    }

    async fn describe(&self, line: &Line) -> Result<(String, Vec<(String, Address)>), Failure> {
        let id = ask(line, &["MYID"]).await?;
        let others: Vec<HashMap<String, String>> =
            ask(line, &["SENTINELS", &self.dial.service]).await?;
        Ok((id, others.iter().filter_map(reachable).collect()))
    }
}

/// Asks a sentinel. The three questions have replies of three shapes, so that one of another shape is the reply to another
/// question. A reply of the same shape may be that to an earlier question of the same words.
async fn ask<T: FromRedisValue>(line: &Line, words: &[&str]) -> Result<T, Failure> {
    let mut question = redis::cmd("SENTINEL");
    question.arg(words);
    let reply = line.send(&question, QUERY_TIMEOUT).await?;
    from_redis_value(reply).map_err(|_| line.out_of_sync())
}

/// Returns the id and the address of a sentinel that another one describes, unless it is down.
fn reachable(fields: &HashMap<String, String>) -> Option<(String, Address)> {
    let is_down = fields.get("flags")?.contains("s_down");
    let address = (fields.get("ip")?.clone(), fields.get("port")?.parse().ok()?);
    (!is_down).then_some((fields.get("runid")?.clone(), address))
}

impl Dial for SentinelDial {
    fn server(&self) -> &ServerName {
        self.server.server()
    }

    /// Connects and subscribes. A user without the right to subscribe gets no events, nor does a connection with RESP2,
    /// which cannot send commands while it is subscribed.
    fn dial(
        &self,
        owner: Arc<dyn ConnectionOwner>,
    ) -> Boxed<'_, Result<(Connection, ServerName), Failure>> {
        let service = Arc::clone(&self.service);
        let events = self.events.clone();
        // An event is dropped if too many wait: the poll covers it.
        let on_push: OnPush = Box::new(move |push| {
            if let Some(event) = Event::parse(push, &service) {
                drop(events.try_send(event));
            }
        });
        Box::pin(async move {
            let connection = self.server.connect(owner, Some(on_push)).await?;
            let subscribing = connection.subscribe(&[SWITCHED, PROMOTED, PROMOTING]);
            match self.server.in_time(subscribing).await {
                Ok(()) => {}
                Err(error) if error.is_timeout() => {
                    return Err(Failure::to_connect(self.server(), error));
                }
                Err(error) => tracing::debug!(
                    target: "tollgate::diagnostics",
                    "{} sends no events, and is asked every second: {error}",
                    self.server()
                ),
            }
            // The events before are lost.
            let _ = self.events.try_send(Event::Changed);
            Ok((connection, self.server().clone()))
        })
    }
}

impl Event {
    /// `None` for a message that does not concern the master of this name.
    fn parse(push: &PushInfo, service: &str) -> Option<Self> {
        if push.kind != PushKind::Message {
            return None;
        }
        let (channel, message): (String, String) =
            from_redis_value(Value::Array(push.data.clone())).ok()?;
        let words: Vec<&str> = message.split_whitespace().collect();
        match (&*channel, &*words) {
            (SWITCHED, [name, ..]) | (PROMOTED, [_, _, _, _, "@", name, ..]) => {
                (*name == service).then_some(Self::Changed)
            }
            (PROMOTING, ["slave", _, host, port, "@", name, master, master_port])
                if *name == service =>
            {
                Some(Self::Promoting {
                    replica: parse_address(host, port)?,
                    master: parse_address(master, master_port)?,
                })
            }
            _ => None,
        }
    }
}

fn parse_address(host: &str, port: &str) -> Option<Address> {
    Some((host.to_owned(), port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::*;

    #[test]
    fn only_messages_about_the_master_of_this_name_are_events() {
        let address = |port| ("10.0.0.2".to_owned(), port);
        let promoting = Event::Promoting {
            replica: ("10.0.0.3".to_owned(), 7_001),
            master: address(7_000),
        };
        for (channel, message, expected) in [
            (
                "+switch-master",
                "shop 10.0.0.2 7000 10.0.0.3 7001",
                Some(Event::Changed),
            ),
            ("+switch-master", "shop2 10.0.0.2 7000 10.0.0.3 7001", None),
            (
                "+promoted-slave",
                "slave 10.0.0.3:7001 10.0.0.3 7001 @ shop 10.0.0.2 7000",
                Some(Event::Changed),
            ),
            (
                "+failover-state-wait-promotion",
                "slave 10.0.0.3:7001 10.0.0.3 7001 @ shop 10.0.0.2 7000",
                Some(promoting),
            ),
            (
                "+failover-state-wait-promotion",
                "slave 10.0.0.3:7001 10.0.0.3 7001 @ shop2 10.0.0.2 7000",
                None,
            ),
            (
                "+failover-state-wait-promotion",
                "slave 10.0.0.3:7001 10.0.0.3 seven @ shop 10.0.0.2 7000",
                None,
            ),
            ("+failover-state-wait-promotion", "", None),
            ("+sdown", "shop 10.0.0.2 7000 10.0.0.3 7001", None),
        ] {
            let data = [channel, message].map(|text| Value::BulkString(text.into()));
            let push = PushInfo {
                kind: PushKind::Message,
                data: data.to_vec(),
            };
            assert_eq!(Event::parse(&push, "shop"), expected, "{channel} {message}");
        }
    }
}
