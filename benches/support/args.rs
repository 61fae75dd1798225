//! The arguments of a bench: `[PART]… [--rounds N] [--millis N]`, and at most one option of its own.

use std::time::Duration;

use lexopt::{Arg, Parser, ValueExt};

/// The arguments that a bench takes, and what it measures without them.
#[derive(Clone, Copy)]
pub(crate) struct Usage {
    /// The names of its parts. All are measured unless some are named.
    pub(crate) parts: &'static [&'static str],
    /// The option that only this bench has.
    pub(crate) option: Option<&'static str>,
    pub(crate) rounds: usize,
    pub(crate) span: Duration,
}

pub(crate) struct Args {
    parts: Vec<String>,
    /// How often each row is measured.
    pub(crate) rounds: usize,
    /// How long a row is measured in a round, after a warm-up.
    pub(crate) span: Duration,
    /// The value of the option that only this bench has.
    pub(crate) option: Option<String>,
}

impl Args {
    pub(crate) fn parse(usage: Usage) -> Result<Self, lexopt::Error> {
        let mut args = Self {
            parts: Vec::new(),
            rounds: usage.rounds,
            span: usage.span,
            option: None,
        };
        let mut parser = Parser::from_env();
        while let Some(arg) = parser.next()? {
            match arg {
                Arg::Long("rounds") => args.rounds = parser.value()?.parse::<usize>()?.max(1),
                Arg::Long("millis") => args.span = Duration::from_millis(parser.value()?.parse()?),
                // Cargo adds this for every bench.
                Arg::Long("bench") => {}
                Arg::Long(option) if Some(option) == usage.option => {
                    args.option = Some(parser.value()?.string()?);
                }
                Arg::Value(part) => args.add(part.string()?, usage.parts)?,
                other => return Err(other.unexpected()),
            }
        }
        Ok(args)
    }

    fn add(&mut self, part: String, known: &[&str]) -> Result<(), lexopt::Error> {
        if !known.contains(&part.as_str()) {
            return Err(format!("{part} is not one of {known:?}").into());
        }
        self.parts.push(part);
        Ok(())
    }

    pub(crate) fn has(&self, part: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|named| named == part)
    }
}
