//! The parts of a request that an extractor reads.

use std::any::type_name;

use http::Extensions;

/// The parts of a request that a [`KeyExtractor`](super::KeyExtractor) reads, so that a layer can detect a
/// likely misconfiguration.
///
/// Return it from [`KeyExtractor::reads`](super::KeyExtractor::reads) if you implement an extractor. A
/// layer inspects its first 1 000 requests and logs one warning per finding, with the target
/// `tollgate::diagnostics`:
///
/// | the extractor reads | the layer warns |
/// |---|---|
/// | [the peer's address](Self::peer_address) | if a proxy is in front, because then all its clients share one limit |
/// | [the matched path](Self::matched_path) | if no request has one, because then the layer is outside of the router, or there are no routes |
/// | [an extension](Self::extension) | if no request has it, because then the layer that inserts it runs too late |
/// | [none of these](Self::nothing) | about none |
///
/// # Examples
///
/// An extractor that counts all addresses of a network together:
///
/// ```
/// use std::net::{IpAddr, SocketAddr};
///
/// use http::Request;
/// use http::request::Parts;
/// use tollgate::key::{KeyError, KeyErrorKind, PeerAddr, Reads};
/// use tollgate::{Key, KeyExtractor};
///
/// /// Counts by the first 24 bits of an IPv4 address, and by the first 48 of an IPv6 address.
/// struct ByNetwork;
///
/// impl KeyExtractor for ByNetwork {
///     fn extract(&self, parts: &Parts) -> Result<Key, KeyError> {
///         let Some(PeerAddr(peer)) = parts.extensions.get() else {
///             return Err(KeyError::new(KeyErrorKind::Misconfigured, "no `PeerAddr` in the extensions"));
///         };
///         Ok(match peer.ip() {
///             IpAddr::V4(address) => Key::new(&address.octets()[..3]),
///             IpAddr::V6(address) => Key::new(&address.octets()[..6]),
///         })
///     }
///
///     // Behind a proxy, all clients would share its network. The layer warns about that.
///     fn reads(&self) -> Reads {
///         Reads::peer_address()
///     }
/// }
///
/// let key_of = |address: [u8; 4]| {
///     let peer = PeerAddr(SocketAddr::from((address, 5_000)));
///     let (parts, ()) = Request::builder().extension(peer).body(())?.into_parts();
///     Ok::<_, http::Error>(ByNetwork.extract(&parts).ok())
/// };
/// assert_eq!(key_of([192, 0, 2, 1])?, key_of([192, 0, 2, 77])?);
/// assert_ne!(key_of([192, 0, 2, 1])?, key_of([192, 0, 3, 1])?);
/// # Ok::<(), http::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Reads {
    /// Whether it reads the peer's address, and no forwarding header.
    pub(crate) peer: bool,
    /// Whether it reads the route that a router matched.
    pub(crate) path: bool,
    /// The request extension that it reads.
    pub(crate) extension: Option<ReadExtension>,
}

/// A type of request extensions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadExtension {
    /// The name of the type.
    pub(crate) name: &'static str,
    /// Returns whether a request has it.
    pub(crate) is_in: fn(&Extensions) -> bool,
}

impl Reads {
    /// Reads none of these parts: the default. For extractors that read, for example, a header.
    #[must_use]
    pub const fn nothing() -> Self {
        Self {
            peer: false,
            path: false,
            extension: None,
        }
    }

    /// Reads the peer's address, as [`peer_ip`](super::peer_ip()) does, and no forwarding header.
    ///
    /// The layer warns if a proxy is in front: if a request arrives from a private address with `Forwarded`,
    /// `X-Forwarded-For` or `X-Real-IP`. It takes the peer's address from where `peer_ip` finds it, for example from
    /// [`PeerAddr`](super::PeerAddr).
    #[must_use]
    pub const fn peer_address() -> Self {
        Self {
            peer: true,
            ..Self::nothing()
        }
    }

    /// Reads an extension of the request, as [`extension`](super::extension()) does.
    ///
    /// The layer warns if none of its first 20 requests has the extension and they are rejected for it (in a debug
    /// build the first 3), and otherwise if none of the first 1 000 has it: then the layer that inserts it runs too
    /// late.
    #[must_use]
    pub fn extension<T: Send + Sync + 'static>() -> Self {
        Self {
            extension: Some(ReadExtension {
                name: type_name::<T>(),
                is_in: |extensions| extensions.get::<T>().is_some(),
            }),
            ..Self::nothing()
        }
    }

    /// Joins the parts that two extractors read, for an extractor that wraps both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            peer: self.peer || other.peer,
            path: self.path || other.path,
            extension: match self.extension {
                Some(extension) => Some(extension),
                None => other.extension,
            },
        }
    }
}
