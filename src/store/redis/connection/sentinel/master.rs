//! Connecting to a server that should be the master.

use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, Value};

use super::super::server_settings::ServerSettings;
use super::super::single::{OnDisconnect, Server, timed_out};
use super::client::{Address, QUERY_TIMEOUT};
use crate::store::redis::protocol::ServerName;
use crate::store::redis::protocol::errors::{ConnectError, Handshake};
use crate::store::redis::real_time;

/// Connects to a server, and fails if it says that it is not the master.
pub(super) async fn connect(
    settings: &ServerSettings,
    address: &Address,
    on_disconnect: OnDisconnect,
) -> Result<(MultiplexedConnection, ServerName), ConnectError> {
    let (host, port) = address.clone();
    let server = Server::new(settings.with_address(host, port));
    let connection = server.connect(on_disconnect).await?;
    let name = server.name().clone();
    let failed = |error| ConnectError {
        server: name.clone(),
        error,
        handshake: Handshake::Unknown,
    };
    let mut queried = connection.clone();
    let role = redis::cmd("ROLE");
    let role = real_time::timeout(QUERY_TIMEOUT, queried.send_packed_command(&role)).await;
    let role = role.unwrap_or_else(|| Err(timed_out()));
    match role.map_err(failed)? {
        Value::Array(role) if role.first() != Some(&Value::BulkString(b"master".to_vec())) => {
            let text = "the sentinels name this server as the master, but it is a replica";
            Err(failed((ErrorKind::Io, text).into()))
        }
        // Without the right to ask for the role, a replica shows with the first write.
        _ => Ok((connection, name)),
    }
}
