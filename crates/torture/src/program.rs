//! The program: its arguments, its runs and its history files.

use std::fmt::Write;
use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Instant;

use lexopt::{Arg, Parser, ValueExt};
use tokio::runtime::{Builder, Handle};

use crate::arena::Arena;
use crate::attacks::{ALL, Attack};
use crate::case::Case;
use crate::contestant::{Description, Failure};
use crate::entry::Entry;
use crate::history::{Event, Recorder};
use crate::oracle::Finding;
use crate::results::{self, Grade, Row};
use crate::serve::serve;

const USAGE: &str = "\
usage: run [--short] [--contestant NAME]… [--attack NAME]… [--seed N] [--program COMMAND]… [--results FILE]
       replay HISTORY
       list
       serve NAME

run      attacks the contestants and prints what was held and broken. The exit code is 1 if a promise was broken, or
         if an attack could not be made
  --short      takes about a second for each attack
  --program    adds a program that speaks the line protocol, such as \"python3 limits.py\"
  --results    writes the tables to a file, and compares them with those that it has
replay   judges a recorded history again, then attacks with its seed, up to ten times, until it is found again
list     lists contestants and attacks
serve    speaks the line protocol for a contestant";

/// Runs the program with these contestants, and those of `--program`.
///
/// # Examples
///
/// ```no_run
/// use std::process::ExitCode;
///
/// fn main() -> ExitCode {
///     tollgate_torture::main(tollgate_torture::contestants())
/// }
/// ```
#[must_use]
pub fn main(contestants: impl IntoIterator<Item = Entry>) -> ExitCode {
    let outcome = Arguments::read().and_then(|arguments| {
        // The workers serve connections; callers have threads of their own.
        let runtime = Builder::new_multi_thread()
            .worker_threads(4)
            .enable_all()
            .build()?;
        arguments.execute(contestants.into_iter().collect(), runtime.handle())
    });
    outcome.unwrap_or_else(|error| {
        eprintln!("{error}");
        ExitCode::from(2)
    })
}

#[derive(Debug, Default)]
struct Arguments {
    command: String,
    /// The history of `replay`, or the name of `serve`.
    operand: String,
    is_short: bool,
    contestants: Vec<String>,
    attacks: Vec<String>,
    seed: u64,
    programs: Vec<String>,
    results: Option<PathBuf>,
}

impl Arguments {
    fn read() -> Result<Self, Failure> {
        let mut parser = Parser::from_env();
        let mut arguments = Self {
            seed: 1,
            ..Self::default()
        };
        while let Some(argument) = parser.next()? {
            match argument {
                Arg::Long("short") => arguments.is_short = true,
                Arg::Long("contestant") => arguments.contestants.push(parser.value()?.string()?),
                Arg::Long("attack") => arguments.attacks.push(parser.value()?.string()?),
                Arg::Long("seed") => arguments.seed = parser.value()?.parse()?,
                Arg::Long("program") => arguments.programs.push(parser.value()?.string()?),
                Arg::Long("results") => arguments.results = Some(parser.value()?.into()),
                Arg::Value(value) if arguments.command.is_empty() => {
                    arguments.command = value.string()?;
                }
                Arg::Value(value) if arguments.operand.is_empty() => {
                    arguments.operand = value.string()?;
                }
                _ => return Err(Failure::new(USAGE)),
            }
        }
        Ok(arguments)
    }

    fn execute(self, mut entries: Vec<Entry>, runtime: &Handle) -> Result<ExitCode, Failure> {
        if self.command == "serve" {
            serve(find(&entries, &self.operand)?, runtime)?;
            return Ok(ExitCode::SUCCESS);
        }
        for program in &self.programs {
            let words: Vec<_> = program.split_whitespace().collect();
            entries.push(Entry::program(&words)?);
        }
        for Description { name, promises, .. } in entries.iter().map(|each| &each.description) {
            for promise in promises {
                attack(promise).map_err(|error| Failure::new(format!("{name}: {error}")))?;
            }
        }
        match self.command.as_str() {
            "run" => self.run(&entries, runtime),
            "replay" => replay(Path::new(&self.operand), &entries, runtime),
            "list" => {
                list(&entries);
                Ok(ExitCode::SUCCESS)
            }
            _ => Err(Failure::new(USAGE)),
        }
    }

    fn run(&self, entries: &[Entry], runtime: &Handle) -> Result<ExitCode, Failure> {
        let start = Instant::now();
        for name in &self.contestants {
            find(entries, name)?;
        }
        for name in &self.attacks {
            attack(name)?;
        }
        let mut rows = Vec::new();
        let mut versions = Vec::new();
        for entry in entries {
            let Description { name, version, .. } = &entry.description;
            if !is_selected(name, &self.contestants) {
                continue;
            }
            versions.push((name.clone(), version.clone()));
            for attack in ALL
                .iter()
                .filter(|each| is_selected(each.name, &self.attacks))
            {
                let run = Run {
                    entry,
                    attack,
                    seed: self.seed,
                    is_short: self.is_short,
                };
                rows.push(run.row(runtime));
            }
        }
        let bad = rows
            .iter()
            .filter(|row| row.grade() >= Grade::NotRun)
            .count();
        let seconds = start.elapsed().as_secs();
        println!("{} attacks in {seconds} s, {bad} not held", rows.len());
        if let Some(path) = &self.results {
            // The first run has nothing to compare with.
            let former = fs::read_to_string(path).unwrap_or_default();
            let form = if self.is_short { "short" } else { "full" };
            let seed = self.seed;
            let machine = machine();
            let about =
                format!("Written by a {form} run with seed {seed} in {seconds} s, {machine}.");
            fs::write(path, results::page(&rows, &about, &versions, &former))?;
        }
        Ok(ExitCode::from(u8::from(bad > 0)))
    }
}

/// Returns on which machine and date the program runs, in words.
fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, NonZeroUsize::get);
    let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let mut models = processors
        .lines()
        .filter(|line| line.starts_with("model name"));
    let model = models.next().and_then(|line| line.split_once(": "));
    let model = model.map_or("an unknown processor", |(_, model)| model);
    let server = output("redis-server", &["--version"]);
    let mut words = server.split_whitespace();
    let version = words.find_map(|word| word.strip_prefix("v="));
    let version = version.unwrap_or_default();
    let date = output("date", &["-u", "+%F"]);
    format!("on {cores} cores of {model}, Redis {version}, on {date}")
}

/// Returns what a command prints, or nothing.
fn output(command: &str, arguments: &[&str]) -> String {
    let output = Command::new(command).args(arguments).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    text.unwrap_or_default().trim().to_owned()
}

/// No name selects all.
fn is_selected(name: &str, names: &[String]) -> bool {
    names.is_empty() || names.iter().any(|each| each == name)
}

fn find<'a>(entries: &'a [Entry], name: &str) -> Result<&'a Entry, Failure> {
    let found = entries.iter().find(|entry| entry.description.name == name);
    found.ok_or_else(|| Failure::new(format!("no contestant is called {name:?}; see `list`")))
}

fn attack(name: &str) -> Result<&'static Attack, Failure> {
    let found = ALL.iter().find(|attack| attack.name == name);
    found.ok_or_else(|| {
        let known = ALL.each_ref().map(|attack| attack.name).join(", ");
        Failure::new(format!("no attack is called {name:?}; known are {known}"))
    })
}

fn list(entries: &[Entry]) {
    for entry in entries {
        println!("{}", entry.description);
    }
    for attack in &ALL {
        println!("attack {}: {}", attack.name, attack.about);
    }
}

/// One attack on one contestant.
struct Run<'a> {
    entry: &'a Entry,
    attack: &'static Attack,
    seed: u64,
    is_short: bool,
}

impl Run<'_> {
    fn case(&self) -> Case {
        Case {
            description: self.entry.description.clone(),
            is_short: self.is_short,
        }
    }

    /// Attacks, and prints the result.
    fn row(&self, runtime: &Handle) -> Row {
        let description = &self.entry.description;
        let is_offered = self.attack.needs.iter().all(|need| description.has(*need));
        let (events, outcome) = is_offered.then(|| self.attack(runtime)).unzip();
        let row = Row {
            contestant: description.name.clone(),
            attack: self.attack.name,
            is_promised: description
                .promises
                .iter()
                .any(|name| name == self.attack.name),
            finding: outcome,
        };
        if let Some(events) = events {
            println!(
                "{:<22} {:<10} {}: {}",
                row.contestant,
                row.attack,
                row.grade(),
                row.seen()
            );
            if matches!(&row.finding, Some(Ok(finding)) if finding.broken_by > 0) {
                self.save(&events);
            }
        }
        row
    }

    fn attack(&self, runtime: &Handle) -> (Vec<Event>, Result<Finding, Failure>) {
        let arena = Arena {
            entry: self.entry,
            case: self.case(),
            seed: self.seed,
            runtime: runtime.clone(),
            recorder: Arc::new(Recorder::new()),
        };
        let made = (self.attack.run)(&arena);
        let events = arena.recorder.events();
        let outcome = made.and_then(|()| (self.attack.judge)(&arena.case, &events));
        (events, outcome)
    }

    fn command(&self) -> String {
        let short = if self.is_short { " --short" } else { "" };
        let program = if self.entry.is_program {
            format!(" --program \"{}\"", self.entry.command.join(" "))
        } else {
            String::new()
        };
        format!(
            "run{short}{program} --contestant {} --attack {} --seed {}",
            self.entry.description.name, self.attack.name, self.seed
        )
    }

    /// Writes the history to a file, and prints how to see the finding again.
    fn save(&self, events: &[Event]) {
        let directory = std::env::temp_dir().join("tollgate-torture");
        let seed = self.seed;
        let path = directory.join(format!(
            "{}-{}-{seed}.history",
            self.entry.description.name, self.attack.name
        ));
        let mut text = format!("{}\n{}\n", self.entry.description, self.command());
        for event in events {
            let _ = writeln!(text, "{event}");
        }
        let saved = fs::create_dir_all(directory).and_then(|()| fs::write(&path, text));
        match saved {
            Ok(()) => println!("  seed {seed}; history {}", path.display()),
            Err(error) => println!("  seed {seed}; no history: {error}"),
        }
        println!("  again: {}", self.command());
    }
}

/// Judges a history again, and attacks until the same promise is broken again.
fn replay(path: &Path, entries: &[Entry], runtime: &Handle) -> Result<ExitCode, Failure> {
    let text = fs::read_to_string(path)?;
    let mut lines = text.lines();
    let description = lines.next().ok_or_else(no_history)?;
    let command = lines.next().ok_or_else(no_history)?;
    let description = Description::parse(description)?;
    let attack = attack(option(command, "--attack"))?;
    let is_short = command.split_whitespace().any(|word| word == "--short");
    let events: Vec<Event> = lines.map(str::parse).collect::<Result<_, _>>()?;
    let case = Case {
        description,
        is_short,
    };
    let finding = (attack.judge)(&case, &events)?;
    println!("in the history: {}", report(&finding));
    let run = Run {
        entry: find(entries, option(command, "--contestant"))?,
        attack,
        seed: option(command, "--seed").parse()?,
        is_short,
    };
    for attempt in 1..=10 {
        let (_, outcome) = run.attack(runtime);
        let finding = outcome?;
        println!("attempt {attempt}: {}", report(&finding));
        if finding.broken_by > 0 {
            return Ok(ExitCode::SUCCESS);
        }
    }
    Ok(ExitCode::FAILURE)
}

fn no_history() -> Failure {
    Failure::new("not a history")
}

/// Returns the value of an option in a command.
fn option<'a>(command: &'a str, name: &str) -> &'a str {
    command
        .split_whitespace()
        .skip_while(|word| *word != name)
        .nth(1)
        .unwrap_or_default()
}

fn report(finding: &Finding) -> String {
    let excess = finding.unit.text(finding.broken_by);
    format!("broken by {excess}: {}", finding.seen)
}
