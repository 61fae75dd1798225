//! What the examples that serve have in common and that is not about limits.

use std::{env, io};

use tokio::net::TcpListener;

/// `TOLLGATE_ADDR`, else port 3000, else any that is free.
pub(crate) async fn listen() -> io::Result<TcpListener> {
    match env::var("TOLLGATE_ADDR") {
        Ok(address) => TcpListener::bind(address).await,
        Err(_) => match TcpListener::bind("127.0.0.1:3000").await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                TcpListener::bind("127.0.0.1:0").await
            }
            bound => bound,
        },
    }
}
