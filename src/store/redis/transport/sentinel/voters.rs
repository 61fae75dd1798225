//! The sentinels that vote for the master: the sentinels in the URL, and those that they know.
//!
//! Sentinels that have moved, one after the other, are so found at their new addresses.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::task::AbortHandle;

use super::super::dial::Server;
use super::client::{Address, Peer, Vote};
use crate::store::redis::protocol::SENTINEL;

/// Starts the task that asks a sentinel, and reports its votes under this number.
type Ask = dyn Fn(usize, &Arc<Server>) -> AbortHandle + Send + Sync;

/// The sentinels that are asked, by number. The sentinels in the URL have the first numbers.
pub(super) struct Voters {
    voters: BTreeMap<usize, Voter>,
    /// The number of sentinels in the URL.
    configured: usize,
    next: usize,
    ask: Box<Ask>,
}

/// A sentinel. Its task ends on drop.
struct Voter {
    sentinel: Arc<Server>,
    /// Its last vote, if it answered.
    vote: Option<Vote>,
    task: AbortHandle,
}

impl Voters {
    /// Starts to ask the sentinels of the URL.
    pub(super) fn start(configured: &[Arc<Server>], ask: Box<Ask>) -> Self {
        let mut voters = Self {
            voters: BTreeMap::new(),
            configured: configured.len(),
            next: 0,
            ask,
        };
        for sentinel in configured {
            voters.add(Arc::clone(sentinel));
        }
        voters
    }

    fn add(&mut self, sentinel: Arc<Server>) {
        let task = (self.ask)(self.next, &sentinel);
        let vote = None;
        let voter = Voter {
            sentinel,
            vote,
            task,
        };
        self.voters.insert(self.next, voter);
        self.next += 1;
    }

    /// Records the vote of a sentinel, and starts to ask those that it knows. A sentinel that is not in the URL is
    /// forgotten when it does not answer: it may have moved.
    pub(super) fn record(&mut self, number: usize, vote: Option<Vote>) {
        let Some(voter) = self.voters.get_mut(&number) else {
            return;
        };
        let (sentinel, peers) = (
            Arc::clone(&voter.sentinel),
            vote.iter().flat_map(Vote::peers),
        );
        let peers: Vec<Peer> = peers.cloned().collect();
        let is_silent = vote.is_none();
        voter.vote = vote;
        // A sentinel may be known by a name in the URL, and by its address.
        let (configured, mut ids) = (self.configured, BTreeSet::new());
        self.voters.retain(|at, voter| {
            let is_new = voter.id().is_none_or(|id| ids.insert(id.to_owned()));
            *at < configured || is_new && !(*at == number && is_silent)
        });
        for Peer { id, address } in peers {
            let (host, port) = address;
            let peer = sentinel.at(SENTINEL, &host, port);
            let is_known = |voter: &Voter| {
                voter.id() == Some(&id) || voter.sentinel.info().addr() == peer.info().addr()
            };
            if !self.voters.values().any(is_known) {
                self.add(Arc::new(peer));
            }
        }
    }

    /// Returns the master that a majority names, of the sentinels in the URL, or of those that answer if these are
    /// more.
    pub(super) fn elected(&self) -> Option<&Address> {
        let votes = || self.votes().map(|(_, vote)| &vote.master);
        let majority = self.configured.max(votes().count()) / 2;
        votes().find(|master| votes().filter(|other| other == master).count() > majority)
    }

    /// Returns the sentinels that answer.
    pub(super) fn answering(&self) -> Vec<Arc<Server>> {
        let answering = self.votes().map(|(sentinel, _)| Arc::clone(sentinel));
        answering.collect()
    }

    fn votes(&self) -> impl Iterator<Item = (&Arc<Server>, &Vote)> {
        let voters = self.voters.values();
        voters.filter_map(|voter| Some((&voter.sentinel, voter.vote.as_ref()?)))
    }
}

impl Voter {
    fn id(&self) -> Option<&str> {
        self.vote.as_ref()?.id()
    }
}

impl Drop for Voter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use redis::IntoConnectionInfo;

    use super::*;

    fn address(port: u16) -> Address {
        ("10.0.0.1".to_owned(), port)
    }

    /// The sentinels `a`, `b` and `c` of a URL.
    fn voters() -> Voters {
        let server = |name: &str| {
            let info = format!("redis://{name}:1").into_connection_info().unwrap();
            Arc::new(Server::new(info, None))
        };
        let ask = |_, _: &_| tokio::spawn(std::future::pending::<()>()).abort_handle();
        Voters::start(&["a", "b", "c"].map(server), Box::new(ask))
    }

    /// The vote of the sentinel with this id, which knows others by their ids and ports.
    fn vote(id: &str, master: u16, peers: &[(&str, u16)]) -> Option<Vote> {
        let peer = |(id, port): &(&str, u16)| Peer {
            id: (*id).to_owned(),
            address: address(*port),
        };
        let peers = peers.iter().map(peer).collect();
        Some(Vote {
            master: address(master),
            group: Some((id.to_owned(), peers)),
        })
    }

    #[tokio::test]
    async fn sentinels_that_others_know_replace_those_of_the_url() {
        let mut voters = voters();
        voters.record(0, vote("a", 1, &[("d", 4), ("e", 5)]));
        assert_eq!(voters.elected(), None);
        for silent in 0..3 {
            voters.record(silent, None);
        }
        voters.record(3, vote("d", 2, &[("e", 5)]));
        assert_eq!(voters.elected(), None);
        voters.record(4, vote("e", 2, &[("d", 4)]));
        assert_eq!(voters.elected(), Some(&address(2)));
        assert_eq!(voters.answering().len(), 2);
        // One that is silent is forgotten until another one knows it again.
        voters.record(4, None);
        assert_eq!((voters.elected(), voters.voters.len()), (None, 4));
        voters.record(3, vote("d", 2, &[("e", 5)]));
        assert_eq!(voters.voters.len(), 5);
    }

    #[tokio::test]
    async fn a_sentinel_with_two_addresses_votes_once() {
        let mut voters = voters();
        voters.record(1, vote("b", 2, &[("a", 4)]));
        voters.record(3, vote("a", 1, &[]));
        voters.record(0, vote("a", 1, &[]));
        assert_eq!((voters.elected(), voters.voters.len()), (None, 3));
    }

    #[tokio::test]
    async fn a_minority_of_all_sentinels_elects_nobody() {
        let mut voters = voters();
        let peers = [("d", 4), ("e", 5), ("f", 6)];
        for (number, id) in ["a", "b"].into_iter().enumerate() {
            voters.record(number, vote(id, 1, &peers));
        }
        assert_eq!(voters.elected(), Some(&address(1)));
        for (number, id) in [(3, "d"), (4, "e"), (5, "f")] {
            voters.record(number, vote(id, 2, &[]));
        }
        assert_eq!(voters.elected(), Some(&address(2)));
        voters.record(5, None);
        assert_eq!(voters.elected(), None);
    }
}
