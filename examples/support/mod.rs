//! Code of the serving examples that is not about limits.

use std::{env, io};

use tokio::net::TcpListener;

/// `TOLLGATE_ADDR`, else port 3000, else any that is free.
pub(crate) async fn listen() -> io::Result<TcpListener> {
    listen_by("TOLLGATE_ADDR", 3_000).await
}

/// The address in this variable, else this port of this machine, else any that is free.
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
