//! A process that is stopped again and again, as one at its limit of CPU is, while Postgres is healthy.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tollgate::{FailurePolicy, Quota, RateLimiter};
use tollgate_postgres::PostgresRows;

use crate::process::{Process, argument, report};
use crate::server::Server;
use crate::standing_still::{LIMIT, PAUSES, Pauses, use_up};

const SCHEMA: &str = "stopped";

/// A server that has answered each statement within this time was in time for the default deadline of 100 ms.
const IN_TIME: Duration = Duration::from_millis(50);

/// Other programs may keep the server from its CPU. Then a process stands still once more.
const ROUNDS: usize = 3;

/// A relay to the server that measures its answers: other programs may keep the server from its CPU, so that it is the one that
/// is late.
struct MeasuredRelay {
    port: u16,
    slowest: Arc<Mutex<Duration>>,
}

impl MeasuredRelay {
    async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = listener.local_addr().unwrap().port();
        let slowest = Arc::new(Mutex::new(Duration::ZERO));
        tokio::spawn(measure_own_delay(Arc::clone(&slowest)));
        let measured = Arc::clone(&slowest);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                let asked_at = Arc::new(Mutex::new(None));
                tokio::spawn(pass_requests(from_client, to_server, Arc::clone(&asked_at)));
                let slowest = Arc::clone(&measured);
                tokio::spawn(pass_replies(from_server, to_client, asked_at, slowest));
            }
        });
        Self { port: own, slowest }
    }

    /// Returns the longest time between a statement and its reply.
    fn slowest(&self) -> Duration {
        *self.slowest.lock().unwrap()
    }
}

async fn pass_requests(
    mut client: OwnedReadHalf,
    mut server: OwnedWriteHalf,
    asked_at: Arc<Mutex<Option<Instant>>>,
) {
    let mut bytes = vec![0; 65_536];
    while let Ok(length @ 1..) = client.read(&mut bytes).await {
        asked_at.lock().unwrap().get_or_insert_with(Instant::now);
        if server.write_all(&bytes[..length]).await.is_err() {
            return;
        }
    }
}

async fn pass_replies(
    mut server: OwnedReadHalf,
    mut client: OwnedWriteHalf,
    asked_at: Arc<Mutex<Option<Instant>>>,
    slowest: Arc<Mutex<Duration>>,
) {
    let mut bytes = vec![0; 65_536];
    while let Ok(length @ 1..) = server.read(&mut bytes).await {
        if client.write_all(&bytes[..length]).await.is_err() {
            return;
        }
        let asked_at = asked_at.lock().unwrap().take();
        let took = asked_at.map_or(Duration::ZERO, |asked_at| asked_at.elapsed());
        let mut slowest = slowest.lock().unwrap();
        *slowest = slowest.max(took);
    }
}

/// A relay that gets no CPU finds a statement too late.
async fn measure_own_delay(slowest: Arc<Mutex<Duration>>) {
    const STEP: Duration = Duration::from_millis(2);
    loop {
        let asleep_at = Instant::now();
        tokio::time::sleep(STEP).await;
        let delay = asleep_at.elapsed().saturating_sub(STEP);
        let mut slowest = slowest.lock().unwrap();
        *slowest = slowest.max(delay);
    }
}

/// The report of a process that was stopped.
struct Stopped {
    admitted: u32,
    undecided: u32,
    /// The slowest answer of the server.
    slowest: Duration,
}

fn stop(test: &str, runtime: &Runtime, server: &Server, pauses: &Pauses) -> Stopped {
    let relay = runtime.block_on(MeasuredRelay::to(server.port_for_clients()));
    let process = Process::of(test, &server.url_at(relay.port));
    let report = pauses.stop(process);
    let mut numbers = report.split(' ').map(|number| number.parse().unwrap());
    Stopped {
        admitted: numbers.next().unwrap(),
        undecided: numbers.next().unwrap(),
        slowest: relay.slowest(),
    }
}

#[test]
fn a_process_that_stands_still_admits_the_limit() {
    const TEST: &str = "stopped::a_process_that_stands_still_admits_the_limit";
    let mut runtime = Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().unwrap();
    if let Some(url) = argument() {
        let [admitted, undecided] = runtime.block_on(async {
            // The default deadline.
            let rows = PostgresRows::open(&url).unwrap().schema(SCHEMA);
            let name = std::process::id().to_string();
            let limiter = RateLimiter::new(rows.into_store(), Quota::per_day(LIMIT)).name(&*name);
            use_up(&limiter.on_failure(FailurePolicy::fall_back())).await
        });
        return report(format_args!("{admitted} {undecided}"));
    }
    let server = Server::shared();
    runtime.block_on(server.store(SCHEMA));
    let (runtime, server) = (&runtime, &*server);
    thread::scope(|scope| {
        for pauses in &PAUSES {
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    let stopped = stop(TEST, runtime, server, pauses);
                    let Pauses { of, every } = pauses;
                    let Stopped {
                        admitted,
                        undecided,
                        slowest,
                    } = stopped;
                    println!(
                        "stopped for {of:?} of {every:?}: {admitted} admitted, {undecided} without Postgres, whose slowest \
                         answer took {slowest:?}"
                    );
                    // However late the server is.
                    assert!(admitted <= LIMIT + undecided);
                    if slowest < IN_TIME {
                        assert_eq!([admitted, undecided], [LIMIT, 0]);
                        return;
                    }
                }
                println!("the server was late in each of {ROUNDS} rounds");
            });
        }
    });
}
