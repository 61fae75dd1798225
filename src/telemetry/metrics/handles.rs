//! Metrics through the facade of the `metrics` crate. The application chooses the recorder.
//!
//! This is the only file that knows whether the feature `metrics` is on. Without it, nothing is recorded.

/// Whether metrics are compiled in. If not, callers skip values that are expensive to compute.
pub(crate) const HAS_METRICS: bool = cfg!(feature = "metrics");

/// The names and texts of labels. They are names that the application chose, and words of this crate, never values from
/// clients. So the number of time series does not depend on the number of keys.
pub(super) type Labels<'a> = &'a [(&'static str, &'a str)];

#[cfg(not(feature = "metrics"))]
pub(super) use disabled::{Counter, Gauge, GaugeShare, Histogram};
#[cfg(feature = "metrics")]
pub(super) use enabled::{Counter, Gauge, GaugeShare, Histogram};

#[cfg(feature = "metrics")]
mod enabled {
    use std::sync::OnceLock;

    use metrics::{Key, Label, Level, Metadata, Recorder, Unit, with_recorder};

    use super::Labels;
    use crate::lock::Mutex;

    const METADATA: Metadata<'static> =
        Metadata::new("tollgate", Level::INFO, Some(module_path!()));

    /// A handle that a recorder returns.
    pub(crate) trait Handle {
        type Value;

        fn register(recorder: &dyn Recorder, key: &Key, description: &'static str) -> Self;

        fn record(&self, value: Self::Value);
    }

    macro_rules! handle {
        ($handle:ident, $value:ty, $describe:ident, $register:ident, $record:ident) => {
            impl Handle for metrics::$handle {
                type Value = $value;

                fn register(recorder: &dyn Recorder, key: &Key, description: &'static str) -> Self {
                    // Names end with the unit, as Prometheus recommends.
                    let is_time = key.name().ends_with("_seconds");
                    let unit = if is_time { Unit::Seconds } else { Unit::Count };
                    recorder.$describe(key.name_shared(), Some(unit), description.into());
                    recorder.$register(key, &METADATA)
                }

                fn record(&self, value: $value) {
                    self.$record(value);
                }
            }

            pub(crate) type $handle = Metric<metrics::$handle>;
        };
    }

    handle!(Counter, u64, describe_counter, register_counter, increment);
    handle!(Gauge, f64, describe_gauge, register_gauge, set);
    handle!(
        Histogram,
        f64,
        describe_histogram,
        register_histogram,
        record
    );

    /// A metric that is registered when it first records a value. Its handle is cached, because a lookup takes longer than a
    /// check in memory.
    #[derive(Debug)]
    pub(crate) struct Metric<H> {
        key: Key,
        description: &'static str,
        handle: OnceLock<H>,
    }

    impl<H: Handle> Metric<H> {
        pub(crate) fn new(
            name: &'static str,
            description: &'static str,
            labels: Labels<'_>,
        ) -> Self {
            let labels: Vec<_> = labels
                .iter()
                .map(|(name, text)| Label::new(*name, (*text).to_owned()))
                .collect();
            Self {
                key: Key::from_parts(name, labels),
                description,
                handle: OnceLock::new(),
            }
        }

        /// Records a value. Returns whether it is the first value of a cached handle.
        pub(crate) fn record(&self, value: H::Value) -> bool {
            self.with(|handle| handle.record(value))
        }

        fn with(&self, record: impl FnOnce(&H)) -> bool {
            match self.handle.get() {
                Some(handle) => {
                    record(handle);
                    false
                }
                None => self.register(record),
            }
        }

        #[cold]
        fn register(&self, record: impl FnOnce(&H)) -> bool {
            with_recorder(|recorder| {
                let handle = H::register(recorder, &self.key, self.description);
                // A recorder of size 0 records nothing, such as the default before the application installs its
                // own. Do not cache its handles.
                if size_of_val(recorder) == 0 {
                    record(&handle);
                } else {
                    record(self.handle.get_or_init(|| handle));
                }
            });
            self.handle.get().is_some()
        }
    }

    /// The share of one store or limiter in a gauge that sums all of the same name. Subtracted on drop.
    #[derive(Debug)]
    pub(crate) struct GaugeShare {
        gauge: Gauge,
        value: Mutex<i64>,
    }

    impl GaugeShare {
        pub(crate) fn new(
            name: &'static str,
            description: &'static str,
            labels: Labels<'_>,
        ) -> Self {
            Self {
                gauge: Gauge::new(name, description, labels),
                value: Mutex::default(),
            }
        }

        /// Adds to the share. Returns whether it is the first value of a cached handle.
        pub(crate) fn add(&self, difference: i64) -> bool {
            self.change(|value| value.saturating_add(difference))
        }

        pub(crate) fn set(&self, value: i64) {
            self.change(|_| value);
        }

        fn change(&self, change: impl FnOnce(i64) -> i64) -> bool {
            let mut value = self.value.lock();
            // Without a cached handle, nothing was added to the gauge before.
            let recorded = self.gauge.handle.get().map_or(0, |_| *value);
            *value = change(*value);
            self.gauge.with(|gauge| match self.gauge.handle.get() {
                // This recorder records nothing.
                None => gauge.set(as_f64(*value)),
                Some(_) => gauge.increment(as_f64(*value - recorded)),
            })
        }
    }

    impl Drop for GaugeShare {
        fn drop(&mut self) {
            let value = self.value.lock();
            if let Some(gauge) = self.gauge.handle.get() {
                gauge.decrement(as_f64(*value));
            }
        }
    }

    /// Saturates at `i32::MAX`. A store holds fewer keys than that.
    fn as_f64(count: i64) -> f64 {
        i32::try_from(count).unwrap_or(i32::MAX).into()
    }
}

#[cfg(not(feature = "metrics"))]
mod disabled {
    use std::marker::PhantomData;

    use super::Labels;

    pub(crate) type Counter = Metric<u64>;
    pub(crate) type Gauge = Metric<f64>;
    pub(crate) type GaugeShare = Metric<i64>;
    pub(crate) type Histogram = Metric<f64>;

    /// A metric that records nothing.
    #[derive(Debug)]
    pub(crate) struct Metric<V>(PhantomData<V>);

    impl<V> Metric<V> {
        pub(crate) fn new(_: &'static str, _: &'static str, _: Labels<'_>) -> Self {
            Self(PhantomData)
        }

        pub(crate) fn record(&self, _: V) -> bool {
            false
        }

        pub(crate) fn add(&self, _: V) -> bool {
            false
        }

        pub(crate) fn set(&self, _: V) {}
    }
}
