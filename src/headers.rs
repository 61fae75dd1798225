//! The headers that tell a client of its limit.

mod number;

use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName};

use crate::{DecisionView, Source};
pub(crate) use number::value_of;

const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// Which headers tell clients of their limit.
///
/// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` are no standard, but what
/// most clients know. They stand on every answer that was checked, admitted or not, and are those
/// of the quota that matters most: see [`DecisionView`].
///
/// | header | value |
/// |---|---|
/// | `X-RateLimit-Limit` | the limit, in units |
/// | `X-RateLimit-Remaining` | the units left |
/// | `X-RateLimit-Reset` | whole seconds from now, rounded up, until more units are left; on a 429, until this request is admitted, like `Retry-After` |
///
/// Where layers are nested, the headers are those of the layer with fewer units left, or of the one
/// that answered 429. Headers of these names that a service sets itself are replaced.
///
/// # Examples
///
/// ```
/// use tollgate::{Headers, MemoryStore, Quota, RateLimitLayer};
///
/// // As GitHub's API tells it: the second in which units are back, as Unix time.
/// let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(60))
///     .headers(Headers::x_ratelimit().epoch_reset());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Headers {
    dialect: Dialect,
    reset: Reset,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialect {
    None,
    XRateLimit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reset {
    Delta,
    Epoch,
}

impl Headers {
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`; the default.
    #[must_use]
    pub const fn x_ratelimit() -> Self {
        Self {
            dialect: Dialect::XRateLimit,
            reset: Reset::Delta,
        }
    }

    /// No headers: for limits that are nobody's business. A 429 has its `Retry-After` all the same.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            dialect: Dialect::None,
            reset: Reset::Delta,
        }
    }

    /// Writes `X-RateLimit-Reset` as the Unix time of that second, by this machine's clock, rather
    /// than as seconds from now. Clients whose clocks differ will wait too long or too short.
    #[must_use]
    pub const fn epoch_reset(mut self) -> Self {
        self.reset = Reset::Epoch;
        self
    }

    /// Writes the headers, in place of those of the same names.
    pub(crate) fn write(&self, decision: &DecisionView, headers: &mut HeaderMap) {
        // Where nobody counts, there is nothing to tell.
        if self.dialect == Dialect::None || decision.source() == Source::None {
            return;
        }
        let Some(reported) = decision.reported() else {
            return;
        };
        let reset = reported
            .retry_after()
            .unwrap_or_else(|| reported.reset_after());
        let reset = match self.reset {
            Reset::Delta => whole_seconds(reset),
            Reset::Epoch => whole_seconds(since_epoch() + reset),
        };
        // Else each of the three might have the map grow.
        headers.reserve(3);
        headers.insert(LIMIT, value_of(reported.limit().into()));
        headers.insert(REMAINING, value_of(decision.remaining().into()));
        headers.insert(RESET, value_of(reset));
    }
}

impl Default for Headers {
    fn default() -> Self {
        Self::x_ratelimit()
    }
}

/// Rounded up: who waits as long as he is told must not be refused again.
pub(crate) fn whole_seconds(duration: Duration) -> u64 {
    let part = u64::from(duration.subsec_nanos() > 0);
    duration.as_secs().saturating_add(part)
}

#[expect(
    clippy::disallowed_methods,
    reason = "an instant has no name but by this clock"
)]
fn since_epoch() -> Duration {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::decision::{Answer, QuotaAnswer, Source};
    use crate::{Decision, Quota};

    fn decision(limit: u32, answer: QuotaAnswer) -> DecisionView {
        let answer = Answer::new(Source::Memory, [answer]);
        let decision = Decision::new(&Quota::per_minute(limit).into(), 1, answer);
        decision.unwrap().into_view()
    }

    fn written(dialect: &Headers, decision: &DecisionView) -> Vec<(String, String)> {
        let mut headers = HeaderMap::new();
        dialect.write(decision, &mut headers);
        let text = |(name, value): (&HeaderName, &HeaderValue)| {
            (name.to_string(), value.to_str().unwrap().to_owned())
        };
        headers.iter().map(text).collect()
    }

    fn values(dialect: &Headers, decision: &DecisionView) -> Vec<String> {
        let written = written(dialect, decision);
        written.into_iter().map(|(_, value)| value).collect()
    }

    #[test]
    fn seconds_are_rounded_up() {
        for (millis, seconds) in [
            (0, 0),
            (1, 1),
            (999, 1),
            (1_000, 1),
            (1_001, 2),
            (59_999, 60),
        ] {
            assert_eq!(whole_seconds(Duration::from_millis(millis)), seconds);
        }
        assert_eq!(whole_seconds(Duration::from_nanos(1)), 1);
        assert_eq!(whole_seconds(Duration::MAX), u64::MAX);
    }

    #[test]
    fn an_admitted_request_is_told_limit_remaining_and_reset() {
        let admitted = decision(10, QuotaAnswer::admitted(3, Duration::from_millis(41_001)));
        let expected = [
            ("x-ratelimit-limit", "10"),
            ("x-ratelimit-remaining", "7"),
            ("x-ratelimit-reset", "42"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(written(&Headers::default(), &admitted), expected);
    }

    #[test]
    fn a_refused_request_is_told_when_it_will_be_admitted() {
        let (wait, reset) = (Duration::from_millis(5_001), Duration::from_secs(1));
        let refused = decision(10, QuotaAnswer::refused(10, Some(wait), reset));
        assert_eq!(values(&Headers::default(), &refused), ["10", "0", "6"]);
    }

    #[test]
    fn an_epoch_reset_names_the_second() {
        let admitted = decision(10, QuotaAnswer::admitted(1, Duration::from_secs(30)));
        let before = whole_seconds(since_epoch());
        let told = values(&Headers::x_ratelimit().epoch_reset(), &admitted);
        let told: u64 = told[2].parse().unwrap();
        assert!(
            (before + 29..=before + 32).contains(&told),
            "{told}, {before}"
        );
    }

    #[test]
    fn headers_can_be_left_out() {
        let admitted = decision(10, QuotaAnswer::admitted(1, Duration::ZERO));
        assert!(written(&Headers::none(), &admitted).is_empty());
    }
}
