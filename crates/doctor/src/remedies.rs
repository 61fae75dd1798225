//! Remedies for errors of Redis, and what they tell about permissions.

use std::borrow::Cow;

use tollgate::{__doctor as hooks, Error, ErrorKind};

/// A permission that the user lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MissingPermission {
    /// For the command.
    Command,
    /// For the names of the keys.
    Keys,
}

/// Returns the permission whose lack made a command fail, if that is the cause.
pub(crate) fn missing_permission(error: &Error) -> Option<MissingPermission> {
    missing_right(hooks::problem(error))
}

/// Returns the permission whose lack a server reports.
pub(crate) fn missing_right(message: &str) -> Option<MissingPermission> {
    if hooks::is_forbidden_command(message) {
        Some(MissingPermission::Command)
    } else if hooks::are_forbidden_keys(message) {
        Some(MissingPermission::Keys)
    } else {
        None
    }
}

/// Returns the remedy for an error.
pub(crate) fn remedy_for(error: &Error) -> Cow<'static, str> {
    match (hooks::remedy(error), error.kind()) {
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
pub(crate) fn is_unreachable(error: &Error) -> bool {
    let has_replied = error_code(error).is_some();
    error.kind() == ErrorKind::Timeout || (error.kind() == ErrorKind::Unavailable && !has_replied)
}

/// Returns the code that an error reply has in its text, if the code is known.
pub(crate) fn error_code(error: &Error) -> Option<&'static str> {
    hooks::known_code(hooks::problem(error))
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let error = Error::new(ErrorKind::Misconfigured, format!("{code}: {detail}"));
            assert_eq!(missing_permission(&error), expected, "{detail}");
        }
    }

    #[test]
    fn an_error_without_a_remedy_has_one_by_its_kind() {
        for (kind, said) in [
            (ErrorKind::Unavailable, "a firewall in between"),
            (ErrorKind::InvalidReply, "read the log of the server"),
        ] {
            let remedy = remedy_for(&Error::new(kind, "no reply"));
            assert!(remedy.contains(said), "{remedy}");
        }
    }
}
