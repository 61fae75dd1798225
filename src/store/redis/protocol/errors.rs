//! Classifies errors of Redis.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use redis::{ErrorKind as RedisKind, RedisError, ServerErrorKind};

use crate::error::{Error, ErrorKind};

/// The code with which a replica refuses writes.
const READONLY: &str = "READONLY";

/// The code with which the script refuses a check that it needs another key for.
const NO_LIST_KEY: &str = "NOLISTKEY";

/// The message to a client above `maxclients`.
const TOO_MANY_CLIENTS: &str = "max number of clients reached";

/// The codes of transient errors: the server cannot serve now, or another one has to be asked.
const TRANSIENT: [&str; 11] = [
    "ASK",
    "BUSY",
    "CLUSTERDOWN",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",
    "MOVED",
    "NOREPLICAS",
    READONLY,
    "TRYAGAIN",
    "UNKILLABLE",
];

/// Whether the server has not run the script because it does not know it.
pub(crate) fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == RedisKind::Server(ServerErrorKind::NoScript)
}

/// Whether a handshake failed by the configuration, of the client or of the server.
pub(crate) fn is_misconfigured(error: &RedisError) -> bool {
    kind_of_call(error) == ErrorKind::Misconfigured
}

/// Whether a handshake in RESP3 may have failed because the server speaks RESP2 only. Such a server
/// replies to the unknown HELLO with any error, or hangs up.
pub(crate) fn may_lack_resp3(error: &RedisError) -> bool {
    match error.kind() {
        RedisKind::RESP3NotSupported => true,
        RedisKind::AuthenticationFailed => false,
        RedisKind::Io => error.is_connection_dropped() && !error.is_connection_refusal(),
        _ => matches!(error.code(), Some("ERR" | "NOPROTO" | "NOPERM")),
    }
}

/// The error of a connection whose tokio runtime has shut down: it will not reconnect.
pub(crate) fn runtime_has_ended() -> RedisError {
    let text = "the tokio runtime of this connection has ended";
    (RedisKind::Io, text).into()
}

/// Whether a call failed because the server is a replica: another server is the master now.
pub(crate) fn is_replica(error: &RedisError) -> bool {
    let code = error.code().unwrap_or_default();
    matches_code(code, error.detail().unwrap_or_default(), READONLY)
}

/// Whether an entry failed because the server is a replica.
pub(crate) fn is_from_replica(error: &Error) -> bool {
    StdError::source(error).is_some_and(|source| source.is::<Replica>())
}

/// The source of the error of an entry that a replica could not decide.
#[derive(Debug)]
struct Replica;

impl fmt::Display for Replica {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the server is a replica")
    }
}

impl StdError for Replica {}

/// Whether an entry wrote nothing because its call lacks the key of a list.
pub(crate) fn lacks_list_key(error: &Error) -> bool {
    StdError::source(error).is_some_and(|source| source.is::<ListKeyMissing>())
}

/// The source of the error of an entry whose log is a list that is not among the keys of the call.
#[derive(Debug)]
struct ListKeyMissing;

impl fmt::Display for ListKeyMissing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the key of the list is not among those of the call")
    }
}

impl StdError for ListKeyMissing {}

/// Whether a cluster has not run a call because it is moving the slot and has only some of the keys.
pub(crate) fn is_moving(error: &Error) -> bool {
    let source = StdError::source(error);
    let source = source.and_then(|source| source.downcast_ref::<RedisError>());
    source.is_some_and(|source| source.kind() == RedisKind::Server(ServerErrorKind::TryAgain))
}

/// Whether a cluster has not run a call because its keys are in several slots.
pub(crate) fn is_cross_slot(error: &Error) -> bool {
    let source = StdError::source(error);
    let source = source.and_then(|source| source.downcast_ref::<RedisError>());
    source.is_some_and(|source| source.kind() == RedisKind::Server(ServerErrorKind::CrossSlot))
}

/// Separates an unknown command from its arguments in a server's message. The arguments of HELLO and AUTH
/// hold the password.
const BEFORE_ARGUMENTS: &str = ", with args beginning with";

/// Cuts off the arguments of an unknown command.
fn without_arguments(text: &str) -> &str {
    let cut = text.split_once(BEFORE_ARGUMENTS);
    cut.map_or(text, |(before, _)| before)
}

/// Rebuilds an error that quotes the arguments of a command, from its code and the text before them.
fn not_quoting(error: RedisError) -> RedisError {
    if !error.to_string().contains(BEFORE_ARGUMENTS) {
        return error;
    }
    let detail = without_arguments(error.detail().unwrap_or_default()).to_owned();
    match error.code() {
        Some(code) => redis::make_extension_error(code.to_owned(), Some(detail)),
        None => (error.kind(), "the server refuses a command", detail).into(),
    }
}

/// Converts the error of a whole call.
pub(crate) fn from_redis(error: RedisError) -> Error {
    let error = not_quoting(error);
    let kind = kind_of_call(&error);
    let text = if error.kind() == RedisKind::Parse {
        // Further lines hold the bytes that could not be parsed.
        let text = error.to_string();
        let first_line = text.lines().next().unwrap_or_default();
        format!("not a Redis server, or an incomplete reply: {first_line}")
    } else {
        text_of(kind, &error.to_string())
    };
    Error::new(kind, text).with_source(error)
}

fn kind_of_call(error: &RedisError) -> ErrorKind {
    if error.is_timeout() {
        return ErrorKind::Timeout;
    }
    if let Some(code) = error.code() {
        return kind_of(code, error.detail().unwrap_or_default());
    }
    match error.kind() {
        RedisKind::AuthenticationFailed
        | RedisKind::InvalidClientConfig
        | RedisKind::RESP3NotSupported => ErrorKind::Misconfigured,
        RedisKind::Io if is_tls_error(error) => ErrorKind::Misconfigured,
        RedisKind::Parse | RedisKind::UnexpectedReturnType => ErrorKind::InvalidReply,
        _ => ErrorKind::Unavailable,
    }
}

/// Whether TLS failed: the certificate is not trusted, or the server does not speak TLS. No other I/O
/// reports invalid data.
fn is_tls_error(error: &RedisError) -> bool {
    let source = StdError::source(error);
    let source = source.and_then(|source| source.downcast_ref::<Arc<dyn StdError + Send + Sync>>());
    let source = source.and_then(|source| source.downcast_ref::<std::io::Error>());
    source.is_some_and(|source| source.kind() == std::io::ErrorKind::InvalidData)
}

/// Converts the error of one entry, which the script has caught.
pub(crate) fn from_script(text: &str) -> Error {
    // Before Redis 7.0 the position in the script precedes the code.
    let mut words = text
        .split([' ', ':'])
        .map(|word| word.trim_start_matches('-'));
    let code = words.find(|word| is_code(word));
    let code = code.unwrap_or_default();
    let kind = kind_of(code, text);
    let error = Error::new(kind, text_of(kind, text));
    if code == NO_LIST_KEY {
        return error.with_source(ListKeyMissing);
    }
    if matches_code(code, text, READONLY) {
        return error.with_source(Replica);
    }
    error
}

/// The error for a reply that the script never sends.
pub(crate) fn malformed_reply(problem: &str) -> Error {
    let kind = ErrorKind::InvalidReply;
    Error::new(kind, text_of(kind, problem))
}

fn is_code(word: &str) -> bool {
    word.len() > 2 && word.bytes().all(|byte| byte.is_ascii_uppercase())
}

fn kind_of(code: &str, detail: &str) -> ErrorKind {
    let matches = |wanted: &str| matches_code(code, detail, wanted);
    if matches("OOM") {
        ErrorKind::Full
    } else if TRANSIENT.contains(&code)
        || matches(READONLY)
        || matches("NOREPLICAS")
        || matches(TOO_MANY_CLIENTS)
    {
        ErrorKind::Unavailable
    } else {
        ErrorKind::Misconfigured
    }
}

/// Whether an error has this code. Before Redis 7.0 an error that ends a script is an ERR that quotes the
/// actual one.
fn matches_code(code: &str, detail: &str, wanted: &str) -> bool {
    code == wanted || (code == "ERR" && detail.contains(wanted))
}

fn text_of(kind: ErrorKind, text: &str) -> String {
    let what = match kind {
        ErrorKind::Timeout => "Redis did not answer in time",
        ErrorKind::Full => "Redis is out of memory",
        ErrorKind::Misconfigured => "Redis is not set up for tollgate",
        ErrorKind::InvalidReply => "malformed reply from Redis",
        _ => "Redis is unavailable",
    };
    format!("{what}: {}", without_arguments(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_entries_have_a_kind() {
        for (text, kind) in [
            (
                "WRONGTYPE Operation against a key holding the wrong kind of value",
                ErrorKind::Misconfigured,
            ),
            (
                "@user_script: 34: WRONGTYPE Operation against a key holding the wrong kind",
                ErrorKind::Misconfigured,
            ),
            (
                "OOM command not allowed when used memory > 'maxmemory'.",
                ErrorKind::Full,
            ),
            (
                "@user_script: 9: -OOM command not allowed when used memory > 'maxmemory'.",
                ErrorKind::Full,
            ),
            (
                "READONLY You can't write against a read only replica.",
                ErrorKind::Unavailable,
            ),
            (
                "ERR ACL failure in script: User limiter has no permissions to run the 'rpush' command",
                ErrorKind::Misconfigured,
            ),
            (
                "user_script:7: attempt to index a nil value",
                ErrorKind::Misconfigured,
            ),
        ] {
            assert_eq!(from_script(text).kind(), kind, "{text}");
        }
    }

    #[test]
    fn errors_of_calls_have_a_kind() {
        let error = |code: &str, detail: &str| {
            redis::make_extension_error(code.to_owned(), Some(detail.to_owned()))
        };
        let script = "Error running script (call to f_1): @user_script: 1: -";
        for (error, kind) in [
            (error("OOM", "command not allowed"), ErrorKind::Full),
            (
                error("ERR", &format!("{script}OOM command")),
                ErrorKind::Full,
            ),
            (error("LOADING", "the dataset"), ErrorKind::Unavailable),
            (
                error("MISCONF", "unable to persist"),
                ErrorKind::Unavailable,
            ),
            (error("READONLY", "replica"), ErrorKind::Unavailable),
            (
                error("ERR", &format!("{script}READONLY You")),
                ErrorKind::Unavailable,
            ),
            (error("NOAUTH", "required"), ErrorKind::Misconfigured),
            (error("CROSSSLOT", "keys"), ErrorKind::Misconfigured),
            (
                error("ERR", "unknown command EVALSHA"),
                ErrorKind::Misconfigured,
            ),
            (
                std::io::Error::from(std::io::ErrorKind::BrokenPipe).into(),
                ErrorKind::Unavailable,
            ),
            (
                std::io::Error::from(std::io::ErrorKind::TimedOut).into(),
                ErrorKind::Timeout,
            ),
        ] {
            let text = format!("{error:?}");
            assert_eq!(from_redis(error).kind(), kind, "{text}");
        }
    }

    #[test]
    fn a_replica_is_recognized_by_the_error_of_a_call_or_of_an_entry() {
        let text = "You can't write against a read only replica.";
        let old = format!("Error running script (call to f_1): @user_script: 9: -READONLY {text}");
        for (code, detail, expected) in [
            ("READONLY", text, true),
            ("ERR", old.as_str(), true),
            ("MOVED", "1 127.0.0.1:1", false),
            ("ERR", "unknown command", false),
        ] {
            let of_call = redis::make_extension_error(code.to_owned(), Some(detail.to_owned()));
            assert_eq!(is_replica(&of_call), expected, "{of_call}");
            let of_entry = from_script(&format!("{code} {detail}"));
            assert_eq!(is_from_replica(&of_entry), expected, "{of_entry}");
        }
        assert!(is_from_replica(&from_script(&format!(
            "@user_script: 9: -READONLY {text}"
        ))));
    }

    #[test]
    fn a_handshake_is_repeated_in_resp2_if_the_protocol_may_be_the_cause() {
        let error = |code: &str, detail: &str| {
            redis::make_extension_error(code.to_owned(), Some(detail.to_owned()))
        };
        let io = |kind| RedisError::from(std::io::Error::from(kind));
        for (error, expected) in [
            (error("ERR", "unknown command 'HELLO', with args"), true),
            (error("NOPROTO", "unsupported protocol version"), true),
            (io(std::io::ErrorKind::ConnectionReset), true),
            (io(std::io::ErrorKind::ConnectionRefused), false),
            (io(std::io::ErrorKind::TimedOut), false),
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
            let error = from_redis(error);
            let shown = format!("{error} {error:?} {:?}", StdError::source(&error));
            assert!(shown.contains("unknown command `AUTH`"), "{shown}");
            assert!(!shown.contains("s3cret"), "{shown}");
        }
        let error = from_script(&format!("ERR {quoting}"));
        assert!(!error.to_string().contains("s3cret"), "{error}");
    }

    #[test]
    fn a_server_that_has_too_many_clients_is_unavailable() {
        let error = redis::make_extension_error("ERR".into(), Some(TOO_MANY_CLIENTS.into()));
        assert_eq!(from_redis(error).kind(), ErrorKind::Unavailable);
    }
}
