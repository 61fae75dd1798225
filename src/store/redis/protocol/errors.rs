//! The one table of what a server or the client library may say: how each error is found, its code, what the store does
//! about it, and what users read.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind as RedisKind, RedisError};

use super::server_name::ServerName;
use crate::error::{Act, Code as C, Error, ErrorKind};
use crate::store::real_time::Late;

/// A row of the table.
#[derive(Clone, Copy)]
struct ErrorRow {
    found: Found,
    code: C,
    act: Act,
    /// `{server}` is the server, `{cause}` what it says, and `{name}` the name in quotes behind the words that were found.
    text: &'static str,
    /// The same, and `{at}` is the address of the server, if it is known.
    remedy: Option<&'static str>,
}

/// How the error of a row is found.
#[derive(Clone, Copy)]
enum Found {
    /// The code of a reply, or the code that an ERR quotes: before Redis 7.0, an error that ends a script is an ERR.
    Code(&'static str),
    /// One of these parts of a reply, in any case.
    Words(&'static [&'static str]),
    /// An error of the client library, and the handshake that it ended.
    Client(fn(&RedisError, Handshake) -> bool),
}

use Found::{Client, Code, Words};
use Handshake::{Plain, Tls, TlsToNode};

const fn row(code: C, found: Found) -> ErrorRow {
    ErrorRow {
        found,
        code,
        act: Act::Nothing,
        text: "failed to run a command on {server}: {cause}",
        remedy: None,
    }
}

const fn code(code: C, reply: &'static str) -> ErrorRow {
    row(code, Code(reply))
}

const fn words(code: C, words: &'static [&'static str]) -> ErrorRow {
    row(code, Words(words))
}

const fn client(code: C, is_it: fn(&RedisError, Handshake) -> bool) -> ErrorRow {
    row(code, Client(is_it))
}

const fn tls(is_it: fn(&RedisError, Handshake) -> bool) -> ErrorRow {
    client(C::TLS, is_it).text(TLS)
}

impl ErrorRow {
    const fn act(self, act: Act) -> Self {
        Self { act, ..self }
    }

    const fn text(self, text: &'static str) -> Self {
        Self { text, ..self }
    }

    const fn remedy(self, remedy: &'static str) -> Self {
        let remedy = Some(remedy);
        Self { remedy, ..self }
    }

    /// Whether a server says this in a reply or in the error of an entry.
    fn is_in(&self, message: &str) -> bool {
        match self.found {
            Code(code) => message
                .split(|c: char| !c.is_ascii_uppercase())
                .any(|word| word == code),
            Words(words) => behind(message, words).is_some(),
            Client(_) => false,
        }
    }

    /// Returns the act for a reply with this code. A call is sent again only if the server has not run it: a script that
    /// quotes a code has run.
    fn act_on(&self, reply: Option<&str>) -> Act {
        let sends_again = [Act::Moving, Act::SeveralSlots, Act::UnknownScript];
        match self.found {
            Code(code) if reply != Some(code) && sends_again.contains(&self.act) => Act::Nothing,
            _ => self.act,
        }
    }
}

const NO_WINDOW: &str = "NOWINDOW";

/// The error of a handshake of TLS with a port that answers without it.
pub(crate) const ANSWERS_WITHOUT_TLS: &str = "the port answers without TLS";

const FORBIDDEN: &str = "{server} denies the user a right: {cause}";
const TLS: &str = "failed to set up TLS with {server}: {cause}";
const UNREACHABLE: &str = "failed to reach {server}: {cause}";

const WRONG_PASSWORD: ErrorRow = code(C::WRONG_PASSWORD, "WRONGPASS")
    .text("{server} does not accept the user or the password: {cause}")
    .remedy(
        "correct the user or the password in the URL: redis://user:password@host, with # / ? % and @ in them \
         percent-encoded; or what `RedisStore::credentials` returns; or enable the user: ACL SETUSER <user> on",
    );

const MALFORMED: ErrorRow = client(C::INVALID_REPLY, |error, _| {
    error.kind() == RedisKind::UnexpectedReturnType
})
.text("malformed reply from {server}: {cause}")
.remedy("is it a Redis server, and does no proxy change its replies?");

/// A reply that no row is for.
const UNLISTED: ErrorRow = words(C::MISCONFIGURED, &[]);

/// A redirect that is left over in a cluster, where redirects are followed: another URL would not help.
const LEFT_OVER: ErrorRow = words(C::CLUSTER_DOWN, &[]);

/// The first row that fits counts.
const TABLE: &[ErrorRow] = &[
    // Commands, before the codes: the quoted name of a command may look like a code, and a missing right has
    // the code ERR in scripts before Redis 7.0.
    words(C::MISSING_RIGHT, &["to run the '"])
        .act(Act::ForbiddenCommand)
        .text(FORBIDDEN)
        .remedy("grant the right: ACL SETUSER <user> +{name}"),
    // A script, in Redis 7.0.
    words(C::MISSING_RIGHT, &["can't run this command"])
        .act(Act::ForbiddenCommand)
        .text(FORBIDDEN)
        .remedy(
            "grant the right: ACL SETUSER <user> +<command>; `tollgate-doctor` names the command",
        ),
    words(
        C::MISSING_RIGHT,
        &[
            "no permissions to access",
            "can't access at least one of the keys",
        ],
    )
    .act(Act::ForbiddenKeys)
    .text(FORBIDDEN)
    .remedy("grant the right: ACL SETUSER <user> ~<prefix>:*"),
    words(
        C::UNKNOWN_COMMAND,
        &["unknown command '", "unknown command `"],
    )
    .act(Act::UnknownCommand)
    .text(
        "{server} does not know the command {name}, which is renamed or disabled there: \
             {cause}",
    )
    .remedy("remove `rename-command {name}` from redis.conf, or use a server that has the command"),
    words(
        C::UNKNOWN_COMMAND,
        &[
            "unknown command",
            "unknown subcommand",
            // In scripts, a fork names itself.
            "unknown redis command",
            "unknown redict command",
        ],
    )
    .act(Act::UnknownCommand)
    .remedy(
        "use a server that has the command under its standard name: this one lacks or renames \
             it",
    ),
    words(C::UNKNOWN_COMMAND, &["not allowed from script"])
        .act(Act::NotInScripts)
        .remedy(
            "use a server that allows TIME in scripts: `tollgate-doctor` examines whether it does",
        ),
    // Users.
    code(C::WRONG_PASSWORD, "NOAUTH")
        .text("{server} requires a password: {cause}")
        .remedy(
            "give a password in the URL: redis://:password@host, or by `RedisStore::credentials`",
        ),
    WRONG_PASSWORD,
    code(C::MISSING_RIGHT, "NOPERM")
        .text(FORBIDDEN)
        .remedy("grant the right with ACL SETUSER"),
    // The state of the server.
    code(C::REPLICA, "READONLY")
        .act(Act::Replica)
        .text("{server} is a replica, which takes no writes: {cause}")
        .remedy("connect to the master, or use redis+sentinel://"),
    code(C::OUT_OF_MEMORY, "OOM")
        .text("{server} is out of memory: {cause}")
        .remedy("raise maxmemory, or use a separate server for tollgate"),
    code(C::FEW_REPLICAS, "NOREPLICAS")
        .text("{server} has too few replicas in sync: {cause}")
        .remedy("repair the replicas, or lower min-replicas-to-write"),
    code(C::NOT_SAVED, "MISCONF")
        .text("{server} cannot save its data and takes no writes: {cause}")
        .remedy("read the log of the server: the disk may be full"),
    code(C::LOADING, "LOADING")
        .text("{server} is loading its data: {cause}")
        .remedy("wait until the server has loaded its data"),
    code(C::BUSY, "BUSY")
        .text("{server} is busy with a script: {cause}")
        .remedy("run SCRIPT KILL to end the script"),
    code(C::BUSY, "UNKILLABLE"),
    code(C::REPLICA, "MASTERDOWN"),
    words(C::MAX_CLIENTS, &["max number of clients reached"])
        .remedy("raise maxclients, or run fewer processes or tokio runtimes"),
    // Clusters.
    code(C::CLUSTER_NODE, "MOVED")
        .act(Act::Redirect)
        .text("{server} is one node of a cluster: {cause}")
        .remedy("use redis+cluster:// to connect to the whole cluster"),
    code(C::CLUSTER_NODE, "ASK").act(Act::Redirect),
    code(C::CLUSTER_DOWN, "TRYAGAIN").act(Act::Moving),
    code(C::CLUSTER_DOWN, "CLUSTERDOWN")
        .text("{server} belongs to a cluster that is down: {cause}")
        .remedy("run CLUSTER INFO: some slots are not served"),
    code(C::CROSS_SLOT, "CROSSSLOT")
        .act(Act::SeveralSlots)
        .text("{server} found keys of several slots in one call: {cause}")
        .remedy("remove the proxy in front of it, which ignores hash tags"),
    // The proxy of Alibaba Cloud, in place of CROSSSLOT.
    words(C::CROSS_SLOT, &["keys must be in same slot"]).act(Act::SeveralSlots),
    // Scripts and keys. NOWINDOW is of the script itself, and the time of the server follows.
    code(C::CLOCKS_DIFFER, NO_WINDOW)
        .act(Act::NoWindow)
        .text("{server} has a time for which this process sent no window of the calendar: {cause}")
        .remedy("try again, and set the clocks: they differ by more than a window"),
    code(C::UNKNOWN_SCRIPT, "NOSCRIPT")
        .act(Act::UnknownScript)
        .text("{server} does not know a script that was just sent: {cause}")
        .remedy("remove the proxy in front of it, which sends calls to several servers"),
    code(C::WRONG_TYPE, "WRONGTYPE")
        .text("{server} has a value of another type under a key of tollgate: {cause}")
        .remedy("another program writes to the keys of this prefix: choose another prefix"),
    // Rented servers and servers that resemble Redis, in their own words as published.
    // Alibaba Cloud: "Usage of Lua scripts".
    words(
        C::RESTRICTED_SCRIPTS,
        &["should be passed using the keys array"],
    )
    .remedy(
        "set `script_check_enable` to 0 in the console: the proxy of Alibaba Cloud accepts only \
             literal `KEYS[n]` otherwise",
    ),
    words(C::RESTRICTED_SCRIPTS, &["not support for normal user"])
        .remedy("update the minor version of the instance in the console of Alibaba Cloud"),
    // Garnet: RESP_ERR_LUA_DISABLED in CmdStrings.cs.
    words(C::RESTRICTED_SCRIPTS, &["scripting support disabled"]).remedy(
        "start Garnet with `--lua` and `--lua-transaction-mode`: without the second, scripts are \
             not atomic",
    ),
    // Dragonfly: "Scripting with Lua".
    words(C::RESTRICTED_SCRIPTS, &["accessing undeclared key"])
        .remedy("start Dragonfly with `--default_lua_flags=allow-undeclared-keys`"),
    // The client library, in handshakes.
    client(C::CLOSED_EARLY, |error, handshake| {
        handshake == Plain && has_hung_up(error)
    })
    .text("{server} closed the connection before its first reply: {cause}")
    .remedy("use rediss:// if the port speaks TLS"),
    client(C::TLS_TIMEOUT, |error, handshake| {
        matches!(handshake, Tls | TlsToNode) && error.is_timeout()
    })
    .text(TLS)
    .remedy("check its load and the network, and whether the port speaks TLS"),
    ErrorRow {
        found: Client(|error, _| error.kind() == RedisKind::AuthenticationFailed),
        ..WRONG_PASSWORD
    },
    tls(|error, handshake| {
        handshake != Handshake::Unknown && error.kind() == RedisKind::InvalidClientConfig
    })
    .remedy("correct the files, or the `ca`, `cert` and `key` in the URL"),
    tls(|error, handshake| handshake == TlsToNode && lacks_tls(error)).remedy(
        "have the cluster announce its TLS ports: set tls-cluster to yes on each node, and \
         cluster-announce-tls-port where ports are mapped",
    ),
    tls(|error, _| lacks_tls(error))
        .remedy("use redis:// if the port does not speak TLS, or the TLS port of the server"),
    tls(|error, _| tls_fails(error, "CaUsedAsEndEntity")).remedy(
        "create the self-signed certificate of the server with CA:FALSE, or have an authority sign another one: \
         openssl req -x509 -addext basicConstraints=CA:FALSE",
    ),
    tls(|error, _| tls_fails(error, "UnknownIssuer"))
        .remedy("trust the authority of the certificate: ?ca=/path/to/ca.pem"),
    tls(|error, _| tls_fails(error, "CertificateRequired"))
        .remedy("present a certificate: ?cert=/path/to/client.pem&key=/path/to/client.key"),
    tls(|error, _| tls_fails(error, ""))
        .remedy("check the certificate of the server, and the `ca`, `cert` and `key` in the URL"),
    // The client library, in calls too.
    client(C::INVALID_REPLY, |error, _| is_unreadable(error))
        .text("failed to read a reply of {server}: {cause}")
        .remedy("is it a Redis server? use rediss:// if the port speaks TLS"),
    MALFORMED,
    client(C::TIMEOUT, |error, _| error.is_timeout())
        .text("{server} did not answer in time: {cause}")
        .remedy("check its load and the network"),
    client(C::MISCONFIGURED, |error, _| {
        use RedisKind::{InvalidClientConfig, RESP3NotSupported};
        matches!(error.kind(), InvalidClientConfig | RESP3NotSupported)
    }),
    client(C::UNREACHABLE, |error, _| {
        cause_text(error).contains("refused")
    })
    .text(UNREACHABLE)
    .remedy("is redis-server running{at}?"),
    client(C::UNREACHABLE, |error, _| {
        cause_text(error).contains("lookup")
    })
    .text(UNREACHABLE)
    .remedy("check the host name in the URL"),
    client(C::UNREACHABLE, |_, _| true).text(UNREACHABLE),
];

fn find_row(error: &RedisError, handshake: Handshake) -> &'static ErrorRow {
    if error.code().is_some() {
        return find_row_in(&cause_text(error));
    }
    TABLE
        .iter()
        .find(|row| matches!(row.found, Client(is_it) if is_it(error, handshake)))
        .unwrap_or(&UNLISTED)
}

fn find_row_in(message: &str) -> &'static ErrorRow {
    TABLE
        .iter()
        .find(|row| row.is_in(message))
        .unwrap_or(&UNLISTED)
}

/// Returns what follows the first of these words in a message, in any case.
fn behind<'a>(message: &'a str, words: &[&str]) -> Option<&'a str> {
    let lower = message.to_ascii_lowercase();
    let end = words
        .iter()
        .find_map(|word| Some(lower.find(word)? + word.len()))?;
    message.get(end..)
}

fn explain(row: &ErrorRow, server: &ServerName, cause: &str) -> Error {
    let row = match row.act {
        Act::Redirect if server.is_cluster() => &LEFT_OVER,
        _ => row,
    };
    let name = match row.found {
        Words(words) => behind(cause, words).and_then(|rest| rest.split(['\'', '`']).next()),
        Code(_) | Client(_) => None,
    };
    let name = name.unwrap_or_default();
    let error = Error::coded(row.code, fill(row.text, server, name, cause));
    match row.remedy {
        Some(remedy) => error.with_remedy(fill(remedy, server, name, cause)),
        None => error,
    }
}

fn fill(text: &str, server: &ServerName, name: &str, cause: &str) -> String {
    let at = server.address().map(|address| format!(" at {address}"));
    text.replace("{server}", &server.to_string())
        .replace("{at}", &at.unwrap_or_default())
        .replace("{name}", name)
        .replace("{cause}", cause)
}

/// Returns each code of the table with its remedies, for the guide.
pub fn remedies() -> impl Iterator<Item = (&'static str, &'static str)> {
    TABLE
        .iter()
        .filter_map(|row| Some((row.code.text, row.remedy?)))
}

pub(crate) fn from_redis(error: RedisError, handshake: Handshake, server: &ServerName) -> Error {
    let error = not_quoting(error);
    let row = find_row(&error, handshake);
    explain(row, server, &cause_text(&error))
        .with_act(row.act_on(error.code()))
        .with_source(error)
}

/// Converts the error of one entry, which the script has caught.
pub(crate) fn from_script(text: &str, server: &ServerName) -> Error {
    let message = message_in(text);
    let row = find_row_in(message);
    explain(row, server, message).with_act(row.act_on(None))
}

pub(crate) fn find_act_in_text(text: &str) -> Act {
    find_row_in(message_in(text)).act_on(None)
}

pub(crate) fn find_act(error: &RedisError) -> Act {
    find_row(error, Handshake::Unknown).act_on(error.code())
}

/// Returns the first code of the table that is among the words of a text.
#[must_use]
pub fn known_code(text: &str) -> Option<&'static str> {
    TABLE.iter().find_map(|row| match row.found {
        Code(code) if row.is_in(text) => Some(code),
        _ => None,
    })
}

/// Whether a call may have failed because its script may not run TIME, its first command: then nothing was written.
pub(crate) fn may_refuse_time(error: &RedisError) -> bool {
    matches!(
        find_act(error),
        Act::ForbiddenCommand | Act::NotInScripts | Act::UnknownCommand
    )
}

pub(crate) fn is_misconfigured(error: &RedisError) -> bool {
    find_row(error, Handshake::Unknown).code.kind == ErrorKind::Misconfigured
}

/// Whether a server rejected the user or the password of a handshake. With RESP2, the client tells no code.
pub(crate) fn is_wrong_password(error: &RedisError) -> bool {
    error.kind() == RedisKind::AuthenticationFailed
        || matches!(error.code(), Some("NOAUTH" | "WRONGPASS"))
}

fn is_unreadable(error: &RedisError) -> bool {
    error.kind() == RedisKind::Parse
}

/// Whether a handshake in RESP3 may have failed because the server speaks RESP2 only. Such a server
/// replies to the unknown HELLO with any error, or hangs up.
pub(crate) fn may_lack_resp3(error: &RedisError) -> bool {
    match error.kind() {
        RedisKind::RESP3NotSupported => true,
        RedisKind::AuthenticationFailed => false,
        RedisKind::Io => has_hung_up(error),
        _ => matches!(error.code(), Some("ERR" | "NOPROTO" | "NOPERM")),
    }
}

/// Whether an attempt to connect without TLS may have failed because the port speaks TLS.
pub(crate) fn may_be_tls_port(error: &RedisError) -> bool {
    has_hung_up(error) || is_unreadable(error)
}

fn has_hung_up(error: &RedisError) -> bool {
    error.is_connection_dropped() && !error.is_connection_refusal()
}

/// Whether TLS failed for this reason: the certificate is not trusted, or the server does not speak TLS. No other I/O
/// reports invalid data.
fn tls_fails(error: &RedisError, reason: &str) -> bool {
    let source = StdError::source(error).and_then(|source| {
        let shared: &Arc<dyn StdError + Send + Sync> = source.downcast_ref()?;
        shared.downcast_ref::<std::io::Error>()
    });
    source.is_some_and(|source| {
        source.kind() == std::io::ErrorKind::InvalidData && source.to_string().contains(reason)
    })
}

fn lacks_tls(error: &RedisError) -> bool {
    tls_fails(error, ANSWERS_WITHOUT_TLS) || tls_fails(error, "corrupt message")
}

/// Returns the time of the server if nothing was written because the call has no window of a calendar at that time.
pub(crate) fn time_without_window(error: &Error) -> Option<u64> {
    let text = (error.act() == Act::NoWindow).then(|| error.problem())?;
    let (_, behind) = text.split_once(NO_WINDOW)?;
    behind
        .split(|c: char| !c.is_ascii_digit())
        .find_map(|number| number.parse().ok())
}

/// The handshake that an attempt to connect failed in, if it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handshake {
    /// Without TLS, with a port that may speak it.
    Plain,
    Tls,
    /// With TLS, with a node that a cluster announces.
    TlsToNode,
    Unknown,
}

/// The error of a check of several levels whose keys are in several slots of a cluster.
pub(crate) fn several_slots() -> Error {
    Error::coded(
        C::SEVERAL_SLOTS,
        "cannot decide keys of several cluster slots together: use one hash tag for them",
    )
}

/// The error of slots whose lease is too short for a clock that is known no better. Their call was not sent.
pub(crate) fn lease_too_short(
    server: &ServerName,
    lease: Duration,
    clock_error: Duration,
) -> Error {
    let text = format!(
        "cannot hold slots for a lease of {lease:?}: {server} refuses TIME in scripts, and this process knows its time \
         to {clock_error:?}, of which a lease must be ten times as long"
    );
    let remedy = "raise the lease of `Quota::in_flight`, or use a server closer by";
    Error::coded(C::SHORT_LEASE, text)
        .with_remedy(remedy)
        .for_one_check()
}

/// The error of a connection for which the application gave no credentials. A retry may help: most often the service that
/// issues tokens is away.
pub(crate) fn no_credentials(server: &ServerName, cause: &str) -> Error {
    let text = format!(
        "failed to get credentials for {server} from the closure of `RedisStore::credentials`: {cause}"
    );
    let remedy = "check the service that issues the token, and the right of this process to ask it";
    Error::coded(C::NO_CREDENTIALS, text).with_remedy(remedy)
}

pub(crate) fn timeout(server: &ServerName, deadline: Duration, late: Late) -> Error {
    let text = format!("{server} did not answer within {deadline:?}");
    let remedy = "check its load and the network, or raise `RedisStore::deadline`";
    missed(C::TIMEOUT, text, remedy, late.standstill_within(deadline))
}

/// The error of a call that got the reply to another one, as does each call behind a reply that was lost or sent twice.
/// `reconnects` tells whether the store replaces the connection.
pub(crate) fn out_of_sync(server: &ServerName, reconnects: bool) -> Error {
    let text = format!(
        "{server} sent the reply to another call: this call may or may not have been executed"
    );
    let remedy = if reconnects {
        "the store replaces the connection; if it happens again, look for a proxy in front of the server that loses or \
             repeats replies"
    } else {
        "replace the connection that was given to `RedisStore::with_connection`, and the store: it gives each call the \
             reply to another one"
    };
    Error::coded(C::OUT_OF_SYNC, text).with_remedy(remedy)
}

/// The error of a check that waited in this process until its deadline, while the server answered others.
pub(crate) fn queue_timeout(server: &ServerName, deadline: Duration, late: Late) -> Error {
    let text = format!(
        "a check waited too long for its turn in this process, and missed the deadline of {deadline:?}; \
         {server} answers other calls"
    );
    let remedy = if server.is_cluster() {
        "set `RedisStore::hash_tags`, so that checks share calls"
    } else {
        "take a lease for busy keys, or divide the keys by `RedisStore::by_slot` and `RedisStore::hash_tags`"
    };
    missed(
        C::QUEUE_TIMEOUT,
        text,
        remedy,
        late.standstill_within(deadline),
    )
}

fn missed(code: C, text: String, remedy: &'static str, standstill: Option<String>) -> Error {
    match standstill {
        Some(standstill) => {
            Error::coded(code, format!("{text}, and {standstill}")).with_remedy(Late::NEEDS_CPU)
        }
        None => Error::coded(code, text).with_remedy(remedy),
    }
}

pub(crate) fn malformed_reply(cause: &str, server: &ServerName) -> Error {
    explain(&MALFORMED, server, cause)
}

/// The error for a part of a reply that makes no sense for one entry, though the rest of the reply can be read.
pub(crate) fn malformed_entry(cause: &str, server: &ServerName) -> Error {
    let text = format!("{server} replied nonsense to this check: {cause}");
    let remedy = "another program may write to the keys of this prefix: reset the key";
    Error::coded(C::INVALID_REPLY, text)
        .with_remedy(remedy)
        .for_one_check()
}

/// Separates an unknown command from its arguments in a server's message. The arguments of HELLO and AUTH
/// hold the password.
const BEFORE_ARGUMENTS: &str = ", with args beginning with";

fn without_arguments(text: &str) -> &str {
    text.split_once(BEFORE_ARGUMENTS)
        .map_or(text, |(before, _)| before)
}

/// Rebuilds an error that quotes the arguments of a command, from its code and the text before them.
fn not_quoting(error: RedisError) -> RedisError {
    if !error.to_string().contains(BEFORE_ARGUMENTS) {
        return error;
    }
    let detail = without_arguments(error.detail().unwrap_or_default()).to_owned();
    match error.code() {
        Some(code) => redis::make_extension_error(code.to_owned(), Some(detail)),
        None => (error.kind(), "failed to run a command", detail).into(),
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

/// Returns the message of a reply, without arguments. Before Redis 7.0, the position in the script precedes the
/// message of an error that ends a script.
fn message_in(text: &str) -> &str {
    let text = without_arguments(text);
    let behind = text
        .split_once("@user_script")
        .and_then(|(_, behind)| behind.split_once(": -"));
    let message = behind.map_or(text, |(_, message)| message);
    message.trim_end().trim_end_matches('.')
}

/// Returns the cause of an error in one line: the server's message with its code in front, or the error of
/// the operating system or of the client.
fn cause_text(error: &RedisError) -> String {
    if let Some(code) = error.code() {
        let text = format!("{code} {}", error.detail().unwrap_or_default());
        return message_in(&text).to_owned();
    }
    // Further lines hold the bytes that could not be parsed.
    let line = first_line(&error.to_string());
    // The client writes "cause - Kind: detail".
    let mut cause = match (line.split_once(" - "), error.detail().map(first_line)) {
        (Some((cause, _)), Some(detail)) => format!("{cause}: {detail}"),
        (Some((cause, _)), None) => cause.to_owned(),
        (None, _) => line,
    };
    // Not of an abbreviation.
    if cause.chars().nth(1).is_some_and(char::is_lowercase)
        && let Some(first) = cause.get_mut(..1)
    {
        first.make_ascii_lowercase();
    }
    cause
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::io;

    use ErrorKind::{Full, Misconfigured, Timeout, Unavailable};

    use super::super::server_name::CLUSTER;
    use super::*;

    /// Replies of servers, each behind what finds its row: a code, or the first words of the row.
    const REPLIES: &[(&str, &str)] = &[
        // 6.2, 7.0, 7.2; then from within a script, before and since 7.0.
        (
            "to run the '",
            "NOPERM this user has no permissions to run the 'get' command or its subcommand",
        ),
        (
            "to run the '",
            "NOPERM This user has no permissions to run the 'get' command",
        ),
        (
            "to run the '",
            "NOPERM User app has no permissions to run the 'get' command",
        ),
        (
            "to run the '",
            "ERR ACL failure in script: User app has no permissions to run the 'get' command",
        ),
        (
            "can't run this command",
            "ERR The user executing the script can't run this command or subcommand",
        ),
        (
            "no permissions to access",
            "ERR The user executing the script can't access at least one of the keys mentioned in the command",
        ),
        (
            "no permissions to access",
            "NOPERM this user has no permissions to access one of the keys used as arguments",
        ),
        (
            "no permissions to access",
            "NOPERM No permissions to access a key",
        ),
        (
            "unknown command '",
            "ERR unknown command 'EVALSHA', with args beginning with: 'OOM' '1' 'READONLY' ",
        ),
        (
            "unknown command '",
            "ERR unknown command `HELLO`, with args beginning with: `3`, ",
        ),
        ("unknown command '", "ERR unknown command 'READONLY'"),
        ("unknown command", "ERR unknown command EVALSHA"),
        (
            "unknown command",
            "ERR Unknown subcommand or wrong number of arguments for 'SETINFO'. Try CLIENT HELP.",
        ),
        (
            "unknown command",
            "ERR Unknown Redis command called from script script: 1f, on @user_script:1.",
        ),
        (
            "unknown command",
            "ERR Unknown Redict command called from script",
        ),
        (
            "not allowed from script",
            "ERR This Redis command is not allowed from script script: 1f, on @user_script:1.",
        ),
        (
            "not allowed from script",
            "ERR This Redis command is not allowed from scripts",
        ),
        ("NOAUTH", "NOAUTH Authentication required."),
        (
            "NOAUTH",
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH \
             <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the \
             same time",
        ),
        (
            "WRONGPASS",
            "WRONGPASS invalid username-password pair or user is disabled.",
        ),
        ("NOPERM", "NOPERM this user may not do this"),
        (
            "READONLY",
            "READONLY You can't write against a read only replica.",
        ),
        (
            "OOM",
            "OOM command not allowed when used memory > 'maxmemory'.",
        ),
        (
            "OOM",
            "OOM command not allowed when used memory > 'maxmemory'. script: 1f, on @user_script:24.",
        ),
        (
            "NOREPLICAS",
            "NOREPLICAS Not enough good replicas to write.",
        ),
        (
            "MISCONF",
            "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
        ),
        ("LOADING", "LOADING Redis is loading the dataset in memory"),
        (
            "BUSY",
            "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
        ),
        (
            "UNKILLABLE",
            "UNKILLABLE Sorry the script already executed write commands against the dataset.",
        ),
        (
            "MASTERDOWN",
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        ),
        (
            "max number of clients reached",
            "ERR max number of clients reached",
        ),
        ("MOVED", "MOVED 1 127.0.0.1:7001"),
        ("ASK", "ASK 1 127.0.0.1:7001"),
        (
            "TRYAGAIN",
            "TRYAGAIN Multiple keys request during rehashing of slot",
        ),
        ("CLUSTERDOWN", "CLUSTERDOWN Hash slot not served"),
        ("CLUSTERDOWN", "CLUSTERDOWN The cluster is down"),
        (
            "CROSSSLOT",
            "CROSSSLOT Keys in request don't hash to the same slot",
        ),
        // Redis Enterprise, then Alibaba Cloud, as published.
        (
            "CROSSSLOT",
            "CROSSSLOT Keys in request don't hash to the same slot (context='within MULTI', command='set')",
        ),
        (
            "keys must be in same slot",
            "ERR eval/evalsha command keys must be in same slot",
        ),
        ("NOWINDOW", "NOWINDOW 1700000000000000"),
        ("NOSCRIPT", "NOSCRIPT No matching script. Please use EVAL."),
        (
            "WRONGTYPE",
            "WRONGTYPE Operation against a key holding the wrong kind of value",
        ),
        (
            "should be passed using the keys array",
            "ERR bad lua script for redis cluster, all the keys that the script uses should be passed using the KEYS \
             array",
        ),
        (
            "not support for normal user",
            "ERR command eval not support for normal user",
        ),
        (
            "scripting support disabled",
            "ERR This instance has Lua scripting support disabled",
        ),
        (
            "accessing undeclared key",
            "ERR Error running script (call to 1f): @user_script:24: script tried accessing undeclared key",
        ),
        // No row is for these.
        ("", "ERR syntax error"),
        ("", "ERR connection refused by a proxy"),
        ("", "NOTBUSY No scripts in execution right now."),
        ("", "NOPROTO unsupported protocol version"),
        (
            "",
            "ERR user_script:7: attempt to index a nil value script: 1f, on @user_script:7.",
        ),
    ];

    /// Errors of the client library, each behind the remedy of its row, or the text if there is none.
    fn client_errors() -> Vec<(&'static str, RedisError, Handshake)> {
        use Handshake::Unknown;
        let io = |kind: io::ErrorKind| RedisError::from(io::Error::from(kind));
        let tls = |text: &str| io::Error::new(io::ErrorKind::InvalidData, text).into();
        let of_kind = |kind| RedisError::from((kind, "A text", "and a detail".to_owned()));
        let not_redis = redis::parse_redis_value(b"HTTP/1.1 400 Bad Request\r\n").unwrap_err();
        let lookup = "failed to lookup address information: Name or service not known";
        vec![
            (
                "use rediss:// if the port speaks TLS",
                io(io::ErrorKind::ConnectionReset),
                Plain,
            ),
            (
                "check its load and the network, and whether the port speaks TLS",
                io(io::ErrorKind::TimedOut),
                Tls,
            ),
            (
                "check its load and the network, and whether the port speaks TLS",
                io(io::ErrorKind::TimedOut),
                TlsToNode,
            ),
            (
                WRONG_PASSWORD.remedy.unwrap(),
                of_kind(RedisKind::AuthenticationFailed),
                Plain,
            ),
            (
                "correct the files, or the `ca`, `cert` and `key` in the URL",
                of_kind(RedisKind::InvalidClientConfig),
                Tls,
            ),
            (
                "use redis:// if the port does not speak TLS, or the TLS port of the server",
                tls("received corrupt message of type InvalidContentType"),
                Tls,
            ),
            (
                "use redis:// if the port does not speak TLS, or the TLS port of the server",
                tls(ANSWERS_WITHOUT_TLS),
                Tls,
            ),
            (
                "have the cluster announce its TLS ports: set tls-cluster to yes on each node, and \
                 cluster-announce-tls-port where ports are mapped",
                tls(ANSWERS_WITHOUT_TLS),
                TlsToNode,
            ),
            (
                "create the self-signed certificate of the server with CA:FALSE, or have an authority sign another one: \
                 openssl req -x509 -addext basicConstraints=CA:FALSE",
                tls("invalid peer certificate: Other(OtherError(CaUsedAsEndEntity))"),
                Tls,
            ),
            (
                "trust the authority of the certificate: ?ca=/path/to/ca.pem",
                tls("invalid peer certificate: UnknownIssuer"),
                Tls,
            ),
            (
                "present a certificate: ?cert=/path/to/client.pem&key=/path/to/client.key",
                tls("received fatal alert: CertificateRequired"),
                Tls,
            ),
            (
                "check the certificate of the server, and the `ca`, `cert` and `key` in the URL",
                tls("invalid peer certificate: Expired"),
                Tls,
            ),
            (
                "is it a Redis server? use rediss:// if the port speaks TLS",
                not_redis,
                Plain,
            ),
            (
                "is it a Redis server, and does no proxy change its replies?",
                of_kind(RedisKind::UnexpectedReturnType),
                Unknown,
            ),
            (
                "check its load and the network",
                io(io::ErrorKind::TimedOut),
                Plain,
            ),
            (
                "failed to run a command on {server}: {cause}",
                of_kind(RedisKind::InvalidClientConfig),
                Unknown,
            ),
            (
                "failed to run a command on {server}: {cause}",
                of_kind(RedisKind::RESP3NotSupported),
                Plain,
            ),
            (
                "is redis-server running{at}?",
                io(io::ErrorKind::ConnectionRefused),
                Plain,
            ),
            (
                "check the host name in the URL",
                io::Error::other(lookup).into(),
                Tls,
            ),
            (UNREACHABLE, io(io::ErrorKind::BrokenPipe), Unknown),
            (UNREACHABLE, of_kind(RedisKind::Io), Tls),
            (
                UNREACHABLE,
                of_kind(RedisKind::ClusterConnectionNotFound),
                Unknown,
            ),
        ]
    }

    fn server() -> ServerName {
        ServerName::new("Redis", "127.0.0.1:6379")
    }

    /// A missed deadline, with a standstill of this long.
    fn late(standstill: Duration) -> Late {
        Late {
            standstill,
            ..Late::now()
        }
    }

    #[test]
    fn a_missed_deadline_names_the_process_if_that_stood_still_for_half_of_it() {
        let (server, deadline) = (server(), Duration::from_millis(100));
        for missed in [timeout, queue_timeout] {
            let error = |millis| missed(&server, deadline, late(Duration::from_millis(millis)));
            let named = "this process stood still for 50ms meanwhile; give this process more CPU";
            assert!(error(50).to_string().contains(named), "{}", error(50));
            assert!(!error(49).to_string().contains("CPU"), "{}", error(49));
            assert_eq!(error(49).code(), error(50).code());
        }
    }

    fn replied(reply: &str) -> RedisError {
        let reply = redis::parse_redis_value(format!("-{reply}\r\n").as_bytes()).unwrap();
        reply.extract_error().unwrap_err()
    }

    /// The text of a script that this reply ends, before Redis 7.0.
    fn quoted(reply: &str) -> String {
        format!("ERR Error running script (call to f_1): @user_script: 9: -{reply}")
    }

    fn of_call(reply: &str) -> Error {
        from_redis(replied(reply), Handshake::Unknown, &server())
    }

    fn key(row: &ErrorRow) -> &'static str {
        match row.found {
            Code(code) => code,
            Words(words) => words.first().copied().unwrap_or_default(),
            Client(_) => row.remedy.unwrap_or(row.text),
        }
    }

    #[test]
    fn each_row_has_a_reply_that_finds_it() {
        let mut found = BTreeSet::new();
        for (expected, reply) in REPLIES {
            let row = find_row(&replied(reply), Handshake::Unknown);
            assert_eq!(key(row), *expected, "{reply}");
            assert_eq!(key(find_row_in(message_in(reply))), *expected, "{reply}");
            let old = find_row(&replied(&quoted(reply)), Handshake::Unknown);
            assert_eq!(key(old), *expected, "{reply}");
            found.extend((!expected.is_empty()).then_some((*expected, false)));
        }
        for (expected, error, handshake) in client_errors() {
            let row = find_row(&error, handshake);
            assert!(matches!(row.found, Client(_)), "{error}");
            assert_eq!(key(row), expected, "{error}");
            found.insert((expected, true));
        }
        let of_table = TABLE.iter();
        let rows = of_table.map(|row| (key(row), matches!(row.found, Client(_))));
        let missing: Vec<_> = rows.filter(|row| !found.contains(row)).collect();
        assert!(missing.is_empty(), "no reply finds {missing:?}");
        assert_eq!(TABLE.len(), found.len(), "two rows have one key");
    }

    #[test]
    fn each_text_names_the_server_and_the_cause_and_has_no_placeholder_left() {
        let calls = REPLIES.iter();
        let of_calls = calls.map(|(_, reply)| (replied(reply), Handshake::Unknown));
        let others = client_errors().into_iter();
        for (error, handshake) in
            of_calls.chain(others.map(|(_, error, handshake)| (error, handshake)))
        {
            let (cause, server) = (cause_text(&not_quoting(error.clone())), server());
            let error = from_redis(error, handshake, &server);
            let text = error.problem();
            assert!(text.contains("Redis at 127.0.0.1:6379"), "{text}");
            assert!(text.contains(&cause) && !cause.ends_with('.'), "{text}");
            assert!(!error.to_string().contains(['{', '}']), "{error}");
        }
    }

    #[test]
    fn errors_have_a_code() {
        for (reply, code) in [
            ("WRONGPASS", "tollgate::E105"),
            ("NOPERM", "tollgate::E107"),
            ("ERR unknown command", "tollgate::E108"),
            ("READONLY", "tollgate::E109"),
            ("OOM", "tollgate::E110"),
            ("NOREPLICAS", "tollgate::E111"),
            ("MISCONF", "tollgate::E112"),
            ("LOADING", "tollgate::E113"),
            ("BUSY", "tollgate::E114"),
            ("ERR max number of clients reached", "tollgate::E115"),
            ("MOVED", "tollgate::E116"),
            ("CLUSTERDOWN", "tollgate::E117"),
            ("CROSSSLOT", "tollgate::E118"),
            ("NOWINDOW", "tollgate::E120"),
            ("NOSCRIPT", "tollgate::E121"),
            ("WRONGTYPE", "tollgate::E122"),
            ("ERR accessing undeclared key", "tollgate::E123"),
            ("ERR syntax error", "tollgate::E006"),
        ] {
            let error = of_call(&format!("{reply} and more"));
            assert_eq!(error.code(), code, "{error}");
            assert!(
                error.to_string().ends_with(&format!(" [{code}]")),
                "{error}"
            );
        }
        let (second, server) = (Duration::from_secs(1), server());
        let late = late(Duration::ZERO);
        let codes_of_client_errors: BTreeSet<_> = client_errors()
            .into_iter()
            .map(|(_, error, handshake)| from_redis(error, handshake, &server).code())
            .collect();
        let expected = [
            "tollgate::E003",
            "tollgate::E006",
            "tollgate::E008",
            "tollgate::E101",
            "tollgate::E102",
            "tollgate::E103",
            "tollgate::E104",
            "tollgate::E105",
        ];
        assert_eq!(codes_of_client_errors, BTreeSet::from(expected));
        for (error, code) in [
            (timeout(&server, second, late), "tollgate::E003"),
            (queue_timeout(&server, second, late), "tollgate::E004"),
            (malformed_entry("nothing", &server), "tollgate::E008"),
            (no_credentials(&server, "no token"), "tollgate::E106"),
            (several_slots(), "tollgate::E119"),
            (lease_too_short(&server, second, second), "tollgate::E126"),
        ] {
            assert_eq!(error.code(), code, "{error}");
        }
    }

    #[test]
    fn errors_have_a_kind() {
        for (reply, kind) in [
            ("WRONGTYPE Operation against a key", Misconfigured),
            (
                "@user_script: 34: WRONGTYPE Operation against a key",
                Misconfigured,
            ),
            ("OOM command not allowed", Full),
            ("@user_script: 9: -OOM command not allowed", Full),
            ("READONLY You can't write", Unavailable),
            (
                "ERR ACL failure in script: User limiter has no permissions to run the 'append' command",
                Misconfigured,
            ),
            ("user_script:7: attempt to index a nil value", Misconfigured),
        ] {
            assert_eq!(from_script(reply, &server()).kind(), kind, "{reply}");
        }
        for (reply, kind) in [
            ("OOM command not allowed", Full),
            (&quoted("OOM command"), Full),
            ("LOADING the dataset", Unavailable),
            ("MISCONF unable to persist", Unavailable),
            (&quoted("MISCONF unable to persist"), Unavailable),
            ("READONLY replica", Unavailable),
            (&quoted("READONLY You"), Unavailable),
            ("NOAUTH required", Misconfigured),
            ("CROSSSLOT keys", Misconfigured),
            ("ERR unknown command EVALSHA", Misconfigured),
            ("ERR max number of clients reached", Unavailable),
        ] {
            assert_eq!(of_call(reply).kind(), kind, "{reply}");
        }
        for (error, kind) in [
            (io::ErrorKind::BrokenPipe, Unavailable),
            (io::ErrorKind::TimedOut, Timeout),
        ] {
            let error = from_redis(io::Error::from(error).into(), Handshake::Unknown, &server());
            assert_eq!(error.kind(), kind, "{error}");
        }
    }

    #[test]
    fn texts_and_remedies_fit_the_error() {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        for (error, text, remedy) in [
            (
                of_call("WRONGPASS invalid username-password pair"),
                "Redis at 127.0.0.1:6379 does not accept the user or the password: WRONGPASS invalid username-password \
                 pair",
                "the password",
            ),
            (
                of_call("MOVED 1 127.0.0.1:7001"),
                "Redis at 127.0.0.1:6379 is one node of a cluster: MOVED 1 127.0.0.1:7001",
                "use redis+cluster://",
            ),
            (
                from_script("@user_script: 9: -OOM command not allowed.", &server()),
                "Redis at 127.0.0.1:6379 is out of memory: OOM command not allowed",
                "maxmemory",
            ),
            (
                from_script("READONLY You can't write", &server()),
                "Redis at 127.0.0.1:6379 is a replica, which takes no writes: READONLY You can't write",
                "the master",
            ),
            (
                of_call("ERR unknown command 'EVAL'"),
                "Redis at 127.0.0.1:6379 does not know the command EVAL, which is renamed or disabled there: ERR unknown \
                 command 'EVAL'",
                "remove `rename-command EVAL`",
            ),
            (
                from_redis(refused.into(), Handshake::Unknown, &server()),
                "failed to reach Redis at 127.0.0.1:6379: connection refused",
                "is redis-server running at 127.0.0.1:6379?",
            ),
        ] {
            assert_eq!(error.problem(), text);
            let remedy_of = error.remedy().unwrap();
            assert!(remedy_of.contains(remedy), "{error}: {remedy_of}");
        }
    }

    #[test]
    fn what_vendors_say_has_the_setting_that_helps() {
        let remedies = [
            ("should be passed", "script_check_enable"),
            ("not support for normal user", "minor version"),
            ("Redict", "lacks or renames it"),
            ("scripting support disabled", "--lua-transaction-mode"),
            ("undeclared key", "allow-undeclared-keys"),
        ];
        for (part, said) in remedies {
            let (_, reply) = REPLIES.iter().find(|(_, it)| it.contains(part)).unwrap();
            let error = of_call(reply);
            let text = format!("failed to run a command on Redis at 127.0.0.1:6379: {reply}");
            assert_eq!(error.problem(), text);
            assert!(error.remedy().unwrap().contains(said), "{reply}");
        }
    }

    #[test]
    fn a_remedy_fits_the_kind_of_server() {
        let cluster = ServerName::new(CLUSTER, "a:6379, b:6379");
        let error = from_redis(
            replied("MOVED 1 10.0.0.8:6379"),
            Handshake::Unknown,
            &cluster,
        );
        let text = "failed to run a command on Redis Cluster at a:6379, b:6379: MOVED 1 10.0.0.8:6379 \
             [tollgate::E117]";
        assert_eq!(
            (error.to_string().as_str(), error.kind()),
            (text, Unavailable)
        );
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let error = from_redis(refused.into(), Handshake::Unknown, &ServerName::UNKNOWN);
        assert_eq!(
            error.to_string(),
            "failed to reach Redis: connection refused; is redis-server running? [tollgate::E101]"
        );
    }

    #[test]
    fn a_missing_right_is_named_by_every_version() {
        for (found, act, remedy) in [
            ("to run the '", Act::ForbiddenCommand, "<user> +get"),
            (
                "can't run this command",
                Act::ForbiddenCommand,
                "<user> +<command>; `tollgate-doctor` names the command",
            ),
            (
                "no permissions to access",
                Act::ForbiddenKeys,
                "<user> ~<prefix>:*",
            ),
        ] {
            for (_, reply) in REPLIES.iter().filter(|(row, _)| *row == found) {
                assert_eq!(find_act_in_text(reply), act, "{reply}");
                let remedy = format!("grant the right: ACL SETUSER {remedy}");
                assert_eq!(of_call(reply).remedy().unwrap(), &remedy, "{reply}");
            }
        }
        assert_eq!(find_act_in_text("ERR syntax error"), Act::Nothing);
    }

    #[test]
    fn a_script_may_lack_time_if_a_command_is_refused() {
        for (reply, expected) in [
            ("ERR This Redis command is not allowed from script", true),
            ("ERR Unknown Redis command called from script", true),
            (
                "NOPERM User app has no permissions to run the 'time' command",
                true,
            ),
            ("NOPERM No permissions to access a key", false),
            ("OOM command not allowed", false),
        ] {
            assert_eq!(may_refuse_time(&replied(reply)), expected, "{reply}");
        }
    }

    #[test]
    fn a_replica_is_recognized_by_the_error_of_a_call_or_of_an_entry() {
        let readonly = "READONLY You can't write against a read only replica.";
        for (reply, expected) in [
            (readonly, true),
            (&quoted(readonly), true),
            ("MOVED 1 127.0.0.1:1", false),
            ("ERR unknown command", false),
        ] {
            let is_replica = find_act(&replied(reply)) == Act::Replica;
            assert_eq!(is_replica, expected, "{reply}");
            let of_entry = from_script(reply, &server());
            assert_eq!(of_entry.act() == Act::Replica, expected, "{of_entry}");
        }
        let of_entry = from_script(&format!("@user_script: 9: -{readonly}"), &server());
        assert_eq!(of_entry.act(), Act::Replica);
    }

    #[test]
    fn keys_of_several_slots_are_recognized_by_the_code_or_by_the_words_of_a_proxy() {
        for (found, reply) in REPLIES {
            let is_expected = ["CROSSSLOT", "keys must be in same slot"].contains(found);
            let is_found = of_call(reply).act() == Act::SeveralSlots;
            assert_eq!(is_found, is_expected, "{reply}");
        }
    }

    #[test]
    fn a_call_that_a_script_may_have_run_is_not_sent_again() {
        for reply in ["TRYAGAIN Multiple keys", "NOSCRIPT No matching script"] {
            let (error, old) = (replied(reply), replied(&quoted(reply)));
            let acts = |error: RedisError| {
                let is_unknown = find_act(&error) == Act::UnknownScript;
                let error = from_redis(error, Handshake::Unknown, &server());
                [is_unknown, error.act() == Act::Moving]
            };
            assert_eq!(
                acts(error).into_iter().filter(|it| *it).count(),
                1,
                "{reply}"
            );
            assert_eq!(acts(old), [false; 2], "{reply}");
        }
    }

    #[test]
    fn the_time_without_a_window_is_that_of_the_server() {
        let reply = "NOWINDOW 1700000000000000";
        let position = format!("@user_script: 34: {reply}");
        let old = format!("ERR Error running script (call to f_1): {position}");
        for error in [
            of_call(reply),
            of_call(&quoted(reply)),
            of_call(&old),
            from_script(reply, &server()),
            from_script(&position, &server()),
        ] {
            let time = time_without_window(&error);
            assert_eq!(time, Some(1_700_000_000_000_000), "{error}");
        }
        assert_eq!(time_without_window(&of_call("OOM 1700000000000000")), None);
    }

    #[test]
    fn a_handshake_is_repeated_in_resp2_if_the_protocol_may_be_the_cause() {
        let error = |code: &str, detail: &str| {
            redis::make_extension_error(code.to_owned(), Some(detail.to_owned()))
        };
        let io = |kind| RedisError::from(io::Error::from(kind));
        for (error, expected) in [
            (error("ERR", "unknown command 'HELLO', with args"), true),
            (error("NOPROTO", "unsupported protocol version"), true),
            (io(io::ErrorKind::ConnectionReset), true),
            (io(io::ErrorKind::ConnectionRefused), false),
            (io(io::ErrorKind::TimedOut), false),
            (error("WRONGPASS", "invalid username-password pair"), false),
            (error("LOADING", "the dataset"), false),
        ] {
            assert_eq!(may_lack_resp3(&error), expected, "{error}");
        }
    }

    #[test]
    fn the_arguments_of_an_unknown_command_are_not_shown() {
        let quoting = "unknown command `AUTH`, with args beginning with: `default`, `s3cret`, ";
        let of_server = redis::make_extension_error("ERR".into(), Some(quoting.into()));
        let of_client = (RedisKind::Io, "no connections", format!("node: {quoting}"));
        for error in [of_server, of_client.into()] {
            let error = from_redis(error, Handshake::Unknown, &server());
            let shown = format!("{error} {error:?} {:?}", StdError::source(&error));
            assert!(shown.contains("unknown command `AUTH`"), "{shown}");
            assert!(!shown.contains("s3cret"), "{shown}");
        }
        let error = from_script(&format!("ERR {quoting}"), &server());
        assert!(!error.to_string().contains("s3cret"), "{error}");
    }
}
