//! The command line.

use std::time::Duration;

use lexopt::{Arg, Parser, ValueExt};

use crate::contestants::{ALL, Contestant};
use crate::workload::{WORKLOADS, Workload};

pub(crate) enum Mode {
    Bench(Args),
    /// In a child: a contestant to be measured.
    Serve(Serve),
}

pub(crate) struct Args {
    pub(crate) workloads: Vec<Workload>,
    pub(crate) contestants: Vec<Contestant>,
    /// The limiter without HTTP, under load.
    pub(crate) alone: bool,
    /// The limiter without HTTP, one check at a time.
    pub(crate) idle: bool,
    pub(crate) rounds: usize,
    /// Given or those of the workload.
    pub(crate) connections: Option<usize>,
    pub(crate) warm_up: Duration,
    pub(crate) span: Duration,
}

#[derive(Default)]
pub(crate) struct Serve {
    pub(crate) name: String,
    pub(crate) workload: String,
    pub(crate) redis: String,
}

impl Args {
    /// `[PART…] [--contestants a,b] [--rounds N] [--connections N] [--seconds S] [--warm-up S]`.
    /// All parts unless some are named: the workloads, `alone` and `idle`.
    pub(crate) fn parse() -> Result<Mode, lexopt::Error> {
        let mut args = Self {
            workloads: Vec::new(),
            contestants: ALL.to_vec(),
            alone: false,
            idle: false,
            rounds: 5,
            connections: None,
            warm_up: Duration::from_millis(500),
            span: Duration::from_millis(1_500),
        };
        let mut parser = Parser::from_env();
        while let Some(arg) = parser.next()? {
            match arg {
                Arg::Long("serve") => return serve(&mut parser).map(Mode::Serve),
                Arg::Long("contestants") => args.choose(&parser.value()?.string()?)?,
                Arg::Long("rounds") => args.rounds = parser.value()?.parse::<usize>()?.max(1),
                Arg::Long("connections") => args.connections = Some(parser.value()?.parse()?),
                Arg::Long("seconds") => args.span = seconds(&mut parser)?,
                Arg::Long("warm-up") => args.warm_up = seconds(&mut parser)?,
                Arg::Value(part) => args.add(&part.string()?)?,
                other => return Err(other.unexpected()),
            }
        }
        if args.workloads.is_empty() && !args.alone && !args.idle {
            args.workloads = WORKLOADS.to_vec();
            (args.alone, args.idle) = (true, true);
        }
        Ok(Mode::Bench(args))
    }

    fn add(&mut self, part: &str) -> Result<(), lexopt::Error> {
        match part {
            "alone" => self.alone = true,
            "idle" => self.idle = true,
            name => self.workloads.push(Workload::named(name)?),
        }
        Ok(())
    }

    /// The bare server is always there: the others are compared to it.
    fn choose(&mut self, names: &str) -> Result<(), lexopt::Error> {
        let names: Vec<&str> = names.split(',').collect();
        if let Some(unknown) = names
            .iter()
            .find(|name| !ALL.iter().any(|one| one.name == **name))
        {
            let known: Vec<_> = ALL.iter().map(|one| one.name).collect();
            return Err(format!("{unknown} is not one of {}", known.join(", ")).into());
        }
        self.contestants
            .retain(|one| one.name == "bare" || names.contains(&one.name));
        Ok(())
    }
}

fn serve(parser: &mut Parser) -> Result<Serve, lexopt::Error> {
    let mut value = || parser.value()?.string();
    Ok(Serve {
        name: value()?,
        workload: value()?,
        redis: value()?,
    })
}

fn seconds(parser: &mut Parser) -> Result<Duration, lexopt::Error> {
    Ok(Duration::from_secs_f64(parser.value()?.parse()?))
}
