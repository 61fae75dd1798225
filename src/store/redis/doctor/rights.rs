//! Which rights a user lacks, by trying each command on keys of our own.
//!
//! That asks for no right to look at rights, and tells on every server by name what a script that
//! fails does not: before Redis 7.2 it says only that there is something it may not run.

use redis::FromRedisValue;

use super::Asking;
use super::report::Finding;
use super::scratch::Scratch;
use super::trouble::{Denied, denied};
use crate::{Algorithm, Error, Quota};

const TOPIC: &str = "rights";

/// How long a key lives that could not be removed, in milliseconds.
const LIFE: &str = "10000";

/// What the scripts run on a log, in an order in which nothing that cannot be removed is made.
const ON_LIST: [Probe; 8] = [
    ("UNLINK", &[]),
    ("PEXPIRE", &[LIFE]),
    ("EXISTS", &[]),
    ("RPUSH", &["1"]),
    ("LLEN", &[]),
    ("LINDEX", &["0"]),
    ("LTRIM", &["0", "-1"]),
    ("LREM", &["0", "2"]),
];

/// What they run on a sorted set.
const ON_SORTED_SET: [Probe; 6] = [
    ("ZADD", &["1", "1"]),
    ("ZCARD", &[]),
    ("ZCOUNT", &["0", "1"]),
    ("ZRANGE", &["0", "0"]),
    ("ZRANGEBYSCORE", &["0", "1"]),
    ("ZREMRANGEBYRANK", &["5", "5"]),
];

/// What they run on a tally.
const ON_TEXT: [Probe; 2] = [("SET", &["1", "PX", LIFE]), ("GET", &[])];

/// A command, and its arguments behind a key.
type Probe = (&'static str, &'static [&'static str]);

/// What makes a key that lives until it is removed.
const LASTING: [&str; 2] = ["RPUSH", "ZADD"];

/// What a user may not do.
#[derive(Debug, Default)]
struct Missing {
    commands: Vec<&'static str>,
    keys: bool,
}

impl Missing {
    /// Whether a key that is made stays.
    fn keeps_keys(&self) -> bool {
        let lacks = |command| self.commands.contains(command);
        ["UNLINK", "PEXPIRE"].iter().all(lacks)
    }
}

/// Whether the user has all rights that the scripts need; and whether the scripts may be tried, because
/// what they make can be removed.
pub(super) async fn rights(asking: &Asking) -> (Finding, bool) {
    match missing(asking).await {
        Ok(missing) => (told(asking, &missing).await, !missing.keeps_keys()),
        Err(error) => (
            Finding::unknown(TOPIC, format!("could not be tried: {error}")),
            false,
        ),
    }
}

async fn told(asking: &Asking, missing: &Missing) -> Finding {
    if missing.commands.is_empty() && !missing.keys {
        return Finding::ok(TOPIC, "every command of the scripts may be run");
    }
    let (mut may_not, mut rules) = (Vec::new(), Vec::new());
    if !missing.commands.is_empty() {
        let commands = missing
            .commands
            .iter()
            .map(|command| command.to_lowercase());
        let commands: Vec<_> = commands.collect();
        may_not.push(format!("run {}", commands.join(", ")));
        rules.push(format!("+{}", commands.join(" +")));
    }
    let prefix = asking.client.names.prefix();
    if missing.keys {
        may_not.push(format!("touch the keys {prefix}:*"));
        rules.push(format!("~{prefix}:*"));
    }
    let text = format!("the user may not {}", may_not.join(", nor "));
    let user = user(asking).await;
    let remedy = format!("ACL SETUSER {user} {}", rules.join(" "));
    Finding::problem(TOPIC, text).with_remedy(remedy)
}

async fn missing(asking: &Asking) -> Result<Missing, Error> {
    let mut missing = Missing::default();
    try_on(asking, Algorithm::SlidingLog, &ON_LIST, &mut missing).await?;
    try_on(
        asking,
        Algorithm::SortedSetLog,
        &ON_SORTED_SET,
        &mut missing,
    )
    .await?;
    try_on(asking, Algorithm::FixedWindow, &ON_TEXT, &mut missing).await?;
    let scratch = log();
    let mut eval = redis::cmd("EVAL");
    eval.arg("return 0").arg(1);
    asking.client.names.write(scratch.subject(), &mut eval);
    let mut evalsha = redis::cmd("EVALSHA");
    evalsha.arg("0".repeat(40)).arg(1);
    asking.client.names.write(scratch.subject(), &mut evalsha);
    for (name, command) in [
        ("EVAL", eval),
        ("EVALSHA", evalsha),
        ("TIME", redis::cmd("TIME")),
    ] {
        note(name, asking.ask(&command).await, &mut missing)?;
    }
    Ok(missing)
}

fn log() -> Scratch {
    Scratch::new(Quota::per_minute(1))
}

async fn try_on(
    asking: &Asking,
    algorithm: Algorithm,
    probes: &[Probe],
    missing: &mut Missing,
) -> Result<(), Error> {
    let scratch = Scratch::new(Quota::per_minute(1).algorithm(algorithm));
    let names = &asking.client.names;
    for (command, arguments) in probes {
        if missing.keeps_keys() && LASTING.contains(command) {
            continue;
        }
        let packed = scratch.command(names, command, arguments);
        note(command, asking.ask(&packed).await, missing)?;
        if LASTING.contains(command) {
            let life = scratch.command(names, "PEXPIRE", &[LIFE]);
            let _ = asking.ask(&life).await;
        }
    }
    let _ = asking.ask(&scratch.command(names, "UNLINK", &[])).await;
    Ok(())
}

/// Notes what a command that failed says of rights. What fails otherwise may be run: it is the
/// script's trial that tells why it fails.
fn note(
    command: &'static str,
    reply: Result<redis::Value, Error>,
    missing: &mut Missing,
) -> Result<(), Error> {
    let Err(error) = reply else {
        return Ok(());
    };
    match denied(&error) {
        Some(Denied::Command) => missing.commands.push(command),
        Some(Denied::Keys) => missing.keys = true,
        None if super::is_gone(&error) => return Err(error),
        None => {}
    }
    Ok(())
}

/// How the user is called, if that may be asked.
async fn user(asking: &Asking) -> String {
    let mut whoami = redis::cmd("ACL");
    whoami.arg("WHOAMI");
    let reply = asking.ask(&whoami).await.ok();
    let user = reply.and_then(|reply| String::from_redis_value(reply).ok());
    user.unwrap_or_else(|| "<user>".into())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_command_of_the_scripts_is_tried() {
        let mut called = BTreeSet::new();
        for file in std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/lua")).unwrap() {
            let path = file.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "lua") {
                let text = std::fs::read_to_string(path).unwrap();
                let calls = text.split("call('").skip(1);
                called.extend(calls.map(|call| call.split('\'').next().unwrap().to_owned()));
            }
        }
        let probes = [&ON_LIST[..], &ON_SORTED_SET, &ON_TEXT].concat();
        let mut tried: BTreeSet<_> = probes
            .iter()
            .map(|(command, _)| (*command).to_owned())
            .collect();
        tried.insert("TIME".into());
        assert_eq!(tried, called);
    }
}
