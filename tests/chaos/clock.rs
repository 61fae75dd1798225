//! The clock of the server steps by an hour, forward and back.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tollgate::{Algorithm, Quota, RedisStore};

use crate::drive::{Answer, Answers, Drive, RATE, by_path};
use crate::suite::{alone, closed, patient, report, short_or_long};
use crate::support::redis_server::RedisServer;

const SKEW: &str = include_str!("skew.c");
const HOUR: i64 = 3_600 * 1_000_000;
const WINDOW: Duration = Duration::from_secs(1);
const LIMIT: usize = 20;

/// Each algorithm with the most that it promises to admit in a span as long as the window, and how
/// much later than after a window it gives a unit back: if the clock steps back, that may be another window.
const PROMISES: [(&str, Algorithm, usize, Duration); 6] = [
    ("sliding log", Algorithm::SlidingLog, LIMIT, Duration::ZERO),
    ("sorted set", Algorithm::SortedSetLog, LIMIT, Duration::ZERO),
    (
        "buckets",
        Algorithm::SlidingBuckets(10),
        LIMIT,
        Duration::from_millis(100),
    ),
    (
        "sliding counter",
        Algorithm::SlidingCounter,
        2 * LIMIT,
        WINDOW,
    ),
    ("fixed window", Algorithm::FixedWindow, 2 * LIMIT, WINDOW),
    ("GCRA", Algorithm::Gcra, 2 * LIMIT, Duration::ZERO),
];

/// How many requests a second each algorithm gets, with and without remembered refusals.
const SHARE: u32 = RATE / 10;

/// By how much a server's clock goes wrong.
pub(crate) struct Skew(File);

impl Skew {
    pub(crate) fn set(&self, micros: i64) {
        self.0
            .write_all_at(&micros.to_ne_bytes(), 0)
            .expect("the file is there");
    }
}

/// A server with a clock that the test can step.
pub(crate) fn skewed_server(directory: &Path) -> (RedisServer, Skew) {
    let library = compile_skew(directory);
    let offset = directory.join("offset");
    fs::write(&offset, 0_i64.to_ne_bytes()).expect("a file");
    let skew = Skew(
        File::options()
            .write(true)
            .open(&offset)
            .expect("the file is there"),
    );
    let server = RedisServer::start_as(|command| preload_skew(command, &library, &offset));
    (server, skew)
}

/// Compiles the library that shifts the clock of a process.
fn compile_skew(directory: &Path) -> PathBuf {
    let [source, library] = ["skew.c", "skew.so"].map(|name| directory.join(name));
    fs::write(&source, SKEW).expect("a file");
    let compiled = Command::new("cc")
        .args(["-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .status();
    assert!(compiled.expect("a C compiler is installed").success());
    library
}

/// Configures a command to run with a clock that is shifted as a file says.
pub(crate) fn preload_skew(command: &mut Command, library: &Path, offset: &Path) {
    command
        .env("LD_PRELOAD", library)
        .env("TOLLGATE_CHAOS_SKEW", offset);
}

/// A load on one algorithm, and when the clock was stepped meanwhile.
struct Stepped {
    name: &'static str,
    promise: usize,
    late: Duration,
    drive: Drive,
    steps: Vec<Duration>,
}

/// What became of it, or of the worst of several in each regard.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// The longest wait from a step to the next admission.
    locked: Duration,
    /// What of it is more than a window, and more than passes until somebody asks.
    too_long: Duration,
    /// The most that was admitted in any span of a window, above what is promised.
    extra: usize,
}

impl Seen {
    fn or(self, other: Self) -> Self {
        Self {
            locked: self.locked.max(other.locked),
            too_long: self.too_long.max(other.too_long),
            extra: self.extra.max(other.extra),
        }
    }
}

impl Stepped {
    fn start(
        store: &RedisStore,
        (name, algorithm, promise, late): (&'static str, Algorithm, usize, Duration),
    ) -> Self {
        let quota =
            Quota::new(u32::try_from(LIMIT).expect("few"), WINDOW).with_algorithm(algorithm);
        let layer = closed(by_path(store.clone(), quota).name(name));
        let drive = Drive::start_at(SHARE, &layer, |_| "/ada".to_owned());
        Self {
            name,
            promise,
            late,
            drive,
            steps: Vec::new(),
        }
    }

    async fn end(self) -> Seen {
        let Self {
            name,
            promise,
            late,
            drive,
            steps,
        } = self;
        let answers = drive.end().await;
        answers.assert_exact();
        let is_admitted = |answer: &Answer| answer.status == 200;
        let locked = steps
            .iter()
            .map(|step| answers.first(*step, is_admitted) - *step);
        let locked = locked.max().expect("steps");
        let noise = answers.waited().most;
        // A step is seen when somebody asks, and so is the end of a lock.
        let between = Duration::from_secs(1) / SHARE;
        let seen = Seen {
            locked,
            too_long: locked.saturating_sub(WINDOW + late + 2 * (between + noise)),
            extra: most_in(WINDOW.saturating_sub(noise), &answers).saturating_sub(promise),
        };
        println!("{name}: {seen:?}, waited {:?}", answers.waited());
        seen
    }
}

/// The most that was admitted in a span of this length. When a check was charged is known as well
/// as it was answered at once.
fn most_in(span: Duration, answers: &Answers) -> usize {
    let admitted = answers.0.iter().filter(|answer| answer.status == 200);
    let mut at: Vec<_> = admitted.map(Answer::at).collect();
    at.sort_unstable();
    let counts = at
        .iter()
        .enumerate()
        .map(|(first, begin)| at[first..].partition_point(|at| *at < *begin + span));
    counts.max().expect("admissions")
}

#[test]
fn a_stepped_clock_locks_no_key_for_more_than_two_windows_and_gives_at_most_one_quota() {
    alone(async {
        let directory = tempfile::tempdir().expect("a directory");
        let (server, skew) = skewed_server(directory.path());
        // The bounds take in how long the slowest request has waited.
        let remembering = patient(&server.url());
        let asking = remembering
            .fork()
            .prefix("asking")
            .refusal_cache(Duration::ZERO);
        let mut asking = PROMISES.map(|promise| Stepped::start(&asking, promise));
        let mut remembering = PROMISES.map(|promise| Stepped::start(&remembering, promise));
        // The steps come at many parts of a window.
        let pause = WINDOW * 237 / 100;
        tokio::time::sleep(pause).await;
        for _ in 0..short_or_long(1, 5) {
            for offset in [HOUR, 0, -HOUR, 0] {
                for stepped in asking.iter_mut().chain(&mut remembering) {
                    stepped.steps.push(stepped.drive.now());
                }
                skew.set(offset);
                tokio::time::sleep(pause).await;
            }
        }
        let of_asking = (
            "clock of the server stepped by ±1 h, every check asked",
            "no key locked longer than one window, or two of those that are aligned; no more than one extra quota",
            Duration::ZERO,
        );
        // What is remembered here is not asked, and so the step is seen when it has passed.
        let of_remembering = (
            "the same, refusals remembered for a second at most",
            "that second more",
            Duration::from_secs(1),
        );
        let rows = [of_asking, of_remembering];
        for (all, (fault, bound, age)) in [asking, remembering].into_iter().zip(rows) {
            let mut worst = Seen::default();
            for stepped in all {
                worst = worst.or(stepped.end().await);
            }
            let figure = format!(
                "longest lock {:.2?} at a window of {WINDOW:?}; {} units more than promised at a limit of {LIMIT}",
                worst.locked, worst.extra
            );
            report(10, fault, &figure, bound);
            assert!(worst.too_long <= age, "{worst:?}");
            assert!(worst.extra <= LIMIT, "{worst:?}");
        }
    });
}
