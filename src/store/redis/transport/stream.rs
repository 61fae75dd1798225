//! The byte stream to a server: TCP with or without TLS, or a Unix socket.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinSet;
#[cfg(feature = "tls")]
use {
    crate::store::redis::protocol::errors::ANSWERS_WITHOUT_TLS,
    crate::store::redis::real_time,
    rustls::{ClientConfig, pki_types},
    std::future::{pending, poll_fn},
    std::ops::RangeInclusive,
    std::pin::pin,
    std::sync::Arc,
    std::task::Poll,
    std::time::Instant,
    tokio::io::{AsyncReadExt, AsyncWriteExt},
    tokio_rustls::{TlsConnector, client::TlsStream},
};

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

#[cfg(feature = "tls")]
pub(super) type Tls = TlsStream<TcpStream>;

/// The time without an answer to a handshake after which a port may not speak TLS, besides two round trips.
#[cfg(feature = "tls")]
const TLS_PATIENCE: Duration = Duration::from_millis(30);

/// The limit on asking a port whether it speaks without TLS.
#[cfg(feature = "tls")]
const PROOF_TIMEOUT: Duration = Duration::from_millis(200);

/// The first bytes of the records of TLS.
#[cfg(feature = "tls")]
const TLS_RECORDS: RangeInclusive<u8> = 20..=24;

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

#[cfg(feature = "tls")]
pub(super) async fn tls(config: ClientConfig, host: &str, port: u16) -> io::Result<Tls> {
    let stream = tcp(host, port).await?;
    handshake(config, host, stream)?.await
}

/// Connects to a host with TLS, and fails at once if the port does not speak it.
///
/// Redis takes the beginning of a handshake for a part of a command, and waits for the rest. So a port that lets the handshake
/// wait gets a PING without TLS over another connection.
#[cfg(feature = "tls")]
pub(super) async fn tls_unless_plain(
    config: ClientConfig,
    host: &str,
    port: u16,
) -> io::Result<Tls> {
    let began = Instant::now();
    let stream = tcp(host, port).await?;
    let patience = TLS_PATIENCE + 2 * began.elapsed();
    let mut handshake = pin!(handshake(config, host, stream)?);
    if let Some(outcome) = real_time::timeout(patience, handshake.as_mut()).await {
        return outcome;
    }
    let mut plain = pin!(plain_port_error(host, port));
    poll_fn(|cx| match handshake.as_mut().poll(cx) {
        Poll::Pending => plain.as_mut().poll(cx).map(Err),
        Poll::Ready(outcome) => Poll::Ready(outcome),
    })
    .await
}

#[cfg(feature = "tls")]
fn handshake(
    config: ClientConfig,
    host: &str,
    stream: TcpStream,
) -> io::Result<tokio_rustls::Connect<TcpStream>> {
    let name = pki_types::ServerName::try_from(host.to_owned());
    let name = name.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    Ok(TlsConnector::from(Arc::new(config)).connect(name, stream))
}

/// Returns the error of a port that does not speak TLS. Does not return if there is no proof.
#[cfg(feature = "tls")]
async fn plain_port_error(host: &str, port: u16) -> io::Error {
    let answers = async {
        let mut stream = tcp(host, port).await?;
        stream.write_all(b"PING\r\n").await?;
        stream.read_u8().await
    };
    match real_time::timeout(PROOF_TIMEOUT, answers).await {
        Some(Ok(first)) if !TLS_RECORDS.contains(&first) => {
            io::Error::new(io::ErrorKind::InvalidData, ANSWERS_WITHOUT_TLS)
        }
        _ => pending().await,
    }
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
