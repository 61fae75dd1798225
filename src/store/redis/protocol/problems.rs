//! The texts of errors of Redis: what is wrong with which server, and the remedy.

use std::borrow::Cow;
use std::time::Duration;

use super::server_name::ServerName;

/// The message to a client above `maxclients`.
pub(super) const TOO_MANY_CLIENTS: &str = "max number of clients reached";

/// What servers say that refuse a command in scripts only.
pub(super) const NOT_IN_SCRIPTS: &str = "not allowed from script";

/// The meaning of an error code.
struct Problem {
    code: &'static str,
    /// Follows the name of the server.
    text: &'static str,
    remedy: &'static str,
}

const fn problem(code: &'static str, text: &'static str, remedy: &'static str) -> Problem {
    Problem { code, text, remedy }
}

/// The meaning and the remedy of each code.
const PROBLEMS: [Problem; 15] = [
    problem(
        "NOAUTH",
        "requires a password",
        "give a password in the URL: redis://:password@host",
    ),
    WRONG_PASSWORD,
    // Its remedy names the right: see `permission_remedy`.
    problem(
        "NOPERM",
        "denies the user a right",
        "grant the right with ACL SETUSER",
    ),
    problem(
        "READONLY",
        "is a replica, which takes no writes",
        "connect to the master, or use redis+sentinel://",
    ),
    problem(
        "OOM",
        "is out of memory",
        "raise maxmemory, or use a separate server for tollgate",
    ),
    problem(
        "MOVED",
        "is one node of a cluster",
        "use redis+cluster:// to connect to the whole cluster",
    ),
    problem(
        "CROSSSLOT",
        "found keys of several slots in one call",
        "remove the proxy in front of it, which ignores hash tags",
    ),
    problem(
        "CLUSTERDOWN",
        "belongs to a cluster that is down",
        "run CLUSTER INFO: some slots are not served",
    ),
    problem(
        "NOWINDOW",
        "has a time for which this process sent no window of the calendar",
        "try again, and set the clocks: they differ by more than a window",
    ),
    problem(
        "NOREPLICAS",
        "has too few replicas in sync",
        "repair the replicas, or lower min-replicas-to-write",
    ),
    problem(
        "MISCONF",
        "cannot save its data and takes no writes",
        "read the log of the server: the disk may be full",
    ),
    problem(
        "LOADING",
        "is loading its data",
        "wait until the server has loaded its data",
    ),
    problem(
        "BUSY",
        "is busy with a script",
        "run SCRIPT KILL to end the script",
    ),
    problem(
        "WRONGTYPE",
        "has a value of another type under a key of tollgate",
        "another program writes to the keys of this prefix: choose another prefix",
    ),
    problem(
        "NOSCRIPT",
        "does not know a script that was just sent",
        "remove the proxy in front of it, which sends calls to several servers",
    ),
];

/// What rented servers and servers that resemble Redis say in their own words, without a code: a part of the text as
/// published, and the remedy.
const OF_VENDORS: [(&str, &str); 4] = [
    // Alibaba Cloud: "Usage of Lua scripts".
    (
        "should be passed using the KEYS array",
        "set script_check_enable to 0 in the console: the proxy of Alibaba Cloud accepts only literal KEYS[n] otherwise",
    ),
    (
        "not support for normal user",
        "update the minor version of the instance in the console of Alibaba Cloud",
    ),
    // Garnet: RESP_ERR_LUA_DISABLED in CmdStrings.cs.
    (
        "scripting support disabled",
        "start Garnet with --lua and --lua-transaction-mode: without the second, scripts are not atomic",
    ),
    // Dragonfly: "Scripting with Lua".
    (
        "accessing undeclared key",
        "start Dragonfly with --default_lua_flags=allow-undeclared-keys",
    ),
];

/// What the proxy of Alibaba Cloud says in place of CROSSSLOT.
const SAME_SLOT: &str = "keys must be in same slot";

/// Whether a server says that the keys of a call are in several slots, in words of its own.
pub(super) fn says_several_slots(message: &str) -> bool {
    message.contains(SAME_SLOT)
}

/// The texts for a user or a password that the server does not accept.
const WRONG_PASSWORD: Problem = problem(
    "WRONGPASS",
    "does not accept the user or the password",
    "correct the user or the password in the URL: redis://user:password@host, with # / ? % and @ in them \
     percent-encoded; or enable the user: ACL SETUSER <user> on",
);

/// Returns the code among the words of a text, if its meaning is known. Before Redis 7.0, an error that
/// ends a script is an ERR that quotes the actual error.
pub(crate) fn known_code(text: &str) -> Option<&'static str> {
    let mut words = text.split(|c: char| !c.is_ascii_uppercase());
    let codes = words.find_map(|word| PROBLEMS.iter().find(|problem| problem.code == word));
    codes.map(|problem| problem.code)
}

/// A right that the user lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MissingRight<'a> {
    /// To run a command. Redis 7.0 does not name a command of a script.
    Command(Option<&'a str>),
    /// To access the names of the keys.
    Keys,
}

/// Returns the right whose lack made a command fail, if the message of the server says so.
pub(crate) fn missing_right(message: &str) -> Option<MissingRight<'_>> {
    if let Some((_, rest)) = message.split_once("to run the '") {
        let command = rest.split('\'').next().unwrap_or_default();
        return Some(MissingRight::Command(Some(command)));
    }
    let says = |texts: &[&str]| texts.iter().any(|text| message.contains(text));
    if says(&["can't run this command"]) {
        Some(MissingRight::Command(None))
    } else if says(&[
        "o permissions to access",
        "can't access at least one of the keys",
    ]) {
        Some(MissingRight::Keys)
    } else {
        None
    }
}

/// Whether a server says that it does not have a command.
pub(crate) fn is_unknown_command(message: &str) -> bool {
    let message = message.to_lowercase();
    let texts = [
        "unknown command",
        "unknown subcommand",
        // In scripts, a fork names itself.
        "unknown redis command",
        "unknown redict command",
    ];
    texts.iter().any(|text| message.contains(text))
}

/// Returns the unknown command that a server names in quotes.
fn unknown_command(message: &str) -> Option<&str> {
    let (_, name) = message.split_once("unknown command ")?;
    let quotes = ['\'', '`'];
    let (name, _) = name.strip_prefix(quotes)?.split_once(quotes)?;
    Some(name)
}

fn right_remedy(right: MissingRight<'_>) -> String {
    match right {
        MissingRight::Command(Some(command)) => {
            format!("grant the right: ACL SETUSER <user> +{command}")
        }
        MissingRight::Command(None) => {
            "grant the right: ACL SETUSER <user> +<command>; `tollgate-doctor` names the command"
                .to_owned()
        }
        MissingRight::Keys => "grant the right: ACL SETUSER <user> ~<prefix>:*".to_owned(),
    }
}

/// The remedy for an error.
pub(super) type Remedy = Option<Cow<'static, str>>;

/// Describes an error reply: `message` is the server's, with the code in front.
pub(super) fn describe_reply(server: &ServerName, message: &str) -> (String, Remedy) {
    let message = message.trim_end_matches('.');
    let right = missing_right(message);
    let code = match right {
        // Before Redis 7.0 a script fails with ERR.
        Some(_) => Some("NOPERM"),
        None => known_code(message),
    };
    let known = PROBLEMS.iter().find(|problem| Some(problem.code) == code);
    // The client for clusters follows redirects: one that is left over needs no other URL.
    let known = known.filter(|problem| problem.code != "MOVED" || !server.is_cluster());
    match known {
        Some(problem) => {
            let remedy = match right {
                Some(right) => right_remedy(right).into(),
                None => problem.remedy.into(),
            };
            (
                format!("{server} {}: {message}", problem.text),
                Some(remedy),
            )
        }
        None => {
            if let Some(command) = unknown_command(message) {
                return describe_unknown_command(server, command, message);
            }
            let remedy = if is_unknown_command(message) {
                Some(
                    "use a server that has the command under its standard name: this one lacks or \
                     renames it",
                )
            } else if message.contains(NOT_IN_SCRIPTS) {
                Some(
                    "use a server that allows TIME in scripts: `tollgate-doctor` examines whether it does",
                )
            } else if message.contains(TOO_MANY_CLIENTS) {
                Some("raise maxclients, or lower `RedisStore::connections`")
            } else {
                let known = OF_VENDORS.iter().find(|(text, _)| message.contains(text));
                known.map(|(_, remedy)| *remedy)
            };
            let text = format!("failed to run a command on {server}: {message}");
            (text, remedy.map(Cow::from))
        }
    }
}

/// Describes slots whose lease is too short for the error of the clock that scripts are told.
pub(super) fn describe_short_lease(
    server: &ServerName,
    lease: Duration,
    clock_error: Duration,
) -> (String, Remedy) {
    let text = format!(
        "cannot hold slots for a lease of {lease:?}: {server} refuses TIME in scripts, and this process knows its time \
         to {clock_error:?}, of which a lease must be ten times as long"
    );
    let remedy = "raise the lease of `Quota::in_flight`, or use a server closer by";
    (text, Some(remedy.into()))
}

/// Describes a command that a server renames, disables or does not have.
fn describe_unknown_command(server: &ServerName, command: &str, message: &str) -> (String, Remedy) {
    let remedy = format!(
        "remove `rename-command {command}` from redis.conf, or use a server that has the command"
    );
    (
        format!(
            "{server} does not know the command {command}, which is renamed or disabled there: {message}"
        ),
        Some(remedy.into()),
    )
}

/// Describes a failed authentication that the client reports without the message of the server.
pub(super) fn describe_wrong_password(server: &ServerName, cause: &str) -> (String, Remedy) {
    let Problem { text, remedy, .. } = WRONG_PASSWORD;
    (format!("{server} {text}: {cause}"), Some(remedy.into()))
}

/// Describes a server that does not answer the handshake of TLS, as a port without TLS does.
pub(super) fn describe_silent_tls(server: &ServerName, cause: &str) -> (String, Remedy) {
    let remedy = if server.is_cluster() {
        "have the cluster announce its TLS ports: set tls-cluster to yes on each node, and \
         cluster-announce-tls-port where ports are mapped"
    } else {
        "use redis:// if the port does not speak TLS"
    };
    let text = format!("failed to set up TLS with {server}: {cause}");
    (text, Some(remedy.into()))
}

/// Describes a failure to reach the server.
pub(super) fn describe_unreachable(server: &ServerName, cause: &str) -> (String, Remedy) {
    let lower = cause.to_lowercase();
    let remedy = if lower.contains("refused") {
        Some(match server.address() {
            Some(address) => format!("is redis-server running at {address}?").into(),
            None => "is redis-server running?".into(),
        })
    } else if lower.contains("lookup") {
        Some("check the host name in the URL".into())
    } else {
        None
    };
    (format!("failed to reach {server}: {cause}"), remedy)
}

/// Describes a server that hung up before its first reply, as a TLS port does.
pub(super) fn describe_hang_up(server: &ServerName, cause: &str) -> (String, Remedy) {
    (
        format!("{server} closed the connection before its first reply: {cause}"),
        Some("use rediss:// if the port speaks TLS".into()),
    )
}

/// Describes a failure of TLS.
pub(super) fn describe_tls(server: &ServerName, cause: &str) -> (String, Remedy) {
    let remedy = if cause.contains("corrupt message") {
        "use redis:// if the port does not speak TLS, or the TLS port of the server"
    } else if cause.contains("UnknownIssuer") {
        "trust the authority of the certificate: ?ca=/path/to/ca.pem"
    } else if cause.contains("CertificateRequired") {
        "present a certificate: ?cert=/path/to/client.pem&key=/path/to/client.key"
    } else {
        "check the certificate of the server, and the `ca`, `cert` and `key` in the URL"
    };
    let text = format!("failed to set up TLS with {server}: {cause}");
    (text, Some(remedy.into()))
}

/// Describes a server that did not answer in time.
pub(super) fn describe_timeout(server: &ServerName, cause: &str) -> (String, Remedy) {
    (
        format!("{server} did not answer in time: {cause}"),
        Some("check its load and the network".into()),
    )
}

/// Describes a server that did not answer within the deadline of a call.
pub(super) fn describe_missed_deadline(
    server: &ServerName,
    deadline: Duration,
) -> (String, Remedy) {
    let remedy = "check its load and the network, or raise `RedisStore::deadline`";
    (
        format!("{server} did not answer within {deadline:?}"),
        Some(remedy.into()),
    )
}

/// Describes a check that waited for its turn in this process until its deadline.
pub(super) fn describe_queue_timeout(server: &ServerName, deadline: Duration) -> (String, Remedy) {
    let remedy = if server.is_cluster() {
        "set `RedisStore::hash_tags`, so that checks share calls, or more `RedisStore::connections`"
    } else {
        "set more `RedisStore::connections`"
    };
    let text = format!(
        "a check waited too long for its turn in this process, and missed the deadline of {deadline:?}; \
         {server} answers other calls"
    );
    (text, Some(remedy.into()))
}

/// Describes a reply that is none of Redis, or none of the script.
pub(super) fn describe_malformed(server: &ServerName, cause: &str) -> (String, Remedy) {
    (
        format!("malformed reply from {server}: {cause}"),
        Some("is it a Redis server, and does no proxy change its replies?".into()),
    )
}

/// Describes a part of a reply that makes no sense for one check.
pub(super) fn describe_malformed_entry(server: &ServerName, cause: &str) -> (String, Remedy) {
    (
        format!("{server} replied nonsense to this check: {cause}"),
        Some("another program may write to the keys of this prefix: reset the key".into()),
    )
}

/// Describes bytes that are not the protocol of Redis.
pub(super) fn describe_not_redis(server: &ServerName, cause: &str) -> (String, Remedy) {
    (
        format!("failed to read a reply of {server}: {cause}"),
        Some("is it a Redis server? use rediss:// if the port speaks TLS".into()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_right_is_named_by_every_version() {
        let get = Some(MissingRight::Command(Some("get")));
        for (message, expected) in [
            // 6.2, 7.0, 7.2; then from within a script.
            (
                "NOPERM this user has no permissions to run the 'get' command or its subcommand",
                get,
            ),
            (
                "NOPERM This user has no permissions to run the 'get' command",
                get,
            ),
            (
                "NOPERM User app has no permissions to run the 'get' command",
                get,
            ),
            (
                "ERR ACL failure in script: User app has no permissions to run the 'get' command",
                get,
            ),
            (
                "ERR The user executing the script can't run this command or subcommand",
                Some(MissingRight::Command(None)),
            ),
            (
                "ERR The user executing the script can't access at least one of the keys mentioned",
                Some(MissingRight::Keys),
            ),
            (
                "NOPERM this user has no permissions to access one of the keys used as arguments",
                Some(MissingRight::Keys),
            ),
            (
                "NOPERM No permissions to access a key",
                Some(MissingRight::Keys),
            ),
            ("ERR syntax error", None),
        ] {
            assert_eq!(missing_right(message), expected, "{message}");
        }
    }

    #[test]
    fn each_problem_names_the_server_the_cause_and_the_remedy() {
        let server = ServerName::new("Redis", "10.0.0.7:6379");
        for problem in &PROBLEMS {
            let message = format!("{} the message.", problem.code);
            let (text, remedy) = describe_reply(&server, &message);
            let begin = format!(
                "Redis at 10.0.0.7:6379 {}: {} the message",
                problem.text, problem.code
            );
            assert_eq!(text, begin);
            assert_eq!(remedy.as_deref(), Some(problem.remedy));
        }
    }

    #[test]
    fn what_vendors_say_has_the_setting_that_helps() {
        let server = ServerName::new("Redis", "10.0.0.7:6379");
        for (message, said) in [
            (
                "ERR bad lua script for redis cluster, all the keys that the script uses should be passed using the \
                 KEYS array",
                "script_check_enable",
            ),
            (
                "ERR command eval not support for normal user",
                "minor version",
            ),
            (
                "ERR Unknown Redict command called from script",
                "lacks or renames it",
            ),
            (
                "ERR This instance has Lua scripting support disabled",
                "--lua-transaction-mode",
            ),
            (
                "ERR Error running script (call to 1f): @user_script:24: script tried accessing undeclared key",
                "allow-undeclared-keys",
            ),
        ] {
            let (text, remedy) = describe_reply(&server, message);
            assert_eq!(
                text,
                format!("failed to run a command on Redis at 10.0.0.7:6379: {message}")
            );
            assert!(remedy.unwrap().contains(said), "{message}");
        }
    }

    #[test]
    fn a_remedy_fits_the_kind_of_server() {
        let cluster = ServerName::new(super::super::server_name::CLUSTER, "a:6379, b:6379");
        let (text, remedy) = describe_reply(&cluster, "MOVED 1 10.0.0.8:6379");
        assert!(
            text.starts_with("failed to run a command on Redis Cluster at a:6379"),
            "{text}"
        );
        assert_eq!(remedy, None);
        let (text, remedy) = describe_unreachable(&ServerName::UNKNOWN, "connection refused");
        assert_eq!(text, "failed to reach Redis: connection refused");
        assert_eq!(remedy.as_deref(), Some("is redis-server running?"));
    }
}
