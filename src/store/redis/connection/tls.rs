//! TLS: whom to trust, and by which cryptography.

use std::sync::Once;

use redis::{Client, ClientTlsConfig, ConnectionInfo, TlsCertificates};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use url::Url;

use crate::error::ConfigError;

/// How a server is spoken to by TLS, and with which certificates if the URL names files: `ca` whom to
/// trust instead of the roots of Mozilla, `cert` and `key` who we are.
pub(crate) fn secured(
    info: ConnectionInfo,
    url: &Url,
    shown: &str,
) -> Result<(ConnectionInfo, Option<TlsCertificates>), ConfigError> {
    if url.fragment().is_some() {
        let rule = "a certificate is always checked; ?ca=/path/to/ca.pem tells whom to trust";
        return Err(ConfigError::url(shown, rule));
    }
    provide_cryptography();
    let read = |name: &str| read(url, name, shown);
    let client_tls = match (read("cert")?, read("key")?) {
        (Some(client_cert), Some(client_key)) => Some(ClientTlsConfig {
            client_cert,
            client_key,
        }),
        (None, None) => None,
        _ => return Err(ConfigError::url(shown, "`cert` and `key` need each other")),
    };
    let certificates = TlsCertificates {
        client_tls,
        root_cert: read("ca")?,
    };
    if certificates.client_tls.is_none() && certificates.root_cert.is_none() {
        return Ok((info, None));
    }
    let is_none = |pem: &Vec<u8>| CertificateDer::pem_slice_iter(pem).next().is_none();
    if certificates.root_cert.as_ref().is_some_and(is_none) {
        return Err(ConfigError::url(
            shown,
            "`ca` names a file that holds no certificate",
        ));
    }
    let client = Client::build_with_tls(info, certificates.clone());
    let client = client.map_err(|error| ConfigError::url(shown, &error.to_string()))?;
    Ok((client.get_connection_info().clone(), Some(certificates)))
}

/// The file that the URL names so.
fn read(url: &Url, name: &str, shown: &str) -> Result<Option<Vec<u8>>, ConfigError> {
    let Some((_, path)) = url.query_pairs().find(|(known, _)| known == name) else {
        return Ok(None);
    };
    let file = std::fs::read(&*path);
    let file = file.map_err(|error| {
        ConfigError::url(
            shown,
            &format!("`{name}` cannot be read from {path}: {error}"),
        )
    })?;
    Ok(Some(file))
}

/// Rustls wants one provider for the process, and panics without: the application's if it has one.
fn provide_cryptography() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if CryptoProvider::get_default().is_none() {
            // Somebody else may have been faster, which is as well.
            let _ = ring::default_provider().install_default();
        }
    });
}
