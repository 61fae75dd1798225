//! The files of TLS settings, read again for each new connection: certificates expire and are renewed.

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use redis::{Client, ClientTlsConfig, ConnectionInfo, IntoConnectionInfo, TlsCertificates};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio::sync::Mutex;
use tokio::task;

use crate::store::redis::real_time;

/// The limit on reading the files. They may be on a network.
const READ_TIMEOUT: Duration = Duration::from_millis(100);

/// The paths of the client's certificate and its key.
pub(crate) struct ClientPaths {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
}

/// The TLS files of a deployment.
pub(crate) struct TlsFiles {
    ca: Option<PathBuf>,
    client: Option<ClientPaths>,
    /// Held by the thread that reads the files: if the file system hangs, it blocks only one.
    reader: Arc<Mutex<()>>,
}

impl TlsFiles {
    /// Reads the files for the first time. The error names the parameter and the cause, and the path if the file exists: any
    /// other text may be a part of a password.
    pub(super) fn open(ca: Option<PathBuf>, client: Option<ClientPaths>) -> Result<Self, String> {
        let files = Self {
            ca,
            client,
            reader: Arc::default(),
        };
        for (name, path) in files.paths() {
            File::open(path).map_err(|error| format!("failed to read `{name}`: {error}"))?;
        }
        files.read_for("rediss://localhost")?;
        Ok(files)
    }

    /// Reads the files, and returns settings that have their TLS parameters. The error names the file and the cause.
    pub(super) async fn apply_to(
        self: &Arc<Self>,
        info: ConnectionInfo,
    ) -> Result<ConnectionInfo, String> {
        let files = Arc::clone(self);
        let reading = async move {
            let reader = Arc::clone(&files.reader).lock_owned().await;
            let read = task::spawn_blocking(move || {
                let info = files.read_for(info);
                drop(reader);
                info
            });
            read.await.ok()
        };
        // `None` too if the runtime shuts down.
        let read = real_time::timeout(READ_TIMEOUT, reading).await.flatten();
        read.unwrap_or_else(|| Err(format!("failed to read {self} within {READ_TIMEOUT:?}")))
    }

    /// Returns the paths with the names of their parameters.
    fn paths(&self) -> impl Iterator<Item = (&'static str, &PathBuf)> {
        let ca = self.ca.iter().map(|ca| ("ca", ca));
        let of_client = self.client.iter();
        let of_client = of_client.flat_map(|client| [("cert", &client.cert), ("key", &client.key)]);
        ca.chain(of_client)
    }

    fn read_for(&self, info: impl IntoConnectionInfo) -> Result<ConnectionInfo, String> {
        let root_cert = self.ca.as_deref().map(|path| read_certificates("ca", path));
        let client_tls = self.client.as_ref().map(ClientPaths::read);
        let certificates = TlsCertificates {
            client_tls: client_tls.transpose()?,
            root_cert: root_cert.transpose()?,
        };
        // The only way to the parameters: `redis` does not export their type.
        match Client::build_with_tls(info, certificates) {
            Ok(client) => Ok(client.get_connection_info().clone()),
            Err(error) => Err(format!("failed to use {self}: {error}")),
        }
    }
}

impl fmt::Display for TlsFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paths = self.paths();
        let shown = Vec::from_iter(paths.map(|(_, path)| path.display().to_string()));
        f.write_str(&shown.join(", "))
    }
}

impl ClientPaths {
    fn read(&self) -> Result<ClientTlsConfig, String> {
        let Self { cert, key } = self;
        let client_cert = read_certificates("cert", cert)?;
        let client_key = read_file("key", key)?;
        let private_key = PrivateKeyDer::from_pem_slice(&client_key)
            .map_err(|error| unusable("key", key, &error))?;
        let chain = CertificateDer::pem_slice_iter(&client_cert).filter_map(Result::ok);
        // One of them may have been renewed, and the other not yet.
        ClientConfig::builder()
            .with_root_certificates(RootCertStore::empty())
            .with_client_auth_cert(chain.collect(), private_key)
            .map_err(|error| {
                let (cert, key) = (cert.display(), key.display());
                format!("`cert` from {cert} and `key` from {key} do not match: {error}")
            })?;
        Ok(ClientTlsConfig {
            client_cert,
            client_key,
        })
    }
}

/// Reads a file that must have certificates, of which each is complete.
fn read_certificates(name: &str, path: &Path) -> Result<Vec<u8>, String> {
    let file = read_file(name, path)?;
    let certificates = CertificateDer::pem_slice_iter(&file).collect::<Result<Vec<_>, _>>();
    if certificates
        .map_err(|error| unusable(name, path, &error))?
        .is_empty()
    {
        let shown = path.display();
        return Err(format!(
            "`{name}` from {shown} has no certificate in PEM form"
        ));
    }
    Ok(file)
}

fn read_file(name: &str, path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path)
        .map_err(|error| format!("failed to read `{name}` from {}: {error}", path.display()))
}

fn unusable(name: &str, path: &Path, error: &impl fmt::Display) -> String {
    format!("`{name}` from {} is not PEM: {error}", path.display())
}
