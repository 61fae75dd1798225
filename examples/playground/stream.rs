//! Requests at a steady rate. The server sends them to itself, through the same layer, because a browser cannot send
//! thousands per second.

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
use crate::traffic::{Fired, Seen, Traffic};

/// How often requests are sent: at 2 000 per second, ten at once.
const TICK: Duration = Duration::from_millis(5);

/// How often the page gets a report.
const REPORT: Duration = Duration::from_millis(40);

/// The most requests that are sent at once to catch up.
const MAX_AT_ONCE: u32 = 250;

/// The most streams at the same time.
const MAX_STREAMS: usize = 16;

/// The rate of a stream, and its number of requests.
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

    /// Returns how many requests are due after this time.
    fn due(self, elapsed: Duration) -> u32 {
        let due = elapsed.as_micros() * u128::from(self.rate) / 1_000_000;
        u32::try_from(due + 1).map_or(self.requests, |due| due.min(self.requests))
    }
}

/// The running streams, by id. The page chooses the id.
#[derive(Default)]
pub(crate) struct Streams(Mutex<HashMap<String, oneshot::Sender<()>>>);

impl Streams {
    /// Adds a stream. The receiver resolves when the stream must end. Returns `None` if it may not start.
    pub(crate) fn begin(&self, id: &str) -> Option<oneshot::Receiver<()>> {
        let mut streams = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if streams.len() >= MAX_STREAMS || streams.contains_key(id) {
            return None;
        }
        let (stop, stopped) = oneshot::channel();
        streams.insert(id.to_owned(), stop);
        Some(stopped)
    }

    /// Ends a stream. Does nothing if it has ended already.
    pub(crate) fn end(&self, id: &str) {
        let mut streams = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        streams.remove(id);
    }
}

/// Sends requests until all are sent, the stream is stopped or the page disconnects. The last line has the
/// counts of the server, which the page compares with its own.
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
    let mut counts = Counts::default();
    let mut batch = Batch::default();
    let mut reported_at = start;

    while counts.asked < pace.requests {
        tokio::select! {
            _ = &mut stop => break,
            _ = tick.tick() => {}
        }
        let due = pace.due(start.elapsed()) - counts.asked;
        let due = due.min(MAX_AT_ONCE);
        let fired = join_all((0..due).map(|_| traffic.fire(settings))).await;
        for fired in fired {
            counts.add(fired.seen);
            batch.add(fired);
        }
        if reported_at.elapsed() >= REPORT && !batch.seen.is_empty() {
            reported_at = Instant::now();
            let report = mem::take(&mut batch).report(traffic, settings).await;
            if send_line(&mut page, &report).await.is_err() {
                return;
            }
        }
    }
    if !batch.seen.is_empty() {
        let report = batch.report(traffic, settings).await;
        // Fails if the page disconnected.
        let _ = send_line(&mut page, &report).await;
    }
    let _ = send_line(&mut page, &json!({ "done": counts.to_json() })).await;
}

/// Requests that are not reported yet.
#[derive(Default)]
pub(crate) struct Batch {
    seen: Vec<Seen>,
    /// The responses to the last request, one per algorithm.
    answers: Vec<Response>,
}

impl Batch {
    pub(crate) fn add(&mut self, fired: Fired) {
        self.seen.push(fired.seen);
        self.answers = fired.answers;
    }

    pub(crate) async fn report(self, traffic: &Traffic, settings: &Settings) -> Value {
        // A decision has the numbers of the share that asked.
        let counts = match settings.shares {
            true => Some(traffic.peek(settings).await),
            false => None,
        };
        let lanes = counts.as_ref().unwrap_or(&self.answers);
        report::of(&self.seen, lanes, &self.answers, settings, traffic.now())
    }
}

/// The counts of this stream.
#[derive(Default)]
pub(crate) struct Counts {
    asked: u32,
    admitted: [u32; ALGORITHMS.len()],
}

impl Counts {
    pub(crate) fn add(&mut self, seen: Seen) {
        self.asked += 1;
        for (algorithm, admitted) in self.admitted.iter_mut().enumerate() {
            *admitted += u32::from(seen.admitted >> algorithm & 1);
        }
    }

    pub(crate) fn to_json(&self) -> Value {
        json!({ "asked": self.asked, "admitted": self.admitted })
    }
}

pub(crate) async fn send_line(
    page: &mut Sender<Bytes>,
    report: &Value,
) -> Result<(), impl std::error::Error> {
    page.send_data(Bytes::from(format!("{report}\n"))).await
}
