//! Connections to the master that Redis Sentinel names. Each connection asks the sentinels first.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisError, RedisResult, Value};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{self, Instant};

use super::server_settings::ServerSettings;
use super::single::{OnDisconnect, Server, timed_out};
use crate::store::redis::protocol::ServerName;
use crate::store::redis::protocol::errors::{ConnectError, Handshake};

/// The limit on a query of the sentinels. A sentinel that hangs takes no longer, and is not waited
/// for if a majority agrees.
const QUERY_TIMEOUT: Duration = Duration::from_millis(250);

/// How often the sentinels are asked whether the master is still the same. A master that was
/// replaced on purpose, or while it hung, believes for ten more seconds that it is the master.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// The name of sentinels in errors, without their addresses.
const SENTINEL: &str = "Redis Sentinel";

/// The sentinels, and the settings for the master that they name.
pub(crate) struct Sentinel {
    sentinels: Vec<Arc<Server>>,
    /// The sentinels' name for the master.
    service: Arc<str>,
    name: ServerName,
    /// The settings for the master. The address in it is that of a sentinel.
    master: ServerSettings,
}

/// The host and port of a master.
type Address = (String, u16);

impl Sentinel {
    pub(crate) fn new(sentinels: Vec<Server>, service: String, master: ServerSettings) -> Self {
        let addresses: Vec<_> = sentinels
            .iter()
            .map(|sentinel| format!("{sentinel:?}"))
            .collect();
        Self {
            sentinels: sentinels.into_iter().map(Arc::new).collect(),
            service: service.into(),
            name: ServerName::new("the Redis master of the sentinels", &addresses.join(", ")),
            master,
        }
    }

    /// Connects to the master, and watches whether it stays the master.
    pub(super) async fn connect(
        &self,
        on_disconnect: OnDisconnect,
    ) -> Result<(MultiplexedConnection, ServerName, MasterWatcher), ConnectError> {
        let on_disconnect: Arc<dyn Fn() + Send + Sync> = on_disconnect.into();
        let mut failure = self.failed(timed_out());
        // During a failover, some sentinels name the old master, which may be gone or a replica by
        // now.
        for address in self.find_masters().await? {
            let when_lost = Arc::clone(&on_disconnect);
            let connected = self.connect_to(&address, Box::new(move || when_lost()));
            match connected.await {
                Ok((connection, name)) => {
                    let watcher = self.watch_master(address, on_disconnect);
                    return Ok((connection, name, watcher));
                }
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    pub(super) fn name(&self) -> &ServerName {
        &self.name
    }

    fn failed(&self, error: RedisError) -> ConnectError {
        ConnectError {
            server: self.name.clone().of_kind(SENTINEL),
            error,
            handshake: Handshake::Unknown,
        }
    }

    /// Calls `on_change` once a majority of the sentinels names another master than this one.
    fn watch_master(
        &self,
        master: Address,
        on_change: Arc<dyn Fn() + Send + Sync>,
    ) -> MasterWatcher {
        let mut sentinels: Vec<SentinelClient> = self.clients().collect();
        let task = tokio::spawn(async move {
            loop {
                time::sleep(WATCH_INTERVAL).await;
                let mut votes = Vec::new();
                for sentinel in &mut sentinels {
                    let answer = time::timeout(QUERY_TIMEOUT, sentinel.master_address()).await;
                    if let Ok(Ok(address)) = answer {
                        count_vote(&mut votes, address);
                    }
                }
                let majority = sentinels.len() / 2;
                let elected = votes.into_iter().find(|(_, count)| *count > majority);
                if elected.is_some_and(|(address, _)| address != master) {
                    return on_change();
                }
            }
        });
        MasterWatcher(task.abort_handle())
    }

    /// Returns the addresses that the sentinels name, those with the most votes first.
    async fn find_masters(&self) -> Result<Vec<Address>, ConnectError> {
        let mut queries = JoinSet::new();
        for mut sentinel in self.clients() {
            queries.spawn(async move { sentinel.master_address().await });
        }
        let until = Instant::now() + QUERY_TIMEOUT;
        let mut votes = Vec::<(Address, usize)>::new();
        let mut failure = self.failed(timed_out());
        // Returning drops the queries that are still running.
        while let Ok(Some(answer)) = time::timeout_at(until, queries.join_next()).await {
            match answer.unwrap_or_else(|_| Err(self.failed(timed_out()))) {
                Ok(address) => {
                    if count_vote(&mut votes, address) > self.sentinels.len() / 2 {
                        break;
                    }
                }
                Err(error) => failure = error,
            }
        }
        if votes.is_empty() {
            return Err(failure);
        }
        votes.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        Ok(votes.into_iter().map(|(address, _)| address).collect())
    }

    fn clients(&self) -> impl Iterator<Item = SentinelClient> {
        self.sentinels.iter().map(|sentinel| SentinelClient {
            sentinel: Arc::clone(sentinel),
            service: Arc::clone(&self.service),
            connection: None,
        })
    }

    /// Connects to a server, and fails if it says that it is not the master.
    async fn connect_to(
        &self,
        address: &Address,
        on_disconnect: OnDisconnect,
    ) -> Result<(MultiplexedConnection, ServerName), ConnectError> {
        let (host, port) = address.clone();
        let server = Server::new(self.master.with_address(host, port));
        let connection = server.connect(on_disconnect).await?;
        let name = server.name().clone();
        let failed = |error| ConnectError {
            server: name.clone(),
            error,
            handshake: Handshake::Unknown,
        };
        let mut queried = connection.clone();
        let role = redis::cmd("ROLE");
        let role = time::timeout(QUERY_TIMEOUT, queried.send_packed_command(&role)).await;
        let role = role.unwrap_or_else(|_| Err(timed_out()));
        match role.map_err(failed)? {
            Value::Array(role) if role.first() != Some(&Value::BulkString(b"master".to_vec())) => {
                let text = "the sentinels name this server as the master, but it is a replica";
                Err(failed((ErrorKind::Io, text).into()))
            }
            // Without the right to ask for the role, a replica shows with the first write.
            _ => Ok((connection, name)),
        }
    }
}

/// Adds a vote for an address, and returns the number of its votes.
fn count_vote(votes: &mut Vec<(Address, usize)>, address: Address) -> usize {
    if let Some((_, count)) = votes.iter_mut().find(|(named, _)| *named == address) {
        *count += 1;
        return *count;
    }
    votes.push((address, 1));
    1
}

/// A client of one sentinel, which keeps its connection until a query fails.
struct SentinelClient {
    sentinel: Arc<Server>,
    service: Arc<str>,
    connection: Option<MultiplexedConnection>,
}

impl SentinelClient {
    async fn master_address(&mut self) -> Result<Address, ConnectError> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let connected = self.sentinel.connect(Box::new(|| ())).await;
                connected.map_err(|failure| ConnectError {
                    server: failure.server.of_kind(SENTINEL),
                    ..failure
                })?
            }
        };
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(&*self.service);
        let failed = |error| ConnectError {
            server: self.sentinel.name().clone().of_kind(SENTINEL),
            error,
            handshake: Handshake::Unknown,
        };
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
}

/// Watches whether a master stays the master. Stops on drop.
#[derive(Debug)]
pub(super) struct MasterWatcher(AbortHandle);

impl Drop for MasterWatcher {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl fmt::Debug for Sentinel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without `master`, which holds the password.
        write!(f, "{} by {:?}", self.service, self.sentinels)
    }
}
