//! Remedies for errors of Redis, and what they tell about permissions.

use std::error::Error as _;

use redis::RedisError;

use crate::error::{Error, ErrorKind};

/// A permission that the user lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MissingPermission {
    /// For the command, which may also not exist under this name.
    Command,
    /// For the names of the keys.
    Keys,
}

/// Returns the permission whose lack made a command fail, if that is the cause.
pub(super) fn missing_permission(error: &Error) -> Option<MissingPermission> {
    let text = error.to_string().to_lowercase();
    if text.contains("unknown command") || text.contains("unknown subcommand") {
        return Some(MissingPermission::Command);
    }
    if error_code(error)? != "NOPERM" {
        return None;
    }
    // The message names the command, or says "a key" or "one of the keys".
    let names_command = text.contains("to run the '") || text.contains("command");
    Some(if names_command {
        MissingPermission::Command
    } else {
        MissingPermission::Keys
    })
}

/// Remedies by error code.
const REMEDIES: [(&str, &str); 13] = [
    ("NOAUTH", "add the user and the password to the URL"),
    (
        "WRONGPASS",
        "correct the user or the password in the URL; ACL LIST shows the enabled users",
    ),
    (
        "NOPERM",
        "grant the user the permission: ACL SETUSER <user> +<command>",
    ),
    (
        "READONLY",
        "point the store at the master, or at the Sentinels",
    ),
    (
        "OOM",
        "raise maxmemory, or give tollgate a server of its own",
    ),
    (
        "MOVED",
        "connect to the cluster as one, by redis+cluster://: this connection only knows one node",
    ),
    (
        "CROSSSLOT",
        "something in between, such as a proxy, ignores hash tags",
    ),
    ("CLUSTERDOWN", "run CLUSTER INFO: slots are not served"),
    (
        "NOREPLICAS",
        "repair the replicas, or lower min-replicas-to-write",
    ),
    (
        "MISCONF",
        "read the server's log: it cannot save, and therefore refuses writes",
    ),
    ("LOADING", "wait until the server has loaded its data"),
    ("BUSY", "a script runs for too long: SCRIPT KILL ends it"),
    (
        "WRONGTYPE",
        "another program writes to the keys of this prefix: choose another one",
    ),
];

/// Returns the remedy for an error.
pub(super) fn remedy_for(error: &Error) -> &'static str {
    let by_code = error_code(error).and_then(|code| {
        let known = REMEDIES.iter().find(|(known, _)| *known == code);
        known.map(|(_, remedy)| *remedy)
    });
    if let Some(remedy) = by_code {
        return remedy;
    }
    if missing_permission(error).is_some() {
        return "the server lacks the command, or it was renamed: tollgate needs it under its own name";
    }
    match error.kind() {
        ErrorKind::Unavailable => {
            "is the server running, is this its address, is there a firewall in between?"
        }
        ErrorKind::Timeout => {
            "does the server hang, or is the network slow? RedisStore::deadline sets how long checks wait"
        }
        ErrorKind::InvalidReply => {
            "is this a Redis server, and does nothing in between change its replies?"
        }
        _ => "read the server's message",
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
    let text = error.to_string();
    let mut words = text.split(|c: char| !c.is_ascii_uppercase());
    let code = words.find(|word| REMEDIES.iter().any(|(code, _)| code == word));
    code.map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::protocol::errors;

    fn replied(code: &str, detail: &str) -> Error {
        let error = redis::make_extension_error(code.to_owned(), Some(detail.to_owned()));
        errors::from_redis(error)
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
                Some(MissingPermission::Command),
            ),
            (
                "ERR",
                "unknown command `INFO`, with args beginning with: ",
                Some(MissingPermission::Command),
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
            (
                replied("MOVED", "1 127.0.0.1:7001"),
                "connect to the cluster as one",
            ),
            (
                errors::from_script("@user_script: 9: -OOM command not allowed"),
                "maxmemory",
            ),
            (
                errors::from_script("READONLY You can't write"),
                "the master",
            ),
            (
                replied("ERR", "unknown command 'EVAL'"),
                "lacks the command",
            ),
            (
                std::io::Error::from(std::io::ErrorKind::ConnectionRefused).to_error(),
                "is the server running",
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
            errors::from_redis(self.into())
        }
    }
}
