//! Metrics and spans by OpenTelemetry: `cargo run --package tollgate-example-opentelemetry`
//!
//! Two bridges need no code of tollgate: `metrics-exporter-otel` takes the metrics, `tracing-opentelemetry` the spans. This
//! program prints both. A service takes the exporters of `opentelemetry-otlp` in place of those to the terminal. Without a
//! Redis, the span says that this process has decided alone.

use std::error::Error;

use metrics_exporter_otel::OpenTelemetryRecorder;
use opentelemetry::metrics::MeterProvider;
use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tollgate::{FailurePolicy, Quota, RateLimiter, RedisStore};
use tracing::field::Empty;
use tracing::{Instrument, info_span};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

type BoxError = Box<dyn Error + Send + Sync>;

/// The upper ends of the buckets, in seconds: a nearby Redis answers in about 0.1 ms, and the deadline is 100 ms.
const STORE_SECONDS: [f64; 9] = [
    0.000_1, 0.000_25, 0.000_5, 0.001, 0.005, 0.02, 0.05, 0.1, 0.15,
];

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let meters = SdkMeterProvider::builder()
        .with_periodic_exporter(opentelemetry_stdout::MetricExporter::default())
        .build();
    let tracers = SdkTracerProvider::builder()
        .with_simple_exporter(opentelemetry_stdout::SpanExporter::default())
        .build();
    // Before the first limiter, because metrics that are emitted without a recorder are lost.
    metrics::set_global_recorder(recorder(&meters))?;
    subscriber(&tracers).init();

    let url =
        std::env::var("TOLLGATE_STORE").unwrap_or_else(|_| "redis://127.0.0.1:6379".to_owned());
    let store = RedisStore::open(&url)?.prefix("opentelemetry");
    let limiter = RateLimiter::new(store, Quota::per_minute(2))
        .name("search")
        .on_failure(FailurePolicy::fall_back());
    for _ in 0..3 {
        search(&limiter).await?;
    }
    tracers.shutdown()?;
    meters.shutdown()?;
    Ok(())
}

fn recorder(meters: &SdkMeterProvider) -> OpenTelemetryRecorder {
    let recorder = OpenTelemetryRecorder::new(meters.meter("tollgate"));
    let duration = metrics::KeyName::from("tollgate_store_duration_seconds");
    recorder.set_histogram_bounds(&duration, STORE_SECONDS.to_vec());
    recorder
}

/// The call of the store is a span at level debug.
fn subscriber(
    tracers: &SdkTracerProvider,
) -> impl tracing::Subscriber + Send + Sync + 'static + use<> {
    let targets = Targets::new()
        .with_default(tracing::Level::INFO)
        .with_target("tollgate::check", tracing::Level::DEBUG);
    let spans = tracing_opentelemetry::layer().with_tracer(tracers.tracer("tollgate"));
    tracing_subscriber::registry().with(spans.with_filter(targets))
}

/// A request, whose span declares the fields that it wants to have.
async fn search(limiter: &RateLimiter) -> Result<(), tollgate::Error> {
    let request = info_span!("search", tollgate.outcome = Empty, tollgate.source = Empty);
    let decision = limiter.check("ada").instrument(request).await?;
    println!("admitted: {}", decision.is_allowed());
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use opentelemetry_sdk::metrics::InMemoryMetricExporter;
    use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData};
    use opentelemetry_sdk::trace::{InMemorySpanExporter, SpanData};

    use super::*;

    /// The attributes with these names. The bridge adds others.
    fn attributes<const N: usize>(span: &SpanData, names: [&str; N]) -> [Option<String>; N] {
        names.map(|name| {
            let attributes = &span.attributes;
            let found = attributes
                .iter()
                .find(|attribute| attribute.key.as_str() == name);
            found.map(|attribute| attribute.value.to_string())
        })
    }

    fn sums(exporter: &InMemoryMetricExporter) -> BTreeMap<String, u64> {
        let mut sums = BTreeMap::new();
        let exported = exporter.get_finished_metrics().unwrap();
        let metrics = exported
            .iter()
            .flat_map(|resource| resource.scope_metrics())
            .flat_map(|scope| scope.metrics());
        for metric in metrics {
            if let AggregatedMetrics::U64(MetricData::Sum(sum)) = metric.data() {
                for point in sum.data_points() {
                    let mut labels: Vec<_> = point
                        .attributes()
                        .map(|label| format!("{}={}", label.key, label.value))
                        .collect();
                    labels.sort();
                    let name = format!("{} {}", metric.name(), labels.join(" "));
                    sums.insert(name, point.value());
                }
            }
        }
        sums
    }

    #[tokio::test]
    async fn metrics_and_spans_arrive() {
        let exported_metrics = InMemoryMetricExporter::default();
        let meters = SdkMeterProvider::builder()
            .with_periodic_exporter(exported_metrics.clone())
            .build();
        let exported_spans = InMemorySpanExporter::default();
        let tracers = SdkTracerProvider::builder()
            .with_simple_exporter(exported_spans.clone())
            .build();
        metrics::set_global_recorder(recorder(&meters)).unwrap();
        let _spans = tracing::subscriber::set_default(subscriber(&tracers));

        // Nobody answers there: one call of the store, decided by this process.
        let store = RedisStore::open("redis://127.0.0.1:1").unwrap();
        let policy = FailurePolicy::fall_back();
        let limiter = RateLimiter::new(store, Quota::per_minute(2)).name("search");
        search(&limiter.on_failure(policy)).await.unwrap();
        meters.force_flush().unwrap();

        let spans = exported_spans.get_finished_spans().unwrap();
        let names: Vec<_> = spans.iter().map(|span| &*span.name).collect();
        assert_eq!(names, ["tollgate.check", "search"]);
        assert_eq!(spans[0].parent_span_id, spans[1].span_context.span_id());
        let decided = ["admitted", "fallback"].map(|text| Some(text.to_owned()));
        assert_eq!(attributes(&spans[0], ["outcome", "source"]), decided);
        let limiter = Some("search".to_owned());
        assert_eq!(attributes(&spans[0], ["limiter"]), [limiter]);
        let of_request = ["tollgate.outcome", "tollgate.source"];
        assert_eq!(attributes(&spans[1], of_request), decided);

        let sums = sums(&exported_metrics);
        let checks = "tollgate_checks_total limiter=search outcome=admitted source=fallback";
        assert_eq!(sums.get(checks), Some(&1), "{sums:?}");
    }
}
