//! Handles of metrics, kept once they are registered: to look one up takes longer than a check in
//! memory.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};

use metrics::{Counter, Gauge, Histogram, Key, Level, Metadata, Recorder, Unit, with_recorder};

/// Metrics of one name.
#[derive(Debug)]
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) unit: Unit,
    pub(super) about: &'static str,
}

const METADATA: Metadata<'static> = Metadata::new("tollgate", Level::INFO, Some(module_path!()));

/// What a recorder hands out.
pub(super) trait Handle: Clone {
    fn register(recorder: &dyn Recorder, key: &Key, family: &Family) -> Self;
}

macro_rules! handle {
    ($handle:ty, $describe:ident, $register:ident) => {
        impl Handle for $handle {
            fn register(recorder: &dyn Recorder, key: &Key, family: &Family) -> Self {
                let Family { name, unit, about } = family;
                recorder.$describe((*name).into(), Some(*unit), (*about).into());
                recorder.$register(key, &METADATA)
            }
        }
    };
}

handle!(Counter, describe_counter, register_counter);
handle!(Gauge, describe_gauge, register_gauge);
handle!(Histogram, describe_histogram, register_histogram);

/// A handle that is registered when there is first something to tell.
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
    /// Whether this was the first that a recorder was told.
    #[inline]
    pub(super) fn tell(
        &self,
        family: &Family,
        key: impl FnOnce() -> Key,
        tell: impl FnOnce(&H),
    ) -> bool {
        match self.handle.get() {
            Some(handle) => {
                tell(handle);
                false
            }
            None => self.register(family, key, tell),
        }
    }

    #[cold]
    fn register(&self, family: &Family, key: impl FnOnce() -> Key, tell: impl FnOnce(&H)) -> bool {
        let key = self.key.get_or_init(key);
        with_recorder(|recorder| {
            let handle = H::register(recorder, key, family);
            // The recorder that stands in until the application has installed one holds nothing. What
            // it hands out is not kept, nor is what another does that holds nothing.
            if size_of_val(recorder) == 0 {
                tell(&handle);
            } else {
                tell(self.handle.get_or_init(|| handle));
            }
        });
        self.handle.get().is_some()
    }
}

/// What one store adds to a gauge that all stores of its name in this process have together; nothing any
/// more when it is gone.
#[derive(Debug, Default)]
pub(super) struct GaugeShare {
    gauge: CachedHandle<Gauge>,
    now: AtomicI64,
    /// What of it the gauge was told.
    told: AtomicI64,
}

impl GaugeShare {
    /// It is so much more than it was.
    pub(super) fn add(&self, family: &Family, key: impl FnOnce() -> Key, more: i64) {
        self.now.fetch_add(more, Ordering::SeqCst);
        self.tell(family, key);
    }

    /// It is so much.
    pub(super) fn set(&self, family: &Family, key: impl FnOnce() -> Key, now: i64) {
        self.now.store(now, Ordering::SeqCst);
        self.tell(family, key);
    }

    fn tell(&self, family: &Family, key: impl FnOnce() -> Key) {
        self.gauge.tell(family, key, |gauge| {
            // To a gauge that is not kept, nothing was added.
            if self.gauge.handle.get().is_none() {
                gauge.set(as_f64(self.now.load(Ordering::Relaxed)));
                return;
            }
            // Others tell meanwhile: the last of them tells what it is in the end.
            loop {
                let now = self.now.load(Ordering::SeqCst);
                let before = self.told.swap(now, Ordering::SeqCst);
                gauge.increment(as_f64(now - before));
                if self.now.load(Ordering::SeqCst) == now {
                    return;
                }
            }
        });
    }
}

impl Drop for GaugeShare {
    fn drop(&mut self) {
        if let Some(gauge) = self.gauge.handle.get() {
            gauge.decrement(as_f64(*self.told.get_mut()));
        }
    }
}

/// Of what is held in memory, there is no more than that.
fn as_f64(count: i64) -> f64 {
    i32::try_from(count).unwrap_or(i32::MAX).into()
}
