//! The server's clock, as scripts read it.

use std::time::Duration;

use redis::FromRedisValue;
use tollgate::__doctor as hooks;

use crate::remedies::missing_right;
use crate::report::Finding;
use crate::session::Session;
use crate::timing::ClockReading;

const TOPIC: &str = "time";

/// The finding if no script could be run.
pub(crate) fn not_tried(reason: &str) -> Finding {
    Finding::unknown(TOPIC, format!("not tried: {reason}"))
}

/// Examines whether scripts may call TIME. A server may refuse it in scripts and run it outside of them.
pub(crate) async fn script_clock(session: &Session) -> Finding {
    match session.try_time().await {
        Ok(reply) => {
            let refusal = String::from_redis_value(reply).unwrap_or_default();
            let reading = ClockReading::take(session).await;
            judge(&refusal, reading.ok().map(|reading| reading.error()))
        }
        Err(error) => {
            let text = format!("failed to try TIME in a script: {}", hooks::problem(&error));
            Finding::unknown(TOPIC, text)
        }
    }
}

/// Judges the refusal of TIME in scripts, and the error of a TIME outside of them, if that works.
fn judge(refusal: &str, error: Option<Duration>) -> Finding {
    if refusal.is_empty() {
        return Finding::ok(TOPIC, "scripts may read the server's clock");
    }
    let refused = format!(
        "the server refuses TIME in scripts: {}",
        refusal.trim_end_matches('.')
    );
    if let Some(error) = error {
        let text = format!(
            "{refused}; so each check tells it the time, which this process knows to {error:?}: a limit holds in \
             every span that is shorter than its window by twice that"
        );
        let remedy = "use a server that allows TIME in scripts if that is not enough";
        return Finding::warning(TOPIC, text).with_remedy(remedy);
    }
    let text = format!("{refused}, and outside of them, so the store cannot work here");
    let remedy = match missing_right(refusal) {
        Some(_) => "ACL SETUSER <user> +time",
        None if hooks::is_unknown_command(refusal) => {
            "remove `rename-command` for time from redis.conf"
        }
        None => "use a server that allows it",
    };
    Finding::problem(TOPIC, text).with_remedy(remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Severity;

    #[test]
    fn a_server_that_refuses_time_only_in_scripts_is_told_it_within_an_error() {
        let refusal = "ERR This Redis command is not allowed from script";
        let finding = judge(refusal, Some(Duration::from_micros(450)));
        assert_eq!(finding.severity, Severity::Warning);
        for said in [refusal, "knows to 450µs"] {
            assert!(finding.text.contains(said), "{}", finding.text);
        }
    }

    #[test]
    fn a_server_that_refuses_time_is_a_problem_with_its_remedy() {
        for (refusal, remedy) in [
            // As ElastiCache Serverless says; then ACLs of 7.0 and 7.2; renamed.
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
            let finding = judge(refusal, None);
            assert_eq!(finding.severity, Severity::Problem);
            for said in [refusal, "refuses TIME in scripts", "cannot work here"] {
                assert!(finding.text.contains(said), "{}", finding.text);
            }
            assert!(finding.remedy.unwrap().starts_with(remedy), "{refusal}");
        }
        assert_eq!(judge("", None).severity, Severity::Ok);
    }
}
