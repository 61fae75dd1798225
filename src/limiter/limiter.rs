//! The limiter: a name, a store and quotas.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;

use super::failure_policy::{FailureHandler, FailurePolicy};
use crate::decision::LimiterId;
use crate::error::Error;
use crate::key::Key;
use crate::quota::{Quota, Quotas};
use crate::store::{BlockList, ProtectedStore, Reset, Store, Subject};
use crate::telemetry::Telemetry;

/// Limits how often something is done, by key.
///
/// This is the core of the crate, without HTTP: for jobs, for the quota of an upstream API, for
/// anything that costs units. [`RateLimitLayer`](crate::RateLimitLayer) puts it in front of a service,
/// and [`RateLimitLayer::from`](crate::RateLimitLayer) lets a layer and a job share one limiter.
///
/// Cloning is cheap; clones are the same limiter.
///
/// # All or nothing
///
/// A check with a cost is admitted if every quota admits it, and then charged to all of them. Otherwise
/// it is charged to none. The store decides in one atomic step. A refused check costs nothing, writes
/// nothing and extends nothing.
///
/// # Examples
///
/// An upstream API that grants 9 500 units a day, where a search costs 100:
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use tollgate::{MemoryStore, Quota, RateLimiter};
///
/// let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_day(9_500)).name("video-api");
///
/// let decision = limiter.check_n("key1", 100).await?;
/// if decision.is_allowed() {
///     println!("searching, {} units are left", decision.remaining());
/// } else {
///     println!("again in {:?}", decision.retry_after());
/// }
/// # assert_eq!(decision.remaining(), 9_400);
/// # Ok::<(), tollgate::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct RateLimiter {
    pub(super) store: ProtectedStore,
    pub(super) block_list: BlockList,
    pub(super) quotas: Quotas,
    pub(crate) name: Arc<str>,
    /// The name in its stored form.
    pub(super) scope: Key,
    /// The name and the store, as decisions have them.
    pub(super) id: LimiterId,
    /// Without a handler, the caller gets the error.
    pub(super) on_failure: Option<Arc<FailureHandler>>,
    pub(crate) telemetry: Arc<Telemetry>,
}

/// The name of a limiter by default.
const DEFAULT_NAME: &str = "default";

impl RateLimiter {
    /// Creates a limiter with the name `default`.
    ///
    /// `quotas` is one [`Quota`] or a list of them. An empty list admits everything.
    pub fn new(store: impl Store, quotas: impl Into<Quotas>) -> Self {
        let name: Arc<str> = DEFAULT_NAME.into();
        let scope = Key::from(DEFAULT_NAME);
        let block_list = store.block_list();
        let store = ProtectedStore::new(store);
        Self {
            id: LimiterId {
                name: scope.fingerprint(),
                store: store.id(),
            },
            block_list,
            store,
            quotas: quotas.into(),
            telemetry: Arc::new(Telemetry::new(&name, None)),
            name,
            scope,
            on_failure: None,
        }
    }

    /// Names the limiter. Any text is a name.
    ///
    /// The name is part of the stored key: limiters of one name, store and key share their counts, and
    /// those of different names do not.
    #[must_use]
    pub fn name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.name = name.into();
        self.scope = Key::from(&*self.name);
        self.id.name = self.scope.fingerprint();
        self.telemetry = Arc::new(Telemetry::new(&self.name, self.telemetry.tracked_keys()));
        if let Some(on_failure) = self.on_failure.take() {
            self = self.on_failure(on_failure.policy);
        }
        self
    }

    /// Tracks this many of the keys that are refused most, for
    /// [`Admin::busiest_refused`](crate::Admin::busiest_refused). The default is none.
    ///
    /// With 100 you find any key that makes up a hundredth of all refusals. Each takes about 150 bytes. A
    /// refusal takes a lock and on average a few steps, however many keys are refused; one refusal may
    /// look at all places twice.
    #[must_use]
    pub fn track_refused(mut self, keys: NonZeroUsize) -> Self {
        self.telemetry = Arc::new(Telemetry::new(&self.name, Some(keys)));
        self
    }

    /// Sets what this handle answers while the store fails. The default is the error.
    ///
    /// Other clones keep their policy, and all of them still count together.
    #[must_use]
    pub fn on_failure(mut self, policy: FailurePolicy) -> Self {
        self.on_failure = Some(Arc::new(FailureHandler::new(policy, &self.quotas)));
        self
    }

    /// Forgets what is charged to `key` under this limiter's quotas.
    ///
    /// # Errors
    ///
    /// When the store fails, or cannot reset a key.
    pub async fn reset(&self, key: impl Into<Key>) -> Result<(), Error> {
        self.reset_with(&self.quotas, &key.into()).await
    }

    /// Forgets what is charged to a key under these quotas.
    pub(super) async fn reset_with(&self, quotas: &Quotas, key: &Key) -> Result<(), Error> {
        if quotas.is_empty() {
            return Ok(());
        }
        let subject = self.subject(quotas, key);
        self.store.reset(Reset { subject }).await
    }

    /// Returns the quotas of this limiter.
    #[must_use]
    pub fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    pub(crate) fn has_policy(&self) -> bool {
        self.on_failure.is_some()
    }

    /// Returns these quotas as a list: a clone of the limiter's own if they are the same.
    pub(super) fn intern_quotas(&self, quotas: &[Quota]) -> Quotas {
        if self.quotas.equals(quotas) {
            self.quotas.clone()
        } else {
            quotas.iter().cloned().collect()
        }
    }

    pub(super) fn subject<'a>(&'a self, quotas: &'a Quotas, key: &'a Key) -> Subject<'a> {
        Subject {
            limiter: &self.scope,
            key,
            quotas,
        }
    }
}

impl fmt::Debug for RateLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            store: _,
            block_list: _,
            quotas,
            name,
            scope: _,
            id: _,
            on_failure,
            telemetry: _,
        } = self;
        let quotas: Vec<_> = quotas.iter().map(Quota::to_string).collect();
        let policy = on_failure.as_ref().map(|handler| handler.policy);
        f.debug_struct("RateLimiter")
            .field("name", name)
            .field("quotas", &quotas)
            .field("on_failure", &policy)
            .finish_non_exhaustive()
    }
}
