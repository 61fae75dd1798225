//! Connecting to a server: its address, credentials, protocol and TLS files.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, ProtocolVersion, PushInfo, RedisError,
    RedisResult,
};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;

use super::connection::{Boxed, Connection, ConnectionOwner, Driver, GivenConnection, OnPush};
use super::credentials::CredentialSource;
use super::failure::{Cause, Failure};
use super::stream::{self, Stream};
#[cfg(feature = "tls")]
use super::tls_files::{self, TlsFiles};
use crate::clock::micros;
use crate::error::Act;
use crate::store::redis::protocol::ServerName;
use crate::store::redis::protocol::errors::{self as error, Handshake};
use crate::store::redis::real_time;

/// The bounds of the limit on connecting, including the handshake: a server that hangs accepts the connection and never
/// replies.
const MIN_CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
const MAX_CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// The limit on asking a port what it says unasked.
const PROBE_TIMEOUT: Duration = Duration::from_millis(200);

/// The limit on waiting for what a server says unasked. It says so as soon as it has accepted a connection.
const UNASKED_TIMEOUT: Duration = Duration::from_millis(30);

/// The limit on commands that wait for the socket. Further commands make their callers wait.
const QUEUED_COMMANDS: usize = 1_024;

/// The longest deadline of the stores that share connections: their calls wait so long for a connection.
#[derive(Clone, Default)]
pub(crate) struct LongestDeadline(Arc<AtomicU64>);

impl LongestDeadline {
    pub(crate) fn include(&self, deadline: Duration) {
        self.0.fetch_max(micros(deadline), Ordering::Relaxed);
    }

    /// Returns the limit on connecting. The last tenth of the deadline is left, in which calls learn why they have no
    /// connection.
    fn connect_timeout(&self) -> Duration {
        let deadline = Duration::from_micros(self.0.load(Ordering::Relaxed));
        (deadline / 10 * 9).clamp(MIN_CONNECT_TIMEOUT, MAX_CONNECT_TIMEOUT)
    }
}

/// Connects to the server that is the one to ask: a fixed one, or the master that sentinels name.
pub(super) trait Dial: Send + Sync {
    fn server(&self) -> &ServerName;

    #[cfg(feature = "cluster")]
    fn address(&self) -> (&str, u16) {
        ("", 0)
    }

    /// Connects, within a time of its own. Returns the connection and the server that it leads to.
    fn dial(
        &self,
        owner: Arc<dyn ConnectionOwner>,
    ) -> Boxed<'_, Result<(Connection, ServerName), Failure>>;

    /// Whether this process replaces a lost connection. The application's replaces itself.
    fn reconnects(&self) -> bool {
        true
    }

    /// Returns what an attempt to connect waits for, if it is not the server.
    fn obstacle(&self) -> Option<Cause> {
        None
    }
}

/// The application's connection.
pub(super) struct Given(pub(super) Arc<dyn GivenConnection>);

impl Dial for Given {
    fn server(&self) -> &ServerName {
        &ServerName::UNKNOWN
    }

    fn dial(
        &self,
        _: Arc<dyn ConnectionOwner>,
    ) -> Boxed<'_, Result<(Connection, ServerName), Failure>> {
        let connection = Connection::Given(Arc::clone(&self.0));
        Box::pin(async { Ok((connection, ServerName::UNKNOWN)) })
    }

    fn reconnects(&self) -> bool {
        false
    }
}

/// A single server, a node of a cluster, or a sentinel.
#[derive(Clone)]
pub(crate) struct Server {
    name: ServerName,
    info: ConnectionInfo,
    /// The protocol, if it was configured.
    protocol: Option<ProtocolVersion>,
    #[cfg(feature = "tls")]
    tls_files: Option<Arc<TlsFiles>>,
    /// Whether an attempt has succeeded, so that the URL and the port agree about TLS.
    has_connected: Arc<AtomicBool>,
    longest_deadline: LongestDeadline,
    /// Missing for a sentinel.
    for_calls: Option<Arc<ForCalls>>,
}

/// The settings of connections that send calls.
pub(super) struct ForCalls {
    /// A key that the user may access, to try EVALSHA with.
    pub(super) trial_key: Arc<str>,
    /// Replaces the user and the password of the URL.
    pub(super) credentials: Option<Arc<CredentialSource>>,
}

impl Server {
    /// A server that speaks the configured protocol, or else RESP3 with RESP2 as the alternative.
    pub(crate) fn new(info: ConnectionInfo, protocol: Option<ProtocolVersion>) -> Self {
        Self {
            name: ServerName::new("Redis", &info.addr().to_string()),
            info,
            protocol,
            #[cfg(feature = "tls")]
            tls_files: None,
            has_connected: Arc::default(),
            longest_deadline: LongestDeadline::default(),
            for_calls: None,
        }
    }

    pub(super) fn awaited_for(self, longest_deadline: LongestDeadline) -> Self {
        Self {
            longest_deadline,
            ..self
        }
    }

    pub(super) fn for_calls(self, for_calls: &Arc<ForCalls>) -> Self {
        let for_calls = Some(Arc::clone(for_calls));
        Self { for_calls, ..self }
    }

    #[cfg(feature = "tls")]
    pub(crate) fn with_tls_files(self, tls_files: Option<Arc<TlsFiles>>) -> Self {
        Self { tls_files, ..self }
    }

    /// Returns the same protocol and TLS files for another server or user. Errors name it as `what`.
    #[cfg(any(feature = "cluster", feature = "sentinel"))]
    pub(crate) fn with_info(&self, what: &'static str, info: ConnectionInfo) -> Self {
        Self {
            name: ServerName::new(what, &info.addr().to_string()),
            info,
            has_connected: Arc::default(),
            ..self.clone()
        }
    }

    /// Returns the same settings for another host and port. Errors name the server as `what`.
    #[cfg(any(feature = "cluster", feature = "sentinel"))]
    pub(super) fn at(&self, what: &'static str, host: &str, port: u16) -> Self {
        let mut addr = self.info.addr().clone();
        match &mut addr {
            ConnectionAddr::TcpTls {
                host: own,
                port: own_port,
                ..
            } => (*own, *own_port) = (host.to_owned(), port),
            _ => addr = ConnectionAddr::Tcp(host.to_owned(), port),
        }
        self.with_info(what, self.info.clone().set_addr(addr))
    }

    #[cfg(any(feature = "sentinel", test))]
    pub(crate) fn info(&self) -> &ConnectionInfo {
        &self.info
    }

    #[cfg(test)]
    pub(crate) fn protocol(&self) -> Option<ProtocolVersion> {
        self.protocol
    }

    pub(super) fn connect_timeout(&self) -> Duration {
        self.longest_deadline.connect_timeout()
    }

    pub(super) async fn in_time<T>(
        &self,
        step: impl Future<Output = RedisResult<T>>,
    ) -> RedisResult<T> {
        // Boxed, because a handshake is large.
        let outcome = real_time::timeout(self.connect_timeout(), Box::pin(step)).await;
        outcome.unwrap_or_else(|| Err(self.timed_out()))
    }

    pub(super) fn timed_out(&self) -> RedisError {
        let text = format!("no connection within {:?}", self.connect_timeout());
        io::Error::new(io::ErrorKind::TimedOut, text).into()
    }

    /// Connects with current credentials, and renews them while the connection lasts.
    pub(super) async fn connect_for_calls(
        &self,
        owner: Arc<dyn ConnectionOwner>,
    ) -> Result<Connection, Failure> {
        let for_calls = self.for_calls.as_ref();
        let Some(source) = for_calls.and_then(|settings| settings.credentials.as_ref()) else {
            return self.connect_and_try(owner).await;
        };
        let login = source
            .for_connection()
            .await
            .map_err(|cause| Failure::to_connect(&self.name, Cause::NoCredentials(cause)))?;
        let server = Self {
            info: login.apply_to(&self.info),
            ..self.clone()
        };
        match server.connect_and_try(Arc::clone(&owner)).await {
            Ok(connection) => {
                let source = Arc::clone(source);
                let renewing = source.renew(login, server.name, owner);
                Ok(connection.with_task(renewing))
            }
            Err(failure) => {
                if failure.error().is_some_and(error::is_wrong_password) {
                    source.reject(&login);
                }
                Err(failure)
            }
        }
    }

    /// Connects, and fails if the server has renamed or disabled EVALSHA.
    ///
    /// Such a server quotes the arguments of a call in its error. They are no text, so the client cannot read the error
    /// and closes the connection: all calls in flight would fail with an error that says nothing about EVALSHA.
    async fn connect_and_try(
        &self,
        owner: Arc<dyn ConnectionOwner>,
    ) -> Result<Connection, Failure> {
        let connection = self.connect(owner, None).await?;
        let Some(ForCalls { trial_key, .. }) = self.for_calls.as_deref() else {
            return Ok(connection);
        };
        let mut trial = redis::cmd("EVALSHA");
        // No script has this hash. Proxies that choose a server by the keys of a call refuse one without keys.
        trial.arg("0".repeat(40)).arg(1).arg(&**trial_key);
        match self.in_time(connection.send(&trial)).await {
            Err(error) if error::find_act(&error) == Act::UnknownCommand || error.is_timeout() => {
                Err(Failure::to_connect(&self.name, error))
            }
            Err(_) => Ok(connection),
            // The reply to an earlier command of the handshake.
            Ok(_) => {
                let text = "no error for a script that does not exist";
                let error = RedisError::from((redis::ErrorKind::UnexpectedReturnType, text));
                Err(Failure::to_connect(&self.name, error))
            }
        }
    }

    /// Connects. Messages that the server pushes go to `on_push`.
    pub(super) async fn connect(
        &self,
        owner: Arc<dyn ConnectionOwner>,
        on_push: Option<OnPush>,
    ) -> Result<Connection, Failure> {
        let error = match self.in_time(self.handshake(on_push)).await {
            Ok((connection, driver)) => {
                self.has_connected.store(true, Ordering::Relaxed);
                return Ok(Connection::driven(connection, driver, owner));
            }
            Err(error) => error,
        };
        let handshake = match self.info.addr() {
            ConnectionAddr::TcpTls { .. } if self.name.is_cluster() => Handshake::TlsToNode,
            ConnectionAddr::TcpTls { .. } => Handshake::Tls,
            address if error::may_be_tls_port(&error) => {
                if let Some(error) = unasked_error(address).await {
                    return Err(Failure::to_connect(&self.name, error));
                }
                // A port that has spoken Redis before does not speak TLS.
                if self.has_connected.load(Ordering::Relaxed) {
                    Handshake::Unknown
                } else {
                    Handshake::Plain
                }
            }
            _ => Handshake::Unknown,
        };
        let cause = Cause::Error(error, handshake);
        Err(Failure::to_connect(&self.name, cause))
    }

    async fn handshake(
        &self,
        on_push: Option<OnPush>,
    ) -> RedisResult<(MultiplexedConnection, Driver)> {
        // Only RESP3 carries the events of sentinels.
        let protocol = self.protocol.unwrap_or(ProtocolVersion::RESP3);
        match self.handshake_in(protocol, on_push).await {
            Err(failure) if self.protocol.is_none() && error::may_lack_resp3(&failure) => {
                self.handshake_in(ProtocolVersion::RESP2, None).await
            }
            connected => connected,
        }
    }

    async fn handshake_in(
        &self,
        protocol: ProtocolVersion,
        on_push: Option<OnPush>,
    ) -> RedisResult<(MultiplexedConnection, Driver)> {
        let stream = self.stream().await?;
        let settings = self.info.redis_settings().clone().set_protocol(protocol);
        let mut config = AsyncConnectionConfig::new()
            // The caller of each function applies the timeouts.
            .set_response_timeout(None)
            .set_pipeline_buffer_size(QUEUED_COMMANDS);
        if let Some(on_push) = on_push.filter(|_| protocol != ProtocolVersion::RESP2) {
            config = config.set_push_sender(move |push: PushInfo| {
                on_push(&push);
                Ok::<_, ()>(())
            });
        }
        let (connection, driver) =
            MultiplexedConnection::new_with_config(&settings, stream, config).await?;
        Ok((connection, Box::pin(driver)))
    }

    async fn stream(&self) -> RedisResult<Stream> {
        Ok(match self.info.addr() {
            ConnectionAddr::Tcp(host, port) => Box::new(stream::tcp(host, *port).await?),
            #[cfg(feature = "tls")]
            ConnectionAddr::TcpTls { host, port, .. } => {
                let config = match &self.tls_files {
                    Some(tls_files) => tls_files.config().await.map_err(unusable_files)?,
                    None => tls_files::public_servers(),
                };
                // A port that has spoken TLS needs no proof.
                if self.has_connected.load(Ordering::Relaxed) {
                    Box::new(stream::tls(config, host, *port).await?)
                } else {
                    Box::new(stream::tls_unless_plain(config, host, *port).await?)
                }
            }
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => Box::new(UnixStream::connect(path).await?),
            _ => {
                let text = "an address of a kind that this build does not support";
                return Err((redis::ErrorKind::InvalidClientConfig, text).into());
            }
        })
    }
}

#[cfg(feature = "tls")]
fn unusable_files(cause: String) -> RedisError {
    (redis::ErrorKind::InvalidClientConfig, "TLS files", cause).into()
}

impl Dial for Server {
    fn server(&self) -> &ServerName {
        &self.name
    }

    #[cfg(feature = "cluster")]
    fn address(&self) -> (&str, u16) {
        match self.info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                (host, *port)
            }
            _ => ("", 0),
        }
    }

    fn dial(
        &self,
        owner: Arc<dyn ConnectionOwner>,
    ) -> Boxed<'_, Result<(Connection, ServerName), Failure>> {
        Box::pin(async move {
            let connection = self.connect_for_calls(owner).await?;
            Ok((connection, self.name.clone()))
        })
    }

    fn obstacle(&self) -> Option<Cause> {
        let credentials = self.for_calls.as_ref()?.credentials.as_ref()?;
        credentials.obstacle().map(Cause::NoCredentials)
    }
}

/// Returns the error with which a port refuses clients before they send anything, as a server at `maxclients` or in
/// protected mode does. It then hangs up, and a client that writes first may lose the error.
async fn unasked_error(addr: &ConnectionAddr) -> Option<RedisError> {
    let ConnectionAddr::Tcp(host, port) = addr else {
        return None;
    };
    let error = async {
        let mut stream = TcpStream::connect((host.as_str(), *port)).await.ok()?;
        let mut buffer = [0; 1_024];
        let read = real_time::timeout(UNASKED_TIMEOUT, stream.read(&mut buffer)).await;
        let said = buffer.get(..read?.ok()?)?;
        let line = said.split(|byte| *byte == b'\r').next()?;
        let reply = redis::parse_redis_value(&[line, b"\r\n"].concat()).ok()?;
        reply.extract_error().err()
    };
    real_time::timeout(PROBE_TIMEOUT, error).await?
}

#[cfg(any(feature = "cluster", feature = "sentinel"))]
pub(super) fn name_all<'a>(
    what: &'static str,
    servers: impl IntoIterator<Item = &'a ServerName>,
) -> ServerName {
    let addresses = Vec::from_iter(servers.into_iter().filter_map(ServerName::address));
    ServerName::new(what, &addresses.join(", "))
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The address only: the settings hold the password.
        write!(f, "{}", self.info.addr())
    }
}
