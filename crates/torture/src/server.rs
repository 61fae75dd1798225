//! A Redis that belongs to one attack.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::contestant::Failure;

/// Shifts the wall clock of a process into which it is preloaded. The fault tests of the repository use it, too.
const SKEW: &str = include_str!("../../../tests/chaos/skew.c");

/// A server on a free port of this machine. It is killed where it is dropped.
pub(crate) struct Server {
    process: Child,
    port: u16,
    arguments: Vec<String>,
    clock: Clock,
}

impl Server {
    pub(crate) fn start(arguments: &[String]) -> Result<Self, Failure> {
        let clock = Clock::new(0)?;
        // Somebody else may take a free port first: then another one is tried.
        let mut failure = Failure::new("redis-server was not tried");
        for _ in 0..10 {
            let port = free_port();
            let process = spawn(port, arguments, &clock)?;
            let mut server = Self {
                process,
                port,
                arguments: arguments.to_vec(),
                clock: clock.clone(),
            };
            match server.wait() {
                Ok(()) => return Ok(server),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// Waits until this server, and no other one, answers on the port.
    fn wait(&mut self) -> Result<(), Failure> {
        let patience = Instant::now() + Duration::from_secs(10);
        let own = format!("process_id:{}\r", self.process.id());
        while Instant::now() < patience && self.process.try_wait()?.is_none() {
            if let Ok(info) = self.command::<String>(&["INFO", "server"]) {
                return if info.contains(&own) {
                    Ok(())
                } else {
                    Err(Failure::new("another server is on the port"))
                };
            }
            thread::sleep(Duration::from_millis(5));
        }
        Err(Failure::new(
            "redis-server does not start; is it installed?",
        ))
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Runs a command.
    pub(crate) fn command<T: redis::FromRedisValue>(&self, words: &[&str]) -> Result<T, Failure> {
        let client = redis::Client::open(self.url())?;
        let mut connection = client.get_connection_with_timeout(Duration::from_secs(2))?;
        let (name, arguments) = words.split_first().unwrap_or((&"PING", &[]));
        Ok(redis::cmd(name).arg(arguments).query(&mut connection)?)
    }

    /// Sends a signal, as `kill -s` names it.
    pub(crate) fn signal(&self, signal: &str) -> Result<(), Failure> {
        let id = self.process.id().to_string();
        let status = Command::new("kill").args(["-s", signal, &id]).status()?;
        if status.success() {
            Ok(())
        } else {
            Err(Failure::new(format!("kill: {status}")))
        }
    }

    pub(crate) fn kill(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Starts it again, without data, after [`kill`](Self::kill).
    pub(crate) fn restart(&mut self) -> Result<(), Failure> {
        self.process = spawn(self.port, &self.arguments, &self.clock)?;
        self.wait()
    }

    /// Sets the clock of the server, as a difference to the true time in microseconds. Fails if the server does not follow:
    /// it may be linked statically, or the system may preload nothing.
    pub(crate) fn set_clock(&self, micros: i64) -> Result<(), Failure> {
        let before = self.seconds()?;
        self.clock.set(micros)?;
        let moved = self.seconds()? - before;
        if (moved - micros / 1_000_000).abs() > 60 {
            return Err(Failure::new(format!(
                "not attacked: the clock of redis-server moved by {moved} s, not by {} s",
                micros / 1_000_000
            )));
        }
        Ok(())
    }

    /// Returns the time of the server.
    fn seconds(&self) -> Result<i64, Failure> {
        Ok(self.command::<(i64, i64)>(&["TIME"])?.0)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

fn spawn(port: u16, arguments: &[String], clock: &Clock) -> Result<Child, Failure> {
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
    command
        .args(["--save", "", "--appendonly", "no"])
        .args(arguments);
    command.current_dir(clock.directory());
    clock.preload(&mut command);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let child = command.spawn();
    child.map_err(|error| Failure::new(format!("redis-server cannot be started: {error}")))
}

/// Returns a port that is free now, and is none of those that the system gives to clients: a client of a dead server could
/// get its port, and then talk to itself.
fn free_port() -> u16 {
    const FIRST: u16 = 22_800;
    const PORTS: u16 = 8_000;
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    let first = std::process::id().wrapping_mul(191);
    let first = u16::try_from(first % u32::from(PORTS)).unwrap_or_default();
    loop {
        let taken = TAKEN.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + first.wrapping_add(taken) % PORTS;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// The wall clock of a process.
#[derive(Clone, Debug)]
pub(crate) struct Clock(std::sync::Arc<tempfile::TempDir>);

impl Clock {
    pub(crate) fn new(micros: i64) -> Result<Self, Failure> {
        let directory = tempfile::Builder::new().prefix("torture-").tempdir()?;
        let clock = Self(std::sync::Arc::new(directory));
        clock.set(micros)?;
        fs::write(clock.path("skew.c"), SKEW)?;
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-shared", "-fPIC", "-o"]);
        let status = compiler
            .args([clock.path("skew.so"), clock.path("skew.c")])
            .status();
        match status {
            Ok(status) if status.success() => Ok(clock),
            other => Err(Failure::new(format!("cc cannot compile skew.c: {other:?}"))),
        }
    }

    fn directory(&self) -> &Path {
        self.0.path()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory().join(name)
    }

    fn set(&self, micros: i64) -> Result<(), Failure> {
        use std::os::unix::fs::FileExt;
        // Mapped by the process: it is written in place.
        let path = self.path("offset");
        let file = fs::File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)?;
        Ok(file.write_all_at(&micros.to_ne_bytes(), 0)?)
    }

    /// Fails if a process has not loaded this clock.
    pub(crate) fn is_loaded_by(&self, process: u32) -> Result<(), Failure> {
        let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
        let library = self.path("skew.so");
        if maps.contains(&*library.to_string_lossy()) {
            return Ok(());
        }
        Err(Failure::new(
            "not attacked: the program does not load another clock; is it linked statically?",
        ))
    }

    /// Makes a process that is not started yet use this clock.
    pub(crate) fn preload(&self, command: &mut Command) {
        command.env("LD_PRELOAD", self.path("skew.so"));
        command.env("TOLLGATE_CHAOS_SKEW", self.path("offset"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_whose_clock_does_not_move_is_noticed() {
        const HOUR: i64 = 3_600_000_000;
        let mut server = Server::start(&[])
            .map_err(|error| error.to_string())
            .unwrap();
        assert!(server.set_clock(-HOUR).is_ok());
        // It goes on with the clock that it has loaded.
        server.clock = Clock::new(0).map_err(|error| error.to_string()).unwrap();
        assert!(server.set_clock(-HOUR).is_err());
    }

    #[test]
    fn a_process_without_the_clock_is_noticed() {
        let clock = Clock::new(0).map_err(|error| error.to_string()).unwrap();
        assert!(clock.is_loaded_by(std::process::id()).is_err());
        let mut echo = Command::new("cat");
        clock.preload(&mut echo);
        let mut echo = echo
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // It has loaded everything when it answers.
        use std::io::{Read, Write};
        echo.stdin.as_mut().unwrap().write_all(b"a").unwrap();
        echo.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let loaded = clock.is_loaded_by(echo.id());
        echo.kill().unwrap();
        echo.wait().unwrap();
        assert!(loaded.is_ok());
    }
}
