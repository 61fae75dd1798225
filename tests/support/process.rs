//! Child processes that end with the test, and tests that run in several processes.
#![allow(dead_code, reason = "each test uses a part")]

use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

/// The variable with the argument of a test that runs as a child.
const ARGUMENT: &str = "TOLLGATE_TEST_ARGUMENT";

/// The start of the line in which a child reports to its parent.
const REPORT: &str = "reported: ";

/// Returns the argument of this process, if it is the child of a test.
pub(crate) fn argument() -> Option<String> {
    std::env::var(ARGUMENT).ok()
}

/// Prints a line for the parent. The test harness may have begun a line.
pub(crate) fn print(line: impl Display) {
    println!("\n{line}");
}

/// Prints the result of this process for the parent.
pub(crate) fn report(result: impl Display) {
    print(format_args!("{REPORT}{result}"));
}

/// Returns the command of another process of this program, which runs one test with an argument.
pub(crate) fn child(test: &str, argument: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command
        .args([test, "--exact", "--nocapture"])
        .env(ARGUMENT, argument);
    command
}

/// A process that is killed and waited for where this is dropped.
pub(crate) struct Process {
    child: Child,
    /// The output, if it is read.
    output: Option<BufReader<ChildStdout>>,
}

impl Process {
    pub(crate) fn start(command: &mut Command) -> Self {
        let started = command.spawn();
        let mut child =
            started.unwrap_or_else(|error| panic!("{command:?} cannot be started: {error}"));
        let output = child.stdout.take().map(BufReader::new);
        Self { child, output }
    }

    /// Starts a process whose output is read, and which reads lines.
    pub(crate) fn with_pipes(command: &mut Command) -> Self {
        Self::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()))
    }

    /// Starts a process that runs a test with an argument.
    pub(crate) fn of(test: &str, argument: &str) -> Self {
        Self::with_pipes(&mut child(test, argument))
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the lines of the output.
    pub(crate) fn take_lines(&mut self) -> impl Iterator<Item = String> + use<> {
        let output = self.output.take().expect("the output is read");
        output.lines().map_while(Result::ok)
    }

    /// Returns the next line of the output, with its end. Empty after the last one.
    pub(crate) fn line(&mut self) -> String {
        let output = self.output.as_mut().expect("the output is read");
        let mut line = String::new();
        output.read_line(&mut line).expect("text");
        line
    }

    /// Waits for a line with this start, and returns the rest of the line.
    pub(crate) fn rest_of_line(&mut self, start: &str) -> String {
        loop {
            let line = self.line();
            if let Some(rest) = line.strip_prefix(start) {
                return rest.trim_end().to_owned();
            }
            assert!(
                !line.is_empty(),
                "process {} printed no {start:?}",
                self.id()
            );
        }
    }

    /// Sends a line to the standard input.
    pub(crate) fn send_line(&mut self, line: impl Display) {
        let input = self.child.stdin.as_mut().expect("the input is a pipe");
        writeln!(input, "{line}").expect("the process reads");
    }

    /// Waits until it has ended well, and returns its report.
    pub(crate) fn report(mut self) -> String {
        let lines: Vec<_> = self.take_lines().collect();
        let report = lines.iter().find_map(|line| line.strip_prefix(REPORT));
        let report = report.unwrap_or_else(|| panic!("no report in {lines:#?}"));
        self.wait();
        report.to_owned()
    }

    /// Whether it still runs.
    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until it has ended well.
    pub(crate) fn wait(&mut self) {
        let status = self.child.wait().expect("a process");
        assert!(status.success(), "process {}: {status}", self.id());
    }

    /// Ends it at once, as a crash does.
    pub(crate) fn kill(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
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
