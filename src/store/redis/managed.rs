//! Connections that are made when first used, one for each tokio runtime.

use std::fmt;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{Client, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisResult};
use tokio::runtime::{self, Handle};
use tokio::task::AbortHandle;

use crate::ConfigError;

/// How long one attempt to connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// Before the one further attempt: a refused connection is an answer, not a wait.
const RECONNECT_DELAY: Duration = Duration::from_millis(20);

/// How many commands wait for the socket before callers wait for them.
const QUEUED_COMMANDS: usize = 1_024;

const TLS_SCHEMES: [&str; 2] = ["rediss", "valkeys"];

/// A client, and a connection for each runtime that uses it: the task that drives a connection dies
/// with its runtime, and a store may be used from several, one after the other or at once.
pub(super) struct Managed {
    client: Client,
    // Read on each call, written on the first of each runtime.
    connections: RwLock<Vec<OfRuntime>>,
}

struct OfRuntime {
    id: runtime::Id,
    connection: ConnectionManager,
    /// A task that lives as long as the runtime, or this entry.
    life: AbortHandle,
}

impl Managed {
    pub(super) fn open(url: &str) -> Result<Self, ConfigError> {
        let info = connection_info(url)?;
        let client = Client::open(info).map_err(|error| malformed(url, &error))?;
        Ok(Self {
            client,
            connections: RwLock::default(),
        })
    }

    /// The connection of the runtime that calls.
    pub(super) fn connection(&self) -> RedisResult<ConnectionManager> {
        let id = Handle::current().id();
        let connections = self
            .connections
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = connections.iter().find(|connection| connection.id == id) {
            return Ok(found.connection.clone());
        }
        drop(connections);
        self.connect(id)
    }

    fn connect(&self, id: runtime::Id) -> RedisResult<ConnectionManager> {
        let mut connections = self
            .connections
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        connections.retain(|connection| !connection.life.is_finished());
        if let Some(found) = connections.iter().find(|connection| connection.id == id) {
            return Ok(found.connection.clone());
        }
        let connection =
            ConnectionManager::new_lazy_with_config(self.client.clone(), manager_config())?;
        let life = tokio::spawn(std::future::pending::<()>()).abort_handle();
        connections.push(OfRuntime {
            id,
            connection: connection.clone(),
            life,
        });
        Ok(connection)
    }
}

impl Drop for OfRuntime {
    fn drop(&mut self) {
        self.life.abort();
    }
}

fn manager_config() -> ConnectionManagerConfig {
    ConnectionManagerConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        // The store's deadline bounds the whole call.
        .set_response_timeout(None)
        .set_number_of_retries(1)
        .set_min_delay(RECONNECT_DELAY)
        .set_pipeline_buffer_size(QUEUED_COMMANDS)
}

fn connection_info(url: &str) -> Result<ConnectionInfo, ConfigError> {
    let scheme = url.split(':').next().unwrap_or_default();
    if TLS_SCHEMES.contains(&scheme) {
        return Err(ConfigError::url("rediss:…", "this build has no TLS"));
    }
    let info = url
        .into_connection_info()
        .map_err(|error| malformed(url, &error))?;
    // RESP3 tells at once when a connection is lost, RESP2 with the next command.
    let protocol = if url.contains("protocol=") {
        info.redis_settings().protocol()
    } else {
        ProtocolVersion::RESP3
    };
    let settings = info.redis_settings().clone().set_protocol(protocol);
    Ok(info
        .set_redis_settings(settings)
        .set_tcp_settings(tcp_settings()))
}

/// A command is one small packet that is waited for, and a peer that is gone must be noticed: the
/// kernel's own defaults take 15 minutes.
fn tcp_settings() -> TcpSettings {
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

/// The reason without the URL, which may hold a password.
fn malformed(url: &str, error: &redis::RedisError) -> ConfigError {
    const RULE: &str = "a URL of Redis is redis://[user][:password@]host[:port][/database]";
    let scheme = url.split(':').next().unwrap_or_default();
    let reason = error.to_string();
    let reason = reason.split(" - ").next().unwrap_or_default();
    ConfigError::url(&format!("{scheme}:…"), &format!("{RULE}: {reason}"))
}

impl fmt::Debug for Managed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the whole of it: it holds the password.
        write!(f, "{}", self.client.get_connection_info().addr())
    }
}
