//! Handles of metrics, kept once they are registered: to look one up takes longer than a check in
//! memory.

use std::sync::OnceLock;

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
pub(super) struct Kept<H> {
    key: OnceLock<Key>,
    handle: OnceLock<H>,
}

impl<H> Default for Kept<H> {
    fn default() -> Self {
        Self {
            key: OnceLock::new(),
            handle: OnceLock::new(),
        }
    }
}

impl<H: Handle> Kept<H> {
    #[inline]
    pub(super) fn tell(&self, family: &Family, key: impl FnOnce() -> Key, tell: impl FnOnce(&H)) {
        match self.handle.get() {
            Some(handle) => tell(handle),
            None => self.register(family, key, tell),
        }
    }

    #[cold]
    fn register(&self, family: &Family, key: impl FnOnce() -> Key, tell: impl FnOnce(&H)) {
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
    }
}
