//! Connections to the master that Redis Sentinel names. Each connection asks the sentinels first.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use redis::aio::MultiplexedConnection;
use tokio::task::JoinSet;

use super::super::server_settings::ServerSettings;
use super::super::single::{OnDisconnect, Server, timed_out};
use super::client::{Address, QUERY_TIMEOUT, SENTINEL, SentinelClient};
use super::follower::{MasterFollower, MasterWatcher};
use super::master;
use crate::store::redis::protocol::ServerName;
use crate::store::redis::protocol::errors::{self as error, ConnectError, Handshake};
use crate::store::redis::real_time;

/// The sentinels, and the settings for the master that they name. For the connections of one runtime.
pub(crate) struct Sentinel {
    sentinels: Vec<Arc<Server>>,
    /// The sentinels' name for the master.
    service: Arc<str>,
    name: ServerName,
    /// The settings for the master. The address in it is a sentinel's.
    master: ServerSettings,
    /// One for all connections.
    follower: OnceLock<MasterFollower>,
}

impl Sentinel {
    pub(crate) fn new(sentinels: Vec<Server>, service: String, master: ServerSettings) -> Self {
        let sentinels: Vec<_> = sentinels.into_iter().map(Arc::new).collect();
        Self {
            name: name_all("the Redis master of the sentinels", &sentinels),
            sentinels,
            service: service.into(),
            master,
            follower: OnceLock::new(),
        }
    }

    /// Returns the same sentinels for the connections of another runtime.
    pub(in super::super) fn of_runtime(&self) -> Self {
        Self {
            sentinels: self.sentinels.clone(),
            service: Arc::clone(&self.service),
            name: self.name.clone(),
            master: self.master.clone(),
            follower: OnceLock::new(),
        }
    }

    /// Connects to the master, and watches whether it stays the master.
    pub(in super::super) async fn connect(
        &self,
        on_disconnect: OnDisconnect,
    ) -> Result<(MultiplexedConnection, ServerName, MasterWatcher), ConnectError> {
        let on_disconnect: Arc<dyn Fn() + Send + Sync> = on_disconnect.into();
        // Before the sentinels are asked, so that no later change is missed.
        let named = self.follower().named();
        let connect_to = async |address: Address| {
            let when_lost = Arc::clone(&on_disconnect);
            let connected = master::connect(&self.master, &address, Box::new(move || when_lost()));
            let (connection, name) = connected.await?;
            let on_change = Arc::clone(&on_disconnect);
            let watcher = MasterWatcher::start(named.clone(), address, on_change);
            Ok((connection, name, watcher))
        };
        // The sentinels do not name it yet.
        let promoted = named.borrow().promoted().cloned();
        if let Some(promoted) = promoted
            && let Ok(connected) = connect_to(promoted).await
        {
            return Ok(connected);
        }
        let mut failure = failed(self.name.clone());
        // During a failover, some sentinels name the old master, which may be gone or a replica by
        // now.
        let answering = named.borrow().answering().to_vec();
        for address in self.find_masters(&answering).await? {
            match connect_to(address).await {
                Ok(connected) => return Ok(connected),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    pub(in super::super) fn name(&self) -> &ServerName {
        &self.name
    }

    /// Returns what follows the master on the current runtime.
    fn follower(&self) -> &MasterFollower {
        self.follower.get_or_init(|| {
            MasterFollower::start(&self.sentinels, &self.service, self.master.clone())
        })
    }

    /// Returns the addresses that the sentinels name, those with the most votes first. Asks the sentinels that
    /// answered last, or if there is none, the sentinels in the URL.
    async fn find_masters(&self, answering: &[Arc<Server>]) -> Result<Vec<Address>, ConnectError> {
        let asked = match answering {
            [] => &*self.sentinels,
            answering => answering,
        };
        let mut queries = JoinSet::new();
        for sentinel in asked {
            let mut sentinel = SentinelClient::new(sentinel, &self.service);
            queries.spawn(async move { sentinel.master_address().await });
        }
        let until = Instant::now() + QUERY_TIMEOUT;
        let mut votes = Vec::<(Address, usize)>::new();
        let all = name_all(SENTINEL, asked);
        let mut failure = failed(all.clone());
        // Returning drops the queries that are still running.
        while let Some(Some(answer)) = real_time::timeout_at(until, queries.join_next()).await {
            match answer.unwrap_or_else(|_| Err(failed(all.clone()))) {
                Ok(address) => {
                    if count_vote(&mut votes, address) > asked.len() / 2 {
                        break;
                    }
                }
                // Tells more than a sentinel that is down.
                Err(error) if error::is_misconfigured(&error.error) => failure = error,
                Err(error) if !error::is_misconfigured(&failure.error) => {
                    failure = ConnectError {
                        server: all.clone(),
                        ..error
                    };
                }
                Err(_) => {}
            }
        }
        if votes.is_empty() {
            return Err(failure);
        }
        votes.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        Ok(votes.into_iter().map(|(address, _)| address).collect())
    }
}

/// Names several sentinels, or what they stand for.
fn name_all(what: &'static str, sentinels: &[Arc<Server>]) -> ServerName {
    let addresses: Vec<_> = sentinels.iter().map(|one| format!("{one:?}")).collect();
    ServerName::new(what, &addresses.join(", "))
}

/// The error of servers that did not answer.
fn failed(server: ServerName) -> ConnectError {
    ConnectError {
        server,
        error: timed_out(),
        handshake: Handshake::Unknown,
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

impl fmt::Debug for Sentinel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without `master`, which holds the password.
        write!(f, "{} by {:?}", self.service, self.sentinels)
    }
}
