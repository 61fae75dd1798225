//! Sends each request through all algorithms at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use axum::response::Response;
use futures_util::future::join_all;
use serde_json::{Value, json};
use tollgate::{Algorithm, Error, Key, Source, Store};
use tower::ServiceExt;

use crate::lease::{self, LEASES};
use crate::limited::{Limited, RequestSettings};
use crate::report::{decision_of, micros};
use crate::settings::{ALGORITHMS, Settings};
use crate::shares::{SHARES, share_of};

/// Sends requests and counts their outcomes.
pub(crate) struct Traffic {
    /// One for each lease.
    limited: [Limited; LEASES.len()],
    store: Arc<dyn Store>,
    start: Instant,
    started_at: u64,
    asked: AtomicU64,
    admitted: [AtomicU64; ALGORITHMS.len()],
}

/// The time of a report.
#[derive(Clone, Copy)]
pub(crate) struct Now {
    pub(crate) time: u64,
    /// When the program started, since the Unix epoch: the page starts again with another program.
    pub(crate) started_at: u64,
}

/// The outcome of one request for each algorithm.
pub(crate) struct Fired {
    pub(crate) seen: Seen,
    pub(crate) answers: Vec<Response>,
}

/// The time of a request, and the algorithms that admitted it.
#[derive(Clone, Copy)]
pub(crate) struct Seen {
    /// In microseconds since the start of the program, like all times here.
    pub(crate) began: u64,
    pub(crate) ended: u64,
    /// One bit per algorithm.
    pub(crate) admitted: u8,
    /// The algorithms that did not ask the store, because this process holds units or has cached a refusal.
    pub(crate) from_memory: u8,
    /// The algorithms that the store did not answer for. They counted in this process alone, or not at all.
    pub(crate) alone: u8,
    /// An index into [`SHARES`], if the limit has shares.
    pub(crate) share: Option<usize>,
}

/// The units that are kept for a share, and that it has not used.
#[derive(Clone, Copy, Default)]
pub(crate) struct Kept(pub(crate) u32);

impl Fired {
    /// Returns the response of one algorithm.
    pub(crate) fn answer_of(mut self, algorithm: usize) -> Response {
        self.answers.swap_remove(algorithm)
    }
}

impl Traffic {
    pub(crate) fn to(store: Arc<dyn Store>) -> Self {
        Self {
            limited: LEASES.map(|lease| Limited::new(Arc::clone(&store), lease)),
            store,
            start: Instant::now(),
            started_at: micros(SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()),
            asked: AtomicU64::default(),
            admitted: Default::default(),
        }
    }

    pub(crate) fn now(&self) -> Now {
        Now {
            time: self.time(),
            started_at: self.started_at,
        }
    }

    fn time(&self) -> u64 {
        micros(self.start.elapsed())
    }

    /// Sends a request and counts it.
    pub(crate) async fn fire(&self, settings: &Settings) -> Fired {
        let began = self.time();
        let sent = self.asked.fetch_add(1, Ordering::Relaxed);
        let share = settings.shares.then(|| share_of(sent));
        let answers = self.ask(settings, settings.cost, share).await;
        let ended = self.time();
        let (mut admitted, mut from_memory, mut alone) = (0, 0, 0);
        for (algorithm, answer) in answers.iter().enumerate() {
            if answer.status().is_success() {
                self.admitted[algorithm].fetch_add(1, Ordering::Relaxed);
                admitted |= 1 << algorithm;
            }
            let source = decision_of(answer).map(|decision| decision.source());
            if matches!(source, Some(Source::Lease | Source::RefusalCache)) {
                from_memory |= 1 << algorithm;
            }
            if matches!(source, Some(Source::Fallback) | None) {
                alone |= 1 << algorithm;
            }
        }
        let seen = Seen {
            began,
            ended,
            admitted,
            from_memory,
            alone,
            share,
        };
        Fired { seen, answers }
    }

    /// Sends a request of cost 0, which reads the counts and charges nothing.
    ///
    /// With shares, the decision is about a request without a share, which may not use what is kept for critical ones.
    /// A second request, of that share, reads how many units that are.
    pub(crate) async fn peek(&self, settings: &Settings) -> Vec<Response> {
        let mut answers = self.ask(settings, 0, None).await;
        if settings.shares {
            let critical = self.ask(settings, 0, Some(0)).await;
            for (answer, critical) in answers.iter_mut().zip(critical) {
                let own = decision_of(answer).map_or(0, |decision| decision.remaining());
                let critical = decision_of(&critical).and_then(|decision| decision.quotas().next());
                let critical = critical.filter(|quota| quota.share().is_some());
                let kept = critical.map_or(0, |quota| quota.remaining().saturating_sub(own));
                answer.extensions_mut().insert(Kept(kept));
            }
        }
        answers
    }

    /// Returns the time until the next edge of aligned windows, or `None` if the store does not answer. A fixed window
    /// reports it for a key that has used a unit, so this uses one of another key.
    pub(crate) async fn until_edge(&self, settings: &Settings) -> Option<Duration> {
        let request = RequestSettings {
            key: Key::from("edge").and(&settings.key),
            quotas: settings.counted_by(Algorithm::FixedWindow),
            cost: 1,
            share: None,
        };
        let router = self.limited[0].router.clone();
        let Ok(answer) = router.oneshot(request.into_request()).await;
        let decision = decision_of(&answer)?;
        let is_known = decision.source() != Source::Fallback;
        is_known.then(|| decision.reset_after())
    }

    async fn ask(&self, settings: &Settings, cost: u32, share: Option<usize>) -> Vec<Response> {
        let limited = self.limited(settings);
        let answers = ALGORITHMS.map(async |algorithm| {
            let (key, quotas) = (settings.key.clone(), settings.counted_by(algorithm));
            let request = RequestSettings {
                key: key.clone(),
                quotas: quotas.clone(),
                cost,
                share: share.map(|share| SHARES[share]),
            };
            let answer = limited.router.clone().oneshot(request.into_request());
            let Ok(mut answer) = answer.await;
            if let Some(decision) = decision_of(&answer) {
                limited.counts.record(&key, &quotas, decision);
            }
            // Now, because they change until the other algorithms have answered.
            let count = limited.counts.of(&key, &quotas);
            answer.extensions_mut().insert(count);
            answer
        });
        join_all(answers).await
    }

    /// Returns the router with the selected lease, or that without a lease if the lease has no effect.
    fn limited(&self, settings: &Settings) -> &Limited {
        match lease::why_off(settings, &*self.store) {
            None => &self.limited[settings.lease],
            Some(_) => &self.limited[0],
        }
    }

    /// Returns which leases have an effect, for the page.
    pub(crate) fn lease(&self, settings: &Settings) -> Value {
        json!({
            "off": lease::why_off(settings, &*self.store),
            "longest": micros(lease::longest(&settings.quotas)),
        })
    }

    /// Resets the counts of the key.
    pub(crate) async fn reset(&self, settings: &Settings) -> Result<(), Error> {
        let admin = self.limited(settings).limiter.admin();
        for algorithm in ALGORITHMS {
            let quotas = settings.counted_by(algorithm);
            admin.clone().quotas(quotas).reset(&settings.key).await?;
        }
        Ok(())
    }

    /// Returns the units that this process holds to the store.
    pub(crate) async fn release(&self) -> Result<(), Error> {
        for limited in &self.limited {
            limited.limiter.release().await?;
        }
        Ok(())
    }

    /// Returns how many requests were sent, and how many each algorithm admitted.
    pub(crate) fn counts(&self) -> (u64, [u64; ALGORITHMS.len()]) {
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        (count(&self.asked), self.admitted.each_ref().map(count))
    }
}
