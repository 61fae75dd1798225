//! Sends each request through all algorithms at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use axum::Router;
use axum::response::Response;
use futures_util::future::join_all;
use tollgate::{Error, RateLimiter, Store};
use tower::ServiceExt;

use crate::limited::{self, NAME, RequestSettings};
use crate::report::micros;
use crate::settings::{ALGORITHMS, Settings};

/// Sends requests and counts their outcomes.
pub(crate) struct Traffic {
    limited: Router,
    store: Arc<dyn Store>,
    start: Instant,
    asked: AtomicU64,
    admitted: [AtomicU64; ALGORITHMS.len()],
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
}

impl Fired {
    /// Returns the response of one algorithm.
    pub(crate) fn answer_of(mut self, algorithm: usize) -> Response {
        self.answers.swap_remove(algorithm)
    }
}

impl Traffic {
    pub(crate) fn to(store: Arc<dyn Store>) -> Self {
        Self {
            limited: limited::router(Arc::clone(&store)),
            store,
            start: Instant::now(),
            asked: AtomicU64::default(),
            admitted: Default::default(),
        }
    }

    pub(crate) fn now(&self) -> u64 {
        micros(self.start.elapsed())
    }

    /// Sends a request and counts it.
    pub(crate) async fn fire(&self, settings: &Settings) -> Fired {
        let began = self.now();
        let answers = self.ask(settings, settings.cost).await;
        let ended = self.now();
        self.asked.fetch_add(1, Ordering::Relaxed);
        let mut admitted = 0;
        for (algorithm, answer) in answers.iter().enumerate() {
            if answer.status().is_success() {
                self.admitted[algorithm].fetch_add(1, Ordering::Relaxed);
                admitted |= 1 << algorithm;
            }
        }
        let seen = Seen {
            began,
            ended,
            admitted,
        };
        Fired { seen, answers }
    }

    /// Sends a request of cost 0, which reads the counts and charges nothing.
    pub(crate) async fn peek(&self, settings: &Settings) -> Vec<Response> {
        self.ask(settings, 0).await
    }

    async fn ask(&self, settings: &Settings, cost: u32) -> Vec<Response> {
        let answers = ALGORITHMS.map(|algorithm| {
            let settings = RequestSettings {
                key: settings.key.clone(),
                quotas: settings.counted_by(algorithm),
                cost,
            };
            self.limited.clone().oneshot(settings.into_request())
        });
        let answers = join_all(answers).await.into_iter();
        answers.map(|Ok(answer)| answer).collect()
    }

    /// Resets the counts of the key.
    pub(crate) async fn reset(&self, settings: &Settings) -> Result<(), Error> {
        for algorithm in ALGORITHMS {
            let quotas = settings.counted_by(algorithm);
            let limiter = RateLimiter::new(Arc::clone(&self.store), quotas).name(NAME);
            limiter.reset(&settings.key).await?;
        }
        Ok(())
    }

    /// Returns how many requests were sent, and how many each algorithm admitted.
    pub(crate) fn counts(&self) -> (u64, [u64; ALGORITHMS.len()]) {
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        (count(&self.asked), self.admitted.each_ref().map(count))
    }
}
