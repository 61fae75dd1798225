//! The command line.

use std::time::Duration;

use lexopt::{Arg, Parser, ValueExt};

use crate::support::redis_server::RedisServer;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    /// The memory of a key.
    Held,
    /// Commands, CPU and bytes of a decision.
    Cost,
    /// CPU and latency along one setting at a time.
    Growth,
}

impl std::str::FromStr for Part {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "memory" => Ok(Self::Held),
            "cost" => Ok(Self::Cost),
            "growth" => Ok(Self::Growth),
            _ => Err(format!("{name} is not one of memory, cost, growth")),
        }
    }
}

pub(crate) struct Args {
    pub(crate) parts: Vec<Part>,
    pub(crate) rounds: usize,
    /// How long a contestant runs in a round.
    pub(crate) span: Duration,
}

impl Args {
    /// `[memory] [cost] [growth] [--rounds N] [--millis N]`; all parts unless some are named.
    pub(crate) fn parse() -> Result<Self, lexopt::Error> {
        let mut args = Self {
            parts: Vec::new(),
            rounds: 5,
            span: Duration::from_millis(100),
        };
        let mut parser = Parser::from_env();
        while let Some(arg) = parser.next()? {
            match arg {
                Arg::Long("rounds") => args.rounds = parser.value()?.parse::<usize>()?.max(1),
                Arg::Long("millis") => {
                    args.span = Duration::from_millis(parser.value()?.parse()?);
                }
                // Cargo says so to every bench.
                Arg::Long("bench") => {}
                Arg::Value(part) => args.parts.push(part.parse()?),
                other => return Err(other.unexpected()),
            }
        }
        if args.parts.is_empty() {
            args.parts = vec![Part::Held, Part::Cost, Part::Growth];
        }
        Ok(args)
    }

    /// The head of what is printed.
    pub(crate) fn told(&self, server: &RedisServer) -> String {
        let info = redis::cmd("INFO")
            .arg("server")
            .query(&mut server.connect());
        let info: redis::InfoDict = info.expect("INFO answers");
        let of = |field| info.get::<String>(field).unwrap_or_default();
        format!(
            "Redis {} on {}, {} cores; medians of {} rounds of {:?} each.",
            of("redis_version"),
            of("os"),
            std::thread::available_parallelism().map_or(0, usize::from),
            self.rounds,
            self.span,
        )
    }
}
