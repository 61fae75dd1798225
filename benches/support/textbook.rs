//! The textbook's sorted set, called with care: by EVALSHA, on one multiplexed connection with `TCP_NODELAY`.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo};

/// KEYS: one. ARGV: the limit, the window in milliseconds.
pub(crate) const TEXT: &str = include_str!("../textbook.lua");

#[derive(Clone)]
pub(crate) struct Textbook {
    connection: MultiplexedConnection,
    hash: String,
    limit: u32,
    window: Duration,
}

impl Textbook {
    pub(crate) async fn connect(url: &str, limit: u32, window: Duration) -> Self {
        let mut connection = connect(url).await;
        let load = redis::cmd("SCRIPT").arg("LOAD").arg(TEXT).to_owned();
        Self {
            hash: load.query_async(&mut connection).await.expect("a script"),
            connection,
            limit,
            window,
        }
    }

    /// The same connection with another limit.
    pub(crate) fn limited(&self, limit: u32, window: Duration) -> Self {
        Self {
            limit,
            window,
            ..self.clone()
        }
    }

    pub(crate) async fn check(&self, key: &str) -> bool {
        let mut call = redis::cmd("EVALSHA");
        call.arg(&self.hash).arg(1).arg(key);
        call.arg(self.limit).arg(self.window.as_millis());
        let reply = call.query_async(&mut self.connection.clone()).await;
        reply.expect("the server answers")
    }
}

/// One multiplexed connection without Nagle's delay, patient with a slow machine.
pub(crate) async fn connect(url: &str) -> MultiplexedConnection {
    let info = url.into_connection_info().expect("a URL");
    let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
    let client = Client::open(info).expect("a URL");
    let patient = AsyncConnectionConfig::new().set_response_timeout(Some(Duration::from_secs(10)));
    let connection = client.get_multiplexed_async_connection_with_config(&patient);
    connection.await.expect("the server is ready")
}
