//! How long Redis takes to answer, and what time it thinks it is.

use std::time::{Duration, Instant, SystemTime};

use redis::FromRedisValue;

use super::doctor::Asking;
use super::report::Finding;
use super::scratch::Scratch;
use crate::error::Error;
use crate::quota::Quota;
use crate::store::redis::doctor::trial;

/// How many looks are timed: enough for a 99th percentile that is more than the longest but one.
const SAMPLES: usize = 200;

/// For how long they are, at most.
const SAMPLING: Duration = Duration::from_secs(2);

/// From which offset on a clock is not kept by anybody.
const FAR_OFF: Duration = Duration::from_secs(60);

/// How far a clock may differ from ours over the time of an examination: beyond what is lost on the
/// way, and what a clock is slowed or sped by.
const STEP: Duration = Duration::from_millis(50);

/// Times looks by the script, which are what a check is to Redis but for the writing.
pub(crate) async fn round_trips(asking: &Asking) -> Finding {
    const TOPIC: &str = "round trip";
    let deadline = asking.deadline;
    let scratch = Scratch::new(Quota::per_minute(100));
    let mut taken = Vec::with_capacity(SAMPLES);
    let begin = Instant::now();
    while taken.len() < SAMPLES && begin.elapsed() < SAMPLING {
        let sent = Instant::now();
        if let Err(error) = trial::check(asking, &scratch, 0).await {
            return Finding::unknown(TOPIC, format!("could not be timed: {error}"));
        }
        taken.push(sent.elapsed());
    }
    judge(TOPIC, taken, deadline)
}

fn judge(topic: &'static str, mut taken: Vec<Duration>, deadline: Duration) -> Finding {
    const REMEDY: &str = "run Redis nearer, look what keeps it busy (SLOWLOG GET, INFO commandstats), or \
                          give checks a longer RedisStore::deadline";
    taken.sort_unstable();
    let at = |percent: usize| {
        let rank = (taken.len() * percent).div_ceil(100).saturating_sub(1);
        taken.get(rank).copied().unwrap_or_default()
    };
    let (p50, p99, longest) = (at(50), at(99), at(100));
    let text = format!(
        "p50 {}, p99 {}, max {} of {}; the deadline is {deadline:?}",
        millis(p50),
        millis(p99),
        millis(longest),
        taken.len(),
    );
    if p99 > deadline {
        Finding::problem(topic, text).with_remedy(REMEDY)
    } else if longest > deadline || p99 > deadline / 2 {
        Finding::warning(topic, text).with_remedy(REMEDY)
    } else {
        Finding::ok(topic, text)
    }
}

/// To hundredths of a millisecond.
fn millis(duration: Duration) -> String {
    let hundredths = duration.as_micros() / 10;
    format!("{}.{:02} ms", hundredths / 100, hundredths % 100)
}

/// What the server's clock said, and ours meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    server: Duration,
    /// Ours since 1970.
    ours: Duration,
    /// When, by a clock that is not set.
    at: Instant,
    /// For how long it is not known when the server looked at its clock.
    unsure: Duration,
}

impl Reading {
    pub(crate) async fn take(asking: &Asking) -> Result<Self, Error> {
        let sent = Instant::now();
        let ours = since_epoch();
        let reply = asking.ask(&redis::cmd("TIME")).await?;
        let unsure = sent.elapsed();
        let (seconds, micros) = <(u64, u64)>::from_redis_value(reply)
            .map_err(|_| crate::store::redis::protocol::unexpected("no time"))?;
        Ok(Self {
            server: Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros)),
            ours: ours + unsure / 2,
            at: sent + unsure / 2,
            unsure,
        })
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "it is held against the store's clock, and tells no time"
)]
fn since_epoch() -> Duration {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default()
}

/// What two readings say of the server's clock; `is_one` where both are of one server.
pub(crate) fn clock(first: Reading, last: Reading, is_one: bool) -> Finding {
    const TOPIC: &str = "clock";
    const REMEDY: &str =
        "have the servers keep time by NTP: a clock that is set moves the ends of windows";
    let passed = last.at.duration_since(first.at);
    let passed_there = last.server.checked_sub(first.server);
    let step = passed_there.map_or(Duration::MAX, |there| there.abs_diff(passed));
    if is_one && step > STEP + first.unsure + last.unsure {
        let there =
            passed_there.map_or_else(|| "went back".into(), |there| format!("moved by {there:?}"));
        return Finding::warning(
            TOPIC,
            format!("the server's clock {there} within {passed:?}"),
        )
        .with_remedy(REMEDY);
    }
    let offset = last.server.abs_diff(last.ours);
    let direction = if last.server > last.ours {
        "ahead of"
    } else {
        "behind"
    };
    let told = if offset <= last.unsure.max(Duration::from_millis(1)) {
        "the same as ours".to_owned()
    } else {
        format!("{} {direction} ours", millis(offset))
    };
    let text = format!("{told}; only the server's counts");
    if offset > FAR_OFF {
        Finding::warning(TOPIC, text).with_remedy(REMEDY)
    } else {
        Finding::ok(TOPIC, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::doctor::report::Severity;

    const DEADLINE: Duration = Duration::from_millis(100);

    #[test]
    fn percentiles_are_of_ranks_and_held_against_the_deadline() {
        let taken = |slow: usize, millis: u64| {
            let mut taken = vec![Duration::from_micros(250); 200 - slow];
            taken.extend(vec![Duration::from_millis(millis); slow]);
            taken.reverse();
            taken
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
            let finding = judge("round trip", taken(slow, millis), DEADLINE);
            assert_eq!(finding.severity(), severity, "{}", finding.text());
            assert!(finding.text().contains(said), "{}", finding.text());
        }
    }

    #[test]
    fn a_clock_that_is_far_off_or_jumps_is_a_warning() {
        let begin = Instant::now();
        let reading = |after: u64, server: u64, ours: u64| Reading {
            server: Duration::from_millis(server),
            ours: Duration::from_millis(ours),
            at: begin + Duration::from_millis(after),
            unsure: Duration::from_millis(2),
        };
        let first = reading(0, 100_000, 100_000);
        for (last, is_one, severity, said) in [
            (
                reading(1_000, 101_001, 101_000),
                true,
                Severity::Ok,
                "the same as ours",
            ),
            (
                reading(1_000, 101_030, 101_000),
                true,
                Severity::Ok,
                "30.00 ms ahead of ours",
            ),
            (
                reading(1_000, 101_000, 131_000),
                true,
                Severity::Ok,
                "30000.00 ms behind ours",
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
            let finding = clock(first, last, is_one);
            assert_eq!(finding.severity(), severity, "{}", finding.text());
            assert!(finding.text().contains(said), "{}", finding.text());
        }
    }
}
