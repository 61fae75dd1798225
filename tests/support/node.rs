//! One of several servers of a test: it can be stopped, killed and restarted on its port.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::process::Process;
use super::redis_server::free_port;

/// How long a test waits for servers that start, agree or fail over.
const PATIENCE: Duration = Duration::from_secs(20);

/// A redis-server process on a local port, with its own directory.
pub(crate) struct Node {
    process: Process,
    port: u16,
    arguments: Vec<String>,
    directory: tempfile::TempDir,
}

impl Node {
    /// A server on a free port, which answers.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_with_files(arguments, |_, _| {})
    }

    /// The same where files must lie in the directory before: they are written when it and the port
    /// are known.
    pub(crate) fn start_with_files(arguments: &[&str], files: impl Fn(&Path, u16)) -> Self {
        // A free port may be taken by somebody else before the server has it.
        for _ in 0..20 {
            let (port, directory) = (free_port(), tempfile::tempdir().expect("a directory"));
            files(directory.path(), port);
            let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
            let process = spawn(port, &arguments, directory.path());
            let mut node = Self {
                process,
                port,
                arguments,
                directory,
            };
            if node.is_ready() {
                return node;
            }
        }
        panic!("redis-server cannot be started with {arguments:?}; is it installed?");
    }

    /// Starts a server that was killed on another port, with what lies in its directory.
    pub(crate) fn restart_elsewhere(&mut self) {
        self.port = free_port();
        self.restart();
    }

    fn is_ready(&mut self) -> bool {
        let patience = Instant::now() + PATIENCE;
        while Instant::now() < patience && self.process.is_running() {
            // Another server may answer on this port, while this one ends for want of it.
            if let Some(id) = self.process_id_of_port() {
                return id == self.process.id();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        false
    }

    fn process_id_of_port(&self) -> Option<u32> {
        let client = redis::Client::open(self.url()).expect("a URL");
        let mut connection = client.get_connection().ok()?;
        let info = redis::cmd("INFO").arg("server").query(&mut connection);
        let info: redis::InfoDict = match info {
            // It runs and requires a password, so its process id is unknown.
            Err(error) if error.code() == Some("NOAUTH") => return Some(self.process.id()),
            info => info.ok()?,
        };
        info.get("process_id")
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// A blocking connection for the test itself.
    pub(crate) fn connect(&self) -> redis::Connection {
        let client = redis::Client::open(self.url()).expect("a URL");
        client.get_connection().expect("the server is ready")
    }

    /// Runs a command on a new connection and returns the reply.
    pub(crate) fn ask<T: redis::FromRedisValue>(&self, command: &[&str]) -> T {
        let reply = self.try_ask(command);
        reply.unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// The same where the server may hang up, as one does that changes its role.
    pub(crate) fn try_ask<T: redis::FromRedisValue>(
        &self,
        command: &[&str],
    ) -> redis::RedisResult<T> {
        let mut connection = redis::Client::open(self.url())?.get_connection()?;
        redis::cmd(command[0])
            .arg(&command[1..])
            .query(&mut connection)
    }

    /// Hangs the server, which keeps its connections.
    pub(crate) fn stop(&self) {
        self.process.signal("STOP");
    }

    /// Has a server that hangs go on.
    pub(crate) fn resume(&self) {
        self.process.signal("CONT");
    }

    /// Ends the server at once, as a crash does.
    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    /// Starts a server that was killed on the same port, with what lies in its directory.
    pub(crate) fn restart(&mut self) {
        self.process = spawn(self.port, &self.arguments, self.directory.path());
        assert!(self.is_ready(), "port {} is lost", self.port);
    }
}

/// The arguments may begin with a file of settings, as redis-server takes them.
fn spawn(port: u16, arguments: &[String], directory: &Path) -> Process {
    let is_file = |argument: &String| !argument.starts_with("--");
    let (file, arguments) = arguments.split_at(usize::from(arguments.first().is_some_and(is_file)));
    let mut server = Command::new("redis-server");
    server
        .current_dir(directory)
        .args(file)
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args(["--save", ""])
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    Process::start(&mut server)
}

/// Waits until something holds.
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let patience = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < patience, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
