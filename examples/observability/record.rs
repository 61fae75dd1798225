//! The metrics recorder for Prometheus.

use std::time::Duration;

use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

/// Buckets for the time that a check waits for its store. A nearby Redis answers in about 0.1 ms. A check waits
/// little longer than the deadline, which is 100 ms by default: the bucket above it is narrow, so that a quantile
/// of checks that ran into the deadline is close to it.
const SECONDS: [f64; 13] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 1.0,
];

/// Buckets for the number of checks in a call: powers of two up to the first that holds every call.
const CHECKS: [f64; 10] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0];

/// Buckets for the time that a permit is held: a request, a stream, a job.
const HELD_SECONDS: [f64; 10] = [
    0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0,
];

/// Buckets for the wait for a permit. A call asks about every 25 ms and waits for at most a minute by default.
const WAIT_SECONDS: [f64; 11] = [
    0.001, 0.005, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 15.0, 30.0, 60.0,
];

/// How often recorded values move into the buckets. Until then each value takes memory, and without a scrape
/// nothing else moves them.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Installs the recorder of this process and returns its handle.
pub(crate) fn for_prometheus() -> Result<PrometheusHandle, BuildError> {
    let of = |name: &str| Matcher::Full(name.into());
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(of("tollgate_store_duration_seconds"), &SECONDS)?
        .set_buckets_for_metric(of("tollgate_batch_checks"), &CHECKS)?
        .set_buckets_for_metric(of("tollgate_permit_seconds"), &HELD_SECONDS)?
        .set_buckets_for_metric(of("tollgate_permit_wait_seconds"), &WAIT_SECONDS)?
        .install_recorder()?;

    let kept = handle.clone();
    tokio::spawn(async move {
        let mut every = tokio::time::interval(UPKEEP_INTERVAL);
        loop {
            every.tick().await;
            kept.run_upkeep();
        }
    });
    Ok(handle)
}
