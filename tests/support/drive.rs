//! An open-loop load on the middleware: requests start on schedule, even if earlier ones are still in flight.
//! Latency is measured from the scheduled start.

use std::convert::Infallible;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use http::{Request, Response, StatusCode};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tollgate::{
    DecisionView, ErrorKind, Key, Quotas, RateLimitLayer, RateLimiter, Rejection, RejectionReason,
    Source, Store, key,
};
use tower::{Layer, ServiceExt, service_fn};

/// How many requests begin each second.
pub(crate) const RATE: u32 = 1_000;

/// How long the last answers are waited for.
const PATIENCE: Duration = Duration::from_secs(30);

/// One answer of the middleware.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    /// When the request was due, from the beginning of the drive.
    pub(crate) due: Duration,
    /// How much later it was begun, by a machine that had other things to do.
    pub(crate) late: Duration,
    /// How late another process answered at that time.
    others: Duration,
    /// How much later than due it was answered.
    pub(crate) waited: Duration,
    pub(crate) status: StatusCode,
    pub(crate) by: By,
}

/// The source of the decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Source(Source),
    /// None: the request was rejected for this reason.
    Error(ErrorKind),
    /// None: the request was passed on.
    Nobody,
}

impl Answer {
    pub(crate) fn at(&self) -> Duration {
        self.due + self.waited
    }

    /// How late the machine was.
    fn noise(&self) -> Duration {
        self.late.max(self.others)
    }

    /// Whether it is what Redis says: from it, or remembered.
    pub(crate) fn is_exact(&self) -> bool {
        let exact = [Source::Redis, Source::RefusalCache].map(By::Source);
        exact.contains(&self.by)
    }
}

/// A layer that counts by the path of a request.
pub(crate) fn by_path(store: impl Store, quotas: impl Into<Quotas>) -> RateLimitLayer {
    let limiter = RateLimiter::new(store, quotas);
    let path = key::from_fn(|parts| Some(key_of(parts.uri.path())));
    RateLimitLayer::from(limiter).key(path)
}

/// The key of a path, for a limiter without HTTP.
pub(crate) fn key_of(path: &str) -> Key {
    Key::from(path)
}

/// Asks once, for a path.
pub(crate) async fn ask(layer: &RateLimitLayer, path: &str) -> Response<()> {
    let request = Request::get(path).body(()).expect("a path");
    let answered = layer.layer(service_fn(handle)).oneshot(request).await;
    answered.expect("nothing fails").map(drop)
}

/// The service behind the middleware. It returns the source of the decision.
async fn handle(request: Request<()>) -> Result<Response<String>, Infallible> {
    let mut response = Response::new(String::new());
    if let Some(decision) = request.extensions().get::<DecisionView>() {
        response.extensions_mut().insert(decision.clone());
    }
    Ok(response)
}

/// Returns the source of the decision behind a response.
pub(crate) fn decided_by(response: &Response<()>) -> By {
    let extensions = response.extensions();
    if let Some(decision) = extensions.get::<DecisionView>() {
        return By::Source(decision.source());
    }
    match extensions.get::<Rejection>().map(Rejection::reason) {
        Some(RejectionReason::Refused(decision)) => By::Source(decision.source()),
        Some(RejectionReason::Failed(error)) => By::Error(error.kind()),
        reason => {
            assert!(reason.is_none(), "{reason:?}");
            By::Nobody
        }
    }
}

/// A load that is on.
pub(crate) struct Drive {
    begin: Instant,
    has_ended: Arc<AtomicBool>,
    pacer: JoinHandle<()>,
    answers: mpsc::UnboundedReceiver<Answer>,
    received: Vec<Answer>,
}

impl Drive {
    /// Begins to ask, [`RATE`] times a second, the path that the number of the request has.
    pub(crate) fn start<P>(layer: &RateLimitLayer, path: P) -> Self
    where
        P: Fn(u64) -> String + Send + 'static,
    {
        Self::start_at(RATE, layer, path)
    }

    /// The same, at a rate per second. Runs on the calling runtime. A separate thread sets the pace, because
    /// the timers of tokio have a resolution of a millisecond.
    pub(crate) fn start_at<P>(rate: u32, layer: &RateLimitLayer, path: P) -> Self
    where
        P: Fn(u64) -> String + Send + 'static,
    {
        let (sender, answers) = mpsc::unbounded_channel();
        let has_ended = Arc::new(AtomicBool::new(false));
        let (ended, layer, runtime) = (Arc::clone(&has_ended), layer.clone(), Handle::current());
        let begin = Instant::now();
        let others = Arc::new(Others::watch());
        let pacer = thread::spawn(move || {
            for turn in 0.. {
                let due = Duration::from_secs(1) * u32::try_from(turn).expect("few") / rate;
                thread::sleep(due.saturating_sub(begin.elapsed()));
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                let (layer, sender, path) = (layer.clone(), sender.clone(), path(turn));
                let others = Arc::clone(&others);
                runtime.spawn(async move {
                    let late = begin.elapsed() - due;
                    let response = ask(&layer, &path).await;
                    let answer = Answer {
                        due,
                        late,
                        others: others.late(),
                        waited: begin.elapsed() - due,
                        status: response.status(),
                        by: decided_by(&response),
                    };
                    let _ = sender.send(answer);
                });
            }
        });
        Self {
            begin,
            has_ended,
            pacer,
            answers,
            received: Vec::new(),
        }
    }

    /// What the clock of the answers shows.
    pub(crate) fn now(&self) -> Duration {
        self.begin.elapsed()
    }

    pub(crate) async fn goes_on_for(&self, span: Duration) {
        tokio::time::sleep(span).await;
    }

    /// Waits for so many answers of Redis in a row that it counts as recovered.
    pub(crate) async fn goes_on_until_recovered(&mut self) {
        let from = self.now();
        let steady = async {
            let mut in_a_row = 0;
            while in_a_row < STEADY {
                let answer = self.answers.recv().await.expect("the load is on");
                self.received.push(answer);
                in_a_row = match answer.is_exact() && answer.due >= from {
                    true => in_a_row + 1,
                    false => 0,
                };
            }
        };
        let in_time = tokio::time::timeout(PATIENCE, steady).await;
        assert!(in_time.is_ok(), "no {STEADY} answers of Redis in a row");
    }

    /// Ends the load, and waits for every answer.
    pub(crate) async fn end(mut self) -> Answers {
        self.has_ended.store(true, Ordering::Relaxed);
        self.pacer.join().expect("the pacer ends within a turn");
        let mut all = self.received;
        let collected = async {
            while let Some(answer) = self.answers.recv().await {
                all.push(answer);
            }
        };
        let in_time = tokio::time::timeout(PATIENCE, collected).await;
        assert!(in_time.is_ok(), "requests are never answered");
        all.sort_unstable_by_key(|answer| answer.due);
        Answers(all)
    }
}

/// A process that only repeats what it reads. How late it is tells how late the machine lets any other one be, such as Redis.
struct Others {
    process: Child,
    begin: Instant,
    /// When it was last asked, and how long it took before that, in microseconds.
    asked_at: Arc<AtomicU64>,
    took: Arc<AtomicU64>,
}

impl Others {
    fn watch() -> Self {
        let mut cat = Command::new("cat");
        let cat = cat.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = cat.spawn().expect("cat is installed");
        let (mut input, mut output) = (
            process.stdin.take().expect("piped"),
            process.stdout.take().expect("piped"),
        );
        let begin = Instant::now();
        let (asked_at, took) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let (asked, answered) = (Arc::clone(&asked_at), Arc::clone(&took));
        thread::spawn(move || {
            let micros = |span: Duration| u64::try_from(span.as_micros()).expect("short");
            loop {
                let at = begin.elapsed();
                asked.store(micros(at), Ordering::Relaxed);
                let mut byte = [0];
                // Until the process is ended.
                if input.write_all(&byte).is_err() || output.read_exact(&mut byte).is_err() {
                    return;
                }
                answered.store(micros(begin.elapsed() - at), Ordering::Relaxed);
                thread::sleep(Duration::from_millis(2));
            }
        });
        Self {
            process,
            begin,
            asked_at,
            took,
        }
    }

    fn late(&self) -> Duration {
        let [asked_at, took] = [&self.asked_at, &self.took]
            .map(|micros| Duration::from_micros(micros.load(Ordering::Relaxed)));
        took.max(self.begin.elapsed().saturating_sub(asked_at))
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Answers in the order in which they were due.
#[derive(Clone, Debug)]
pub(crate) struct Answers(pub(crate) Vec<Answer>);

/// The most that a part of many took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tail {
    pub(crate) p99: Duration,
    pub(crate) p999: Duration,
    pub(crate) most: Duration,
}

impl Answers {
    /// Those of the requests that were due in a span.
    pub(crate) fn due(&self, from: Duration, to: Duration) -> Self {
        let due = |answer: &&Answer| (from..to).contains(&answer.due);
        Self(self.0.iter().filter(due).copied().collect())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn count(&self, which: impl Fn(&Answer) -> bool) -> usize {
        self.0.iter().filter(|answer| which(answer)).count()
    }

    pub(crate) fn of_status(&self, status: u16) -> usize {
        self.count(|answer| answer.status.as_u16() == status)
    }

    /// How long they waited, from when they were due.
    pub(crate) fn waited(&self) -> Tail {
        tail(self.0.iter().map(|answer| answer.waited))
    }

    /// How late they were begun: the noise of the machine, of which the middleware knows nothing.
    pub(crate) fn late(&self) -> Tail {
        tail(self.0.iter().map(|answer| answer.late))
    }

    /// How long they took, once begun: what the middleware adds.
    pub(crate) fn took(&self) -> Tail {
        tail(self.0.iter().map(|answer| answer.waited - answer.late))
    }

    /// When the first was answered after an instant that is of a kind.
    pub(crate) fn first(&self, after: Duration, which: impl Fn(&Answer) -> bool) -> Duration {
        let answers = self.0.iter().filter(|answer| which(answer));
        let at = answers.map(Answer::at).filter(|at| *at >= after).min();
        at.expect("there is one")
    }

    /// When the last was answered that is of a kind.
    pub(crate) fn last(&self, which: impl Fn(&Answer) -> bool) -> Option<Duration> {
        let answers = self.0.iter().filter(|answer| which(answer));
        answers.map(Answer::at).max()
    }

    /// Panics if Redis did not decide each of them.
    pub(crate) fn assert_exact(&self) {
        self.assert_all(Answer::is_exact);
    }

    /// Panics if one is not of a kind, unless the machine was late: then a deadline may have passed.
    pub(crate) fn assert_all(&self, which: impl Fn(&Answer) -> bool) {
        let other = self.0.iter().find(|answer| !which(answer));
        let noise = self.0.iter().map(Answer::noise).max();
        assert!(other.is_none() || noise > Some(CALM), "{other:?}");
    }

    /// How Redis came to decide again, at an instant after which it could.
    pub(crate) fn recovery(&self, from: Duration) -> Recovery {
        let later = self.0.partition_point(|answer| answer.due < from);
        let later = &self.0[later..];
        let exact = later
            .windows(STEADY)
            .position(|some| some.iter().all(Answer::is_exact));
        let exact = exact
            .unwrap_or_else(|| panic!("no {STEADY} answers of Redis in a row, of {}", later.len()));
        let (before, after) = later.split_at(exact);
        let not_exact =
            |answers: &[Answer]| answers.iter().filter(|answer| !answer.is_exact()).count();
        let last = before
            .iter()
            .filter(|answer| !answer.is_exact())
            .map(Answer::at)
            .max();
        Recovery {
            after: last.unwrap_or(from).saturating_sub(from),
            relapses: not_exact(after),
            noise: after.iter().map(Answer::noise).max().unwrap_or_default(),
        }
    }
}

/// After this many answers of Redis in a row, it counts as recovered. What it does later is a relapse.
const STEADY: usize = 30;

/// How Redis came to decide again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recovery {
    /// How long after it could the last answer was that was not its own.
    pub(crate) after: Duration,
    /// How many answers were not its own after all, later.
    relapses: usize,
    /// How late requests were begun, or another process answered, meanwhile.
    noise: Duration,
}

/// A machine that is so late now and then lets a deadline pass now and then.
const CALM: Duration = Duration::from_millis(20);

/// Half of the default deadline.
const STILL: Duration = Duration::from_millis(50);

impl Recovery {
    pub(crate) fn assert_within(self, bound: Duration) {
        // A probe, a connection, its first call and a check are each as late as the machine is. If it stands still for half
        // of the deadline, they fail and begin again.
        let is_in_time = self.after <= bound + 4 * self.noise;
        assert!(is_in_time || self.noise > STILL, "{self:?}");
        assert!(self.relapses == 0 || self.noise > CALM, "{self:?}");
    }
}

fn tail(durations: impl Iterator<Item = Duration>) -> Tail {
    let mut all: Vec<Duration> = durations.collect();
    all.sort_unstable();
    // The smallest value that this fraction of the values does not exceed.
    let quantile = |thousandths: usize| {
        let rank = (all.len() * thousandths).div_ceil(1_000);
        all.get(rank.saturating_sub(1)).copied().unwrap_or_default()
    };
    Tail {
        p99: quantile(990),
        p999: quantile(999),
        most: quantile(1_000),
    }
}
