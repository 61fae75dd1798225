//! The master that Redis Sentinel names. Each connection asks the sentinels first.

use std::sync::{Arc, OnceLock};
use std::time::Instant;

use tokio::task::JoinSet;

use super::super::dial::{Connection, Dial, OnLost, Server, name_all, timed_out};
use super::super::failure::Failure;
use super::super::transport::Boxed;
use super::client::{Address, QUERY_TIMEOUT, SentinelClient};
use super::follower::{MasterFollower, watch_master};
use super::master;
use crate::store::redis::protocol::{SENTINEL, ServerName};
use crate::store::redis::real_time;

/// The sentinels, and the settings for the master that they name. For the connection of one runtime.
pub(in super::super) struct Sentinels {
    sentinels: Vec<Arc<Server>>,
    /// The sentinels' name for the master.
    service: Arc<str>,
    name: ServerName,
    /// The settings for the master. The address in it is a sentinel's.
    master: Server,
    /// Started with the first connection.
    follower: OnceLock<MasterFollower>,
}

impl Sentinels {
    pub(in super::super) fn new(
        name: ServerName,
        sentinels: &[Server],
        service: &Arc<str>,
        master: Server,
    ) -> Self {
        Self {
            sentinels: sentinels.iter().cloned().map(Arc::new).collect(),
            service: Arc::clone(service),
            name,
            master,
            follower: OnceLock::new(),
        }
    }

    /// Connects to the master, and watches whether it stays the master.
    async fn connect(&self, on_lost: OnLost) -> Result<(Connection, ServerName), Failure> {
        // Before the sentinels are asked, so that no later change is missed.
        let named = self.follower().named();
        let connect_to = async |address: Address| {
            let connected = master::connect(&self.master, &address, Arc::clone(&on_lost));
            let (connection, name) = connected.await?;
            let watching = watch_master(named.clone(), address, Arc::clone(&on_lost));
            Ok((connection.with_task(watching), name))
        };
        // The sentinels do not name it yet.
        let promoted = named.borrow().promoted().cloned();
        if let Some(promoted) = promoted
            && let Ok(connected) = connect_to(promoted).await
        {
            return Ok(connected);
        }
        let mut failure = Failure::to_connect(&self.name, timed_out());
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

    /// Returns what follows the master on the current runtime.
    fn follower(&self) -> &MasterFollower {
        self.follower.get_or_init(|| {
            MasterFollower::start(&self.sentinels, &self.service, self.master.clone())
        })
    }

    /// Returns the addresses that the sentinels name, those with the most votes first. Asks the sentinels that
    /// answered last, or if there is none, the sentinels in the URL.
    async fn find_masters(&self, answering: &[Arc<Server>]) -> Result<Vec<Address>, Failure> {
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
        let all = name_all(SENTINEL, asked.iter().map(|sentinel| &**sentinel));
        let mut failure = Failure::to_connect(&all, timed_out());
        // Returning drops the queries that are still running.
        while let Some(Some(answer)) = real_time::timeout_at(until, queries.join_next()).await {
            match answer.unwrap_or_else(|_| Err(failure.clone())) {
                Ok(address) => {
                    if count_vote(&mut votes, address) > asked.len() / 2 {
                        break;
                    }
                }
                // Tells more than a sentinel that is down.
                Err(error) if error.is_misconfigured() => failure = error,
                Err(error) if !failure.is_misconfigured() => {
                    failure = Failure {
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

/// Adds a vote for an address, and returns the number of its votes.
fn count_vote(votes: &mut Vec<(Address, usize)>, address: Address) -> usize {
    if let Some((_, count)) = votes.iter_mut().find(|(named, _)| *named == address) {
        *count += 1;
        return *count;
    }
    votes.push((address, 1));
    1
}

impl Dial for Sentinels {
    fn server(&self) -> &ServerName {
        &self.name
    }

    fn dial(&self, on_lost: OnLost) -> Boxed<'_, Result<(Connection, ServerName), Failure>> {
        Box::pin(self.connect(on_lost))
    }
}
