//! The server itself: its version and its role.

use crate::info::Info;
use crate::report::Finding;

/// The oldest supported version. The docs and the README repeat it, as a test checks.
const MIN_VERSION: (u32, u32) = (6, 2);

/// Examines whether the version is recent enough.
pub(crate) fn version(info: &Info) -> Finding {
    const TOPIC: &str = "server";
    if let Some(version) = info.text("valkey_version") {
        return Finding::ok(TOPIC, format!("Valkey {version}"));
    }
    let Some(version) = info.text("redis_version") else {
        return Finding::unknown(TOPIC, "the server does not report its version");
    };
    match parse_version(version) {
        Some(number) if number < MIN_VERSION => {
            let (major, minor) = MIN_VERSION;
            let text = format!(
                "Redis {version} is older than {major}.{minor}, the oldest that is supported"
            );
            Finding::problem(TOPIC, text)
                .with_remedy(format!("run Redis {major}.{minor} or later, or Valkey"))
        }
        _ => Finding::ok(TOPIC, format!("Redis {version}")),
    }
}

fn parse_version(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.').map(str::parse);
    Some((parts.next()?.ok()?, parts.next()?.ok()?))
}

/// Examines whether the server is a master.
pub(crate) fn role(info: &Info) -> Finding {
    const TOPIC: &str = "role";
    match info.text("role") {
        Some("master") => Finding::ok(TOPIC, "a master"),
        Some("slave" | "replica") => Finding::problem(TOPIC, describe_replica(info))
            .with_remedy("connect to the master, or use redis+sentinel://"),
        _ => Finding::unknown(TOPIC, "the server does not report its role"),
    }
}

fn describe_replica(info: &Info) -> String {
    let master = match (info.text("master_host"), info.text("master_port")) {
        (Some(host), Some(port)) => format!(" of {host}:{port}"),
        _ => String::new(),
    };
    format!("a replica{master}, which takes no writes and so cannot count")
}

pub(crate) fn is_in_cluster(info: &Info) -> bool {
    info.is("cluster_enabled", "1")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Severity;

    fn found(judge: fn(&Info) -> Finding, text: &str) -> (Severity, String) {
        let finding = judge(&Info::parse(text));
        (finding.severity, finding.text.to_string())
    }

    #[test]
    fn servers_older_than_6_2_are_a_problem() {
        for (text, severity, said) in [
            (
                "redis_version:6.0.16",
                Severity::Problem,
                "Redis 6.0.16 is older than 6.2",
            ),
            ("redis_version:6.2.0", Severity::Ok, "Redis 6.2.0"),
            ("redis_version:10.2.1", Severity::Ok, "Redis 10.2.1"),
            ("redis_version:unstable", Severity::Ok, "Redis unstable"),
            (
                "redis_version:7.2.4\nvalkey_version:8.0.1",
                Severity::Ok,
                "Valkey 8.0.1",
            ),
            ("", Severity::Unknown, "does not report its version"),
        ] {
            let (found, text) = found(version, text);
            assert_eq!(found, severity, "{text}");
            assert!(text.contains(said), "{text}");
        }
    }

    #[test]
    fn real_servers_are_known_by_their_info() {
        for (text, server) in [
            (
                include_str!("../tests/info/redis-6.2.14.txt"),
                "Redis 6.2.14",
            ),
            (
                include_str!("../tests/info/redis-7.0.15.txt"),
                "Redis 7.0.15",
            ),
            (
                include_str!("../tests/info/valkey-8.0.1.txt"),
                "Valkey 8.0.1",
            ),
        ] {
            assert_eq!(found(version, text), (Severity::Ok, server.into()));
            assert_eq!(found(role, text), (Severity::Ok, "a master".into()));
            assert!(!is_in_cluster(&Info::parse(text)));
        }
    }

    #[test]
    fn a_replica_is_a_problem_and_its_master_is_named() {
        let text = include_str!("../tests/info/redis-7.0.15-replica.txt");
        let (severity, text) = found(role, text);
        assert_eq!(severity, Severity::Problem);
        assert!(text.starts_with("a replica of 127.0.0.1:"), "{text}");
        assert_eq!(found(role, "role:replica").0, Severity::Problem);
        assert_eq!(found(role, "").0, Severity::Unknown);
    }
}
