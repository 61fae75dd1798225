//! Connections that are made when first used, one for each tokio runtime.

use std::fmt;
use std::time::{Duration, Instant};

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{Client, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisResult};
use tokio::runtime::Handle;
use url::Url;

use super::per_runtime::PerRuntime;
use crate::ConfigError;

/// How long one attempt to connect may take.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);

/// Before the one further attempt: a refused connection is an answer, not a wait.
const RECONNECT_DELAY: Duration = Duration::from_millis(20);

/// For how long a server that refuses the handshake is believed.
const GIVE_UP_AFTER: Duration = Duration::from_millis(250);

/// How many commands are on their way at once: what a server that hung still executes when it wakes
/// is no more than that, though nobody waits for it any longer.
const CONCURRENT_COMMANDS: usize = 512;

/// How many commands wait for the socket before callers wait for them.
const QUEUED_COMMANDS: usize = 1_024;

const TLS_SCHEMES: [&str; 2] = ["rediss", "valkeys"];

/// A client, and a connection for each runtime that uses it.
pub(super) struct Managed {
    client: Client,
    connections: PerRuntime<Made>,
}

#[derive(Clone)]
struct Made {
    connection: ConnectionManager,
    at: Instant,
}

impl Managed {
    pub(super) fn open(url: &str) -> Result<Self, ConfigError> {
        let info = connection_info(url)?;
        let client = Client::open(info).map_err(|error| malformed("…", &reason(&error)))?;
        Ok(Self {
            client,
            connections: PerRuntime::default(),
        })
    }

    /// The connection of the runtime that calls.
    pub(super) fn connection(&self) -> RedisResult<ConnectionManager> {
        let made = self.connections.get_or_make(&Handle::current(), || {
            let client = self.client.clone();
            let connection = ConnectionManager::new_lazy_with_config(client, manager_config())?;
            let at = Instant::now();
            RedisResult::Ok(Made { connection, at })
        });
        Ok(made?.connection)
    }

    /// Gives up the connection of the runtime that calls, unless it was made just now.
    ///
    /// A manager connects again when it loses a connection, but what a server answers to the
    /// handshake, like a wrong password, it remembers for good.
    pub(super) fn give_up(&self) {
        self.connections.forget_if(&Handle::current(), |made| {
            made.at.elapsed() >= GIVE_UP_AFTER
        });
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
        .set_concurrency_limit(CONCURRENT_COMMANDS)
}

fn connection_info(url: &str) -> Result<ConnectionInfo, ConfigError> {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    let url = Url::parse(url)
        // Nothing behind the scheme is shown: what cannot be read may hold a password anywhere.
        .map_err(|error| malformed(&format!("{scheme}…"), &error.to_string()))?;
    if url.cannot_be_a_base() {
        // What stands before the first colon may be a password as well.
        return Err(malformed("…", "not a redis url"));
    }
    let shown = without_secrets(&url);
    if TLS_SCHEMES.contains(&url.scheme()) {
        return Err(ConfigError::url(&shown, "this build has no TLS"));
    }
    let asks_for_protocol = url.query_pairs().any(|(name, _)| name == "protocol");
    let info = url
        .into_connection_info()
        .map_err(|error| malformed(&shown, &reason(&error)))?;
    if info.redis_settings().db() < 0 {
        return Err(malformed(&shown, "a database is a number from 0"));
    }
    // RESP3 tells at once when a connection is lost, RESP2 with the next command.
    let protocol = if asks_for_protocol {
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

fn malformed(shown: &str, reason: &str) -> ConfigError {
    const RULE: &str = "a URL of Redis is redis://[user][:password@]host[:port][/database]";
    ConfigError::url(shown, &format!("{reason}; {RULE}"))
}

/// What an error of redis says, without its kind.
fn reason(error: &redis::RedisError) -> String {
    let text = error.to_string();
    text.split(" - ").next().unwrap_or_default().to_lowercase()
}

fn without_secrets(url: &Url) -> String {
    let mut shown = url.clone();
    // Where a URL cannot have them, it has none.
    let _ = shown.set_password(None);
    let _ = shown.set_username("");
    shown.set_query(None);
    shown.into()
}

impl fmt::Debug for Managed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the whole of it: it holds the password.
        write!(f, "{}", self.client.get_connection_info().addr())
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime;

    use super::*;

    fn runtime() -> runtime::Runtime {
        runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    }

    #[test]
    fn the_connections_of_ended_runtimes_are_forgotten() {
        let managed = Managed::open("redis://127.0.0.1").unwrap();
        let held = || managed.connections.len();
        let living = runtime();
        for _ in 0..5 {
            living
                .block_on(async { managed.connection().map(drop) })
                .unwrap();
            runtime()
                .block_on(async { managed.connection().map(drop) })
                .unwrap();
        }
        assert_eq!(held(), 2);
    }

    #[test]
    fn a_store_that_is_dropped_leaves_no_task() {
        let runtime = runtime();
        let managed = Managed::open("redis://127.0.0.1").unwrap();
        runtime
            .block_on(async { managed.connection().map(drop) })
            .unwrap();
        let tasks = || runtime.metrics().num_alive_tasks();
        assert!(tasks() > 0);
        drop(managed);
        let ended = async {
            while tasks() > 0 {
                tokio::task::yield_now().await;
            }
        };
        let within = Duration::from_secs(5);
        let ended = runtime.block_on(async { tokio::time::timeout(within, ended).await });
        assert!(ended.is_ok(), "{} tasks are left", tasks());
    }

    #[test]
    fn a_connection_is_prompt_and_notices_a_peer_that_is_gone() {
        let info = connection_info("redis://127.0.0.1").unwrap();
        let tcp = info.tcp_settings();
        assert!(tcp.nodelay() && tcp.keepalive().is_some());
        #[cfg(target_os = "linux")]
        assert_eq!(tcp.user_timeout(), Some(Duration::from_secs(3)));
    }

    #[test]
    fn the_protocol_is_resp3_unless_the_url_says_otherwise() {
        for (url, protocol) in [
            ("redis://127.0.0.1", ProtocolVersion::RESP3),
            ("redis://:protocol=2@127.0.0.1", ProtocolVersion::RESP3),
            ("redis://127.0.0.1?protocol=resp2", ProtocolVersion::RESP2),
            ("redis://127.0.0.1?protocol=3", ProtocolVersion::RESP3),
        ] {
            let info = connection_info(url).unwrap();
            assert_eq!(info.redis_settings().protocol(), protocol, "{url}");
        }
    }
}
