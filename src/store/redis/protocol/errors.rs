//! Classifies errors of Redis.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind as RedisKind, RedisError, ServerErrorKind};

use super::problems::{self, MissingRight, TOO_MANY_CLIENTS};
use super::server_name::ServerName;
use crate::error::{Error, ErrorKind};

/// The code with which a replica refuses writes.
const READONLY: &str = "READONLY";

/// The code with which the script refuses an entry of a calendar of which the call has no window at the time of the server.
/// The time follows.
const NO_WINDOW: &str = "NOWINDOW";

/// The codes of transient errors: the server cannot serve now, or another one has to be asked.
const TRANSIENT: [&str; 12] = [
    "ASK",
    "BUSY",
    "CLUSTERDOWN",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",
    "MOVED",
    NO_WINDOW,
    "NOREPLICAS",
    READONLY,
    "TRYAGAIN",
    "UNKILLABLE",
];

/// Whether the server has not run the script because it does not know it.
pub(crate) fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == RedisKind::Server(ServerErrorKind::NoScript)
}

/// Whether the server replied that it does not know the command.
pub(crate) fn is_unknown_command(error: &RedisError) -> bool {
    error.code().is_some() && problems::is_unknown_command(error.detail().unwrap_or_default())
}

/// Whether a call may have failed because its script may not run TIME, its first command: then nothing was written.
pub(crate) fn may_refuse_time(error: &RedisError) -> bool {
    let text = error.detail().unwrap_or_default();
    error.code().is_some()
        && (text.contains(problems::NOT_IN_SCRIPTS)
            || matches!(
                problems::missing_right(text),
                Some(MissingRight::Command(_))
            )
            || problems::is_unknown_command(text))
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

/// Whether a call failed because the server is a replica: another server is the master now.
pub(crate) fn is_replica(error: &RedisError) -> bool {
    let code = error.code().unwrap_or_default();
    matches_code(code, error.detail().unwrap_or_default(), READONLY)
}

/// Whether an entry failed because the server is a replica.
pub(crate) fn is_from_replica(error: &Error) -> bool {
    matches!(entry_failure(error), Some(EntryFailure::Replica))
}

/// Returns the time of the server if nothing was written because the call has no window of a calendar at that time.
pub(crate) fn time_without_window(error: &Error) -> Option<u64> {
    match entry_failure(error) {
        Some(EntryFailure::NoWindow { time }) => Some(*time),
        Some(EntryFailure::Replica) => None,
        None => time_behind_no_window(&redis_error(error)?.to_string()),
    }
}

fn time_behind_no_window(text: &str) -> Option<u64> {
    let (_, behind) = text.split_once(NO_WINDOW)?;
    let mut numbers = behind.split(|c: char| !c.is_ascii_digit());
    numbers.find(|number| !number.is_empty())?.parse().ok()
}

/// The source of the error of an entry that a store treats in its own way.
#[derive(Debug)]
enum EntryFailure {
    Replica,
    /// The call has no window of a calendar at this time of the server.
    NoWindow {
        time: u64,
    },
}

impl fmt::Display for EntryFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Replica => "the server is a replica",
            Self::NoWindow { .. } => "the window of the calendar is not among those of the call",
        })
    }
}

impl StdError for EntryFailure {}

fn entry_failure(error: &Error) -> Option<&EntryFailure> {
    StdError::source(error)?.downcast_ref()
}

fn redis_error(error: &Error) -> Option<&RedisError> {
    StdError::source(error)?.downcast_ref()
}

/// Whether a cluster has not run a call because it is moving the slot and has only some of the keys.
pub(crate) fn is_moving(error: &Error) -> bool {
    let try_again = RedisKind::Server(ServerErrorKind::TryAgain);
    redis_error(error).is_some_and(|source| source.kind() == try_again)
}

/// Whether a cluster has not run a call because its keys are in several slots.
pub(crate) fn is_cross_slot(error: &Error) -> bool {
    let cross_slot = RedisKind::Server(ServerErrorKind::CrossSlot);
    redis_error(error).is_some_and(|source| {
        let is_said = || problems::says_several_slots(source.detail().unwrap_or_default());
        source.kind() == cross_slot || is_said()
    })
}

/// The error of a check of several levels whose keys are in several slots of a cluster.
pub(crate) fn several_slots() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "cannot decide keys of several cluster slots together: use one hash tag for them",
    )
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
        None => (error.kind(), "failed to run a command", detail).into(),
    }
}

/// The handshake that an attempt to connect failed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handshake {
    /// Without TLS, with a port that may speak it.
    Plain,
    Tls,
}

/// Whether an attempt to connect without TLS may have failed because the port speaks TLS.
pub(crate) fn may_be_tls_port(error: &RedisError) -> bool {
    has_hung_up(error) || error.kind() == RedisKind::Parse
}

fn has_hung_up(error: &RedisError) -> bool {
    error.is_connection_dropped() && !error.is_connection_refusal()
}

/// Converts the error of a handshake.
pub(crate) fn from_handshake(
    error: RedisError,
    server: &ServerName,
    handshake: Handshake,
) -> Error {
    let describe = match handshake {
        Handshake::Plain if has_hung_up(&error) => problems::describe_hang_up,
        Handshake::Tls if error.is_timeout() => problems::describe_silent_tls,
        Handshake::Plain | Handshake::Tls => return from_redis(error, server),
    };
    let (text, remedy) = describe(server, &cause_of(&error));
    Error::with_remedy(kind_of_call(&error), text, remedy).with_source(error)
}

/// Converts the error of a whole call.
pub(crate) fn from_redis(error: RedisError, server: &ServerName) -> Error {
    let error = not_quoting(error);
    let kind = if is_redirect(&error) && !server.is_cluster() {
        // It was opened as a single server, and lacks most slots for good.
        ErrorKind::Misconfigured
    } else {
        kind_of_call(&error)
    };
    let cause = cause_of(&error);
    let (text, remedy) = if error.code().is_some() {
        problems::describe_reply(server, &cause)
    } else if error.kind() == RedisKind::Parse {
        problems::describe_not_redis(server, &cause)
    } else if error.kind() == RedisKind::AuthenticationFailed {
        problems::describe_wrong_password(server, &cause)
    } else if is_tls_error(&error) {
        problems::describe_tls(server, &cause)
    } else {
        match kind {
            ErrorKind::Timeout => problems::describe_timeout(server, &cause),
            ErrorKind::InvalidReply => problems::describe_malformed(server, &cause),
            ErrorKind::Unavailable => problems::describe_unreachable(server, &cause),
            // The client fails the handshake in its own words.
            _ => problems::describe_reply(server, &cause),
        }
    };
    Error::with_remedy(kind, text, remedy).with_source(error)
}

/// Returns the cause of an error in one line: the server's message with its code in front, or the error of
/// the operating system or of the client.
fn cause_of(error: &RedisError) -> String {
    if let Some(code) = error.code() {
        let detail = error.detail().unwrap_or_default();
        let text = format!("{code} {}", without_arguments(detail));
        return without_position(&text).trim_end().to_owned();
    }
    // Further lines hold the bytes that could not be parsed.
    let first_line = |text: &str| text.lines().next().unwrap_or_default().to_owned();
    let (line, detail) = (
        first_line(&error.to_string()),
        error.detail().map(first_line),
    );
    // The client writes "cause - Kind: detail".
    let cause = match (line.split_once(" - "), detail) {
        (Some((cause, _)), Some(detail)) => format!("{cause}: {}", without_arguments(&detail)),
        (Some((cause, _)), None) => cause.to_owned(),
        (None, _) => without_arguments(&line).to_owned(),
    };
    lower_first(&cause)
}

/// Returns a text with its first letter in lower case, unless it begins with an abbreviation.
fn lower_first(text: &str) -> String {
    let mut chars = text.chars();
    match (chars.next(), chars.clone().next()) {
        (Some(first), Some(second)) if second.is_lowercase() => {
            first.to_lowercase().chain(chars).collect()
        }
        _ => text.to_owned(),
    }
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

/// Whether a node of a cluster says that another one has the keys.
fn is_redirect(error: &RedisError) -> bool {
    matches!(
        error.kind(),
        RedisKind::Server(ServerErrorKind::Moved | ServerErrorKind::Ask)
    )
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
pub(crate) fn from_script(text: &str, server: &ServerName) -> Error {
    // Before Redis 7.0 the position in the script precedes the code.
    let mut words = text
        .split([' ', ':'])
        .map(|word| word.trim_start_matches('-'));
    let code = words.find(|word| is_code(word));
    let code = code.unwrap_or_default();
    let text = text.trim_end();
    let cause = without_position(text);
    let (description, remedy) = problems::describe_reply(server, without_arguments(cause));
    let error = Error::with_remedy(kind_of(code, text), description, remedy);
    if code == NO_WINDOW
        && let Some(time) = time_behind_no_window(text)
    {
        return error.with_source(EntryFailure::NoWindow { time });
    }
    if matches_code(code, text, READONLY) {
        return error.with_source(EntryFailure::Replica);
    }
    error
}

/// The error of slots whose lease is too short for a clock that is known no better. Their call was not sent.
pub(crate) fn lease_too_short(
    server: &ServerName,
    lease: Duration,
    clock_error: Duration,
) -> Error {
    let (text, remedy) = problems::describe_short_lease(server, lease, clock_error);
    Error::with_remedy(ErrorKind::Misconfigured, text, remedy).of_one_check()
}

/// The error of a call that was not answered within the deadline.
pub(crate) fn timeout(server: &ServerName, deadline: Duration) -> Error {
    let (text, remedy) = problems::describe_missed_deadline(server, deadline);
    Error::with_remedy(ErrorKind::Timeout, text, remedy)
}

/// The error of a check that waited in this process until its deadline, while the server answered others.
pub(crate) fn queue_timeout(server: &ServerName, deadline: Duration) -> Error {
    let (text, remedy) = problems::describe_queue_timeout(server, deadline);
    Error::with_remedy(ErrorKind::QueueTimeout, text, remedy)
}

/// The error for a reply that the script never sends.
pub(crate) fn malformed_reply(cause: &str, server: &ServerName) -> Error {
    let (text, remedy) = problems::describe_malformed(server, cause);
    Error::with_remedy(ErrorKind::InvalidReply, text, remedy)
}

/// The error for a part of a reply that makes no sense for one entry, though the rest of the reply can be read.
pub(crate) fn malformed_entry(cause: &str, server: &ServerName) -> Error {
    let (text, remedy) = problems::describe_malformed_entry(server, cause);
    Error::with_remedy(ErrorKind::InvalidReply, text, remedy).of_one_check()
}

/// Returns the error that ended a script. Before Redis 7.0, the position in the script precedes it.
fn without_position(text: &str) -> &str {
    let behind = text
        .split_once("@user_script")
        .and_then(|(_, behind)| behind.split_once(": -"));
    behind.map_or(text, |(_, error)| error)
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
        || matches(NO_WINDOW)
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

#[cfg(test)]
mod tests {
    use super::*;

    fn server() -> ServerName {
        ServerName::new("Redis", "127.0.0.1:6379")
    }

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
                "ERR ACL failure in script: User limiter has no permissions to run the 'append' command",
                ErrorKind::Misconfigured,
            ),
            (
                "user_script:7: attempt to index a nil value",
                ErrorKind::Misconfigured,
            ),
        ] {
            assert_eq!(from_script(text, &server()).kind(), kind, "{text}");
        }
    }

    #[test]
    fn remedies_fit_the_error() {
        let replied = |code: &str, detail: &str| {
            let error = redis::make_extension_error(code.to_owned(), Some(detail.to_owned()));
            from_redis(error, &server())
        };
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        for (error, said) in [
            (
                replied("WRONGPASS", "invalid username-password pair"),
                "the password",
            ),
            (replied("MOVED", "1 127.0.0.1:7001"), "use redis+cluster://"),
            (
                from_script("@user_script: 9: -OOM command not allowed", &server()),
                "maxmemory",
            ),
            (
                from_script("READONLY You can't write", &server()),
                "the master",
            ),
            (
                replied("ERR", "unknown command 'EVAL'"),
                "remove `rename-command EVAL`",
            ),
            (
                from_redis(refused.into(), &server()),
                "is redis-server running at 127.0.0.1:6379?",
            ),
        ] {
            let remedy = error.remedy().unwrap();
            assert!(remedy.contains(said), "{error}: {remedy}");
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
            assert_eq!(from_redis(error, &server()).kind(), kind, "{text}");
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
            let of_entry = from_script(&format!("{code} {detail}"), &server());
            assert_eq!(is_from_replica(&of_entry), expected, "{of_entry}");
        }
        assert!(is_from_replica(&from_script(
            &format!("@user_script: 9: -READONLY {text}"),
            &server()
        )));
    }

    #[test]
    fn keys_of_several_slots_are_recognized_by_the_code_or_by_the_words_of_a_proxy() {
        for (reply, expected) in [
            (
                "CROSSSLOT Keys in request don't hash to the same slot",
                true,
            ),
            // Redis Enterprise, then Alibaba Cloud, as published.
            (
                "CROSSSLOT Keys in request don't hash to the same slot (context='within MULTI', command='set')",
                true,
            ),
            ("ERR eval/evalsha command keys must be in same slot", true),
            ("ERR unknown command", false),
        ] {
            let reply = redis::parse_redis_value(format!("-{reply}\r\n").as_bytes()).unwrap();
            let error = from_redis(reply.extract_error().unwrap_err(), &server());
            assert_eq!(is_cross_slot(&error), expected, "{error}");
        }
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
            let error = from_redis(error, &server());
            let shown = format!("{error} {error:?} {:?}", StdError::source(&error));
            assert!(shown.contains("unknown command `AUTH`"), "{shown}");
            assert!(!shown.contains("s3cret"), "{shown}");
        }
        let error = from_script(&format!("ERR {quoting}"), &server());
        assert!(!error.to_string().contains("s3cret"), "{error}");
    }

    #[test]
    fn a_server_that_has_too_many_clients_is_unavailable() {
        let error = redis::make_extension_error("ERR".into(), Some(TOO_MANY_CLIENTS.into()));
        assert_eq!(from_redis(error, &server()).kind(), ErrorKind::Unavailable);
    }
}
