//! The permissions that the user lacks, found by trying each command on a scratch key.
//!
//! That needs no permission to read permissions. It also names the command on every server: before
//! Redis 7.2 the error of a script only says that some command is not permitted.

use redis::FromRedisValue;
use tollgate::{__doctor as hooks, Algorithm, Error, Quota};

use crate::remedies::{MissingPermission, is_unreachable, missing_permission};
use crate::report::Finding;
use crate::scratch_key::ScratchKey;
use crate::session::Session;

const TOPIC: &str = "permissions";

/// The time to live of the scratch key in milliseconds, in case it cannot be removed. Longer than the commands
/// from SET to APPEND may take, because APPEND must find the key.
const SCRATCH_TTL: &str = "60000";

/// The commands that the scripts run on keys, in an order that leaves no key behind.
///
/// All are tried on one key, a text. So commands of sorted sets fail with WRONGTYPE if they are permitted. ZADD XX never
/// makes a sorted set, which would have no time to live.
const PROBES: [Probe; 18] = [
    ("UNLINK", &[]),
    ("PEXPIRE", &[SCRATCH_TTL]),
    ("EXISTS", &[]),
    CREATES_KEY,
    ("GET", &[]),
    ("MGET", &[]),
    ("GETRANGE", &["0", "0"]),
    ("STRLEN", &[]),
    ("PTTL", &[]),
    ("SETRANGE", &["0", ""]),
    APPENDS,
    ("ZADD", &["XX", "1", "1"]),
    ("ZCARD", &[]),
    ("ZCOUNT", &["0", "1"]),
    ("ZRANGE", &["0", "0"]),
    ("ZRANGEBYSCORE", &["0", "1"]),
    ("ZREM", &["1"]),
    ("ZREMRANGEBYRANK", &["5", "5"]),
];

const CREATES_KEY: Probe = ("SET", &["1", "PX", SCRATCH_TTL]);

/// Tried only if the text exists, since each would make a key without a time to live otherwise. A user
/// without SET is reported for that first.
const APPENDS: Probe = ("APPEND", &["1"]);

/// A command, and its arguments behind a key.
type Probe = (&'static str, &'static [&'static str]);

/// The permissions that the user lacks, and the commands that the server lacks.
#[derive(Debug, Default)]
struct Missing {
    commands: Vec<&'static str>,
    keys: bool,
    unknown: Vec<&'static str>,
}

/// Whether the user can remove the keys that the script makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cleanup {
    Possible,
    Impossible,
    Unknown,
}

/// Examines whether the user has all permissions that the scripts need.
pub(crate) async fn permissions(session: &Session) -> (Finding, Cleanup) {
    match missing(session).await {
        Ok((missing, cleanup)) => (finding(session, &missing).await, cleanup),
        Err(error) => (
            Finding::unknown(TOPIC, format!("failed to try the commands: {error}")),
            Cleanup::Unknown,
        ),
    }
}

async fn finding(session: &Session, missing: &Missing) -> Finding {
    let mut may_not = Vec::new();
    let mut rules = Vec::new();
    if !missing.commands.is_empty() {
        let commands = lowercase(&missing.commands);
        may_not.push(format!("run {}", commands.join(", ")));
        rules.push(format!("+{}", commands.join(" +")));
    }
    let prefix = &session.settings().prefix;
    if missing.keys {
        may_not.push(format!("access the keys {prefix}:*"));
        rules.push(format!("~{prefix}:*"));
    }
    let mut texts = Vec::new();
    let mut remedies = Vec::new();
    if !may_not.is_empty() {
        texts.push(format!("the user may not {}", may_not.join(", nor ")));
        let user = user(session).await;
        remedies.push(format!("ACL SETUSER {user} {}", rules.join(" ")));
    }
    if !missing.unknown.is_empty() {
        let unknown = lowercase(&missing.unknown).join(", ");
        texts.push(format!(
            "the server lacks or renames {unknown}, which no permission can change"
        ));
        remedies.push(format!(
            "remove `rename-command` for {unknown} from redis.conf, or use a server that has {unknown}"
        ));
    }
    if texts.is_empty() {
        return Finding::ok(TOPIC, "the user may run every command of the scripts");
    }
    Finding::problem(TOPIC, texts.join("; ")).with_remedy(remedies.join("; "))
}

fn lowercase(commands: &[&str]) -> Vec<String> {
    let commands = commands.iter().map(|command| command.to_lowercase());
    commands.collect()
}

async fn missing(session: &Session) -> Result<(Missing, Cleanup), Error> {
    let key = ScratchKey::new(Quota::per_minute(1).with_algorithm(Algorithm::FixedWindow));
    let mut missing = Missing::default();
    let outcome = probe(session, &key, &mut missing).await;
    // In any case, to leave no key behind. If it fails, the key expires. A user without access to keys makes none.
    let cleanup = if session.remove(&key).await || missing.keys {
        Cleanup::Possible
    } else {
        Cleanup::Impossible
    };
    outcome?;
    let mut eval = redis::cmd("EVAL");
    let keys = session.stored_keys(&key);
    eval.arg("return 0").arg(keys.len()).arg(&keys);
    let mut evalsha = redis::cmd("EVALSHA");
    evalsha.arg("0".repeat(40)).arg(keys.len()).arg(&keys);
    let first = keys.first().map_or("", String::as_str);
    record("EVAL", session.query_key(first, eval).await, &mut missing)?;
    record(
        "EVALSHA",
        session.query_key(first, evalsha).await,
        &mut missing,
    )?;
    record(
        "TIME",
        session.query(redis::cmd("TIME")).await,
        &mut missing,
    )?;
    Ok((missing, cleanup))
}

async fn probe(session: &Session, key: &ScratchKey, missing: &mut Missing) -> Result<(), Error> {
    let mut exists = false;
    for probe in PROBES {
        if probe == APPENDS && !exists {
            continue;
        }
        let (name, arguments) = probe;
        for reply in session.query_each(key, name, arguments).await {
            exists |= probe == CREATES_KEY && reply.is_ok();
            record(name, reply, missing)?;
        }
    }
    Ok(())
}

/// Records the permission for whose lack a command failed, or the command if the server lacks it. Other failures mean that the command is
/// permitted; the trial of the script reports why they happen.
fn record(
    command: &'static str,
    reply: Result<redis::Value, Error>,
    missing: &mut Missing,
) -> Result<(), Error> {
    let Err(error) = reply else {
        return Ok(());
    };
    match missing_permission(&error) {
        Some(MissingPermission::Command) => missing.commands.push(command),
        Some(MissingPermission::Keys) => missing.keys = true,
        None if hooks::is_unknown_command(hooks::problem(&error)) => missing.unknown.push(command),
        None if is_unreachable(&error) => return Err(error),
        None => {}
    }
    Ok(())
}

/// The name of the user, or a placeholder if ACL WHOAMI is not permitted.
async fn user(session: &Session) -> String {
    let mut whoami = redis::cmd("ACL");
    whoami.arg("WHOAMI");
    let reply = session.query(whoami).await.ok();
    let user = reply.and_then(|reply| String::from_redis_value(reply).ok());
    user.unwrap_or_else(|| "<user>".into())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tollgate::RedisStore;

    use super::*;

    #[test]
    fn every_command_of_the_scripts_is_tried() {
        let mut called = BTreeSet::new();
        for (_, text) in RedisStore::scripts() {
            let calls = text.split("call('").skip(1);
            called.extend(calls.map(|call| call.split('\'').next().unwrap()));
        }
        let mut tried: BTreeSet<_> = PROBES.iter().map(|(command, _)| *command).collect();
        tried.insert("TIME");
        assert_eq!(tried, called);
    }
}
