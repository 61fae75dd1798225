//! Workers of several queues that share the slots of one limit.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use axum::extract::{Path, State};
use axum::{Router, routing::get};
use tokio::sync::watch;
use tollgate::{MemoryStore, RedisStore};

use crate::support::redis_server::RedisServer;
use crate::support::served::serve;

// page: shown
use std::time::Duration;

use tollgate::{Error, Key, Permit, Quota, RateLimiter, Share, Store};

const QUEUES: [&str; 3] = ["mail", "export", "report"];

/// Of 20 jobs at the same time over all processes, 4 are kept for each queue. Whoever comes first gets the other 8.
fn workers(store: impl Store) -> RateLimiter {
    let kept = QUEUES.map(|queue| Share::of(queue).reserve(4));
    RateLimiter::new(store, Quota::in_flight(20).shares(kept))
        .name("workers")
        .max_wait(Duration::from_secs(3_600))
        .wait_through_outages()
}

/// Waits for the turn of a job. In a process, the jobs of a queue start in their order.
async fn turn(workers: &RateLimiter, queue: &str) -> Result<Permit, Error> {
    RateLimiter::acquire_all([workers.level(Key::global()).share(queue)]).await
}
// page: end

/// A server of jobs, which run until they may end.
#[derive(Clone)]
struct Jobs {
    running: Arc<Mutex<BTreeMap<String, usize>>>,
    may_end: watch::Sender<bool>,
}

impl Jobs {
    fn new() -> Self {
        Self {
            running: Arc::default(),
            may_end: watch::Sender::new(false),
        }
    }

    fn running(&self) -> Vec<(String, usize)> {
        let running = self.running.lock().expect("no panic");
        running
            .iter()
            .map(|(queue, jobs)| (queue.clone(), *jobs))
            .collect()
    }

    /// Waits until so many jobs of each queue are running.
    async fn until(&self, expected: &[(&str, usize)]) {
        let expected = expected
            .iter()
            .map(|(queue, jobs)| ((*queue).to_owned(), *jobs));
        let expected: Vec<_> = expected.collect();
        for _ in 0..1_000 {
            if self.running() == expected {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(self.running(), expected);
    }
}

async fn run(State(jobs): State<Jobs>, Path(queue): Path<String>) {
    *jobs
        .running
        .lock()
        .expect("no panic")
        .entry(queue)
        .or_default() += 1;
    let mut may_end = jobs.may_end.subscribe();
    may_end
        .wait_for(|may_end| *may_end)
        .await
        .expect("a sender");
}

/// Starts jobs of a queue. Each is a request to the server, while its worker holds a permit.
fn start(workers: &RateLimiter, url: &str, queue: &'static str, jobs: usize) {
    for _ in 0..jobs {
        let url = format!("{url}/{queue}");
        let workers = workers.clone();
        tokio::spawn(async move {
            let permit = turn(&workers, queue).await.expect("a turn");
            reqwest::get(url).await.expect("an answer");
            drop(permit);
        });
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_is_full_of_jobs_leaves_the_others_their_workers() {
    let server = RedisServer::start();
    let redis = RedisStore::open(&server.url()).expect("a URL");
    let redis = redis.deadline(Duration::from_secs(30));
    for workers in [workers(MemoryStore::new()), workers(redis)] {
        let jobs = Jobs::new();
        let app = Router::new().route("/{queue}", get(run));
        let url = serve(app.with_state(jobs.clone())).await;
        start(&workers, &url, "export", 40);
        jobs.until(&[("export", 12)]).await;
        start(&workers, &url, "mail", 30);
        jobs.until(&[("export", 12), ("mail", 4)]).await;
        start(&workers, &url, "report", 30);
        jobs.until(&[("export", 12), ("mail", 4), ("report", 4)])
            .await;

        // All of them get their turn.
        jobs.may_end.send_replace(true);
        jobs.until(&[("export", 40), ("mail", 30), ("report", 30)])
            .await;
        workers.release().await.expect("an answer");
    }
}
