//! The resources that a Redis server has used, from its INFO.

use redis::Connection;

use super::costs::{calls_in, forget_calls};
use super::redis_server::run;

/// CPU in microseconds, commands and bytes: of a span, or of one decision.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spent {
    pub(crate) cpu: f64,
    /// EVAL and EVALSHA.
    pub(crate) scripts: f64,
    /// All other commands, those that scripts run included.
    pub(crate) commands: f64,
    /// Bytes to the server, and from it.
    pub(crate) received: f64,
    pub(crate) sent: f64,
    /// Bytes added to the append-only file, if the server writes one.
    pub(crate) appended: f64,
    /// Bytes added to the replication stream, if the server has a replica.
    pub(crate) replicated: f64,
}

impl Spent {
    pub(crate) fn per(self, decisions: u64) -> Self {
        let each = |total: f64| total / decisions.max(1) as f64;
        Self {
            cpu: each(self.cpu),
            scripts: each(self.scripts),
            commands: each(self.commands),
            received: each(self.received),
            sent: each(self.sent),
            appended: each(self.appended),
            replicated: each(self.replicated),
        }
    }
}

/// Measures one span after the other. Asking costs the server about 100 µs, which are in the span.
pub(crate) struct Meter {
    connection: Connection,
    cpu_before: f64,
    appended_before: f64,
    replicated_before: f64,
}

impl Meter {
    pub(crate) fn new(connection: Connection) -> Self {
        Self {
            connection,
            cpu_before: 0.0,
            appended_before: 0.0,
            replicated_before: 0.0,
        }
    }

    /// Runs another command on the same connection.
    pub(crate) fn run(&mut self, command: &[&str]) {
        run(&mut self.connection, command);
    }

    pub(crate) fn begin(&mut self) {
        let info = self.info("all");
        self.appended_before = appended(&info);
        self.replicated_before = number(&info, "master_repl_offset");
        forget_calls(&mut self.connection);
        self.cpu_before = cpu(&self.info("cpu"));
    }

    /// Since it began.
    pub(crate) fn spent(&mut self) -> Spent {
        let info = self.info("all");
        let of = |scripts: bool| {
            let calls = calls_in(&info).into_iter();
            let calls = calls.filter(|(name, _)| name.starts_with("eval") == scripts);
            calls.map(|(_, calls)| calls as f64).sum()
        };
        Spent {
            cpu: cpu(&info) - self.cpu_before,
            scripts: of(true),
            commands: of(false),
            received: number(&info, "total_net_input_bytes"),
            sent: number(&info, "total_net_output_bytes"),
            appended: appended(&info) - self.appended_before,
            replicated: number(&info, "master_repl_offset") - self.replicated_before,
        }
    }

    fn info(&mut self, section: &str) -> String {
        let info = redis::cmd("INFO").arg(section).query(&mut self.connection);
        info.expect("INFO answers")
    }
}

/// All threads of the server, in microseconds.
fn cpu(info: &str) -> f64 {
    (number(info, "used_cpu_user") + number(info, "used_cpu_sys")) * 1_000_000.0
}

/// The size of the append-only file; 0 without one.
fn appended(info: &str) -> f64 {
    optional_number(info, "aof_current_size").unwrap_or_default()
}

fn number(info: &str, field: &str) -> f64 {
    optional_number(info, field).unwrap_or_else(|| panic!("INFO lacks {field}"))
}

fn optional_number(info: &str, field: &str) -> Option<f64> {
    let mut values = info.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = values.find(|(name, _)| *name == field)?;
    Some(value.trim().parse().expect("a number"))
}
