//! Opens the listeners of the examples.

use std::{env, io};

use tokio::net::TcpListener;

/// Listens on `TOLLGATE_ADDR`. If it is not set, listens on port 3000, or on a free port if that is taken.
pub(crate) async fn listen() -> io::Result<TcpListener> {
    listen_by("TOLLGATE_ADDR", 3_000).await
}

/// Listens on the address in the variable. If it is not set, listens on the port, or on a free port if that is
/// taken.
pub(crate) async fn listen_by(variable: &str, port: u16) -> io::Result<TcpListener> {
    match env::var(variable) {
        Ok(address) => TcpListener::bind(address).await,
        Err(_) => match TcpListener::bind(("127.0.0.1", port)).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                TcpListener::bind("127.0.0.1:0").await
            }
            bound => bound,
        },
    }
}
