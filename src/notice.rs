//! What an operator has to know: one line in the log for each change, never one for each request.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::key::KeyError;
use crate::{Error, ErrorKind};

/// What has been said already, for one layer.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    keys_unknown: AtomicBool,
    store_fails: AtomicBool,
}

impl Notices {
    /// The server cannot know keys as it is set up: said once, it will not pass.
    pub(crate) fn keys_unknown(&self, limiter: &str, error: &KeyError) {
        if !self.keys_unknown.swap(true, Ordering::Relaxed) {
            tracing::error!(limiter, "every request is answered 500: {error}");
        }
    }

    /// The store failed: said when it begins.
    pub(crate) fn store_fails(&self, limiter: &str, error: &Error) {
        if self.store_fails.swap(true, Ordering::Relaxed) {
            return;
        }
        if error.kind() == ErrorKind::Misconfigured {
            tracing::error!(
                limiter,
                "requests are answered 503 until this is mended: {error}"
            );
        } else {
            tracing::warn!(
                limiter,
                "requests are answered 503 until the store is back: {error}"
            );
        }
    }

    /// The store answered: said when it had failed.
    pub(crate) fn store_answers(&self, limiter: &str) {
        // Read first: writing would have all cores pass the line around, on each request.
        if self.store_fails.load(Ordering::Relaxed)
            && self.store_fails.swap(false, Ordering::Relaxed)
        {
            tracing::info!(limiter, "the store answers again");
        }
    }
}
