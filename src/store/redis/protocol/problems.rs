//! The texts of errors of Redis: what is wrong with which server, and the remedy.

use std::borrow::Cow;
use std::time::Duration;

use super::server_name::ServerName;

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

/// What each code means, and what to do about it.
const PROBLEMS: [Problem; 14] = [
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

/// The texts for a user or a password that the server does not accept.
const WRONG_PASSWORD: Problem = problem(
    "WRONGPASS",
    "does not accept the user or the password",
    "correct the user or the password in the URL: redis://user:password@host",
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
        "unknown redis command",
    ];
    texts.iter().any(|text| message.contains(text))
}

fn right_remedy(right: MissingRight<'_>) -> String {
    match right {
        MissingRight::Command(Some(command)) => {
            format!("grant the right: ACL SETUSER <user> +{command}")
        }
        MissingRight::Command(None) => {
            "grant the right: ACL SETUSER <user> +<command>; `RedisStore::doctor` names the command"
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
            let remedy = is_unknown_command(message).then_some(
                "use a server that has the command under its standard name: this one lacks or renames it",
            );
            let text = format!("failed to run a command on {server}: {message}");
            (text, remedy.map(Cow::from))
        }
    }
}

/// Describes a failed authentication that the client reports without the message of the server.
pub(super) fn describe_wrong_password(server: &ServerName, cause: &str) -> (String, Remedy) {
    let Problem { text, remedy, .. } = WRONG_PASSWORD;
    (format!("{server} {text}: {cause}"), Some(remedy.into()))
}

/// Describes a server that does not answer the handshake of TLS, as a port without TLS does.
pub(super) fn describe_silent_tls(server: &ServerName, cause: &str) -> (String, Remedy) {
    (
        format!("failed to set up TLS with {server}: {cause}"),
        Some("use redis:// if the port does not speak TLS".into()),
    )
}

/// Describes a failure to reach the server.
pub(super) fn describe_unreachable(server: &ServerName, cause: &str) -> (String, Remedy) {
    let lower = cause.to_lowercase();
    let remedy = if lower.contains("refused") {
        Some(format!("is redis-server running at {}?", server.address()).into())
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

/// Describes a reply that is none of Redis, or none of the script.
pub(super) fn describe_malformed(server: &ServerName, cause: &str) -> (String, Remedy) {
    (
        format!("malformed reply from {server}: {cause}"),
        Some("is it a Redis server, and does no proxy change its replies?".into()),
    )
}

/// Describes bytes that are not the protocol of Redis.
pub(super) fn describe_not_redis(server: &ServerName, cause: &str) -> (String, Remedy) {
    (
        format!("failed to read a reply of {server}: {cause}"),
        Some("is it a Redis server? use rediss:// if the port speaks TLS".into()),
    )
}
