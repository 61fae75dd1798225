//! The files of TLS settings, read again for each new connection: certificates expire and are renewed.

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::client::WantsClientCert;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ConfigBuilder, RootCertStore};
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
        files.read()?;
        Ok(files)
    }

    /// Reads the files. The error names the file and the cause.
    pub(super) async fn config(self: &Arc<Self>) -> Result<ClientConfig, String> {
        let files = Arc::clone(self);
        let reading = async move {
            let reader = Arc::clone(&files.reader).lock_owned().await;
            let read = task::spawn_blocking(move || {
                let config = files.read();
                drop(reader);
                config
            });
            read.await.ok()
        };
        // `None` too if the runtime shuts down.
        let read = real_time::timeout(READ_TIMEOUT, reading).await.flatten();
        read.unwrap_or_else(|| Err(format!("failed to read {self} within {READ_TIMEOUT:?}")))
    }

    fn paths(&self) -> impl Iterator<Item = (&'static str, &PathBuf)> {
        let ca = self.ca.iter().map(|ca| ("ca", ca));
        let client = self
            .client
            .iter()
            .flat_map(|client| [("cert", &client.cert), ("key", &client.key)]);
        ca.chain(client)
    }

    fn read(&self) -> Result<ClientConfig, String> {
        let roots = match &self.ca {
            Some(path) => read_roots(path)?,
            None => public_roots(),
        };
        let config = ClientConfig::builder().with_root_certificates(roots);
        match &self.client {
            Some(client) => client.present(config),
            None => Ok(config.with_no_client_auth()),
        }
    }
}

pub(super) fn public_servers() -> ClientConfig {
    ClientConfig::builder()
        .with_root_certificates(public_roots())
        .with_no_client_auth()
}

fn public_roots() -> RootCertStore {
    webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect()
}

impl fmt::Display for TlsFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: Vec<_> = self
            .paths()
            .map(|(_, path)| path.display().to_string())
            .collect();
        f.write_str(&shown.join(", "))
    }
}

impl ClientPaths {
    fn present(
        &self,
        config: ConfigBuilder<ClientConfig, WantsClientCert>,
    ) -> Result<ClientConfig, String> {
        let Self { cert, key } = self;
        let chain = read_certificates("cert", cert)?;
        let private_key = PrivateKeyDer::from_pem_slice(&read_file("key", key)?)
            .map_err(|error| unusable("key", key, &error))?;
        // One of them may have been renewed, and the other not yet.
        config
            .with_client_auth_cert(chain, private_key)
            .map_err(|error| {
                let cert = cert.display();
                let key = key.display();
                format!("`cert` from {cert} and `key` from {key} do not match: {error}")
            })
    }
}

fn read_roots(path: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates("ca", path)? {
        roots.add(certificate).map_err(|error| {
            let shown = path.display();
            format!("`ca` from {shown} has a certificate that cannot be trusted: {error}")
        })?;
    }
    Ok(roots)
}

/// Reads a file that must have certificates, of which each is complete.
fn read_certificates(name: &str, path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let file = read_file(name, path)?;
    let certificates = CertificateDer::pem_slice_iter(&file)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| unusable(name, path, &error))?;
    if certificates.is_empty() {
        let shown = path.display();
        return Err(format!(
            "`{name}` from {shown} has no certificate in PEM form"
        ));
    }
    Ok(certificates)
}

fn read_file(name: &str, path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path)
        .map_err(|error| format!("failed to read `{name}` from {}: {error}", path.display()))
}

fn unusable(name: &str, path: &Path, error: &impl fmt::Display) -> String {
    format!("`{name}` from {} is not PEM: {error}", path.display())
}
