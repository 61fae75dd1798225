//! The slots of a cluster: whether a master serves each, and what the cluster does if one does not.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use redis::{FromRedisValue, Value};
use tollgate::__doctor as hooks;

use crate::report::Finding;
use crate::session::Session;

const TOPIC: &str = "cluster";

/// The slots of a cluster, fixed by its specification.
const SLOTS: u16 = 16_384;

/// The setting by which all masters refuse all commands while one slot is not served.
const SETTING: &str = "cluster-require-full-coverage";

/// The ranges of slots that a finding names.
const NAMED: usize = 10;

/// Examines the slots by the map of one node.
pub(crate) async fn coverage(session: &Session) -> Finding {
    let mut slots = redis::cmd("CLUSTER");
    slots.arg("SLOTS");
    let map = match session.query(slots).await {
        Ok(map) => map,
        Err(error) => {
            let text = format!(
                "a node of a cluster; its slots could not be read: {}",
                hooks::problem(&error)
            );
            return Finding::unknown(TOPIC, text)
                .with_remedy("grant the right: ACL SETUSER <user> +cluster|slots");
        }
    };
    let mut get = redis::cmd("CONFIG");
    get.arg("GET").arg(SETTING);
    let setting = session.query(get).await.ok();
    let setting = setting.and_then(|reply| HashMap::<String, String>::from_redis_value(reply).ok());
    let setting = setting.and_then(|mut settings| settings.remove(SETTING));
    judge(&map, setting.as_deref(), &session.settings().server)
}

fn judge(map: &Value, full_coverage: Option<&str>, server: &str) -> Finding {
    let Some((unserved, masters)) = parse(map) else {
        return Finding::unknown(TOPIC, format!("{server} sent a malformed slot map"));
    };
    let count: usize = unserved.iter().map(ExactSizeIterator::len).sum();
    if count > 0 {
        let ranges = unserved.iter().take(NAMED);
        let ranges = ranges.map(|slots| match (slots.start(), slots.end()) {
            (start, end) if start == end => start.to_string(),
            (start, end) => format!("{start}-{end}"),
        });
        let mut ranges: Vec<_> = ranges.collect();
        if unserved.len() > NAMED {
            ranges.push("…".to_owned());
        }
        let ranges = ranges.join(", ");
        let failing = match full_coverage {
            Some("yes") => "all checks fail, because cluster-require-full-coverage is yes",
            _ => "checks of their keys fail",
        };
        let text = format!(
            "{count} of {SLOTS} slots are served by no master, says {server}: {failing}; slots {ranges}"
        );
        return Finding::problem(TOPIC, text).with_remedy(
            "run CLUSTER ADDSLOTS <slots> on a master, or `redis-cli --cluster fix <address>`",
        );
    }
    let text = format!("all {SLOTS} slots are served");
    match full_coverage {
        // If the only master is lost, there is nothing left to refuse.
        _ if masters < 2 => Finding::ok(TOPIC, format!("{text}, by one master")),
        Some("yes") => Finding::warning(
            TOPIC,
            format!(
                "{text}; {SETTING} is yes: while one master is lost and not replaced, all checks fail, also \
                 checks on the {} other masters",
                masters - 1
            ),
        )
        .with_remedy("CONFIG SET cluster-require-full-coverage no, on each node"),
        Some(value) => Finding::ok(
            TOPIC,
            format!("{text}; {SETTING} is {value}: a lost master fails only its own slots"),
        ),
        None => Finding::unknown(TOPIC, format!("{text}; {SETTING} could not be read"))
            .with_remedy("grant the right: ACL SETUSER <user> +config|get"),
    }
}

/// Returns the ranges of slots that no master serves, and the number of masters.
fn parse(map: &Value) -> Option<(Vec<RangeInclusive<u16>>, usize)> {
    let Value::Array(ranges) = map else {
        return None;
    };
    let mut served = Vec::new();
    let mut masters: Vec<&Value> = Vec::new();
    for range in ranges {
        let Value::Array(range) = range else {
            return None;
        };
        let [
            Value::Int(first),
            Value::Int(last),
            Value::Array(master),
            ..,
        ] = &**range
        else {
            return None;
        };
        served.push((u16::try_from(*first).ok()?, u16::try_from(*last).ok()?));
        // Its id, or else its port.
        let master = master.get(2).or_else(|| master.get(1))?;
        if !masters.contains(&master) {
            masters.push(master);
        }
    }
    served.sort_unstable();
    let mut unserved = Vec::new();
    let mut next = 0;
    for (first, last) in served.into_iter().chain([(SLOTS, SLOTS)]) {
        if first > next {
            unserved.push(next..=first - 1);
        }
        next = next.max(last.saturating_add(1));
    }
    Some((unserved, masters.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Severity;

    fn map(ranges: &[(i64, i64, &str)]) -> Value {
        let range = |(first, last, id): &(i64, i64, &str)| {
            let master = [
                Value::Nil,
                Value::Int(1),
                Value::BulkString(id.as_bytes().into()),
            ];
            let master = Value::Array(master.into());
            Value::Array(vec![Value::Int(*first), Value::Int(*last), master])
        };
        Value::Array(ranges.iter().map(range).collect())
    }

    #[test]
    fn unserved_slots_are_a_problem_and_full_coverage_is_a_warning() {
        let whole = [(9_000, 16_383, "b"), (0, 8_999, "a")];
        for (ranges, setting, severity, said) in [
            (
                &whole[..],
                Some("no"),
                Severity::Ok,
                "fails only its own slots",
            ),
            (
                &whole,
                Some("yes"),
                Severity::Warning,
                "the 1 other masters",
            ),
            (&whole, None, Severity::Unknown, "could not be read"),
            (
                &[(0, 16_383, "a")],
                Some("yes"),
                Severity::Ok,
                "by one master",
            ),
            (
                &[(1, 16_382, "a")],
                Some("no"),
                Severity::Problem,
                "2 of 16384 slots",
            ),
            (
                &[(1, 16_381, "a")],
                None,
                Severity::Problem,
                "checks of their keys fail; slots 0, 16382-16383",
            ),
            (
                &[(1, 16_383, "a")],
                Some("yes"),
                Severity::Problem,
                "all checks fail, because cluster-require-full-coverage is yes; slots 0",
            ),
            (&[], Some("no"), Severity::Problem, "slots 0-16383"),
        ] {
            let finding = judge(&map(ranges), setting, "Redis at 127.0.0.1:1");
            assert_eq!(finding.severity, severity, "{}", finding.text);
            assert!(finding.text.contains(said), "{}", finding.text);
        }
    }
}
