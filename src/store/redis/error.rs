//! What an error of Redis means for a check.

use redis::{ErrorKind as RedisKind, RedisError, ServerErrorKind};

use crate::{Error, ErrorKind};

/// The codes of errors that pass: the server cannot serve now, or is not the one to ask.
const PASSING: [&str; 10] = [
    "ASK",
    "BUSY",
    "CLUSTERDOWN",
    "LOADING",
    "MASTERDOWN",
    "MOVED",
    "NOREPLICAS",
    "READONLY",
    "TRYAGAIN",
    "UNKILLABLE",
];

/// Whether the server has not run the script because it does not know it.
pub(super) fn is_unknown_script(error: &RedisError) -> bool {
    error.kind() == RedisKind::Server(ServerErrorKind::NoScript)
}

/// An error of a whole call.
pub(super) fn from_redis(error: RedisError) -> Error {
    let kind = if error.is_timeout() {
        ErrorKind::Timeout
    } else if let Some(code) = error.code() {
        kind_of(code, error.detail().unwrap_or_default())
    } else {
        match error.kind() {
            RedisKind::AuthenticationFailed
            | RedisKind::InvalidClientConfig
            | RedisKind::RESP3NotSupported => ErrorKind::Misconfigured,
            RedisKind::Parse | RedisKind::UnexpectedReturnType => ErrorKind::InvalidReply,
            _ => ErrorKind::Unavailable,
        }
    };
    Error::new(kind, text_of(kind, &error.to_string())).with_source(error)
}

/// An error of one check, as the script caught it.
pub(super) fn from_script(text: &str) -> Error {
    // Before Redis 7.0 the place in the script stands before the code.
    let mut words = text
        .split([' ', ':'])
        .map(|word| word.trim_start_matches('-'));
    let code = words.find(|word| is_code(word));
    let kind = kind_of(code.unwrap_or_default(), text);
    Error::new(kind, text_of(kind, text))
}

fn is_code(word: &str) -> bool {
    word.len() > 2 && word.bytes().all(|byte| byte.is_ascii_uppercase())
}

fn kind_of(code: &str, detail: &str) -> ErrorKind {
    // Before Redis 7.0 an error that ends a script is an ERR which quotes the real one.
    let means = |wanted: &str| code == wanted || (code == "ERR" && detail.contains(wanted));
    if means("OOM") {
        ErrorKind::Full
    } else if PASSING.contains(&code) || means("READONLY") || means("NOREPLICAS") {
        ErrorKind::Unavailable
    } else {
        ErrorKind::Misconfigured
    }
}

fn text_of(kind: ErrorKind, text: &str) -> String {
    let what = match kind {
        ErrorKind::Timeout => "Redis did not answer in time",
        ErrorKind::Full => "Redis is out of memory",
        ErrorKind::Misconfigured => "Redis refuses the script as things are set up",
        ErrorKind::InvalidReply => "Redis did not answer as the script does",
        _ => "Redis cannot be asked",
    };
    format!("{what}: {text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_that_failed_in_the_script_says_what_kind_of_failure_it_was() {
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
}
