//! Durability: the counts that a failover or a restart loses.

use crate::info::Info;
use crate::report::Finding;

/// The settings by which a master refuses writes that too few replicas would receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MinReplicas {
    /// `min-replicas-to-write`; 0 disables both settings.
    pub(crate) to_write: u64,
    /// `min-replicas-max-lag`, in seconds.
    pub(crate) max_lag: u64,
}

/// Examines whether a failover loses counts. `settings` is `None` if the user may not read them.
pub(crate) fn replicas(info: &Info, settings: Option<MinReplicas>) -> Finding {
    const TOPIC: &str = "replicas";
    let Some(connected) = info.number("connected_slaves") else {
        return Finding::unknown(TOPIC, "the server does not report its replicas");
    };
    // INFO has this field only if the settings are enabled.
    let good = info.number("min_slaves_good_slaves");
    match (settings, good) {
        (Some(settings), Some(good)) if good < settings.to_write => Finding::problem(
            TOPIC,
            format!(
                "{good} of {connected} replicas keep up, but min-replicas-to-write asks for {}: writes \
                 fail (NOREPLICAS)",
                settings.to_write
            ),
        )
        .with_remedy("repair the replicas, or lower min-replicas-to-write"),
        _ if connected == 0 => Finding::ok(
            TOPIC,
            "none: if the server is lost, all counts are lost, and each client gets a fresh quota",
        ),
        (_, None) => Finding::warning(
            TOPIC,
            format!(
                "{connected}, but min-replicas-to-write is 0: a master that is cut off keeps admitting \
                 while its successor admits too, up to twice the limits"
            ),
        )
        .with_remedy("CONFIG SET min-replicas-to-write 1 min-replicas-max-lag 10"),
        (settings, Some(good)) => {
            let lag = settings.map_or_else(
                || "min-replicas-max-lag".to_owned(),
                |settings| format!("{} s", settings.max_lag),
            );
            Finding::ok(
                TOPIC,
                format!(
                    "{connected}, {good} keep up: a failover loses the charges that were not replicated \
                     yet; a master that is cut off for more than {lag} takes no writes"
                ),
            )
        }
    }
}

/// Examines whether the server can save, and what a restart loses. `save` is the setting of that name;
/// `None` if the user may not read it.
pub(crate) fn persistence(info: &Info, save: Option<&str>) -> Finding {
    const TOPIC: &str = "persistence";
    if info.text("rdb_last_bgsave_status").is_none() {
        return Finding::unknown(TOPIC, "the server does not report whether it saves");
    }
    for (field, what) in [
        ("rdb_last_bgsave_status", "the last snapshot failed"),
        (
            "aof_last_write_status",
            "the last write to the append-only file failed",
        ),
    ] {
        if info.is(field, "err") {
            return Finding::problem(
                TOPIC,
                format!(
                    "{what}: Redis takes no writes (MISCONF), unless it is configured to take them"
                ),
            )
            .with_remedy(
                "read the log of the server: the disk may be full, or the file may not be writable",
            );
        }
    }
    let text = match (info.is("aof_enabled", "1"), save) {
        (true, _) => "an append-only file: a restart loses the charges that were not on disk yet",
        (false, Some("")) => "off: a restart loses all counts, and each client gets a fresh quota",
        (false, Some(_)) => "snapshots: a restart loses the charges since the last snapshot",
        (false, None) => "no append-only file: a restart loses the charges that are in no snapshot",
    };
    Finding::ok(TOPIC, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Severity;

    const WITHOUT_REPLICA: &str = include_str!("../tests/info/redis-7.0.15.txt");
    const MASTER: &str = include_str!("../tests/info/redis-7.0.15-master.txt");

    fn min_replicas(to_write: u64) -> Option<MinReplicas> {
        Some(MinReplicas {
            to_write,
            max_lag: 10,
        })
    }

    #[test]
    fn a_master_that_does_not_wait_for_replicas_is_a_warning() {
        // Real, with min-replicas-to-write 1; without it the line of good replicas is missing.
        let unguarded: Vec<_> = MASTER
            .lines()
            .filter(|line| !line.contains("_good_"))
            .collect();
        let unguarded = unguarded.join("\n");
        for (text, settings, severity, said) in [
            (
                WITHOUT_REPLICA,
                min_replicas(0),
                Severity::Ok,
                "none: if the server is lost",
            ),
            (MASTER, min_replicas(1), Severity::Ok, "1, 1 keep up"),
            (MASTER, None, Severity::Ok, "min-replicas-max-lag"),
            (
                MASTER,
                min_replicas(2),
                Severity::Problem,
                "1 of 1 replicas keep up",
            ),
            (
                &unguarded,
                min_replicas(0),
                Severity::Warning,
                "up to twice the limits",
            ),
            (
                &unguarded,
                None,
                Severity::Warning,
                "up to twice the limits",
            ),
            ("", None, Severity::Unknown, "does not report"),
        ] {
            let finding = replicas(&Info::parse(text), settings);
            assert_eq!(finding.severity, severity, "{}", finding.text);
            assert!(finding.text.contains(said), "{}", finding.text);
        }
    }

    #[test]
    fn a_server_that_cannot_save_is_a_problem() {
        let failed =
            WITHOUT_REPLICA.replace("rdb_last_bgsave_status:ok", "rdb_last_bgsave_status:err");
        let aof = WITHOUT_REPLICA.replace("aof_enabled:0", "aof_enabled:1");
        for (text, save, severity, said) in [
            (WITHOUT_REPLICA, Some(""), Severity::Ok, "off"),
            (WITHOUT_REPLICA, Some("3600 1"), Severity::Ok, "snapshots"),
            (WITHOUT_REPLICA, None, Severity::Ok, "no append-only file"),
            (&aof, None, Severity::Ok, "an append-only file"),
            (&failed, None, Severity::Problem, "MISCONF"),
            ("", None, Severity::Unknown, "does not report"),
        ] {
            let finding = persistence(&Info::parse(text), save);
            assert_eq!(finding.severity, severity, "{}", finding.text);
            assert!(finding.text.contains(said), "{}", finding.text);
        }
    }
}
