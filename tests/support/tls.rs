//! A TLS server, with certificates that the test generates.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

use super::node::{Node, wait_until};
use super::redis_server::free_port;

/// A server, and where the certificates lie that its clients need.
pub(crate) struct TlsServer {
    pub(crate) node: Node,
    port: u16,
    directory: tempfile::TempDir,
}

impl TlsServer {
    /// A server that requires client certificates, or does not.
    pub(crate) fn start(asks_clients: bool) -> Self {
        Self::start_with(asks_clients, &[])
    }

    /// A server whose certificate is vouched for by itself, and is one of an authority or is not.
    pub(crate) fn start_self_signed(is_authority: bool) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        write_self_signed(directory.path(), is_authority);
        Self::start_in(directory, false, &[])
    }

    /// A cluster of one server, which requires client certificates and has all slots.
    pub(crate) fn start_cluster() -> Self {
        let of_cluster = ["--cluster-enabled", "yes", "--tls-cluster", "yes"];
        let server = Self::start_with(true, &of_cluster);
        let slots: Vec<String> = (0..16_384).map(|slot: u16| slot.to_string()).collect();
        let slots = slots.iter().map(String::as_str);
        let command: Vec<&str> = ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots).collect();
        let () = server.node.ask(&command);
        wait_until("the cluster is up", || {
            let info: String = server.node.ask(&["CLUSTER", "INFO"]);
            info.contains("cluster_state:ok")
        });
        server
    }

    fn start_with(asks_clients: bool, further: &[&str]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        write_certificates(directory.path());
        Self::start_in(directory, asks_clients, further)
    }

    fn start_in(directory: tempfile::TempDir, asks_clients: bool, further: &[&str]) -> Self {
        let path = |name: &str| directory.path().join(name).display().to_string();
        let port = free_port();
        let of_tls = [
            "--tls-port",
            &port.to_string(),
            "--tls-cert-file",
            &path("server.pem"),
            "--tls-key-file",
            &path("server.key"),
            "--tls-ca-cert-file",
            &path("ca.pem"),
            "--tls-auth-clients",
            if asks_clients { "yes" } else { "no" },
        ];
        Self {
            node: Node::start(&[&of_tls[..], further].concat()),
            port,
            directory,
        }
    }

    /// Replaces the authority and all that it vouches for, and hangs up on all clients.
    pub(crate) fn renew(&self) {
        write_certificates(self.directory.path());
        // Reads the other files, too.
        let path = self.path("server.pem").display().to_string();
        let () = self.node.ask(&["CONFIG", "SET", "tls-cert-file", &path]);
        self.hang_up();
    }

    /// Cuts the connections of all clients.
    pub(crate) fn hang_up(&self) {
        let _: u64 = self.node.ask(&["CLIENT", "KILL", "TYPE", "normal"]);
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The query that names the authority, and the certificate and key of the client.
    pub(crate) fn files(&self) -> String {
        let [ca, cert, key] = ["ca.pem", "client.pem", "client.key"]
            .map(|name| self.path(name).display().to_string());
        format!("ca={ca}&cert={cert}&key={key}")
    }

    /// The arguments with which another server speaks TLS on this port, with the same certificates.
    pub(crate) fn arguments_for(&self, port: u16) -> Vec<String> {
        let path = |name: &str| self.path(name).display().to_string();
        let arguments = [
            ("--tls-port", port.to_string()),
            ("--tls-cert-file", path("server.pem")),
            ("--tls-key-file", path("server.key")),
            ("--tls-ca-cert-file", path("ca.pem")),
            ("--tls-auth-clients", "no".to_owned()),
        ];
        let arguments = arguments.map(|(name, value)| [name.to_owned(), value]);
        arguments.concat()
    }

    /// `rediss://127.0.0.1:…`
    pub(crate) fn url(&self) -> String {
        format!("rediss://127.0.0.1:{}", self.port)
    }
}

/// An authority, and a server and a client that it vouches for.
fn write_certificates(directory: &Path) {
    let mut params = CertificateParams::new([]).expect("no names");
    // Of another name than those that it vouches for: else they seem to vouch for themselves.
    params
        .distinguished_name
        .push(DnType::CommonName, "authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = || KeyPair::generate().expect("a key");
    let authority = CertifiedIssuer::self_signed(params, key()).expect("an authority");
    let write = |name: &str, text: String| fs::write(directory.join(name), text).expect("a file");
    write("ca.pem", authority.pem());
    for (name, host) in [("server", "127.0.0.1"), ("client", "limiter")] {
        let params = CertificateParams::new([host.to_owned()]).expect("a name");
        let key = key();
        let certificate = params.signed_by(&key, &authority).expect("a certificate");
        write(&format!("{name}.pem"), certificate.pem());
        write(&format!("{name}.key"), key.serialize_pem());
    }
}

/// A server that vouches for itself: its certificate is the authority, too.
fn write_self_signed(directory: &Path, is_authority: bool) {
    let mut params = CertificateParams::new(["127.0.0.1".to_owned()]).expect("a name");
    params.is_ca = match is_authority {
        true => IsCa::Ca(BasicConstraints::Unconstrained),
        false => IsCa::ExplicitNoCa,
    };
    let key = KeyPair::generate().expect("a key");
    let certificate = params.self_signed(&key).expect("a certificate").pem();
    let write = |name: &str, text: &str| fs::write(directory.join(name), text).expect("a file");
    write("ca.pem", &certificate);
    write("server.pem", &certificate);
    write("server.key", &key.serialize_pem());
}
