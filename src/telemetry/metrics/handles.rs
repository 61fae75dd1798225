//! Handles of metrics, cached after they are registered, because a lookup takes longer than a check in memory.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};

use metrics::{Counter, Gauge, Histogram, Key, Level, Metadata, Recorder, Unit, with_recorder};

/// The name, unit and description of metrics that differ only in their labels.
#[derive(Debug)]
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) unit: Unit,
    pub(super) description: &'static str,
}

const METADATA: Metadata<'static> = Metadata::new("tollgate", Level::INFO, Some(module_path!()));

/// A handle that a recorder returns.
pub(super) trait Handle: Clone {
    fn register(recorder: &dyn Recorder, key: &Key, family: &Family) -> Self;
}

macro_rules! handle {
    ($handle:ty, $describe:ident, $register:ident) => {
        impl Handle for $handle {
            fn register(recorder: &dyn Recorder, key: &Key, family: &Family) -> Self {
                let Family {
                    name,
                    unit,
                    description,
                } = family;
                recorder.$describe((*name).into(), Some(*unit), (*description).into());
                recorder.$register(key, &METADATA)
            }
        }
    };
}

handle!(Counter, describe_counter, register_counter);
handle!(Gauge, describe_gauge, register_gauge);
handle!(Histogram, describe_histogram, register_histogram);

/// A handle that is registered when it first records a value.
#[derive(Debug)]
pub(super) struct CachedHandle<H> {
    key: OnceLock<Key>,
    handle: OnceLock<H>,
}

impl<H> Default for CachedHandle<H> {
    fn default() -> Self {
        Self {
            key: OnceLock::new(),
            handle: OnceLock::new(),
        }
    }
}

impl<H: Handle> CachedHandle<H> {
    /// Records a value. Returns whether it is the first value of a cached handle.
    #[inline]
    pub(super) fn record(
        &self,
        family: &Family,
        key: impl FnOnce() -> Key,
        record: impl FnOnce(&H),
    ) -> bool {
        match self.handle.get() {
            Some(handle) => {
                record(handle);
                false
            }
            None => self.register(family, key, record),
        }
    }

    #[cold]
    fn register(
        &self,
        family: &Family,
        key: impl FnOnce() -> Key,
        record: impl FnOnce(&H),
    ) -> bool {
        let key = self.key.get_or_init(key);
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

/// The share of one store or limiter in a gauge that sums all of the same name. Subtracted on drop.
#[derive(Debug, Default)]
pub(super) struct GaugeShare {
    gauge: CachedHandle<Gauge>,
    value: AtomicI64,
    /// The part of the value that was added to the gauge.
    recorded: AtomicI64,
}

impl GaugeShare {
    /// Adds to the share. Returns whether it is the first value of a cached handle.
    pub(super) fn add(&self, family: &Family, key: impl FnOnce() -> Key, difference: i64) -> bool {
        self.value.fetch_add(difference, Ordering::SeqCst);
        self.record(family, key)
    }

    /// Sets the share.
    pub(super) fn set(&self, family: &Family, key: impl FnOnce() -> Key, value: i64) {
        self.value.store(value, Ordering::SeqCst);
        self.record(family, key);
    }

    fn record(&self, family: &Family, key: impl FnOnce() -> Key) -> bool {
        self.gauge.record(family, key, |gauge| {
            // The handle is not cached, so its recorder records nothing: nothing was added to it before.
            if self.gauge.handle.get().is_none() {
                gauge.set(as_f64(self.value.load(Ordering::Relaxed)));
                return;
            }
            // Other threads may record at the same time. The last one of them records the final value.
            loop {
                let value = self.value.load(Ordering::SeqCst);
                let before = self.recorded.swap(value, Ordering::SeqCst);
                gauge.increment(as_f64(value - before));
                if self.value.load(Ordering::SeqCst) == value {
                    return;
                }
            }
        })
    }
}

impl Drop for GaugeShare {
    fn drop(&mut self) {
        if let Some(gauge) = self.gauge.handle.get() {
            gauge.decrement(as_f64(*self.recorded.get_mut()));
        }
    }
}

/// Saturates at `i32::MAX`. A store holds fewer keys than that.
fn as_f64(count: i64) -> f64 {
    i32::try_from(count).unwrap_or(i32::MAX).into()
}
