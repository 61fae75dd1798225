//! Requests at a steady rate. The server sends them to itself, through the same layer: a browser can
//! draw thousands a second, but not send them.

use std::collections::HashMap;
use std::mem;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::body::Bytes;
use axum::response::Response;
use futures_util::future::join_all;
use http_body_util::channel::Sender;
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::report;
use crate::settings::{ALGORITHMS, Invalid, Query, Settings};
use crate::traffic::{Seen, Traffic};

/// How often requests are sent: at 2 000 a second, ten at once.
const TICK: Duration = Duration::from_millis(5);

/// How often the page is told: rather often than it is drawn, and seldom enough to be cheap.
const REPORT: Duration = Duration::from_millis(40);

/// The most late requests that are sent at once.
const MOST_AT_ONCE: u32 = 250;

/// A browser keeps few connections open.
const MOST_STREAMS: usize = 16;

/// How fast, and how many in all.
#[derive(Clone, Copy)]
pub(crate) struct Pace {
    rate: u32,
    requests: u32,
}

impl Pace {
    pub(crate) fn of(query: &Query) -> Result<Self, Invalid> {
        let rate = query.number("rate", 1..=5_000)?;
        let seconds = query.number("seconds", 1..=120)?;
        Ok(Self {
            rate,
            requests: rate * seconds,
        })
    }

    /// How many requests are due so long after the start.
    fn due(self, elapsed: Duration) -> u32 {
        let due = elapsed.as_micros() * u128::from(self.rate) / 1_000_000;
        u32::try_from(due + 1).map_or(self.requests, |due| due.min(self.requests))
    }
}

/// The streams that run, by the ids that pages gave them.
#[derive(Default)]
pub(crate) struct Streams(Mutex<HashMap<String, oneshot::Sender<()>>>);

impl Streams {
    /// Resolves when the stream is to end; nothing if it may not begin.
    pub(crate) fn begin(&self, id: &str) -> Option<oneshot::Receiver<()>> {
        let mut streams = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if streams.len() >= MOST_STREAMS || streams.contains_key(id) {
            return None;
        }
        let (stop, stopped) = oneshot::channel();
        streams.insert(id.to_owned(), stop);
        Some(stopped)
    }

    /// Ends a stream; one that has ended already stays so.
    pub(crate) fn end(&self, id: &str) {
        let mut streams = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        streams.remove(id);
    }
}

/// Sends requests until all are sent, or it is told to stop, or the page is gone. In the end it tells
/// what it counted itself: the page holds that against its own sums.
pub(crate) async fn run(
    traffic: &Traffic,
    settings: &Settings,
    pace: Pace,
    mut stop: oneshot::Receiver<()>,
    mut page: Sender<Bytes>,
) {
    let start = Instant::now();
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut tally = Tally::default();
    let mut batch = Batch::default();
    let mut told = start;

    while tally.asked < pace.requests {
        tokio::select! {
            _ = &mut stop => break,
            _ = tick.tick() => {}
        }
        let due = pace.due(start.elapsed()) - tally.asked;
        let due = due.min(MOST_AT_ONCE);
        let fired = join_all((0..due).map(|_| traffic.fire(settings))).await;
        for fired in fired {
            tally.add(fired.seen);
            batch.seen.push(fired.seen);
            batch.answers = fired.answers;
        }
        if told.elapsed() >= REPORT && !batch.seen.is_empty() {
            told = Instant::now();
            let report = mem::take(&mut batch).report(settings, traffic.now());
            if tell(&mut page, &report).await.is_err() {
                return;
            }
        }
    }
    if !batch.seen.is_empty() {
        let report = batch.report(settings, traffic.now());
        // The page may be gone.
        let _ = tell(&mut page, &report).await;
    }
    let _ = tell(&mut page, &json!({ "done": tally.told() })).await;
}

/// The requests that were not reported yet.
#[derive(Default)]
struct Batch {
    seen: Vec<Seen>,
    /// Those to the last request.
    answers: Vec<Response>,
}

impl Batch {
    fn report(&self, settings: &Settings, now: u64) -> Value {
        report::of(&self.seen, &self.answers, settings, now)
    }
}

/// The counts of this stream.
#[derive(Default)]
struct Tally {
    asked: u32,
    admitted: [u32; ALGORITHMS.len()],
}

impl Tally {
    fn add(&mut self, seen: Seen) {
        self.asked += 1;
        for (algorithm, admitted) in self.admitted.iter_mut().enumerate() {
            *admitted += u32::from(seen.admitted >> algorithm & 1);
        }
    }

    fn told(&self) -> Value {
        json!({ "asked": self.asked, "admitted": self.admitted })
    }
}

async fn tell(page: &mut Sender<Bytes>, report: &Value) -> Result<(), impl std::error::Error> {
    page.send_data(Bytes::from(format!("{report}\n"))).await
}
