//! TLS settings: trusted roots, client certificate, cryptography provider.

use std::path::PathBuf;
use std::sync::{Arc, Once};

use rustls::crypto::{CryptoProvider, ring};
use url::Url;

use super::tls_files::{ClientPaths, TlsFiles};
use crate::error::ConfigError;

/// Opens the TLS files that a URL names, if it names any. Reads them once, to report a mistake at the start.
///
/// The file `ca` replaces the roots of Mozilla; `cert` and `key` are the client's certificate and
/// its key.
pub(crate) fn open_files(
    url: &Url,
    scheme: &'static str,
) -> Result<Option<Arc<TlsFiles>>, ConfigError> {
    if url.fragment().is_some() {
        let rule = "a fragment is not supported: certificates are always checked; to trust another root, set ?ca=/path/to/ca.pem";
        return Err(ConfigError::url(scheme, rule));
    }
    install_crypto_provider();
    let client = match (path_in(url, "cert"), path_in(url, "key")) {
        (Some(cert), Some(key)) => Some(ClientPaths { cert, key }),
        (None, None) => None,
        _ => {
            return Err(ConfigError::url(
                scheme,
                "`cert` and `key` need each other: set both or none",
            ));
        }
    };
    let ca = path_in(url, "ca");
    if ca.is_none() && client.is_none() {
        return Ok(None);
    }
    let files = TlsFiles::open(ca, client).map_err(|error| ConfigError::url(scheme, &error))?;
    Ok(Some(Arc::new(files)))
}

fn path_in(url: &Url, name: &str) -> Option<PathBuf> {
    let (_, path) = url.query_pairs().find(|(parameter, _)| parameter == name)?;
    Some(PathBuf::from(&*path))
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
