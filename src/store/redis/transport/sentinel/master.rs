//! Connecting to a server that should be the master.

use redis::{ErrorKind, Value};

use super::super::dial::{Connection, OnLost, Server, timed_out};
use super::super::failure::Failure;
use super::client::{Address, QUERY_TIMEOUT};
use crate::store::redis::protocol::ServerName;
use crate::store::redis::real_time;

/// Connects to a server with the settings of the master, and fails if it says that it is not the master.
pub(super) async fn connect(
    master: &Server,
    (host, port): &Address,
    on_lost: OnLost,
) -> Result<(Connection, ServerName), Failure> {
    let server = master.at("Redis", host, *port);
    let connection = server.connect_for_calls(on_lost).await?;
    let role = redis::cmd("ROLE");
    let role = real_time::timeout(QUERY_TIMEOUT, connection.send(&role)).await;
    let error = match role.unwrap_or_else(|| Err(timed_out())) {
        Ok(Value::Array(role)) if role.first() != Some(&Value::BulkString(b"master".to_vec())) => {
            let text = "the sentinels name this server as the master, but it is a replica";
            (ErrorKind::Io, text).into()
        }
        Err(error) if error.code().is_none() => error,
        // Without the right to ask for the role, a replica shows with the first write.
        _ => return Ok((connection, server.name().clone())),
    };
    Err(Failure::to_connect(server.name(), error))
}
