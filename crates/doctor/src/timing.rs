//! Timing: the round trips of checks, and the server's clock.

use std::time::{Duration, Instant, SystemTime};

use redis::FromRedisValue;
use tollgate::{__doctor as hooks, Error, Quota};

use crate::report::Finding;
use crate::scratch_key::ScratchKey;
use crate::session::Session;

/// Looks that are timed: enough that the 99th percentile is not the longest or the second longest.
const SAMPLES: usize = 200;

/// The longest time for all of them.
const SAMPLING_TIME: Duration = Duration::from_secs(2);

/// The largest offset of a clock that is synchronized at all.
const MAX_OFFSET: Duration = Duration::from_secs(60);

/// The most that two clocks may drift apart during an examination, beyond the uncertainty of their
/// readings. It leaves room for a clock that is slewed.
const MAX_DRIFT: Duration = Duration::from_millis(50);

const ROUND_TRIP: &str = "round trip";

/// The finding if no check could be timed.
pub(crate) fn not_timed(reason: &str) -> Finding {
    Finding::unknown(ROUND_TRIP, format!("not timed: {reason}"))
}

/// Times looks by the script. To Redis a look is a check that writes nothing.
pub(crate) async fn round_trips(session: &Session) -> Finding {
    let key = ScratchKey::new(Quota::per_minute(100));
    let mut samples = Vec::with_capacity(SAMPLES);
    let begin = Instant::now();
    while samples.len() < SAMPLES && begin.elapsed() < SAMPLING_TIME {
        let sent = Instant::now();
        if let Err(error) = session.check(key.subject().check(0)).await {
            return not_timed(hooks::problem(&error));
        }
        samples.push(sent.elapsed());
    }
    judge(samples, session.settings().deadline)
}

fn judge(mut samples: Vec<Duration>, deadline: Duration) -> Finding {
    const REMEDY: &str = "move Redis closer, find what keeps it busy (SLOWLOG GET, INFO commandstats), \
                          or raise `RedisStore::deadline`";
    samples.sort_unstable();
    let p50 = percentile(&samples, 50);
    let p99 = percentile(&samples, 99);
    let longest = percentile(&samples, 100);
    let text = format!(
        "p50 {}, p99 {}, max {} of {}; the deadline is {deadline:?}",
        millis(p50),
        millis(p99),
        millis(longest),
        samples.len(),
    );
    if p99 > deadline {
        Finding::problem(ROUND_TRIP, text).with_remedy(REMEDY)
    } else if longest > deadline || p99 > deadline / 2 {
        Finding::warning(ROUND_TRIP, text).with_remedy(REMEDY)
    } else {
        Finding::ok(ROUND_TRIP, text)
    }
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let rank = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(rank).copied().unwrap_or_default()
}

/// Formats a duration in milliseconds, to hundredths.
fn millis(duration: Duration) -> String {
    let hundredths = duration.as_micros() / 10;
    format!("{}.{:02} ms", hundredths / 100, hundredths % 100)
}

/// A reading of the server's clock and of the local one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClockReading {
    /// The server's time since 1970.
    server: Duration,
    /// The local time since 1970.
    local: Duration,
    /// The time of the reading, by a monotonic clock.
    at: Instant,
    /// The round trip, in which the server has read its clock at some time.
    uncertainty: Duration,
}

impl ClockReading {
    /// The most that the reading is wrong by.
    pub(crate) fn error(&self) -> Duration {
        self.uncertainty / 2
    }

    pub(crate) async fn take(session: &Session) -> Result<Self, Error> {
        let sent = Instant::now();
        let local = since_epoch();
        let reply = session.query(redis::cmd("TIME")).await?;
        let uncertainty = sent.elapsed();
        let (seconds, micros) = <(u64, u64)>::from_redis_value(reply)
            .map_err(|_| session.malformed_reply("no time"))?;
        Ok(Self {
            server: Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros)),
            local: local + uncertainty / 2,
            at: sent + uncertainty / 2,
            uncertainty,
        })
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "compared with the store's clock, and used for nothing else"
)]
fn since_epoch() -> Duration {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default()
}

/// Compares two readings. `is_single` says that both are of the same server, so that a jump shows.
pub(crate) fn clock(first: ClockReading, last: ClockReading, is_single: bool) -> Finding {
    const TOPIC: &str = "clock";
    const REMEDY: &str =
        "synchronize the servers with NTP: setting a clock moves the ends of windows";
    let elapsed = last.at.duration_since(first.at);
    let server_elapsed = last.server.checked_sub(first.server);
    let drift = server_elapsed.map_or(Duration::MAX, |server| server.abs_diff(elapsed));
    if is_single && drift > MAX_DRIFT + first.uncertainty + last.uncertainty {
        let change = server_elapsed.map_or_else(
            || "went back".into(),
            |server| format!("moved by {server:?}"),
        );
        return Finding::warning(
            TOPIC,
            format!("the server's clock {change} within {elapsed:?}"),
        )
        .with_remedy(REMEDY);
    }
    let offset = last.server.abs_diff(last.local);
    let direction = if last.server > last.local {
        "ahead of"
    } else {
        "behind"
    };
    let comparison = if offset <= last.uncertainty.max(Duration::from_millis(1)) {
        "the same as the local clock".to_owned()
    } else {
        format!("{} {direction} the local clock", millis(offset))
    };
    let text = format!("{comparison}; only the server's clock counts");
    if offset > MAX_OFFSET {
        Finding::warning(TOPIC, text).with_remedy(REMEDY)
    } else {
        Finding::ok(TOPIC, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Severity;

    const DEADLINE: Duration = Duration::from_millis(100);

    #[test]
    fn percentiles_are_compared_with_the_deadline() {
        let samples = |slow: usize, millis: u64| {
            let mut samples = vec![Duration::from_micros(250); 200 - slow];
            samples.extend(vec![Duration::from_millis(millis); slow]);
            samples.reverse();
            samples
        };
        for (slow, millis, severity, said) in [
            (
                0,
                0,
                Severity::Ok,
                "p50 0.25 ms, p99 0.25 ms, max 0.25 ms of 200",
            ),
            (2, 40, Severity::Ok, "p99 0.25 ms, max 40.00 ms"),
            (2, 101, Severity::Warning, "p99 0.25 ms, max 101.00 ms"),
            (3, 51, Severity::Warning, "p99 51.00 ms"),
            (3, 101, Severity::Problem, "p99 101.00 ms"),
        ] {
            let finding = judge(samples(slow, millis), DEADLINE);
            assert_eq!(finding.severity, severity, "{}", finding.text);
            assert!(finding.text.contains(said), "{}", finding.text);
        }
    }

    #[test]
    fn a_clock_that_is_far_off_or_jumps_is_a_warning() {
        let begin = Instant::now();
        let reading = |after: u64, server: u64, local: u64| ClockReading {
            server: Duration::from_millis(server),
            local: Duration::from_millis(local),
            at: begin + Duration::from_millis(after),
            uncertainty: Duration::from_millis(2),
        };
        let first = reading(0, 100_000, 100_000);
        for (last, is_single, severity, said) in [
            (
                reading(1_000, 101_001, 101_000),
                true,
                Severity::Ok,
                "the same as the local clock",
            ),
            (
                reading(1_000, 101_030, 101_000),
                true,
                Severity::Ok,
                "30.00 ms ahead of the local clock",
            ),
            (
                reading(1_000, 101_000, 131_000),
                true,
                Severity::Ok,
                "30000.00 ms behind the local clock",
            ),
            (
                reading(1_000, 101_000, 171_000),
                true,
                Severity::Warning,
                "70000.00 ms behind",
            ),
            (
                reading(1_000, 161_000, 101_000),
                true,
                Severity::Warning,
                "moved by 61s within 1s",
            ),
            (
                reading(1_000, 99_000, 101_000),
                true,
                Severity::Warning,
                "went back",
            ),
            (
                reading(1_000, 102_000, 101_000),
                false,
                Severity::Ok,
                "1000.00 ms ahead",
            ),
        ] {
            let finding = clock(first, last, is_single);
            assert_eq!(finding.severity, severity, "{}", finding.text);
            assert!(finding.text.contains(said), "{}", finding.text);
        }
    }
}
