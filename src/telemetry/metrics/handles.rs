//! Metrics through the facade of the `metrics` crate. The application chooses the recorder.
//!
//! This is the only file that knows whether the feature `metrics` is on. Without it, nothing is recorded.

/// Whether metrics are compiled in. If not, callers skip values that are expensive to compute.
pub(crate) const HAS_METRICS: bool = cfg!(feature = "metrics");

/// The name, unit and description of metrics that differ only in their labels.
#[derive(Debug)]
#[cfg_attr(
    not(feature = "metrics"),
    expect(dead_code, reason = "nothing is recorded")
)]
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) unit: Unit,
    pub(super) description: &'static str,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Unit {
    Count,
    Seconds,
}

/// The names and texts of labels. They are names that the application chose, and words of this crate, never values from
/// clients. So the number of time series does not depend on the number of keys.
pub(super) type Labels<'a> = &'a [(&'static str, &'a str)];

#[cfg(not(feature = "metrics"))]
pub(super) use disabled::{Counter, Gauge, GaugeShare, Histogram};
#[cfg(feature = "metrics")]
pub(super) use enabled::{Counter, Gauge, GaugeShare, Histogram};

#[cfg(feature = "metrics")]
mod enabled {
    use std::sync::{Mutex, OnceLock, PoisonError};

    use metrics::{Key, Label, Level, Metadata, Recorder, with_recorder};

    use super::{Family, Labels, Unit};

    const METADATA: Metadata<'static> =
        Metadata::new("tollgate", Level::INFO, Some(module_path!()));

    /// A handle that a recorder returns.
    pub(crate) trait Handle: Clone {
        fn register(recorder: &dyn Recorder, key: &Key, family: &Family) -> Self;
    }

    macro_rules! handle {
        ($handle:ty, $describe:ident, $register:ident) => {
            impl Handle for $handle {
                fn register(recorder: &dyn Recorder, key: &Key, family: &Family) -> Self {
                    let unit = match family.unit {
                        Unit::Count => metrics::Unit::Count,
                        Unit::Seconds => metrics::Unit::Seconds,
                    };
                    recorder.$describe(family.name.into(), Some(unit), family.description.into());
                    recorder.$register(key, &METADATA)
                }
            }
        };
    }

    handle!(metrics::Counter, describe_counter, register_counter);
    handle!(metrics::Gauge, describe_gauge, register_gauge);
    handle!(metrics::Histogram, describe_histogram, register_histogram);

    pub(crate) type Counter = Metric<metrics::Counter>;
    pub(crate) type Gauge = Metric<metrics::Gauge>;
    pub(crate) type Histogram = Metric<metrics::Histogram>;

    /// A metric that is registered when it first records a value. Its handle is cached, because a lookup takes longer than a
    /// check in memory.
    #[derive(Debug)]
    pub(crate) struct Metric<H> {
        key: OnceLock<Key>,
        handle: OnceLock<H>,
    }

    impl<H> Default for Metric<H> {
        fn default() -> Self {
            Self {
                key: OnceLock::new(),
                handle: OnceLock::new(),
            }
        }
    }

    impl<H: Handle> Metric<H> {
        /// Records a value. Returns whether it is the first value of a cached handle.
        fn with(&self, family: &Family, labels: Labels<'_>, record: impl FnOnce(&H)) -> bool {
            match self.handle.get() {
                Some(handle) => {
                    record(handle);
                    false
                }
                None => self.register(family, labels, record),
            }
        }

        #[cold]
        fn register(&self, family: &Family, labels: Labels<'_>, record: impl FnOnce(&H)) -> bool {
            let key = self.key.get_or_init(|| {
                let labels = labels.iter();
                let labels = labels.map(|(name, text)| Label::new(*name, (*text).to_owned()));
                Key::from_parts(family.name, labels.collect::<Vec<_>>())
            });
            with_recorder(|recorder| {
                let handle = H::register(recorder, key, family);
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

    impl Counter {
        /// Adds to the count. Returns whether the recorder got its first value.
        pub(crate) fn add(&self, family: &Family, labels: Labels<'_>, count: u64) -> bool {
            self.with(family, labels, |counter| counter.increment(count))
        }
    }

    impl Histogram {
        /// Adds a value. Returns whether the recorder got its first value.
        pub(crate) fn record(&self, family: &Family, labels: Labels<'_>, value: f64) -> bool {
            self.with(family, labels, |histogram| histogram.record(value))
        }
    }

    impl Gauge {
        pub(crate) fn set(&self, family: &Family, labels: Labels<'_>, value: f64) {
            self.with(family, labels, |gauge| gauge.set(value));
        }
    }

    /// The share of one store or limiter in a gauge that sums all of the same name. Subtracted on drop.
    #[derive(Debug, Default)]
    pub(crate) struct GaugeShare {
        gauge: Gauge,
        state: Mutex<ShareState>,
    }

    #[derive(Debug, Default)]
    struct ShareState {
        value: i64,
        /// The part of the value that was added to the gauge.
        recorded: i64,
    }

    impl GaugeShare {
        /// Adds to the share. Returns whether it is the first value of a cached handle.
        pub(crate) fn add(&self, family: &Family, labels: Labels<'_>, difference: i64) -> bool {
            self.change(family, labels, |value| value.saturating_add(difference))
        }

        /// Sets the share.
        pub(crate) fn set(&self, family: &Family, labels: Labels<'_>, value: i64) {
            self.change(family, labels, |_| value);
        }

        fn change(
            &self,
            family: &Family,
            labels: Labels<'_>,
            change: impl FnOnce(i64) -> i64,
        ) -> bool {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.value = change(state.value);
            self.gauge.with(family, labels, |gauge| {
                if self.gauge.handle.get().is_none() {
                    // The handle is not cached, so its recorder records nothing: nothing was added to it before.
                    gauge.set(as_f64(state.value));
                    return;
                }
                gauge.increment(as_f64(state.value - state.recorded));
                state.recorded = state.value;
            })
        }
    }

    impl Drop for GaugeShare {
        fn drop(&mut self) {
            let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
            if let Some(gauge) = self.gauge.handle.get() {
                gauge.decrement(as_f64(state.recorded));
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
    use super::{Family, Labels};

    #[derive(Debug, Default)]
    pub(crate) struct Counter(());

    #[derive(Debug, Default)]
    pub(crate) struct Gauge(());

    #[derive(Debug, Default)]
    pub(crate) struct GaugeShare(());

    #[derive(Debug, Default)]
    pub(crate) struct Histogram(());

    impl Counter {
        pub(crate) fn add(&self, _: &Family, _: Labels<'_>, _: u64) -> bool {
            false
        }
    }

    impl Gauge {
        pub(crate) fn set(&self, _: &Family, _: Labels<'_>, _: f64) {}
    }

    impl GaugeShare {
        pub(crate) fn add(&self, _: &Family, _: Labels<'_>, _: i64) -> bool {
            false
        }

        pub(crate) fn set(&self, _: &Family, _: Labels<'_>, _: i64) {}
    }

    impl Histogram {
        pub(crate) fn record(&self, _: &Family, _: Labels<'_>, _: f64) -> bool {
            false
        }
    }
}
