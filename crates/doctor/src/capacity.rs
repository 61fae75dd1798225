//! The checks that a process can send to a cluster at its distance.

use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use tollgate::__doctor::{BATCHES_IN_FLIGHT, COMMANDS_IN_FLIGHT};
use tollgate::Quota;

use crate::info::Node;
use crate::report::Finding;
use crate::scratch_key::ScratchKey;
use crate::session::Session;

const TOPIC: &str = "capacity";

/// Looks that are timed for the median.
const SAMPLES: usize = 21;

/// The keys of one quota that fit into a call.
const KEYS_PER_CALL: u64 = 80;

/// The checks per second of a process below which the capacity is little.
const LITTLE: u64 = 5_000;

/// The settings that bound the checks in flight.
#[derive(Clone, Copy, Debug)]
struct Setup {
    masters: usize,
    /// `None` if each key has its own tag.
    hash_tags: Option<NonZeroU16>,
}

/// Examines how many checks a process can send to a cluster, at its median round trip.
pub(crate) async fn examine_cluster(session: &Session, nodes: &[Node]) -> Option<Finding> {
    let masters = nodes.iter().filter(|node| node.address.is_some()).count();
    if masters == 0 {
        return None;
    }
    let key = ScratchKey::new(Quota::per_minute(100));
    let mut samples = Vec::with_capacity(SAMPLES);
    for _ in 0..SAMPLES {
        let sent = Instant::now();
        // The finding about the round trip has the error.
        session.check(key.subject().check(0)).await.ok()?;
        samples.push(sent.elapsed());
    }
    samples.sort_unstable();
    let setup = Setup {
        masters,
        hash_tags: session.settings().hash_tags,
    };
    Some(judge(setup, *samples.get(SAMPLES / 2)?))
}

fn judge(setup: Setup, round_trip: Duration) -> Finding {
    let Setup { masters, hash_tags } = setup;
    let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
    let of_nodes = number(masters * COMMANDS_IN_FLIGHT);
    let (in_flight, tags) = match hash_tags {
        None => (of_nodes, "no hash tags".to_owned()),
        Some(tags) => {
            let calls = u64::from(tags.get()) * number(BATCHES_IN_FLIGHT);
            let keys = calls.min(of_nodes).saturating_mul(KEYS_PER_CALL);
            let plural = if tags.get() == 1 { "" } else { "s" };
            (keys, format!("{tags} hash tag{plural}"))
        }
    };
    let micros = u64::try_from(round_trip.as_micros()).unwrap_or(u64::MAX);
    let per_second = in_flight.saturating_mul(1_000_000) / micros.max(1);
    let plural = if masters == 1 { "" } else { "s" };
    let text = format!(
        "at most about {per_second} checks of different keys per second from this process: \
         {masters} master{plural}, {tags}, a round trip of {}.{:02} ms",
        micros / 1_000,
        micros % 1_000 / 10,
    );
    if per_second >= LITTLE {
        return Finding::ok(TOPIC, text);
    }
    Finding::warning(TOPIC, text).with_remedy(match hash_tags {
        None => "set `RedisStore::hash_tags`, about 16 for each master: checks then share calls",
        Some(_) => "set more `RedisStore::hash_tags`",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Severity;

    #[test]
    fn the_capacity_follows_from_the_checks_in_flight_and_the_round_trip() {
        let setup = |hash_tags| Setup {
            masters: 3,
            hash_tags: NonZeroU16::new(hash_tags),
        };
        for (setup, millis, severity, said) in [
            (setup(0), 5, Severity::Ok, "about 153600 checks"),
            (setup(0), 200, Severity::Warning, "about 3840 checks"),
            (setup(48), 200, Severity::Ok, "about 38400 checks"),
            (setup(1), 80, Severity::Warning, "about 2000 checks"),
            // More tags than the nodes take calls.
            (setup(10_000), 200, Severity::Ok, "about 307200 checks"),
        ] {
            let finding = judge(setup, Duration::from_millis(millis));
            assert_eq!(finding.severity, severity, "{}", finding.text);
            assert!(finding.text.contains(said), "{}", finding.text);
        }
    }
}
