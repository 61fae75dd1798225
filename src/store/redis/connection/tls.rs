//! TLS settings: trusted roots, client certificate, cryptography provider.

use std::sync::Once;

use redis::{Client, ClientTlsConfig, ConnectionInfo, TlsCertificates};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use url::Url;

use crate::error::ConfigError;

/// Adds TLS settings to `info`.
///
/// The file `ca` replaces the roots of Mozilla; `cert` and `key` are the client's certificate and
/// its key.
pub(crate) fn with_tls(
    info: ConnectionInfo,
    url: &Url,
    redacted: &str,
) -> Result<ConnectionInfo, ConfigError> {
    if url.fragment().is_some() {
        let rule = "a fragment is not supported: certificates are always checked; to trust another root, set ?ca=/path/to/ca.pem";
        return Err(ConfigError::url(redacted, rule));
    }
    install_crypto_provider();
    let read = |name: &str| read_file(url, name, redacted);
    let client_tls = match (read("cert")?, read("key")?) {
        (Some(client_cert), Some(client_key)) => Some(ClientTlsConfig {
            client_cert,
            client_key,
        }),
        (None, None) => None,
        _ => {
            return Err(ConfigError::url(
                redacted,
                "`cert` and `key` need each other: set both or none",
            ));
        }
    };
    let certificates = TlsCertificates {
        client_tls,
        root_cert: read("ca")?,
    };
    if certificates.client_tls.is_none() && certificates.root_cert.is_none() {
        return Ok(info);
    }
    let is_empty = |pem: &Vec<u8>| CertificateDer::pem_slice_iter(pem).next().is_none();
    if certificates.root_cert.as_ref().is_some_and(is_empty) {
        return Err(ConfigError::url(
            redacted,
            "the file of `ca` has no certificate in PEM form",
        ));
    }
    let client = Client::build_with_tls(info, certificates);
    let client = client.map_err(|error| ConfigError::url(redacted, &error.to_string()))?;
    Ok(client.get_connection_info().clone())
}

/// Reads the file that a query parameter names, if it is set.
fn read_file(url: &Url, name: &str, redacted: &str) -> Result<Option<Vec<u8>>, ConfigError> {
    let Some((_, path)) = url.query_pairs().find(|(parameter, _)| parameter == name) else {
        return Ok(None);
    };
    let file = std::fs::read(&*path);
    let file = file.map_err(|error| {
        ConfigError::url(
            redacted,
            &format!("failed to read `{name}` from {path}: {error}"),
        )
    })?;
    Ok(Some(file))
}

/// Installs `ring` unless the application has installed a provider: rustls panics without one for
/// the process.
fn install_crypto_provider() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if CryptoProvider::get_default().is_none() {
            // Fails if another thread was faster, which is fine.
            let _ = ring::default_provider().install_default();
        }
    });
}
