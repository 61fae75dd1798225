//! What is left of the counts when a server is lost.

use super::info::Info;
use super::report::Finding;

/// The settings of a master that have it refuse writes which no replica would see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MinReplicas {
    /// `min-replicas-to-write`, 0 where the settings are off.
    pub(crate) to_write: u64,
    /// `min-replicas-max-lag`, in seconds.
    pub(crate) max_lag: u64,
}

/// Whether a failover forgets counts; `least` are the settings, if they may be read.
pub(crate) fn replicas(info: &Info, least: Option<MinReplicas>) -> Finding {
    const TOPIC: &str = "replicas";
    let Some(connected) = info.number("connected_slaves") else {
        return Finding::unknown(TOPIC, "the server does not tell its replicas");
    };
    // Shown only where the settings are on.
    let good = info.number("min_slaves_good_slaves");
    match (least, good) {
        (Some(least), Some(good)) if good < least.to_write => Finding::problem(
            TOPIC,
            format!(
                "{good} of {connected} replicas keep up, min-replicas-to-write asks for {}: writes are \
                 refused (NOREPLICAS)",
                least.to_write
            ),
        )
        .with_remedy("see to the replicas, or lower min-replicas-to-write"),
        _ if connected == 0 => Finding::ok(
            TOPIC,
            "none: a server that is lost takes its counts along, and each client gets a fresh quota",
        ),
        (_, None) => Finding::warning(
            TOPIC,
            format!(
                "{connected}, and min-replicas-to-write is 0: a master that is cut off admits beside the \
                 one that takes its place, up to twice the limits, until it is found out"
            ),
        )
        .with_remedy("CONFIG SET min-replicas-to-write 1, and min-replicas-max-lag 10"),
        (least, Some(good)) => {
            let lag = least.map_or_else(
                || "for longer than min-replicas-max-lag".to_owned(),
                |least| format!("for more than {} s", least.max_lag),
            );
            Finding::ok(
                TOPIC,
                format!(
                    "{connected}, {good} keep up: a failover forgets what was not replicated yet; a \
                     master that is cut off refuses writes when it was {lag}"
                ),
            )
        }
    }
}

/// Whether writes are refused because the server cannot save, and what a restart forgets. `saves` is
/// the setting `save`, if it may be read.
pub(crate) fn persistence(info: &Info, saves: Option<&str>) -> Finding {
    const TOPIC: &str = "persistence";
    if info.text("rdb_last_bgsave_status").is_none() {
        return Finding::unknown(TOPIC, "the server does not tell whether it saves");
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
                format!("{what}: Redis refuses writes then (MISCONF), unless it is told not to"),
            )
            .with_remedy(
                "look into the server's log: the disk is full, or its rights are missing",
            );
        }
    }
    let text = match (info.is("aof_enabled", "1"), saves) {
        (true, _) => "an append-only file: a restart forgets what was not yet on disk",
        (false, Some("")) => {
            "off: a restart forgets all counts, and each client gets a fresh quota"
        }
        (false, Some(_)) => "snapshots: a restart forgets what was charged since the last one",
        (false, None) => "no append-only file: a restart forgets what is in no snapshot",
    };
    Finding::ok(TOPIC, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::doctor::report::Severity;

    const ALONE: &str = include_str!("../../../../tests/support/info/redis-7.0.15.txt");
    const MASTER: &str = include_str!("../../../../tests/support/info/redis-7.0.15-master.txt");

    fn least(to_write: u64) -> Option<MinReplicas> {
        Some(MinReplicas {
            to_write,
            max_lag: 10,
        })
    }

    #[test]
    fn a_master_that_writes_alone_beside_replicas_is_a_warning() {
        // Real, with min-replicas-to-write 1; without it the line of good replicas is missing.
        let alone: Vec<_> = MASTER
            .lines()
            .filter(|line| !line.contains("_good_"))
            .collect();
        let alone = alone.join("\n");
        for (text, least, severity, said) in [
            (ALONE, least(0), Severity::Ok, "none: a server that is lost"),
            (MASTER, least(1), Severity::Ok, "1, 1 keep up"),
            (MASTER, None, Severity::Ok, "min-replicas-max-lag"),
            (
                MASTER,
                least(2),
                Severity::Problem,
                "1 of 1 replicas keep up",
            ),
            (
                &alone,
                least(0),
                Severity::Warning,
                "up to twice the limits",
            ),
            (&alone, None, Severity::Warning, "up to twice the limits"),
            ("", None, Severity::Unknown, "does not tell"),
        ] {
            let finding = replicas(&Info::parse(text), least);
            assert_eq!(finding.severity(), severity, "{}", finding.text());
            assert!(finding.text().contains(said), "{}", finding.text());
        }
    }

    #[test]
    fn a_server_that_cannot_save_is_a_problem() {
        let failed = ALONE.replace("rdb_last_bgsave_status:ok", "rdb_last_bgsave_status:err");
        let aof = ALONE.replace("aof_enabled:0", "aof_enabled:1");
        for (text, saves, severity, said) in [
            (ALONE, Some(""), Severity::Ok, "off"),
            (ALONE, Some("3600 1"), Severity::Ok, "snapshots"),
            (ALONE, None, Severity::Ok, "no append-only file"),
            (&aof, None, Severity::Ok, "an append-only file"),
            (&failed, None, Severity::Problem, "MISCONF"),
            ("", None, Severity::Unknown, "does not tell"),
        ] {
            let finding = persistence(&Info::parse(text), saves);
            assert_eq!(finding.severity(), severity, "{}", finding.text());
            assert!(finding.text().contains(said), "{}", finding.text());
        }
    }
}
