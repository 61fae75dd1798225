//! Connections to one server.

use std::fmt;
use std::time::Duration;

#[cfg(any(feature = "cluster", feature = "sentinel"))]
use redis::ConnectionAddr;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, ProtocolVersion, PushInfo, PushKind, RedisError,
    RedisResult,
};
use tokio::time;

use super::link::OnDisconnect;
use crate::store::redis::protocol::errors as error;

/// How long it may take to have a connection, the handshake included: a server that hangs takes the
/// connection and says nothing.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// How many commands that no lane bounds wait for their answers at once: refunds, resets, and checks
/// where batches are off.
pub(crate) const CONCURRENT_COMMANDS: usize = 256;

/// How many commands wait for the socket before callers wait for them.
const QUEUED_COMMANDS: usize = 1_024;

/// One server, and how it is spoken to.
pub(crate) struct Server {
    client: Client,
    /// How it is spoken to where it does not know RESP3, unless that was asked for.
    in_resp2: Option<Client>,
}

impl Server {
    /// A server that is asked for RESP3, and where it refuses that spoken to in RESP2; or for one of
    /// them only.
    pub(crate) fn new(
        info: &ConnectionInfo,
        protocol: Option<ProtocolVersion>,
    ) -> RedisResult<Self> {
        let speaking = |protocol| {
            let settings = info.redis_settings().clone().set_protocol(protocol);
            let info = info.clone().set_redis_settings(settings);
            Client::open(info.set_tcp_settings(tcp_settings()))
        };
        // RESP3 tells at once when a connection is lost, RESP2 with the next command.
        Ok(Self {
            client: speaking(protocol.unwrap_or(ProtocolVersion::RESP3))?,
            in_resp2: match protocol {
                None => Some(speaking(ProtocolVersion::RESP2)?),
                Some(_) => None,
            },
        })
    }

    pub(crate) async fn connect(
        &self,
        on_loss: OnDisconnect,
    ) -> RedisResult<MultiplexedConnection> {
        let connected = time::timeout(CONNECT_TIMEOUT, self.try_connect(on_loss));
        connected.await.unwrap_or_else(|_| Err(timed_out()))
    }

    async fn try_connect(&self, on_loss: OnDisconnect) -> RedisResult<MultiplexedConnection> {
        let connected = open(&self.client, on_loss).await;
        match (connected, &self.in_resp2) {
            (Err(refusal), Some(in_resp2)) if error::may_lack_resp3(&refusal) => {
                open(in_resp2, Box::new(|| ())).await
            }
            (connected, _) => connected,
        }
    }
}

async fn open(client: &Client, on_loss: OnDisconnect) -> RedisResult<MultiplexedConnection> {
    let mut config = AsyncConnectionConfig::new()
        // Bounded by those who call.
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_pipeline_buffer_size(QUEUED_COMMANDS)
        .set_concurrency_limit(CONCURRENT_COMMANDS);
    let settings = client.get_connection_info().redis_settings();
    if settings.protocol() != ProtocolVersion::RESP2 {
        config = config.set_push_sender(move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                on_loss();
            }
            Ok::<_, ()>(())
        });
    }
    client
        .get_multiplexed_async_connection_with_config(&config)
        .await
}

/// Returns the same settings for another host and port.
#[cfg(any(feature = "cluster", feature = "sentinel"))]
pub(crate) fn at(info: &ConnectionInfo, host: String, port: u16) -> ConnectionInfo {
    let addr = match info.addr().clone() {
        ConnectionAddr::TcpTls {
            insecure,
            tls_params,
            ..
        } => ConnectionAddr::TcpTls {
            host,
            port,
            insecure,
            tls_params,
        },
        _ => ConnectionAddr::Tcp(host, port),
    };
    info.clone().set_addr(addr)
}

pub(crate) fn timed_out() -> RedisError {
    let text = format!("no connection within {CONNECT_TIMEOUT:?}");
    std::io::Error::new(std::io::ErrorKind::TimedOut, text).into()
}

/// A command is one small packet that is waited for, and a peer that is gone must be noticed: the
/// kernel's own defaults take 15 minutes.
pub(crate) fn tcp_settings() -> TcpSettings {
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(10))
        .with_interval(Duration::from_secs(3))
        .with_retries(3);
    let settings = TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(keepalive);
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    let settings = settings.set_user_timeout(Duration::from_secs(3));
    settings
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the whole of it: it holds the password.
        write!(f, "{}", self.client.get_connection_info().addr())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_prompt_and_notices_a_peer_that_is_gone() {
        let tcp = tcp_settings();
        assert!(tcp.nodelay() && tcp.keepalive().is_some());
        #[cfg(target_os = "linux")]
        assert_eq!(tcp.user_timeout(), Some(Duration::from_secs(3)));
    }
}
