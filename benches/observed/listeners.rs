//! The recorders and subscribers that a row installs.

use std::io;
use std::num::NonZeroUsize;
use std::str::FromStr;

use tollgate::RateLimiter;
use tracing::Level;

/// The row: how the program is built, and what is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listeners {
    NotBuilt,
    None,
    Metrics,
    Refusals,
    TopRejected,
    Checks,
}

impl Listeners {
    pub(crate) const ALL: [Self; 6] = [
        Self::NotBuilt,
        Self::None,
        Self::Metrics,
        Self::Refusals,
        Self::TopRejected,
        Self::Checks,
    ];

    pub(crate) fn argument(self) -> &'static str {
        match self {
            Self::NotBuilt => "not-built",
            Self::None => "none",
            Self::Metrics => "metrics",
            Self::Refusals => "refusals",
            Self::TopRejected => "top-rejected",
            Self::Checks => "checks",
        }
    }

    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::NotBuilt => "none; without the feature `metrics`",
            Self::None => "none; with the feature",
            Self::Metrics => "a Prometheus recorder",
            Self::Refusals => "and a log at info",
            Self::TopRejected => "and the 100 top rejected keys",
            Self::Checks => "a Prometheus recorder and a log at debug: a line for each check",
        }
    }

    /// Installs the recorder and the subscriber.
    pub(crate) fn install(self) {
        if !matches!(self, Self::NotBuilt | Self::None) {
            let recorder = metrics_exporter_prometheus::PrometheusBuilder::new();
            recorder.install_recorder().expect("the first recorder");
        }
        let level = match self {
            Self::NotBuilt | Self::None | Self::Metrics => return,
            Self::Refusals | Self::TopRejected => Level::INFO,
            Self::Checks => Level::DEBUG,
        };
        let log = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_writer(io::sink);
        tracing::subscriber::set_global_default(log.finish()).expect("the first subscriber");
    }

    /// Enables the tracking of rejected keys for the row that measures it.
    pub(crate) fn configure(self, limiter: RateLimiter) -> RateLimiter {
        match (self, NonZeroUsize::new(100)) {
            (Self::TopRejected, Some(keys)) => limiter.track_rejected_keys(keys),
            _ => limiter,
        }
    }
}

impl FromStr for Listeners {
    type Err = String;

    fn from_str(argument: &str) -> Result<Self, String> {
        let named = Self::ALL.into_iter().find(|of| of.argument() == argument);
        named.ok_or_else(|| format!("unknown row {argument}"))
    }
}
