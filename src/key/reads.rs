//! The parts of a request that a key is read from.

/// The parts of a request that an extractor reads, of those that a layer looks at: see
/// [`KeyExtractor::reads`](super::KeyExtractor::reads).
///
/// A layer inspects its first 1 000 requests. It logs one warning, at the target
/// `tollgate::diagnostics`, for what looks misconfigured:
///
/// | the extractor reads | the layer logs |
/// |---|---|
/// | [`nothing`](Self::nothing) of these | nothing about them |
/// | [the peer's address](Self::peer_address) | that a proxy is in front, so that all its clients share one limit |
/// | [the matched path](Self::matched_path) | that no request has one, because the layer stands outside of the router |
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
///     // The layer warns if a proxy is in front, whose network all clients would share.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// The address of the connection's other end, and no header.
    pub(crate) peer: bool,
    /// The route that a router matched.
    pub(crate) path: bool,
    /// The extractor has logged that it counts a proxy instead of the proxy's clients.
    pub(crate) warned: bool,
}

impl Reads {
    /// Reads nothing that a layer looks at, such as a header or an extension. The default.
    #[must_use]
    pub const fn nothing() -> Self {
        Self {
            peer: false,
            path: false,
            warned: false,
        }
    }

    /// Reads the address of the connection's other end, as [`peer_ip`](super::peer_ip()) does, and no
    /// header with the address of a client.
    ///
    /// A layer logs if a proxy seems to be in front: if requests arrive from a private address with
    /// `Forwarded`, `X-Forwarded-For` or `X-Real-IP`, or if one public peer sends many values of such a
    /// header. It looks for the address where `peer_ip` finds it, for example in
    /// [`PeerAddr`](super::PeerAddr).
    #[must_use]
    pub const fn peer_address() -> Self {
        Self {
            peer: true,
            ..Self::nothing()
        }
    }

    /// Joins what two extractors read, for an extractor that asks both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            peer: self.peer || other.peer,
            path: self.path || other.path,
            warned: self.warned || other.warned,
        }
    }
}
