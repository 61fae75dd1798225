//! An nginx that belongs to one test and ends with it.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::process::Process;
use crate::support::redis_server::free_port;

/// How long a test waits for a server to start.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server on a free port of this machine that passes all requests on.
pub(crate) struct Nginx {
    _process: Process,
    address: SocketAddr,
    /// Where the server runs: its settings, log and temporary files.
    _directory: tempfile::TempDir,
}

impl Nginx {
    /// Passes requests on to `upstream`, which sees them come from the address `from`. What it adds
    /// to them, `directives` say.
    pub(crate) fn start(upstream: SocketAddr, from: &str, directives: &str) -> Self {
        Self::start_on("127.0.0.1", upstream, from, directives)
    }

    /// The same where it listens on another name of that address.
    pub(crate) fn start_on(
        listen: &str,
        upstream: SocketAddr,
        from: &str,
        directives: &str,
    ) -> Self {
        Self::start_with(|port| server(&format!("{listen}:{port}"), upstream, from, directives))
    }

    /// Starts with the block `server` that is made for a port.
    pub(crate) fn start_with(server: impl Fn(u16) -> String) -> Self {
        let mut log = String::new();
        // A free port may be taken by somebody else before the server has it: then it ends.
        for _ in 0..10 {
            let (port, directory) = (free_port(), tempfile::tempdir().expect("a directory"));
            let settings = settings(&server(port));
            fs::write(directory.path().join("nginx.conf"), settings).expect("a file");
            let mut process = spawn(directory.path());
            if is_ready(&mut process, directory.path()) {
                return Self {
                    _process: process,
                    address: SocketAddr::from(([127, 0, 0, 1], port)),
                    _directory: directory,
                };
            }
            log = fs::read_to_string(directory.path().join("error.log")).unwrap_or_default();
        }
        panic!("nginx does not start: {log}");
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

fn settings(server: &str) -> String {
    // Without a master there is one process, and no worker that outlives it.
    format!(
        "daemon off;
        master_process off;
        pid nginx.pid;
        error_log error.log;
        events {{}}
        http {{
            access_log off;
            client_body_temp_path body;
            proxy_temp_path proxy;
            fastcgi_temp_path fastcgi;
            uwsgi_temp_path uwsgi;
            scgi_temp_path scgi;
            {server}
        }}"
    )
}

fn server(listen: &str, upstream: SocketAddr, from: &str, directives: &str) -> String {
    // `[::ffff:…]` is IPv4.
    let dual = if listen.starts_with('[') {
        "ipv6only=off"
    } else {
        ""
    };
    format!(
        "# Connections are kept where `directives` ask for HTTP/1.1.
        upstream app {{
            server {upstream};
            keepalive 16;
        }}
        server {{
            listen {listen} {dual};
            location / {{
                proxy_pass http://app;
                proxy_bind {from};
                {directives}
            }}
        }}"
    )
}

fn spawn(directory: &Path) -> Process {
    let mut nginx = Command::new("nginx");
    nginx
        .arg("-p")
        .arg(directory)
        .arg("-c")
        .arg(directory.join("nginx.conf"))
        // Else it looks for the log of the system before it reads its settings.
        .arg("-e")
        .arg(directory.join("error.log"))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    Process::start(&mut nginx)
}

/// The server writes its id down when it listens.
fn is_ready(process: &mut Process, directory: &Path) -> bool {
    let patience = Instant::now() + PATIENCE;
    while Instant::now() < patience && process.is_running() {
        if directory.join("nginx.pid").exists() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    false
}
