//! A world in a process of its own, so that all that is static in the code begins anew.

use std::process::{Command, Stdio};

use crate::world::{Plan, Report};

/// Runs a world in a process, and returns its report.
pub(super) fn run(plan: &Plan) -> Report {
    let program = std::env::current_exe().expect("this program has a path");
    let mut command = Command::new(program);
    command.args(plan.arguments()).arg("--report");
    // The thread of a world that panics says so.
    command.stderr(Stdio::piped());
    let output = command.output().expect("the process starts");
    let mut report = Report::from_lines(&String::from_utf8_lossy(&output.stdout));
    if report.hash == 0 {
        let said = String::from_utf8_lossy(&output.stderr);
        report
            .violations
            .extend(said.lines().take(3).map(str::to_owned));
    }
    report
}

/// Runs a world on a thread of this process, which has run no other one: its hash maps have no keys yet.
pub(super) fn run_here(plan: &Plan) -> Option<Report> {
    let plan = plan.clone();
    let thread = std::thread::spawn(move || crate::world::run(&plan));
    thread.join().ok()
}
