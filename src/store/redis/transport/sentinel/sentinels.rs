//! The sentinels of a deployment together: they name the master, by a majority.
//!
//! They are asked before each connection, every second, and after each event of a failover. An event alone changes nothing;
//! a replica that is being promoted is asked for its role.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time;

use super::super::connection::{Boxed, Connection, ConnectionOwner};
use super::super::dial::{Dial, Server, name_all};
use super::super::failure::{Cause, Failure};

use super::master::{self, NamedMaster};
use super::sentinel::{Address, Event, Sentinel, SentinelDial, Vote};
use crate::store::redis::protocol::{SENTINEL, ServerName};

/// How often the sentinels are asked for the master, beside their events. A master that was
/// replaced on purpose, or while it hung, believes for ten more seconds that it is the master.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// The limit on events that wait. Further ones are dropped: the poll covers them.
const QUEUED_EVENTS: usize = 16;

/// Connects to the master that the sentinels name. For the connection of one runtime.
pub(in super::super) struct Sentinels {
    name: ServerName,
    /// The settings for the master. The address in it is a sentinel's.
    master: Server,
    named: watch::Receiver<NamedMaster>,
    events: mpsc::Sender<Event>,
    #[expect(dead_code, reason = "held for its Drop")]
    following: JoinSet<()>,
}

/// Follows the master.
struct Follower {
    /// The sentinels in the URL, and those that they know. Sentinels that have moved, one after the other, are so found
    /// at their new addresses.
    sentinels: Vec<Sentinel>,
    /// The number of sentinels in the URL.
    configured: usize,
    /// The settings for the master.
    master: Server,
    named: watch::Sender<NamedMaster>,
}

impl Sentinels {
    pub(in super::super) fn new(
        name: ServerName,
        servers: impl Iterator<Item = Server>,
        service: &Arc<str>,
        master: Server,
        runtime: &Handle,
    ) -> Self {
        let (events, received) = mpsc::channel(QUEUED_EVENTS);
        let (sender, named) = watch::channel(NamedMaster::default());
        let sentinels = Vec::from_iter(servers.map(|server| {
            let dial = SentinelDial {
                server,
                service: Arc::clone(service),
                events: events.clone(),
            };
            Sentinel::new(dial, None, runtime)
        }));
        let follower = Follower {
            configured: sentinels.len(),
            sentinels,
            master: master.clone(),
            named: sender,
        };
        let mut following = JoinSet::new();
        following.spawn_on(follower.follow(received), runtime);
        Self {
            name,
            master,
            named,
            events,
            following,
        }
    }

    /// Asks the sentinels, connects to the master, and watches whether it stays the master.
    async fn connect(
        &self,
        owner: Arc<dyn ConnectionOwner>,
    ) -> Result<(Connection, ServerName), Failure> {
        let mut named = self.named.clone();
        named.mark_unchanged();
        // Fails if other events wait, after which the sentinels are asked as well.
        let _ = self.events.try_send(Event::Changed);
        // Fails with the follower, at the end of the runtime.
        let _ = named.changed().await;
        let seen = named.borrow_and_update().clone();
        let mut failure = seen
            .failure
            .clone()
            .unwrap_or_else(|| Failure::to_connect(&self.name, self.master.timed_out()));
        // During a failover, some sentinels name the old master, which may be gone or a replica by
        // now.
        for address in seen.candidates() {
            match master::connect(&self.master, &address, Arc::clone(&owner)).await {
                Ok((connection, name)) => {
                    let watching = master::watch(named, seen, address, owner);
                    return Ok((connection.with_task(watching), name));
                }
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }
}

impl Dial for Sentinels {
    fn server(&self) -> &ServerName {
        &self.name
    }

    fn dial(
        &self,
        owner: Arc<dyn ConnectionOwner>,
    ) -> Boxed<'_, Result<(Connection, ServerName), Failure>> {
        Box::pin(self.connect(owner))
    }

    fn obstacle(&self) -> Option<Cause> {
        self.master.obstacle()
    }
}

impl Follower {
    /// Follows the master until it is dropped.
    async fn follow(mut self, mut events: mpsc::Receiver<Event>) {
        // Aborted when this task is.
        let mut promotions = JoinSet::new();
        let mut received = Vec::new();
        loop {
            let waiting = events.recv_many(&mut received, QUEUED_EVENTS);
            let _ = time::timeout(POLL_INTERVAL, waiting).await;
            for event in received.drain(..) {
                if let Event::Promoting { replica, master } = event {
                    let named = self.named.clone();
                    let settings = self.master.clone();
                    promotions.spawn(master::promote(named, settings, replica, master));
                }
            }
            // Keeps no results of promotions.
            while promotions.try_join_next().is_some() {}
            self.ask().await;
        }
    }

    /// Asks all sentinels at once. What they say is known as soon as a majority agrees.
    async fn ask(&mut self) {
        let patience = self.master.connect_timeout();
        let is_connected = self.sentinels.iter().any(|sentinel| sentinel.node.is_up());
        let mut asked = JoinSet::new();
        for sentinel in self.sentinels.drain(..) {
            // One that is connecting is not waited for if there is another one.
            let waits = sentinel.node.is_up() || !is_connected;
            asked.spawn(sentinel.asked(if waits { patience } else { Duration::ZERO }));
        }
        while let Some(Ok(sentinel)) = asked.join_next().await {
            self.sentinels.push(sentinel);
            self.publish(asked.len());
        }
        self.learn();
    }

    fn votes(&self) -> Vec<&Vote> {
        let mut ids = BTreeSet::new();
        let mut votes = Vec::new();
        for vote in self.sentinels.iter().flat_map(|sentinel| &sentinel.answer) {
            if vote.id.as_ref().is_none_or(|id| ids.insert(id)) {
                votes.push(vote);
            }
        }
        votes
    }

    /// Publishes the votes, once a majority agrees or no sentinel is left to ask: a majority of the sentinels in the URL, or of those
    /// that answer if these are more. `waiting` of them have not answered yet.
    fn publish(&self, waiting: usize) {
        let votes = self.votes();
        let mut counted = BTreeMap::<_, usize>::new();
        for vote in &votes {
            *counted.entry(&vote.master).or_default() += 1;
        }
        let mut counted = Vec::from_iter(counted);
        counted.sort_by_key(|(_, votes)| Reverse(*votes));
        let majority = self.configured.max(votes.len() + waiting) / 2;
        let first = counted.first().filter(|(_, votes)| *votes > majority);
        let elected = first.map(|(master, _)| Address::clone(master));
        if elected.is_some() || waiting == 0 {
            let candidates = counted
                .into_iter()
                .map(|(master, _)| master.clone())
                .collect();
            let failure = self.failure();
            self.named
                .send_modify(|named| named.record(elected, candidates, failure));
        }
    }

    fn failure(&self) -> Failure {
        // A wrong set-up tells more than a sentinel that is down, and this more than one that is late.
        let known = self
            .sentinels
            .iter()
            .filter_map(|sentinel| sentinel.answer.as_ref().err())
            .max_by_key(|failure| (failure.is_misconfigured(), !failure.is_late()));
        let names = self.sentinels.iter().map(|sentinel| sentinel.node.server());
        let mut failure = Failure::to_connect(&name_all(SENTINEL, names), self.master.timed_out());
        if let Some(known) = known.filter(|known| !known.is_late()) {
            failure.cause = known.cause.clone();
            if known.is_misconfigured() {
                failure.server = known.server.clone();
            }
        }
        failure
    }

    /// Keeps the sentinels of the URL, those that answer, and those that these know.
    fn learn(&mut self) {
        let mut known: BTreeMap<_, _> = self.sentinels.iter().flat_map(Sentinel::others).collect();
        if known.is_empty() {
            return;
        }
        // A sentinel of the URL may be known by its address too.
        let ids: BTreeSet<_> = self
            .sentinels
            .iter()
            .filter(|sentinel| sentinel.found_as.is_none())
            .filter_map(|sentinel| sentinel.answer.as_ref().ok()?.id.clone())
            .collect();
        known.retain(|id, _| !ids.contains(id));
        self.sentinels.retain(|sentinel| {
            let Some(id) = &sentinel.found_as else {
                return true;
            };
            let is_known = known.get(id).is_some_and(|dial| sentinel.is_at(dial));
            !ids.contains(id) && (sentinel.answer.is_ok() || is_known)
        });
        for (id, dial) in known {
            let is_followed = self
                .sentinels
                .iter()
                .any(|sentinel| sentinel.found_as.as_ref() == Some(&id) || sentinel.is_at(&dial));
            if !is_followed {
                let found = Sentinel::new(dial, Some(id), &Handle::current());
                self.sentinels.push(found);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use redis::IntoConnectionInfo;

    use super::*;
    use crate::store::redis::real_time::Late;
    use crate::store::redis::transport::failure::Fate;

    fn address(port: u16) -> Address {
        ("10.0.0.1".to_owned(), port)
    }

    fn server(name: &str) -> Server {
        let info = format!("redis://{name}:1").into_connection_info().unwrap();
        Server::new(info, None)
    }

    fn sentinel(name: &str) -> Sentinel {
        let dial = SentinelDial {
            server: server(name),
            service: "shop".into(),
            events: mpsc::channel(1).0,
        };
        Sentinel::new(dial, None, &Handle::current())
    }

    /// Follows the sentinels `a`, `b` and `c` of a URL, which have not been asked.
    fn follower() -> Follower {
        Follower {
            sentinels: ["a", "b", "c"].map(sentinel).into(),
            configured: 3,
            master: server("a"),
            named: watch::Sender::default(),
        }
    }

    /// The vote of the sentinel with this id, which knows others by their ids and ports.
    fn vote(id: &str, master: u16, others: &[(&str, u16)]) -> Vote {
        Vote {
            master: address(master),
            id: Some(id.to_owned()),
            others: others
                .iter()
                .map(|(id, port)| ((*id).to_owned(), address(*port)))
                .collect(),
        }
    }

    impl Follower {
        /// Asks all sentinels, of which those at these addresses answer. Returns the port of the master.
        fn hear(&mut self, votes: impl IntoIterator<Item = (&'static str, Vote)>) -> Option<u16> {
            for sentinel in &mut self.sentinels {
                let server = sentinel.node.server();
                sentinel.answer = Err(Failure::from_deadline(server, Late::now(), Fate::NotRun));
            }
            for (at, vote) in votes {
                let is_it = |sentinel: &&mut Sentinel| sentinel.node.server().address() == Some(at);
                let sentinel = self.sentinels.iter_mut().find(is_it);
                sentinel
                    .unwrap_or_else(|| panic!("{at} is not asked"))
                    .answer = Ok(vote);
            }
            self.publish(0);
            self.learn();
            self.named.borrow().master().map(|(_, port)| *port)
        }
    }

    #[tokio::test]
    async fn sentinels_that_others_know_replace_those_of_the_url() {
        let mut follower = follower();
        let master = follower.hear([("a:1", vote("a", 1, &[("d", 4), ("e", 5)]))]);
        assert_eq!((master, follower.sentinels.len()), (None, 5));
        // While no sentinel answers, none is forgotten.
        assert_eq!((follower.hear([]), follower.sentinels.len()), (None, 5));
        let master = follower.hear([("10.0.0.1:4", vote("d", 2, &[("e", 5)]))]);
        assert_eq!((master, follower.sentinels.len()), (None, 5));
        let master = follower.hear([
            ("10.0.0.1:4", vote("d", 2, &[("e", 5)])),
            ("10.0.0.1:5", vote("e", 2, &[("d", 4)])),
        ]);
        assert_eq!(master, Some(2));
        // One that is silent is forgotten when no other one knows it, until one knows it again, where it is now.
        follower.hear([("10.0.0.1:4", vote("d", 2, &[("f", 6)]))]);
        let has = |follower: &Follower, port: u16| {
            let server = format!("10.0.0.1:{port}");
            let mut sentinels = follower.sentinels.iter();
            sentinels.any(|sentinel| sentinel.node.server().address() == Some(&server))
        };
        assert!(!has(&follower, 5) && has(&follower, 6));
        follower.hear([("10.0.0.1:4", vote("d", 2, &[("e", 7)]))]);
        assert!(!has(&follower, 6) && has(&follower, 7) && has(&follower, 4));
    }

    #[tokio::test]
    async fn a_sentinel_with_two_addresses_votes_once() {
        let mut follower = follower();
        follower.hear([("b:1", vote("b", 2, &[("a", 4)]))]);
        assert_eq!(follower.sentinels.len(), 4);
        let master = follower.hear([
            ("a:1", vote("a", 1, &[])),
            ("b:1", vote("b", 2, &[("a", 4)])),
            ("10.0.0.1:4", vote("a", 1, &[])),
        ]);
        assert_eq!((master, follower.sentinels.len()), (None, 3));
    }

    #[tokio::test]
    async fn a_minority_of_all_sentinels_elects_nobody() {
        let mut follower = follower();
        let others = [("d", 4), ("e", 5), ("f", 6)];
        let of_url = || {
            [
                ("a:1", vote("a", 1, &others)),
                ("b:1", vote("b", 1, &others)),
            ]
        };
        assert_eq!(follower.hear(of_url()), Some(1));
        let found = || {
            [
                ("10.0.0.1:4", "d"),
                ("10.0.0.1:5", "e"),
                ("10.0.0.1:6", "f"),
            ]
            .map(|(at, id)| (at, vote(id, 2, &[])))
        };
        // Two of four, and two that have not answered yet.
        assert_eq!(
            follower.hear(of_url().into_iter().chain(found().into_iter().take(2))),
            Some(1)
        );
        assert_eq!(follower.hear(of_url().into_iter().chain(found())), Some(2));
    }
}
