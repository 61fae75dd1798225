//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use crate::support::args::{self, Usage};
use crate::support::increx::{Increx, SKIPPED};
use crate::support::redis_server::RedisServer;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    /// The memory of a key.
    Held,
    /// A decision while a unit expires for each unit that is charged.
    Steady,
    /// A decision while no unit expires.
    Filling,
    /// Several quotas on one key, and costs above 1.
    Charges,
    /// Bytes for the append-only file and for a replica.
    Appended,
    /// CPU and latency along one setting at a time.
    Growth,
}

impl Part {
    const ALL: [Self; 6] = [
        Self::Held,
        Self::Steady,
        Self::Filling,
        Self::Charges,
        Self::Appended,
        Self::Growth,
    ];

    /// `cost` is all that are neither `memory` nor `growth`.
    const NAMES: [&str; 7] = [
        "memory", "cost", "steady", "filling", "charges", "appended", "growth",
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Held => "memory",
            Self::Steady => "steady",
            Self::Filling => "filling",
            Self::Charges => "charges",
            Self::Appended => "appended",
            Self::Growth => "growth",
        }
    }

    fn is_cost(self) -> bool {
        !matches!(self, Self::Held | Self::Growth)
    }
}

pub(crate) struct Args {
    pub(crate) parts: Vec<Part>,
    pub(crate) rounds: usize,
    /// How long a contestant is measured in a round.
    pub(crate) span: Duration,
    /// The file of the Redis module redis-cell.
    pub(crate) module: Option<PathBuf>,
}

impl Args {
    pub(crate) fn parse() -> Result<Self, lexopt::Error> {
        let args = args::Args::parse(Usage {
            parts: &Part::NAMES,
            option: Some("module"),
            rounds: 5,
            span: Duration::from_millis(100),
        })?;
        let parts = Part::ALL
            .into_iter()
            .filter(|part| args.has(part.name()) || part.is_cost() && args.has("cost"));
        // The server has another working directory.
        let module = args.option.as_ref().map(std::path::absolute).transpose();
        Ok(Self {
            parts: parts.collect(),
            rounds: args.rounds,
            span: args.span,
            module: module.map_err(|error| error.to_string())?,
        })
    }

    /// Starts a server with the module, if there is one.
    pub(crate) fn start_server(&self, arguments: &[&str]) -> RedisServer {
        RedisServer::start_as(|command| {
            command.args(arguments);
            if let Some(module) = &self.module {
                command.arg("--loadmodule").arg(module);
            }
        })
    }

    /// The head of the output.
    pub(crate) async fn head(&self, server: &RedisServer) -> String {
        let info = redis::cmd("INFO")
            .arg("server")
            .query(&mut server.connect());
        let info: redis::InfoDict = info.expect("INFO answers");
        let of = |field| info.get::<String>(field).unwrap_or_default();
        let module = match self.module {
            Some(_) => "",
            None => "\nThe native module redis-cell was skipped: give its file with `--module`.",
        };
        let increx = match Increx::connect(&server.url(), 1, Duration::from_secs(1)).await {
            Some(_) => String::new(),
            None => format!("\n{SKIPPED}"),
        };
        format!(
            "Redis {} on {}, {} cores; medians of {} rounds of {:?} each.{module}{increx}",
            of("redis_version"),
            of("os"),
            std::thread::available_parallelism().map_or(0, usize::from),
            self.rounds,
            self.span,
        )
    }
}
