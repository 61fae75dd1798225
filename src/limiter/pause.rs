//! Paused keys: an upstream said when to send again.
//!
//! The store keeps them beside the blocks, under a name that no limiter has. This process obeys at once, until the wait
//! ends. It writes to the store in the background, and tries again with later checks of the key if that fails.

use std::sync::Arc;
use std::time::Duration;

use super::limiter::{LimiterInner, RateLimiter};
use super::line::wake_first;
use super::pauses::{DefaultPauses, PauseReason};
use crate::decision::{LevelDecision, Source};
use crate::error::Error;
use crate::key::{IntoKey, Key};
use crate::runtime::{is_in_runtime, spawn_or_drop};
use crate::store::{Block, ProtectedStore, Subject};

/// How often the pause is written to the store at most, if it grows or another process lists the key meanwhile.
const TRIES: usize = 3;

impl RateLimiter {
    /// Sets how long an answer of an upstream pauses a key at most. The default is one hour.
    ///
    /// A longer wait is cut to this, or to the longer bound of [`max_exhausted_pause`](Self::max_exhausted_pause). The upstream
    /// may then refuse again, and say so again.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{MemoryStore, Quota, RateLimiter};
    ///
    /// let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_day(9_500))
    ///     .name("video-api")
    ///     .max_pause(Duration::from_secs(86_400));
    /// ```
    #[doc(alias("max_hold", "retry_after_max"))]
    #[must_use]
    pub fn max_pause(self, max_pause: Duration) -> Self {
        self.with(|inner| inner.max_pause = max_pause)
    }

    /// Sets how long a key is paused at most if its allowance is used up. The default is [`max_pause`](Self::max_pause), and a
    /// shorter time is that, too.
    ///
    /// A daily quota that is used up is not traffic that is too fast: there is no use in asking each hour. An answer says so by
    /// a wait beyond `max_pause`, by a status `rejected` of a limit such as `anthropic-ratelimit-unified-7d-status`, or, on a
    /// 429, 420 or 529, by `x-should-retry: false`. If such an answer tells no wait, it pauses for the longest
    /// [default pause](Self::default_pause).
    ///
    /// Checks of the key are refused with [`Source::Exhausted`], in all processes. A call that waits is refused at once if the
    /// rest is longer than its `max_wait`, so a job can go on with another key.
    ///
    /// Allow as much as you trust the upstream: a wrong answer stops a key for as long, until
    /// [`Admin::unblock`](crate::Admin::unblock) ends the pause.
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use http::{HeaderMap, StatusCode};
    /// use tollgate::{MemoryStore, Quota, RateLimiter, Source};
    ///
    /// let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_minute(50))
    ///     .name("models")
    ///     .max_exhausted_pause(Duration::from_secs(86_400));
    ///
    /// let headers = HeaderMap::from_iter([("retry-after".parse()?, "13262".parse()?)]);
    /// limiter.observe("key-1", StatusCode::TOO_MANY_REQUESTS, &headers);
    ///
    /// let decision = limiter.until_ready("key-1", 1, Duration::from_secs(60)).await?;
    /// assert_eq!(decision.source(), Source::Exhausted);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    #[doc(alias("insufficient_quota", "quota_exceeded"))]
    #[must_use]
    pub fn max_exhausted_pause(self, max_pause: Duration) -> Self {
        self.with(|inner| inner.max_exhausted_pause = max_pause)
    }

    /// Sets how long a refusal pauses a key if it tells no wait: a 429, 420 or 529 without a header that says when to send again,
    /// or with a wait of 0. The default is one second, which doubles with each further refusal up to one minute.
    ///
    /// Without a pause, a client that retries would send as fast as it can. Refusals of requests that were sent together count
    /// once. The first request that the upstream serves after a pause ends the growth, and so does a time without refusals that
    /// is as long as the longest pause. Each process counts its own refusals; [`max_pause`](Self::max_pause) bounds this pause,
    /// too.
    ///
    /// A `first` of zero lets such a refusal pause nothing. A `longest` below `first` is that.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use tollgate::{MemoryStore, Quota, RateLimiter};
    ///
    /// // The upstream counts by the hour, and never says so.
    /// let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_hour(950))
    ///     .name("maps-api")
    ///     .default_pause(Duration::from_secs(30), Duration::from_secs(600));
    /// ```
    #[doc(alias("backoff", "exponential_backoff"))]
    #[must_use]
    pub fn default_pause(self, first: Duration, longest: Duration) -> Self {
        let pauses = DefaultPauses {
            first,
            longest: longest.max(first),
        };
        self.with(|inner| inner.default_pauses = pauses)
    }

    /// Pauses a key in all processes: until then, its checks are refused, and calls that wait go on waiting.
    ///
    /// Use it if an upstream gives a wait in another form than the headers that [`observe`](Self::observe)
    /// understands, for example in the error of a client library. Returns how long the key is paused now: at most
    /// [`max_pause`](Self::max_pause), or [`max_exhausted_pause`](Self::max_exhausted_pause) if the wait is longer than that, and at
    /// least as long as before.
    ///
    /// A refused check has [`Source::Paused`] or [`Source::Exhausted`], and charges nothing. The pause ends on its own, and nothing but
    /// [`Admin::unblock`](crate::Admin::unblock) ends it earlier. It has no effect on what a
    /// [block](crate::Admin::block) has no effect on, such as a limiter without quotas.
    ///
    /// This process obeys at once, also while the store fails. The store learns of it in the background, which needs a tokio
    /// runtime. If that fails, a later check of the key tries again. Other processes read the paused keys once a second, while
    /// they check. After an idle second, a check first waits for this small call, for at most the deadline of the store, if its
    /// limiter has observed an upstream or paused a key in this process. Checks of other limiters do not wait.
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use tollgate::{MemoryStore, Quota, RateLimiter, Source};
    ///
    /// let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_minute(60)).name("mail");
    /// limiter.pause("mail.example", Duration::from_secs(20));
    ///
    /// let refused = limiter.check("mail.example").await?;
    /// assert_eq!(refused.source(), Source::Paused);
    /// assert!(refused.retry_after() > Some(Duration::from_secs(19)));
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    #[doc(alias("hold_back", "backoff", "retry_after"))]
    pub fn pause(&self, key: impl IntoKey, wait: Duration) -> Duration {
        let reason = if wait > self.0.max_pause {
            PauseReason::Exhausted
        } else {
            PauseReason::Throttled
        };
        self.pause_for(reason, &key.into_key(), wait)
    }

    /// Pauses a key whose allowance is used up. Without a wait, as a refusal that tells none.
    pub(crate) fn pause_exhausted(&self, key: &Key, wait: Option<Duration>) -> Duration {
        let wait = wait.unwrap_or(self.0.default_pauses.longest);
        self.pause_for(PauseReason::Exhausted, key, wait)
    }

    /// Pauses a key of which an upstream has refused a request without a wait. Returns how long the key is paused now.
    pub(crate) fn pause_by_default(&self, key: &Key) -> Duration {
        let LimiterInner { store, pauses, .. } = &*self.0;
        let now = store.block_list().clock().now();
        let pause = pauses.default_pause(key, self.0.default_pauses, now);
        // Also if it is longer than the longest pause: nothing says that the key is exhausted.
        self.pause_for(PauseReason::Throttled, key, pause.unwrap_or_default())
    }

    fn pause_for(&self, reason: PauseReason, key: &Key, wait: Duration) -> Duration {
        let LimiterInner { store, pauses, .. } = &*self.0;
        pauses.need_fresh_list();
        let longest = match reason {
            PauseReason::Throttled => self.0.max_pause,
            PauseReason::Exhausted => self.0.max_pause.max(self.0.max_exhausted_pause),
        };
        let wait = wait.min(longest);
        if !wait.is_zero() {
            match store.block_list().pause(pauses.name(reason), key, wait) {
                Ok(true) => {
                    self.0
                        .telemetry
                        .events
                        .log_pause(key, wait, reason.source());
                    // The calls that wait for units learn that their time may not suffice.
                    wake_first(self, key, &self.0.facts.quotas);
                }
                Ok(false) => {}
                Err(error) => pauses.warn(&self.0.facts.name, &error),
            }
            self.share_pause(reason, key);
        }
        self.paused_for(key)
            .map_or(Duration::ZERO, |(_, left)| left)
    }

    /// Returns how long a key is paused, and for which reason: the one that lasts longer.
    pub(super) fn paused_for(&self, key: &Key) -> Option<(PauseReason, Duration)> {
        let list = self.0.store.block_list();
        PauseReason::ALL
            .into_iter()
            .filter_map(|reason| {
                let left = list.blocked_for(self.0.pauses.name(reason), key)?;
                Some((reason, left))
            })
            .max_by_key(|(_, left)| *left)
    }

    /// Takes in that an upstream has served a request of a key.
    pub(crate) fn was_served(&self, key: &Key) {
        let LimiterInner { store, pauses, .. } = &*self.0;
        pauses.was_served(key, store.block_list().clock());
    }

    /// Returns how long the checks of a key are refused without asking the store, and why: the later end of its block
    /// and its pause.
    #[inline]
    pub(super) fn blocked_for(&self, subject: Subject<'_>) -> Option<(Duration, Source)> {
        let may_be = self.0.store.may_be_blocked(subject, self.0.pauses.names());
        may_be.then(|| self.find_block(subject.key)).flatten()
    }

    #[cold]
    fn find_block(&self, key: &Key) -> Option<(Duration, Source)> {
        let list = self.0.store.block_list();
        let block = list.blocked_for(&self.0.scope, key).map(|left| {
            // The quotas that have caused an automatic block may refuse for longer.
            (left.max(list.known_wait(&self.0.scope, key)), Source::Block)
        });
        let pause = self.paused_for(key).map(|(reason, left)| {
            self.share_pause(reason, key);
            (left, reason.source())
        });
        block.into_iter().chain(pause).max_by_key(|(left, _)| *left)
    }

    /// A key may be paused after the store was asked.
    pub(super) fn is_paused_meanwhile(&self, level: LevelDecision<'_>) -> bool {
        level.quotas().len() > 0 && self.paused_for(&level.record().key).is_some()
    }

    fn share_pause(&self, reason: PauseReason, key: &Key) {
        if !is_in_runtime() {
            return;
        }
        let list = self.0.store.block_list();
        let pauses = &self.0.pauses;
        if list.take_unshared(pauses.name(reason), key).is_some() {
            let store = self.0.store.clone();
            let pauses = Arc::clone(pauses);
            let limiter = Arc::clone(&self.0.facts.name);
            let key = key.clone();
            spawn_or_drop(async move {
                if let Err(error) = share(&store, pauses.name(reason), &key).await {
                    pauses.warn(&limiter, &error);
                }
            });
        }
    }
}

/// Tells the store of a key that this process has paused.
///
/// Another process may have written a later end, which must not be shortened. So this one reads the shared list first, and
/// if two do so at once, the one with the later end finds out with its next check.
async fn share(store: &ProtectedStore, pauses: &Key, key: &Key) -> Result<(), Error> {
    for _ in 0..TRIES {
        store.refresh_blocks().await?;
        let Some(unshared) = store.block_list().unshared(pauses, key) else {
            break;
        };
        // As an automatic block, a new entry leaves room for those of operators. It replaces none.
        let block = Block::new(pauses, key, unshared.left);
        let block = if unshared.is_listed {
            block
        } else {
            block.automatic()
        };
        store.block(block).await?;
    }
    Ok(())
}
