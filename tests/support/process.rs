//! A child process that ends with the test.

use std::process::{Child, Command};

/// A process that is killed and waited for where this is dropped.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn start(command: &mut Command) -> Self {
        let started = command.spawn();
        Self(started.unwrap_or_else(|error| panic!("{command:?} cannot be started: {error}")))
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Whether it still runs.
    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.0.try_wait(), Ok(None))
    }

    /// Waits until it has ended well.
    pub(crate) fn wait(&mut self) {
        let status = self.0.wait().expect("a process");
        assert!(status.success(), "process {}: {status}", self.id());
    }

    /// Ends it at once, as a crash does.
    pub(crate) fn kill(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// Sends it a signal, as `kill -s` names it.
    pub(crate) fn signal(&self, signal: &str) {
        let sent = Command::new("kill")
            .args(["-s", signal, &self.id().to_string()])
            .status();
        assert!(sent.expect("kill runs").success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
