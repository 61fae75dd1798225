//! Remedies for errors of Redis, and what they tell about permissions.

use std::borrow::Cow;
use std::error::Error as _;

use redis::RedisError;

use crate::error::{Error, ErrorKind};
use crate::store::redis::protocol::problems::{self, MissingRight};

/// A permission that the user lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MissingPermission {
    /// For the command.
    Command,
    /// For the names of the keys.
    Keys,
}

/// Returns the permission whose lack made a command fail, if that is the cause.
pub(super) fn missing_permission(error: &Error) -> Option<MissingPermission> {
    problems::missing_right(error.problem()).map(|right| match right {
        MissingRight::Command(_) => MissingPermission::Command,
        MissingRight::Keys => MissingPermission::Keys,
    })
}

/// Returns the remedy for an error.
pub(super) fn remedy_for(error: &Error) -> Cow<'static, str> {
    match (error.remedy(), error.kind()) {
        (Some(remedy), _) => remedy.clone(),
        (None, ErrorKind::Unavailable) => {
            "run `redis-cli PING` against that address from this machine: the server may be down, or a firewall in \
             between"
                .into()
        }
        (None, _) => {
            "run the command with redis-cli as the same user, and read the log of the server".into()
        }
    }
}

/// Whether the server is unreachable, so that further questions are pointless.
pub(super) fn is_unreachable(error: &Error) -> bool {
    let has_replied = error_code(error).is_some();
    error.kind() == ErrorKind::Timeout || (error.kind() == ErrorKind::Unavailable && !has_replied)
}

/// Returns the code of an error reply. An error that a script has caught has it in its text.
pub(super) fn error_code(error: &Error) -> Option<String> {
    let source = error
        .source()
        .and_then(|source| source.downcast_ref::<RedisError>());
    if let Some(code) = source.and_then(RedisError::code)
        && code != "ERR"
    {
        return Some(code.to_owned());
    }
    problems::known_code(error.problem()).map(ToOwned::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::protocol::{ServerName, errors};

    fn server() -> ServerName {
        ServerName::new("Redis", "127.0.0.1:6379")
    }

    fn replied(code: &str, detail: &str) -> Error {
        let error = redis::make_extension_error(code.to_owned(), Some(detail.to_owned()));
        errors::from_redis(error, &server())
    }

    #[test]
    fn missing_permissions_are_told_apart_from_other_errors() {
        for (code, detail, expected) in [
            // 6.2, 7.0, 7.2 and Valkey.
            (
                "NOPERM",
                "this user has no permissions to run the 'get' command or its subcommand",
                Some(MissingPermission::Command),
            ),
            (
                "NOPERM",
                "This user has no permissions to run the 'config|get' command",
                Some(MissingPermission::Command),
            ),
            (
                "NOPERM",
                "User app has no permissions to run the 'get' command",
                Some(MissingPermission::Command),
            ),
            (
                "NOPERM",
                "this user has no permissions to access one of the keys used as arguments",
                Some(MissingPermission::Keys),
            ),
            (
                "NOPERM",
                "No permissions to access a key",
                Some(MissingPermission::Keys),
            ),
            (
                "ERR",
                "unknown command 'INFO', with args beginning with: ",
                None,
            ),
            (
                "ERR",
                "unknown command `INFO`, with args beginning with: ",
                None,
            ),
            ("ERR", "syntax error", None),
            (
                "WRONGTYPE",
                "Operation against a key holding the wrong kind of value",
                None,
            ),
        ] {
            assert_eq!(
                missing_permission(&replied(code, detail)),
                expected,
                "{detail}"
            );
        }
    }

    #[test]
    fn remedies_fit_the_error() {
        for (error, said) in [
            (
                replied("WRONGPASS", "invalid username-password pair"),
                "the password",
            ),
            (replied("MOVED", "1 127.0.0.1:7001"), "use redis+cluster://"),
            (
                errors::from_script("@user_script: 9: -OOM command not allowed", &server()),
                "maxmemory",
            ),
            (
                errors::from_script("READONLY You can't write", &server()),
                "the master",
            ),
            (
                replied("ERR", "unknown command 'EVAL'"),
                "remove `rename-command EVAL`",
            ),
            (
                std::io::Error::from(std::io::ErrorKind::ConnectionRefused).to_error(),
                "is redis-server running at 127.0.0.1:6379?",
            ),
        ] {
            let remedy = remedy_for(&error);
            assert!(remedy.contains(said), "{error}: {remedy}");
        }
    }

    trait ToError {
        fn to_error(self) -> Error;
    }

    impl ToError for std::io::Error {
        fn to_error(self) -> Error {
            errors::from_redis(self.into(), &server())
        }
    }
}
