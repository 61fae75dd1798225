//! Which rights a user lacks, by trying each command on keys of our own.
//!
//! That asks for no right to look at rights, and tells on every server by name what a script that
//! fails does not: before Redis 7.2 it says only that there is something it may not run.

use redis::FromRedisValue;

use super::doctor::Asking;
use super::report::Finding;
use super::scratch::Scratch;
use super::trouble::{Denied, denied};
use crate::error::Error;
use crate::quota::{Algorithm, Quota};

const TOPIC: &str = "rights";

/// How long the key lives on which commands are tried, in milliseconds, if it cannot be removed: far longer
/// than any of them is waited for.
const LIFE: &str = "600000";

/// What the scripts run on keys, in an order in which no key is made that would stay. All are tried on one
/// key, a text: whoever may run RPUSH is told that it is no list, and a list, which would have no time
/// to live, is never made. Nor is a sorted set by ZADD XX.
const PROBES: [Probe; 17] = [
    ("UNLINK", &[]),
    ("PEXPIRE", &[LIFE]),
    ("EXISTS", &[]),
    MAKES_KEY,
    ("GET", &[]),
    ON_TEXT_ONLY,
    ("LLEN", &[]),
    ("LINDEX", &["0"]),
    ("LTRIM", &["0", "-1"]),
    ("LREM", &["0", "2"]),
    ("ZADD", &["XX", "1", "1"]),
    ("ZCARD", &[]),
    ("ZCOUNT", &["0", "1"]),
    ("ZRANGE", &["0", "0"]),
    ("ZRANGEBYSCORE", &["0", "1"]),
    ("ZREM", &["1"]),
    ("ZREMRANGEBYRANK", &["5", "5"]),
];

const MAKES_KEY: Probe = ("SET", &["1", "PX", LIFE]);

/// Tried only where the text is there: it would make a list. Who lacks the right to SET is told of that
/// first.
const ON_TEXT_ONLY: Probe = ("RPUSH", &["1"]);

/// A command, and its arguments behind a key.
type Probe = (&'static str, &'static [&'static str]);

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

/// Whether the scripts may be tried, which make keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trial {
    May,
    /// What they make would stay: the user may neither remove it nor have it end.
    KeepsKeys,
    /// What the user may do could not be learned.
    Unknown,
}

/// Whether the user has all rights that the scripts need, and whether these may be tried.
pub(crate) async fn rights(asking: &Asking) -> (Finding, Trial) {
    match missing(asking).await {
        Ok(missing) if missing.keeps_keys() => (told(asking, &missing).await, Trial::KeepsKeys),
        Ok(missing) => (told(asking, &missing).await, Trial::May),
        Err(error) => (
            Finding::unknown(TOPIC, format!("could not be tried: {error}")),
            Trial::Unknown,
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
    let scratch = Scratch::new(Quota::per_minute(1).algorithm(Algorithm::FixedWindow));
    let names = &asking.client.names;
    let mut missing = Missing::default();
    let tried = try_on(asking, &scratch, &mut missing).await;
    // Whatever came of that, nothing is to be left; and if this fails, the key has a time to live.
    let _ = asking.ask(&scratch.command(names, "UNLINK", &[])).await;
    tried?;
    let mut eval = redis::cmd("EVAL");
    eval.arg("return 0").arg(1);
    names.write(scratch.subject(), &mut eval);
    let mut evalsha = redis::cmd("EVALSHA");
    evalsha.arg("0".repeat(40)).arg(1);
    names.write(scratch.subject(), &mut evalsha);
    for (name, command) in [
        ("EVAL", eval),
        ("EVALSHA", evalsha),
        ("TIME", redis::cmd("TIME")),
    ] {
        note(name, asking.ask(&command).await, &mut missing)?;
    }
    Ok(missing)
}

async fn try_on(asking: &Asking, scratch: &Scratch, missing: &mut Missing) -> Result<(), Error> {
    let mut is_made = false;
    for probe in PROBES {
        if probe == ON_TEXT_ONLY && !is_made {
            continue;
        }
        let (command, arguments) = probe;
        let packed = scratch.command(&asking.client.names, command, arguments);
        let reply = asking.ask(&packed).await;
        is_made |= probe == MAKES_KEY && reply.is_ok();
        note(command, reply, missing)?;
    }
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
        None if super::doctor::is_gone(&error) => return Err(error),
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
        let mut tried: BTreeSet<_> = PROBES
            .iter()
            .map(|(command, _)| (*command).to_owned())
            .collect();
        tried.insert("TIME".into());
        assert_eq!(tried, called);
    }
}
