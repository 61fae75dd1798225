//! The byte stream to a server: TCP with or without TLS, or a Unix socket.

use std::io;
use std::net::SocketAddr;
#[cfg(feature = "tls")]
use std::sync::Arc;
use std::time::Duration;

use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
#[cfg(feature = "tls")]
use rustls::{ClientConfig, pki_types};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinSet;
#[cfg(feature = "tls")]
use tokio_rustls::{TlsConnector, client::TlsStream};

/// A stream of any kind.
pub(super) type Stream = Box<dyn ByteStream>;

pub(super) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

/// The times after which the kernel asks a silent peer, how often, and when it gives up. With its defaults, noticing a peer
/// that has disappeared takes 15 minutes.
const KEEPALIVE_TIME: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(3);
const KEEPALIVE_RETRIES: u32 = 3;

/// The limit on unacknowledged data.
#[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
const USER_TIMEOUT: Duration = Duration::from_secs(3);

/// Connects to a host, and sets what small packets need that callers wait for, and a peer that may disappear.
pub(super) async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let stream = connect_to_any(lookup_host((host, port)).await?).await?;
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_TIME)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_RETRIES);
    let socket = SockRef::from(&stream);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    Ok(stream)
}

/// Connects to all addresses of a host at once, because one of them may be silent. The first that accepts counts.
async fn connect_to_any(addresses: impl Iterator<Item = SocketAddr>) -> io::Result<TcpStream> {
    let mut attempts = JoinSet::new();
    for address in addresses {
        attempts.spawn(TcpStream::connect(address));
    }
    let mut failure = io::Error::other("failed to lookup address information: no address");
    while let Some(attempt) = attempts.join_next().await {
        match attempt? {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// Sets up TLS with a host over a stream.
#[cfg(feature = "tls")]
pub(super) async fn tls(
    config: ClientConfig,
    host: &str,
    stream: TcpStream,
) -> io::Result<TlsStream<TcpStream>> {
    let name = pki_types::ServerName::try_from(host.to_owned());
    let name = name.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_stream_is_prompt_and_notices_a_peer_that_disappeared() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let stream = tcp("127.0.0.1", port).await.unwrap();
        assert!(stream.nodelay().unwrap());
        let socket = SockRef::from(&stream);
        assert!(socket.keepalive().unwrap());
        #[cfg(target_os = "linux")]
        {
            assert_eq!(socket.tcp_keepalive_time().unwrap(), KEEPALIVE_TIME);
            assert_eq!(socket.tcp_user_timeout().unwrap(), Some(USER_TIMEOUT));
        }
    }

    #[tokio::test]
    async fn one_address_of_several_is_enough() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // Nothing listens there.
        let refusing = SocketAddr::from(([127, 0, 0, 2], address.port()));
        for addresses in [[refusing, address], [address, refusing]] {
            let stream = connect_to_any(addresses.into_iter()).await.unwrap();
            assert_eq!(stream.peer_addr().unwrap(), address);
        }
        let refused = connect_to_any([refusing].into_iter()).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }
}
