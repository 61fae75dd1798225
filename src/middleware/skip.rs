//! The closure that exempts requests: from a layer, or from one of its levels.

use std::sync::Arc;

use http::request::Parts;

/// Exempts the requests for which a closure returns `true`. By default, none.
#[derive(Clone, Default)]
pub(super) struct Skip(Option<Arc<SkipFn>>);

type SkipFn = dyn Fn(&Parts) -> bool + Send + Sync;

impl Skip {
    pub(super) fn new(skip: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(skip)))
    }

    #[inline]
    pub(super) fn exempts(&self, parts: &Parts) -> bool {
        self.0.as_ref().is_some_and(|skip| skip(parts))
    }
}
