//! The proxies that are trusted, and the walk from the peer back to the client.

use std::net::IpAddr;

use ipnet::IpNet;

/// The maximum number of hops in trusted networks. A longer chain is a loop or a forgery.
const MAX_HOPS: u8 = 32;

/// The proxies that are trusted: by network, by number, or both.
#[derive(Clone, Debug, Default)]
pub(super) struct TrustedProxies {
    /// Canonical, as addresses are: networks of IPv4-mapped addresses are IPv4 networks.
    pub(super) networks: Option<Vec<IpNet>>,
    pub(super) hops: Option<u8>,
}

/// The client that a header leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FoundClient {
    /// The client. `None` if the peer is unknown and no entry was read.
    Client(Option<IpAddr>),
    /// No trusted proxy names a client. The address is the outermost proxy that is known, behind which anyone may be.
    Proxy(Option<IpAddr>),
    /// The entry of the client cannot be parsed. The address is the nearest hop that is known: a proxy.
    Unreadable(Option<IpAddr>),
    /// There are fewer entries than proxies.
    TooShort,
}

impl TrustedProxies {
    pub(super) fn are_configured(&self) -> bool {
        self.networks.is_some() || self.hops.is_some()
    }

    pub(super) fn trust_peer(&self, peer: Option<IpAddr>) -> bool {
        self.trust(peer) && self.hops != Some(0)
    }

    fn trust(&self, hop: Option<IpAddr>) -> bool {
        self.networks.as_ref().is_none_or(|networks| {
            hop.is_some_and(|address| networks.iter().any(|network| network.contains(&address)))
        })
    }

    /// Follows the entries, last one first, from the peer to the first address that is not trusted.
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
                Some(Some(address)) => {
                    client = Some(address);
                    is_readable = true;
                }
                // Without networks, only the number of entries matters until the client's entry.
                Some(None) if self.networks.is_none() => is_readable = false,
                Some(None) => return FoundClient::Unreadable(client),
                None if self.hops.is_some() => return FoundClient::TooShort,
                None => break,
            }
        }
        if is_readable {
            self.client_at(client)
        } else {
            FoundClient::Unreadable(client)
        }
    }

    /// Ends a walk. An address in a trusted network is a proxy's, unless the number of proxies is
    /// known: then an entry beyond them is a client in their network.
    pub(super) fn client_at(&self, address: Option<IpAddr>) -> FoundClient {
        if self.hops.is_none() && self.trust(address) {
            FoundClient::Proxy(address)
        } else {
            FoundClient::Client(address)
        }
    }
}
