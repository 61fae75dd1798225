//! What an error of Redis says about how things are set up, and what to do about it.

use std::error::Error as _;

use redis::RedisError;

use crate::error::{Error, ErrorKind};

/// What a user may not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    /// The command, or it does not exist under this name.
    Command,
    /// Keys of this name.
    Keys,
}

/// What a right is missing for, if that is why a command failed.
pub(crate) fn denied(error: &Error) -> Option<Denied> {
    let text = error.to_string().to_lowercase();
    if text.contains("unknown command") || text.contains("unknown subcommand") {
        return Some(Denied::Command);
    }
    if code_of(error)? != "NOPERM" {
        return None;
    }
    // Redis names the command that is not permitted; of keys it says "a key" or "one of the keys".
    let is_of_command = text.contains("to run the '") || text.contains("command");
    Some(if is_of_command {
        Denied::Command
    } else {
        Denied::Keys
    })
}

/// The codes of errors for which there is a better word than for their kind.
const ADVICE: [(&str, &str); 13] = [
    ("NOAUTH", "give the URL the user and the password"),
    (
        "WRONGPASS",
        "correct the user or the password in the URL; ACL LIST shows the users that are on",
    ),
    (
        "NOPERM",
        "give the user the right that is named: ACL SETUSER <user> +<command>",
    ),
    (
        "READONLY",
        "point the store at the master, or at the Sentinels, which know it",
    ),
    (
        "OOM",
        "raise maxmemory, or give tollgate a server of its own",
    ),
    (
        "MOVED",
        "connect to the cluster as one: this connection knows one of its servers only",
    ),
    (
        "CROSSSLOT",
        "something between here and the cluster does not keep to hash tags",
    ),
    ("CLUSTERDOWN", "see CLUSTER INFO: slots are not served"),
    (
        "NOREPLICAS",
        "see to the replicas, or lower min-replicas-to-write",
    ),
    (
        "MISCONF",
        "see the server's log: it cannot save, and refuses writes therefore",
    ),
    ("LOADING", "wait until the server has read its data"),
    (
        "BUSY",
        "somebody's script runs too long: SCRIPT KILL ends it",
    ),
    (
        "WRONGTYPE",
        "another program writes to the keys of this prefix",
    ),
];

/// What to do about an error.
pub(crate) fn advice(error: &Error) -> &'static str {
    let of_code = code_of(error).and_then(|code| {
        let known = ADVICE.iter().find(|(known, _)| *known == code);
        known.map(|(_, advice)| *advice)
    });
    if let Some(advice) = of_code {
        return advice;
    }
    if denied(error).is_some() {
        return "the server lacks the command, or it has been renamed: tollgate needs it";
    }
    match error.kind() {
        ErrorKind::Unavailable => {
            "is the server running, is this its address, does a firewall stand between?"
        }
        ErrorKind::Timeout => {
            "is the server hanging, or the way to it long? RedisStore::deadline is how long checks wait"
        }
        ErrorKind::InvalidReply => "is this a Redis, and nothing between that changes its answers?",
        _ => "see what the server says",
    }
}

/// The code of an error of Redis; that of one that a script has caught stands in its text.
pub(crate) fn code_of(error: &Error) -> Option<String> {
    let source = error
        .source()
        .and_then(|source| source.downcast_ref::<RedisError>());
    if let Some(code) = source.and_then(RedisError::code)
        && code != "ERR"
    {
        return Some(code.to_owned());
    }
    let text = error.to_string();
    let mut words = text.split(|c: char| !c.is_ascii_uppercase());
    let code = words.find(|word| ADVICE.iter().any(|(code, _)| code == word));
    code.map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::protocol::errors as error;

    fn replied(code: &str, detail: &str) -> Error {
        let error = redis::make_extension_error(code.to_owned(), Some(detail.to_owned()));
        error::from_redis(error)
    }

    #[test]
    fn a_missing_right_is_told_from_a_missing_command_and_a_missing_key() {
        for (code, detail, expected) in [
            // 6.2, 7.0, 7.2 and Valkey.
            (
                "NOPERM",
                "this user has no permissions to run the 'get' command or its subcommand",
                Some(Denied::Command),
            ),
            (
                "NOPERM",
                "This user has no permissions to run the 'config|get' command",
                Some(Denied::Command),
            ),
            (
                "NOPERM",
                "User app has no permissions to run the 'get' command",
                Some(Denied::Command),
            ),
            (
                "NOPERM",
                "this user has no permissions to access one of the keys used as arguments",
                Some(Denied::Keys),
            ),
            (
                "NOPERM",
                "No permissions to access a key",
                Some(Denied::Keys),
            ),
            (
                "ERR",
                "unknown command 'INFO', with args beginning with: ",
                Some(Denied::Command),
            ),
            (
                "ERR",
                "unknown command `INFO`, with args beginning with: ",
                Some(Denied::Command),
            ),
            ("ERR", "syntax error", None),
            (
                "WRONGTYPE",
                "Operation against a key holding the wrong kind of value",
                None,
            ),
        ] {
            assert_eq!(denied(&replied(code, detail)), expected, "{detail}");
        }
    }

    #[test]
    fn advice_fits_the_error() {
        for (error, said) in [
            (
                replied("WRONGPASS", "invalid username-password pair"),
                "the password",
            ),
            (
                replied("MOVED", "1 127.0.0.1:7001"),
                "connect to the cluster as one",
            ),
            (
                error::from_script("@user_script: 9: -OOM command not allowed"),
                "maxmemory",
            ),
            (error::from_script("READONLY You can't write"), "the master"),
            (
                replied("ERR", "unknown command 'EVAL'"),
                "lacks the command",
            ),
            (
                std::io::Error::from(std::io::ErrorKind::ConnectionRefused).to_error(),
                "is the server running",
            ),
        ] {
            assert!(advice(&error).contains(said), "{error}: {}", advice(&error));
        }
    }

    trait ToError {
        fn to_error(self) -> Error;
    }

    impl ToError for std::io::Error {
        fn to_error(self) -> Error {
            error::from_redis(self.into())
        }
    }
}
