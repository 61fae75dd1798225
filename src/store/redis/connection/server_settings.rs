//! The settings of a server: address, credentials, protocol, TLS files.

#[cfg(feature = "tls")]
use std::sync::Arc;

use redis::{ConnectionAddr, ConnectionInfo, ProtocolVersion};

#[cfg(feature = "tls")]
use super::tls_files::TlsFiles;

/// The settings of a server. For other servers of a deployment, they change the address.
#[derive(Clone)]
pub(crate) struct ServerSettings {
    info: ConnectionInfo,
    /// The protocol, if it was configured.
    protocol: Option<ProtocolVersion>,
    #[cfg(feature = "tls")]
    tls_files: Option<Arc<TlsFiles>>,
}

impl ServerSettings {
    /// Settings without TLS files.
    pub(crate) fn new(info: ConnectionInfo, protocol: Option<ProtocolVersion>) -> Self {
        Self {
            info,
            protocol,
            #[cfg(feature = "tls")]
            tls_files: None,
        }
    }

    /// Sets the files that each new connection reads.
    #[cfg(feature = "tls")]
    pub(crate) fn with_tls_files(self, tls_files: Option<Arc<TlsFiles>>) -> Self {
        Self { tls_files, ..self }
    }

    /// Returns the same protocol and TLS files for another server or user.
    #[cfg(any(feature = "cluster", feature = "sentinel"))]
    pub(crate) fn with_info(&self, info: ConnectionInfo) -> Self {
        Self {
            info,
            ..self.clone()
        }
    }

    /// Returns the same settings for another host and port.
    #[cfg(any(feature = "cluster", feature = "sentinel"))]
    pub(super) fn with_address(&self, host: String, port: u16) -> Self {
        let addr = match self.info.addr().clone() {
            ConnectionAddr::TcpTls {
                insecure,
                tls_params,
                ..
            } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure,
                tls_params,
            },
            _ => ConnectionAddr::Tcp(host, port),
        };
        self.with_info(self.info.clone().set_addr(addr))
    }

    /// The settings without the TLS files.
    pub(crate) fn info(&self) -> &ConnectionInfo {
        &self.info
    }

    pub(crate) fn protocol(&self) -> Option<ProtocolVersion> {
        self.protocol
    }

    /// Returns the host and the port, or nothing for a Unix socket.
    #[cfg(feature = "cluster")]
    pub(super) fn address(&self) -> (&str, u16) {
        match self.info.addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                (host, *port)
            }
            _ => ("", 0),
        }
    }

    pub(super) fn is_tls(&self) -> bool {
        matches!(self.info.addr(), ConnectionAddr::TcpTls { .. })
    }

    /// Returns the settings for a new connection. Reads the TLS files.
    #[cfg_attr(
        not(feature = "tls"),
        expect(clippy::unused_async, reason = "reads files with the feature `tls`")
    )]
    pub(super) async fn for_connection(&self) -> ConnectionInfo {
        let info = self.info.clone();
        #[cfg(feature = "tls")]
        if let Some(tls_files) = &self.tls_files {
            return tls_files.read().await.apply_to(info);
        }
        info
    }
}
