//! The server's clock, as scripts read it.

use redis::FromRedisValue;

use super::report::Finding;
use super::session::Session;
use crate::store::redis::protocol::problems::{self, MissingRight};

const TOPIC: &str = "time";

/// Returns an empty text, or the error with which the server refused TIME.
const SCRIPT: &str = "local time = redis.pcall('TIME') return time.err or ''";

/// Examines whether scripts may call TIME. A server may refuse it in scripts and run it outside of them.
pub(super) async fn script_clock(session: &Session) -> Finding {
    let mut eval = redis::cmd("EVAL");
    eval.arg(SCRIPT).arg(0);
    match session.query(&eval).await {
        Ok(reply) => judge(&String::from_redis_value(reply).unwrap_or_default()),
        Err(error) => {
            let text = format!("failed to try TIME in a script: {}", error.problem());
            Finding::unknown(TOPIC, text)
        }
    }
}

fn judge(refusal: &str) -> Finding {
    if refusal.is_empty() {
        return Finding::ok(TOPIC, "scripts may read the server's clock");
    }
    let text = format!(
        "the server refuses TIME in scripts: {}; each check reads the clock in its script, so the store \
         cannot work here",
        refusal.trim_end_matches('.')
    );
    let remedy = match problems::missing_right(refusal) {
        Some(MissingRight::Command(_) | MissingRight::Keys) => "ACL SETUSER <user> +time",
        None if problems::is_unknown_command(refusal) => {
            "remove `rename-command` for time from redis.conf"
        }
        None => "use a server that allows it: some managed ones, such as serverless ones, do not",
    };
    Finding::problem(TOPIC, text).with_remedy(remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::doctor::report::Severity;

    #[test]
    fn a_server_that_refuses_time_in_scripts_is_a_problem_with_its_remedy() {
        for (refusal, remedy) in [
            // ElastiCache Serverless, which runs TIME outside of scripts; then ACLs of 7.0 and 7.2; renamed.
            (
                "ERR This Redis command is not allowed from script",
                "use a server that allows it",
            ),
            (
                "ERR The user executing the script can't run this command or subcommand",
                "ACL SETUSER <user> +time",
            ),
            (
                "ERR ACL failure in script: User app has no permissions to run the 'time' command",
                "ACL SETUSER <user> +time",
            ),
            (
                "ERR Unknown Redis command called from script",
                "remove `rename-command` for time",
            ),
        ] {
            let finding = judge(refusal);
            assert_eq!(finding.severity, Severity::Problem);
            for said in [refusal, "refuses TIME in scripts", "cannot work here"] {
                assert!(finding.text.contains(said), "{}", finding.text);
            }
            assert!(finding.remedy.unwrap().starts_with(remedy), "{refusal}");
        }
        assert_eq!(judge("").severity, Severity::Ok);
    }
}
