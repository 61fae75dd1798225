//! From the peer back to the client, as far as proxies are trusted.

use std::net::IpAddr;

use super::networks::Networks;

/// The most proxies that are followed by their networks; more is a loop or a forgery.
const MAX_HOPS: u8 = 32;

/// Which proxies are believed.
#[derive(Clone, Debug, Default)]
pub(super) struct Proxies {
    pub(super) networks: Option<Networks>,
    pub(super) hops: Option<u8>,
}

/// What the walk came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Walk {
    /// Here the client is; `None` where even the peer is not known.
    Client(Option<IpAddr>),
    /// The entry that names the client cannot be read: this is the trusted proxy that supplied it.
    Unreadable(Option<IpAddr>),
    /// There are fewer entries than there are proxies.
    TooShort,
}

impl Proxies {
    /// Whether it has been said at all who is trusted.
    pub(super) fn are_told(&self) -> bool {
        self.networks.is_some() || self.hops.is_some()
    }

    /// Whether what the peer says is believed.
    pub(super) fn trust_peer(&self, peer: Option<IpAddr>) -> bool {
        self.trust(peer) && self.hops != Some(0)
    }

    fn trust(&self, hop: Option<IpAddr>) -> bool {
        self.networks
            .as_ref()
            .is_none_or(|networks| hop.is_some_and(|address| networks.contains(address)))
    }

    /// Goes from the peer through the entries, the last first, to the first that is not trusted.
    pub(super) fn walk(
        &self,
        peer: Option<IpAddr>,
        mut entries: impl Iterator<Item = Option<IpAddr>>,
    ) -> Walk {
        let mut believed = peer;
        let mut is_read = true;
        for _ in 0..self.hops.unwrap_or(MAX_HOPS) {
            if !self.trust(believed) {
                break;
            }
            match entries.next() {
                Some(Some(address)) => (believed, is_read) = (Some(address), true),
                // By count alone, an entry on the way is counted and not read.
                Some(None) if self.networks.is_none() => is_read = false,
                Some(None) => return Walk::Unreadable(believed),
                None if self.hops.is_some() => return Walk::TooShort,
                None => break,
            }
        }
        match is_read {
            true => Walk::Client(believed),
            false => Walk::Unreadable(believed),
        }
    }
}
