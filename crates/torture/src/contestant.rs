//! The interface of a limiter under attack.

use std::error::Error;
use std::fmt;
use std::future::{Future, ready};
use std::pin::Pin;
use std::time::Duration;

/// The future of a limiter's answer. Dropping it cancels the call.
pub type Reply<'a, T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send + 'a>>;

/// A limiter under attack. Only [`check`](Self::check) is required.
pub trait Contestant: Send + Sync {
    /// Asks for `cost` units of a key.
    fn check<'a>(&'a self, key: &'a str, cost: u32) -> Reply<'a, Verdict>;

    /// Gives units of an admitted check back. `receipt` is the one of its [`Verdict`].
    fn refund<'a>(&'a self, key: &'a str, receipt: u64, units: u32) -> Reply<'a, ()> {
        let _ = (key, receipt, units);
        not_offered()
    }

    /// Takes one of [`Setup::limit`] slots of a key. Returns a number for [`release`](Self::release), or `None` if no slot
    /// is free.
    fn acquire<'a>(&'a self, key: &'a str) -> Reply<'a, Option<u64>> {
        let _ = key;
        not_offered()
    }

    /// Gives a slot back.
    fn release<'a>(&'a self, key: &'a str, slot: u64) -> Reply<'a, ()> {
        let _ = (key, slot);
        not_offered()
    }
}

fn not_offered<'a, T: Send + 'a>() -> Reply<'a, T> {
    Box::pin(ready(Err(Failure::new("not offered"))))
}

/// A limiter's answer to a check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verdict {
    /// Whether the request may proceed.
    pub admitted: bool,
    /// After which time a refused request would be admitted.
    pub retry_after: Option<Duration>,
    /// Identifies an admission for a refund.
    pub receipt: u64,
}

impl Verdict {
    /// The request may proceed.
    #[must_use]
    pub fn admitted() -> Self {
        Self {
            admitted: true,
            ..Self::default()
        }
    }

    /// The request may not proceed.
    #[must_use]
    pub fn refused(retry_after: Option<Duration>) -> Self {
        Self {
            retry_after,
            ..Self::default()
        }
    }

    /// Adds what identifies the admission for a refund.
    #[must_use]
    pub fn with_receipt(mut self, receipt: u64) -> Self {
        self.receipt = receipt;
        self
    }
}

impl From<bool> for Verdict {
    fn from(admitted: bool) -> Self {
        Self {
            admitted,
            ..Self::default()
        }
    }
}

/// A call that was not decided. Whether it was charged is unknown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure(String);

impl Failure {
    /// A failure with this text.
    #[must_use]
    pub fn new(text: impl fmt::Display) -> Self {
        Self(text.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Every error is a failure with its text, so a contestant can use `?`.
impl<E: Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::new(error)
    }
}

/// The limit of one attack.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Setup {
    /// The units of a key in a window, and the slots of a key.
    pub limit: u32,
    /// The window.
    pub window: Duration,
    /// The URL of an empty Redis, for a contestant that [needs](Offer::Redis) one. Otherwise empty.
    pub redis: String,
}

impl Setup {
    pub(crate) fn new(limit: u32, window: Duration, redis: String) -> Self {
        Self {
            limit,
            window,
            redis,
        }
    }
}

/// The promise of a limiter about the units that it admits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "each kind has its own arithmetic")]
pub enum Bound {
    /// At most the limit in any span as long as the window.
    Sliding,
    /// At most the limit in each window, and so at most twice the limit in a span as long. Windows may be aligned to any
    /// time.
    Fixed,
    /// As [`Fixed`](Self::Fixed), but the first request of a key opens its window, and the next one opens with the first
    /// request after its end.
    FixedFromRequest,
    /// A bucket of the limit, which fills evenly in one window: token bucket and GCRA.
    Bucket,
}

impl Bound {
    /// Returns the most units in a closed span. With `is_first`, the span begins before all requests of a key.
    ///
    /// A window may be shorter by `resolution`, and the next one as well.
    pub(crate) fn most(self, limit: u64, window: u64, resolution: u64, span: Span) -> u64 {
        let Span { length, is_first } = span;
        let shortest = window.saturating_sub(resolution).max(1);
        let windows = length.checked_div(shortest).unwrap_or_default();
        match self {
            Self::FixedFromRequest if is_first => limit * (windows + 1),
            Self::Sliding => limit * (windows + 1),
            Self::Fixed | Self::FixedFromRequest => limit * (windows + 2),
            Self::Bucket => {
                let filled = limit * (length + resolution);
                limit + filled.checked_div(window).unwrap_or_default()
            }
        }
    }
}

/// A span of time, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) length: u64,
    /// Whether it begins before all requests of its key.
    pub(crate) is_first: bool,
}

/// A feature of a limiter that an attack may need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "one for each kind of attack")]
pub enum Offer {
    /// It counts in Redis, for all processes.
    Redis,
    /// It waits for something, so that its callers can be cancelled. A [program](crate::Entry::program) cannot offer it.
    Cancel,
    /// A check may cost more than one unit.
    Costs,
    /// It takes units back.
    Refunds,
    /// It counts slots, which callers hold at the same time.
    Slots,
    /// Refusals say how long to wait.
    Waits,
    /// The wait is exact: an earlier call is refused.
    ExactWaits,
}

/// The name, the offers and the promises of a limiter.
///
/// Its text is one line, with which a [program](crate::Entry::program) begins.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Description {
    /// The name in tables and commands, without spaces.
    pub name: String,
    /// The version.
    pub version: String,
    /// The promise about admitted units.
    pub bound: Bound,
    /// The shortest window that it supports.
    pub shortest_window: Duration,
    /// The resolution of its clock: how much longer than the window a span has to be.
    pub resolution: Duration,
    /// The features that it offers.
    pub offers: Vec<Offer>,
    /// The attacks in which it promises to keep its bound, by name.
    pub promises: Vec<String>,
}

impl Description {
    /// A limiter that offers only checks, and promises nothing yet.
    #[must_use]
    pub fn new(name: &str, version: &str, bound: Bound) -> Self {
        Self {
            name: name.to_owned(),
            version: version.to_owned(),
            bound,
            shortest_window: Duration::from_millis(1),
            resolution: Duration::ZERO,
            offers: Vec::new(),
            promises: Vec::new(),
        }
    }

    /// Sets what it offers.
    #[must_use]
    pub fn offers(mut self, offers: &[Offer]) -> Self {
        self.offers = offers.to_vec();
        self
    }

    /// Sets the attacks, by name, in which it promises to keep its bound: only what its documentation says. An unknown name
    /// is an error of [`main`](crate::main).
    #[must_use]
    pub fn promises(mut self, attacks: &[&str]) -> Self {
        self.promises = attacks.iter().copied().map(str::to_owned).collect();
        self
    }

    /// Sets the shortest window that it supports.
    #[must_use]
    pub fn shortest_window(mut self, window: Duration) -> Self {
        self.shortest_window = window;
        self
    }

    /// Sets the resolution of its clock.
    #[must_use]
    pub fn resolution(mut self, resolution: Duration) -> Self {
        self.resolution = resolution;
        self
    }

    pub(crate) fn has(&self, offer: Offer) -> bool {
        self.offers.contains(&offer)
    }

    /// Reads the text of a description.
    pub(crate) fn parse(line: &str) -> Result<Self, Failure> {
        let words: Vec<_> = line.split_whitespace().collect();
        let ["contestant", name, version, bound, ref settings @ ..] = words[..] else {
            let expected =
                "contestant NAME VERSION sliding|fixed|fixed-from-request|bucket [WORD=VALUE …]";
            return Err(Failure::new(format!("expected `{expected}`: {line:?}")));
        };
        let bound = Self::BOUNDS.into_iter().find(|(text, _)| *text == bound);
        let (_, bound) = bound.ok_or_else(|| Failure::new(format!("no bound: {line:?}")))?;
        let mut description = Self::new(name, version, bound);
        for word in settings {
            let (word, value) = word.split_once('=').unwrap_or((word, ""));
            let values = value.split(',').filter(|value| !value.is_empty());
            match word {
                "window" => description.shortest_window = millis(value)?,
                "resolution" => description.resolution = millis(value)?,
                "offers" => {
                    description.offers = values.map(offer).collect::<Result<_, _>>()?;
                }
                "promises" => description.promises = values.map(str::to_owned).collect(),
                _ => return Err(Failure::new(format!("unknown word {word:?} in {line:?}"))),
            }
        }
        Ok(description)
    }

    const BOUNDS: [(&str, Bound); 4] = [
        ("sliding", Bound::Sliding),
        ("fixed", Bound::Fixed),
        ("fixed-from-request", Bound::FixedFromRequest),
        ("bucket", Bound::Bucket),
    ];

    const OFFERS: [(&str, Offer); 7] = [
        ("redis", Offer::Redis),
        ("cancel", Offer::Cancel),
        ("costs", Offer::Costs),
        ("refunds", Offer::Refunds),
        ("slots", Offer::Slots),
        ("waits", Offer::Waits),
        ("exact-waits", Offer::ExactWaits),
    ];
}

fn millis(value: &str) -> Result<Duration, Failure> {
    Ok(Duration::from_millis(value.parse()?))
}

fn offer(text: &str) -> Result<Offer, Failure> {
    Description::OFFERS
        .into_iter()
        .find(|(name, _)| *name == text)
        .map(|(_, offer)| offer)
        .ok_or_else(|| Failure::new(format!("unknown offer {text:?}")))
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bound = Self::BOUNDS
            .into_iter()
            .find(|(_, bound)| *bound == self.bound)
            .map_or("", |(text, _)| text);
        let offers: Vec<_> = Self::OFFERS
            .into_iter()
            .filter(|(_, offer)| self.has(*offer))
            .map(|(text, _)| text)
            .collect();
        write!(
            f,
            "contestant {} {} {bound} window={} resolution={} offers={} promises={}",
            self.name,
            self.version,
            self.shortest_window.as_millis(),
            self.resolution.as_millis(),
            offers.join(","),
            self.promises.join(",")
        )
    }
}
