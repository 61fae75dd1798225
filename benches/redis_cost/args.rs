//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use lexopt::{Arg, Parser, ValueExt};

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
    const COST: [Self; 4] = [Self::Steady, Self::Filling, Self::Charges, Self::Appended];

    fn named(name: &str) -> Result<Vec<Self>, String> {
        Ok(match name {
            "memory" => vec![Self::Held],
            "cost" => Self::COST.into(),
            "steady" => vec![Self::Steady],
            "filling" => vec![Self::Filling],
            "charges" => vec![Self::Charges],
            "appended" => vec![Self::Appended],
            "growth" => vec![Self::Growth],
            _ => {
                let names = "memory, cost (or one of steady, filling, charges, appended), growth";
                return Err(format!("{name} is not one of {names}"));
            }
        })
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
    /// `[PART]… [--rounds N] [--millis N] [--module PATH]`; all parts unless some are named.
    pub(crate) fn parse() -> Result<Self, lexopt::Error> {
        let mut args = Self {
            parts: Vec::new(),
            rounds: 5,
            span: Duration::from_millis(100),
            module: None,
        };
        let mut parser = Parser::from_env();
        while let Some(arg) = parser.next()? {
            match arg {
                Arg::Long("rounds") => args.rounds = parser.value()?.parse::<usize>()?.max(1),
                Arg::Long("millis") => {
                    args.span = Duration::from_millis(parser.value()?.parse()?);
                }
                Arg::Long("module") => {
                    // The server has another working directory.
                    let path = std::path::absolute(parser.value()?);
                    args.module = Some(path.map_err(|error| error.to_string())?);
                }
                // Cargo adds this for every bench.
                Arg::Long("bench") => {}
                Arg::Value(part) => args.parts.extend(Part::named(&part.string()?)?),
                other => return Err(other.unexpected()),
            }
        }
        if args.parts.is_empty() {
            args.parts.push(Part::Held);
            args.parts.extend(Part::COST);
            args.parts.push(Part::Growth);
        }
        Ok(args)
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
