//! The proxies that are trusted, and the walk from the peer back to the client.

use std::net::IpAddr;

use super::networks::Networks;

/// The trusted proxies that are followed by their networks. A longer chain is a loop or a forgery.
const MAX_HOPS: u8 = 32;

/// The proxies whose entries are believed: by network, by number, or both.
#[derive(Clone, Debug, Default)]
pub(super) struct TrustedProxies {
    pub(super) networks: Option<Networks>,
    pub(super) hops: Option<u8>,
}

/// The client that the entries of a list lead to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FoundClient {
    /// The client; `None` if even the peer is unknown.
    Client(Option<IpAddr>),
    /// The entry of the client cannot be read. The address is that of the trusted proxy that supplied it.
    Unreadable(Option<IpAddr>),
    /// There are fewer entries than proxies.
    TooShort,
}

impl TrustedProxies {
    pub(super) fn are_configured(&self) -> bool {
        self.networks.is_some() || self.hops.is_some()
    }

    /// Whether the peer is a trusted proxy, so that its headers are believed.
    pub(super) fn trust_peer(&self, peer: Option<IpAddr>) -> bool {
        self.trust(peer) && self.hops != Some(0)
    }

    fn trust(&self, hop: Option<IpAddr>) -> bool {
        self.networks
            .as_ref()
            .is_none_or(|networks| hop.is_some_and(|address| networks.contains(address)))
    }

    /// Walks from the peer through the entries, which come last first, to the first untrusted address.
    pub(super) fn find_client(
        &self,
        peer: Option<IpAddr>,
        mut entries: impl Iterator<Item = Option<IpAddr>>,
    ) -> FoundClient {
        let mut client = peer;
        let mut is_readable = true;
        for _ in 0..self.hops.unwrap_or(MAX_HOPS) {
            if !self.trust(client) {
                break;
            }
            match entries.next() {
                Some(Some(address)) => (client, is_readable) = (Some(address), true),
                // By number alone, entries on the way are counted and need not be readable.
                Some(None) if self.networks.is_none() => is_readable = false,
                Some(None) => return FoundClient::Unreadable(client),
                None if self.hops.is_some() => return FoundClient::TooShort,
                None => break,
            }
        }
        match is_readable {
            true => FoundClient::Client(client),
            false => FoundClient::Unreadable(client),
        }
    }
}
