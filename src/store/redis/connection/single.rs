//! Connections to a single server.

use std::fmt;
use std::future::{Future, pending, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ProtocolVersion, PushInfo,
    PushKind, RedisError, RedisResult,
};

use super::port_probe;
use super::server_settings::ServerSettings;
#[cfg(feature = "cluster")]
use crate::store::redis::protocol::CLUSTER_NODE;
use crate::store::redis::protocol::ServerName;
use crate::store::redis::protocol::errors::{self as error, ConnectError, Handshake};
use crate::store::redis::real_time;

/// The limit on connecting, including the handshake: a server that hangs accepts the connection and
/// never replies.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// A first TLS handshake that takes longer has the port probed. Short enough that a caller with the default
/// deadline of 100 ms learns the reason.
const SLOW_HANDSHAKE: Duration = Duration::from_millis(30);

/// The limit on commands in flight over one connection. It bounds what batchers do not: refunds, resets, and checks
/// that share no call.
pub(crate) const CONCURRENT_COMMANDS: usize = 256;

/// The limit on commands that wait for the socket. Further commands make their callers wait.
const QUEUED_COMMANDS: usize = 1_024;

/// Called when a connection is lost.
pub(super) type OnDisconnect = Box<dyn Fn() + Send + Sync>;

/// Called with each message that a server pushes. With RESP2, it pushes none.
pub(super) type OnPush = Box<dyn Fn(&PushInfo) + Send + Sync>;

/// A single server.
pub(crate) struct Server {
    name: ServerName,
    settings: ServerSettings,
    /// Whether a cluster has announced the address, so that the URL does not name it.
    is_announced: bool,
    /// Whether an attempt has succeeded, so that the URL and the port agree about TLS.
    has_connected: AtomicBool,
}

impl Server {
    /// A server that speaks the configured protocol, or else RESP3 with RESP2 as the alternative.
    pub(crate) fn new(settings: ServerSettings) -> Self {
        Self {
            name: ServerName::new("Redis", &settings.info().addr().to_string()),
            settings,
            is_announced: false,
            has_connected: AtomicBool::new(false),
        }
    }

    /// A server at another address with the same settings.
    #[cfg(feature = "sentinel")]
    pub(super) fn with_address(&self, (host, port): (String, u16)) -> Self {
        Self::new(self.settings.with_address(host, port))
    }

    /// A node at an address that a cluster has announced.
    #[cfg(feature = "cluster")]
    pub(super) fn announced(settings: ServerSettings) -> Self {
        Self {
            name: ServerName::new(CLUSTER_NODE, &settings.info().addr().to_string()),
            is_announced: true,
            ..Self::new(settings)
        }
    }

    pub(super) async fn connect(
        &self,
        on_disconnect: OnDisconnect,
    ) -> Result<MultiplexedConnection, ConnectError> {
        self.connect_with_pushes(Box::new(move |push| {
            if push.kind == PushKind::Disconnection {
                on_disconnect();
            }
        }))
        .await
    }

    pub(super) async fn connect_with_pushes(
        &self,
        on_push: OnPush,
    ) -> Result<MultiplexedConnection, ConnectError> {
        let connected = real_time::timeout(CONNECT_TIMEOUT, self.try_connect(on_push));
        let attempt = Box::pin(async { connected.await.unwrap_or_else(|| Err(timed_out())) });
        let is_first = !self.has_connected.load(Ordering::Relaxed);
        let is_tls = self.settings.is_tls();
        let connected = if is_first && is_tls {
            let mismatch = Box::pin(async { self.is_mismatch().await.then(|| self.mismatch()) });
            diagnose_if_slow(attempt, mismatch).await?
        } else {
            attempt.await
        };
        let error = match connected {
            Ok(connection) => {
                self.has_connected.store(true, Ordering::Relaxed);
                return Ok(connection);
            }
            Err(error) => error,
        };
        if !is_tls
            && error::may_be_tls_mismatch(&error, false)
            && let Some(error) = port_probe::unasked_error(self.addr()).await
        {
            return Err(ConnectError {
                server: self.name.clone(),
                error,
                handshake: Handshake::Unknown,
            });
        }
        if is_first && error::may_be_tls_mismatch(&error, is_tls) && self.is_mismatch().await {
            return Err(self.mismatch());
        }
        Err(ConnectError {
            server: self.name.clone(),
            error,
            handshake: match is_tls {
                true => Handshake::Tls,
                false if is_first => Handshake::Plain,
                // The port has spoken Redis without TLS before.
                false => Handshake::Unknown,
            },
        })
    }

    /// Asks the port whether it speaks TLS if this client does not, or the other way round.
    async fn is_mismatch(&self) -> bool {
        if self.settings.is_tls() {
            port_probe::speaks_plain_redis(self.addr()).await
        } else {
            port_probe::speaks_tls(self.addr()).await
        }
    }

    fn mismatch(&self) -> ConnectError {
        error::tls_mismatch(self.name.clone(), self.settings.is_tls(), self.is_announced)
    }

    pub(super) fn addr(&self) -> &ConnectionAddr {
        self.settings.info().addr()
    }

    pub(super) fn name(&self) -> &ServerName {
        &self.name
    }

    /// Returns the host and the port.
    #[cfg(feature = "cluster")]
    pub(super) fn address(&self) -> (&str, u16) {
        self.settings.address()
    }

    async fn try_connect(&self, on_push: OnPush) -> RedisResult<MultiplexedConnection> {
        let info = self.settings.for_connection().await;
        let configured = self.settings.protocol();
        // RESP3 reports a lost connection at once, RESP2 with the next command.
        let protocol = configured.unwrap_or(ProtocolVersion::RESP3);
        match open(&info, protocol, on_push).await {
            Err(failure) if configured.is_none() && error::may_lack_resp3(&failure) => {
                open(&info, ProtocolVersion::RESP2, Box::new(|_| ())).await
            }
            connected => connected,
        }
    }
}

/// Runs a first attempt to connect, with a diagnosis beside it if it is slow. Fails as soon as the diagnosis finds
/// an error.
async fn diagnose_if_slow<T>(
    attempt: impl Future<Output = RedisResult<T>>,
    diagnosis: impl Future<Output = Option<ConnectError>>,
) -> Result<RedisResult<T>, ConnectError> {
    let mut attempt = pin!(attempt);
    let mut diagnosis = pin!(async {
        real_time::sleep(SLOW_HANDSHAKE).await;
        match diagnosis.await {
            Some(error) => error,
            None => pending().await,
        }
    });
    poll_fn(|context| match attempt.as_mut().poll(context) {
        Poll::Ready(outcome) => Poll::Ready(Ok(outcome)),
        Poll::Pending => diagnosis.as_mut().poll(context).map(Err),
    })
    .await
}

async fn open(
    info: &ConnectionInfo,
    protocol: ProtocolVersion,
    on_push: OnPush,
) -> RedisResult<MultiplexedConnection> {
    let settings = info.redis_settings().clone().set_protocol(protocol);
    let info = info.clone().set_redis_settings(settings);
    let client = Client::open(info.set_tcp_settings(tcp_settings()))?;
    let mut config = AsyncConnectionConfig::new()
        // The caller of each function applies the timeouts.
        .set_connection_timeout(None)
        .set_response_timeout(None)
        .set_pipeline_buffer_size(QUEUED_COMMANDS)
        .set_concurrency_limit(CONCURRENT_COMMANDS);
    if protocol != ProtocolVersion::RESP2 {
        config = config.set_push_sender(move |push: PushInfo| {
            on_push(&push);
            Ok::<_, ()>(())
        });
    }
    client
        .get_multiplexed_async_connection_with_config(&config)
        .await
}

pub(super) fn timed_out() -> RedisError {
    let text = format!("no connection within {CONNECT_TIMEOUT:?}");
    std::io::Error::new(std::io::ErrorKind::TimedOut, text).into()
}

/// TCP settings for small packets that callers wait for, and for a peer that may disappear: with
/// the kernel's defaults, noticing that takes 15 minutes.
pub(super) fn tcp_settings() -> TcpSettings {
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
        // The address only: the settings hold the password.
        write!(f, "{}", self.settings.info().addr())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_prompt_and_notices_a_peer_that_disappeared() {
        let tcp = tcp_settings();
        assert!(tcp.nodelay() && tcp.keepalive().is_some());
        #[cfg(target_os = "linux")]
        assert_eq!(tcp.user_timeout(), Some(Duration::from_secs(3)));
    }
}
