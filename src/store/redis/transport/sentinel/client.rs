//! A client of one sentinel: asks for the master, and receives the events of a failover.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, FromRedisValue, PushInfo, PushKind, RedisResult};
use tokio::sync::mpsc;

use super::super::dial::Server;
use super::super::failure::Failure;

/// The limit on a query of a sentinel, or of a server for its role. A sentinel that hangs takes no
/// longer, and is not waited for if a majority agrees.
pub(super) const QUERY_TIMEOUT: Duration = Duration::from_millis(250);

/// The host and port of a master.
pub(super) type Address = (String, u16);

/// The answer of a sentinel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Vote {
    pub(super) master: Address,
    /// Its id and the other sentinels that it knows, if it tells them.
    pub(super) group: Option<(String, Vec<Peer>)>,
}

/// A sentinel that another one knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) id: String,
    pub(super) address: Address,
}

/// A sentinel names another master.
const SWITCHED: &str = "+switch-master";

/// A sentinel has seen that the replica is the master, and names it.
const PROMOTED: &str = "+promoted-slave";

/// A sentinel has sent the replica the command to be the master.
const PROMOTING: &str = "+failover-state-wait-promotion";

/// The limit on events that wait. Further ones are dropped: the poll covers them.
const QUEUED_EVENTS: usize = 16;

/// An event of a failover.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The sentinel may name another master now.
    Switched,
    /// A replica has the command to take over from a master.
    Promoting { replica: Address, master: Address },
}

/// A client that keeps its connection until a query fails.
pub(super) struct SentinelClient {
    sentinel: Arc<Server>,
    /// The sentinels' name for the master.
    service: Arc<str>,
    connection: Option<MultiplexedConnection>,
    /// Whether the sentinel did not tell this connection which others it knows.
    lacks_group: bool,
    events: Option<mpsc::Receiver<Event>>,
}

impl SentinelClient {
    pub(super) fn new(sentinel: &Arc<Server>, service: &Arc<str>) -> Self {
        Self {
            sentinel: Arc::clone(sentinel),
            service: Arc::clone(service),
            connection: None,
            lacks_group: false,
            events: None,
        }
    }

    pub(super) async fn master_address(&mut self) -> Result<Address, Failure> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.sentinel.connect(Box::new(|_| ())).await?,
        };
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(&*self.service);
        let failed = |error| Failure::to_connect(self.sentinel.name(), error);
        let address: RedisResult<Option<Address>> = command.query_async(&mut connection).await;
        let address = address.map_err(failed)?;
        // Put back after a success only: a failed query is followed by a new connection.
        self.connection = Some(connection);
        address.ok_or_else(|| {
            let text = "no master has this name";
            let service = self.service.to_string();
            failed((ErrorKind::InvalidClientConfig, text, service).into())
        })
    }

    /// Returns the master that the sentinel names, and the sentinels that it knows.
    pub(super) async fn vote(&mut self) -> Result<Vote, Failure> {
        let master = self.master_address().await?;
        let group = self.group().await;
        Ok(Vote { master, group })
    }

    /// Returns the id of the sentinel and the others that it can reach. Nothing if the user has no right to know
    /// them, or if the sentinel is older than Redis 6.2.
    async fn group(&mut self) -> Option<(String, Vec<Peer>)> {
        if self.lacks_group {
            return None;
        }
        let mut questions = redis::pipe();
        questions.cmd("SENTINEL").arg("MYID");
        questions
            .cmd("SENTINEL")
            .arg("SENTINELS")
            .arg(&*self.service);
        let answers = questions.query_async(self.connection.as_mut()?).await;
        // Not asked again: the sentinel would log each time that a right is missing.
        self.lacks_group = answers.is_err();
        let (id, peers): (_, Vec<HashMap<String, String>>) = answers.ok()?;
        Some((id, peers.iter().filter_map(Peer::of).collect()))
    }

    /// Subscribes to the events of failovers, unless the connection has done so.
    ///
    /// A user without the right to subscribe gets no events, nor does a connection with RESP2, which
    /// cannot send commands while it is subscribed.
    pub(super) async fn subscribe(&mut self) -> Result<(), Failure> {
        if self.connection.is_some() {
            return Ok(());
        }
        let (sender, events) = mpsc::channel(QUEUED_EVENTS);
        let service = Arc::clone(&self.service);
        let on_push = move |push: &PushInfo| {
            if let Some(event) = Event::of(push, &service) {
                // Fails if too many wait.
                let _ = sender.try_send(event);
            }
        };
        let mut connection = self.sentinel.connect(Box::new(on_push)).await?;
        self.events = Some(events);
        let subscribed = connection.subscribe(&[SWITCHED, PROMOTED, PROMOTING]).await;
        if let Err(error) = subscribed {
            tracing::debug!(
                target: "tollgate::diagnostics",
                "{} sends no events, and is asked every second: {error}",
                self.sentinel.name()
            );
        }
        self.connection = Some(connection);
        self.lacks_group = false;
        Ok(())
    }

    /// Waits for the next event. Never returns if the connection is lost.
    pub(super) async fn next_event(&mut self) -> Event {
        if let Some(events) = &mut self.events
            && let Some(event) = events.recv().await
        {
            return event;
        }
        // The next query connects and subscribes.
        self.connection = None;
        self.events = None;
        std::future::pending().await
    }
}

impl Vote {
    pub(super) fn id(&self) -> Option<&str> {
        let (id, _) = self.group.as_ref()?;
        Some(id)
    }

    pub(super) fn peers(&self) -> &[Peer] {
        let group = self.group.as_ref();
        group.map_or(&[], |(_, peers)| peers)
    }
}

impl Peer {
    /// Returns the sentinel that these fields describe, unless it is down.
    fn of(fields: &HashMap<String, String>) -> Option<Self> {
        let is_down = fields.get("flags")?.contains("s_down");
        let address = (fields.get("ip")?.clone(), fields.get("port")?.parse().ok()?);
        let id = fields.get("runid")?.clone();
        (!is_down).then_some(Self { id, address })
    }
}

impl Event {
    /// Returns the event of a message that concerns the master of this name.
    fn of(push: &PushInfo, service: &str) -> Option<Self> {
        if push.kind != PushKind::Message {
            return None;
        }
        let mut texts = push.data.iter();
        let mut text = || String::from_redis_value_ref(texts.next()?).ok();
        let (channel, message) = (text()?, text()?);
        let words: Vec<&str> = message.split_whitespace().collect();
        match (&*channel, &*words) {
            (SWITCHED, [name, ..]) if *name == service => Some(Self::Switched),
            (PROMOTED, [_, _, _, _, "@", name, ..]) if *name == service => Some(Self::Switched),
            (PROMOTING, ["slave", _, host, port, "@", name, master, master_port])
                if *name == service =>
            {
                let address = |host: &str, port: &str| Some((host.to_owned(), port.parse().ok()?));
                Some(Self::Promoting {
                    replica: address(host, port)?,
                    master: address(master, master_port)?,
                })
            }
            _ => None,
        }
    }
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
                Some(Event::Switched),
            ),
            ("+switch-master", "shop2 10.0.0.2 7000 10.0.0.3 7001", None),
            (
                "+promoted-slave",
                "slave 10.0.0.3:7001 10.0.0.3 7001 @ shop 10.0.0.2 7000",
                Some(Event::Switched),
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
            assert_eq!(Event::of(&push, "shop"), expected, "{channel} {message}");
        }
    }
}
