//! Three processes with eight tasks each, at upstreams with a strict limit of their own, which is lower than ours.
//!
//! Each upstream refuses with other headers. The processes write down when they send and what they are told; the test
//! compares that with what the upstreams have promised.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, Request};
use tokio::runtime::Builder;
use tokio::time::{Instant, sleep_until};
use tollgate::{Key, OutboundLayer, Quota, RateLimiter, RedisStore, Rejection, key};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::process::{Process, argument};
use crate::support::redis_server::RedisServer;
use crate::support::runtime;

const SECOND: u64 = 1_000_000;

/// The limit of each upstream: so many in any such span.
const LIMIT: usize = 40;
const WINDOW: u64 = 15 * SECOND;

/// Our limit, which somebody has set too high.
const OURS: Quota = Quota::new(60, Duration::from_secs(15));

const PROCESSES: usize = 3;
const TASKS: usize = 8;

/// Four windows and a bit.
const DURATION: Duration = Duration::from_secs(66);

/// The ways to tell a wait.
const FORMS: [&str; 12] = [
    "Retry-After: 12",
    "Retry-After: date",
    "retry-after-ms",
    "OpenAI: 11.3s",
    "GitHub: epoch",
    "RateLimit-Reset",
    "RateLimit, draft 07",
    "RateLimit, draft 11",
    "x-rate-limit-reset: epoch",
    "Retry-After: 0, RFC 3339",
    "gRPC: pushback",
    "gRPC: RetryInfo",
];

#[expect(
    clippy::disallowed_methods,
    reason = "a time that several processes can compare"
)]
fn now() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    let micros = since_1970.expect("after 1970").as_micros();
    micros.try_into().expect("until 2255")
}

/// The header of a form, and the time until which it tells to wait, when the next request will be admitted at `at`.
fn told(form: usize, now: u64, at: u64) -> (Vec<(&'static str, String)>, u64) {
    let seconds = (at - now).div_ceil(SECOND);
    let delta = |name, text: String| (vec![(name, text)], now + seconds * SECOND);
    let time = at.div_ceil(SECOND);
    match form {
        0 => delta("retry-after", seconds.to_string()),
        1 => {
            let date = UNIX_EPOCH + Duration::from_secs(time);
            let date = httpdate::fmt_http_date(date);
            (vec![("retry-after", date)], time * SECOND)
        }
        2 => {
            let millis = (at - now).div_ceil(1_000);
            (
                vec![("retry-after-ms", millis.to_string())],
                now + millis * 1_000,
            )
        }
        3 => {
            let millis = (at - now).div_ceil(1_000);
            let reset = format!("{}.{:03}s", millis / 1_000, millis % 1_000);
            let headers = vec![
                ("x-ratelimit-remaining-requests", "0".to_owned()),
                ("x-ratelimit-reset-requests", reset),
                ("x-ratelimit-remaining-tokens", "149984".to_owned()),
                ("x-ratelimit-reset-tokens", "6m0s".to_owned()),
            ];
            (headers, now + millis * 1_000)
        }
        4 => {
            let headers = vec![
                ("x-ratelimit-remaining", "0".to_owned()),
                ("x-ratelimit-reset", time.to_string()),
            ];
            (headers, time * SECOND)
        }
        5 => {
            let (mut headers, until) = delta("ratelimit-reset", seconds.to_string());
            headers.push(("ratelimit-remaining", "0".to_owned()));
            (headers, until)
        }
        6 => delta(
            "ratelimit",
            format!("limit={LIMIT}, remaining=0, reset={seconds}"),
        ),
        7 => delta("ratelimit", format!("\"default\";r=0;t={seconds}")),
        8 => {
            let reset = format!("{}.{:06}", at / SECOND, at % SECOND);
            let headers = vec![
                ("x-rate-limit-remaining", "0".to_owned()),
                ("x-rate-limit-reset", reset),
            ];
            (headers, at)
        }
        9 => {
            let seconds = (at / SECOND).try_into().expect("a time");
            let nanos = (at % SECOND * 1_000).try_into().expect("below a second");
            let reset = prost_types::Timestamp { seconds, nanos };
            let headers = vec![
                ("retry-after", "0".to_owned()),
                ("anthropic-ratelimit-requests-remaining", "0".to_owned()),
                ("anthropic-ratelimit-requests-reset", reset.to_string()),
            ];
            (headers, at)
        }
        10 => {
            let millis = (at - now).div_ceil(1_000);
            let headers = vec![
                ("grpc-status", "8".to_owned()),
                ("grpc-retry-pushback-ms", millis.to_string()),
            ];
            (headers, now + millis * 1_000)
        }
        _ => {
            let wait = Duration::from_micros(at - now);
            let details = ErrorDetails::with_retry_info(Some(wait));
            let code = Code::ResourceExhausted;
            let status = Status::with_error_details(code, "slow down", details);
            let mut headers = HeaderMap::new();
            status.add_header(&mut headers).expect("headers");
            let text = |name| headers[name].to_str().expect("text").to_owned();
            let headers = ["grpc-status", "grpc-status-details-bin"];
            (headers.map(|name| (name, text(name))).to_vec(), at)
        }
    }
}

/// An upstream, and the times of the requests that it has admitted.
struct Upstream {
    form: usize,
    /// Those in the last window.
    log: Mutex<VecDeque<u64>>,
    admitted: Mutex<Vec<u64>>,
}

async fn answer(State(upstream): State<Arc<Upstream>>) -> Response {
    let now = now();
    let mut log = upstream.log.lock().expect("a log");
    while log.front().is_some_and(|first| first + WINDOW <= now) {
        log.pop_front();
    }
    if log.len() < LIMIT {
        log.push_back(now);
        upstream.admitted.lock().expect("a log").push(now);
        return Response::default();
    }
    let (headers, until) = told(upstream.form, now, log[0] + WINDOW);
    let is_grpc = headers.iter().any(|(name, _)| *name == "grpc-status");
    let status = if is_grpc { 200 } else { 429 };
    let mut response = Response::builder().status(status).header("x-until", until);
    for (name, value) in headers {
        response = response.header(name, value);
    }
    response
        .body(axum::body::Body::empty())
        .expect("a response")
}

/// What a process has done: at one upstream, by its index, sent at a time, or was told to wait at a time.
#[derive(Clone, Copy)]
enum Event {
    Sent(usize, u64),
    Told {
        form: usize,
        at: u64,
        until: u64,
    },
    /// A timer was late by this time.
    Late(u64),
}

/// Ticks for as long as the test takes, and writes down by how much each tick was late: then this process could not run.
async fn watch_the_timer(events: Arc<Mutex<Vec<Event>>>) {
    const TICK: Duration = Duration::from_millis(20);
    loop {
        let due = Instant::now() + TICK;
        sleep_until(due).await;
        let late = due.elapsed().as_micros();
        let late = Event::Late(late.try_into().expect("a short time"));
        events.lock().expect("a list").push(late);
    }
}

/// A process, which sends for as long as the test takes.
async fn send(redis: &str, ports: &[u16]) -> Vec<Event> {
    let store = RedisStore::open(redis)
        .expect("a URL")
        .deadline(Duration::from_secs(10));
    let limiter = RateLimiter::new(store, OURS).name("upstream");
    let authority =
        key::from_fn(|parts| parts.uri.authority().map(|host| Key::from(host.as_str())));
    let layer = OutboundLayer::new(limiter)
        .key(authority)
        .wait_up_to(Duration::from_secs(600));
    let events: Arc<Mutex<Vec<Event>>> = Arc::default();
    tokio::spawn(watch_the_timer(Arc::clone(&events)));
    let client = reqwest::Client::new();
    for (form, port) in ports.iter().copied().enumerate() {
        for _ in 0..TASKS {
            let (client, events) = (client.clone(), Arc::clone(&events));
            let layer = layer.clone();
            let client = layer.layer(service_fn(move |request: Request<reqwest::Body>| {
                let (client, events) = (client.clone(), Arc::clone(&events));
                async move {
                    events
                        .lock()
                        .expect("a list")
                        .push(Event::Sent(form, now()));
                    let request = request.try_into().expect("a request");
                    let response = client.execute(request).await?;
                    if let Some(until) = response.headers().get("x-until") {
                        let until = until.to_str().expect("text").parse().expect("a time");
                        let told = Event::Told {
                            form,
                            at: now(),
                            until,
                        };
                        events.lock().expect("a list").push(told);
                    }
                    Ok::<_, reqwest::Error>(http::Response::from(response))
                }
            }));
            tokio::spawn(async move {
                loop {
                    let request = Request::get(format!("http://127.0.0.1:{port}/"));
                    let request = request.body(reqwest::Body::default()).expect("a request");
                    let response = client.clone().oneshot(request).await.expect("an answer");
                    assert!(response.extensions().get::<Rejection>().is_none());
                }
            });
        }
    }
    tokio::time::sleep(DURATION).await;
    std::mem::take(&mut events.lock().expect("a list"))
}

fn report(events: &[Event]) {
    for event in events {
        match event {
            Event::Sent(form, at) => println!("sent {form} {at} 0"),
            Event::Told { form, at, until } => println!("told {form} {at} {until}"),
            Event::Late(late) => println!("late {late}"),
        }
    }
}

fn parse(line: &str) -> Option<Event> {
    let words: Vec<_> = line.split(' ').collect();
    let number = |index: usize| words[index].parse().expect("a number");
    let form = || words[1].parse().expect("an index");
    match words[0] {
        "sent" => Some(Event::Sent(form(), number(2))),
        "told" => Some(Event::Told {
            form: form(),
            at: number(2),
            until: number(3),
        }),
        "late" => Some(Event::Late(number(1))),
        _ => None,
    }
}

#[test]
fn three_processes_obey_every_form_and_send_nearly_what_the_upstream_allows() {
    const TEST: &str =
        "processes::three_processes_obey_every_form_and_send_nearly_what_the_upstream_allows";
    if let Some(servers) = argument() {
        // One thread, so that nothing is sent between an answer and its observation.
        let runtime = runtime();
        let (redis, ports) = servers.split_once(' ').expect("servers");
        let ports: Vec<u16> = ports
            .split(' ')
            .map(|port| port.parse().expect("a port"))
            .collect();
        println!();
        report(&runtime.block_on(send(redis, &ports)));
        return;
    }
    let server = RedisServer::start();
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime");
    let upstreams: Vec<_> = (0..FORMS.len())
        .map(|form| {
            Arc::new(Upstream {
                form,
                log: Mutex::default(),
                admitted: Mutex::default(),
            })
        })
        .collect();
    let mut servers = server.url();
    for upstream in &upstreams {
        let app = Router::new()
            .fallback(answer)
            .with_state(Arc::clone(upstream));
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0"));
        let listener = listener.expect("a free port");
        servers += &format!(" {}", listener.local_addr().expect("an address").port());
        runtime.spawn(async { axum::serve(listener, app).await });
    }
    let children = [(); PROCESSES].map(|()| Process::of(TEST, &servers));
    let events: Vec<Vec<Event>> = children
        .into_iter()
        .map(|mut child| {
            let lines = child.take_lines();
            let events = lines.filter_map(|line| parse(&line)).collect();
            child.wait();
            events
        })
        .collect();
    let late = events.iter().map(|events| lateness(events)).max();
    let late = late.expect("three processes");
    println!("a process could not run for {late} us");
    println!("form | windows | 429s | by others within a second | of the allowed rate");
    let mut failures = Vec::new();
    for (form, name) in FORMS.iter().enumerate() {
        let admitted = upstreams[form].admitted.lock().expect("a log").clone();
        judge(form, name, &events, &admitted, late, &mut failures);
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Returns for how long a process could not run, by its timer.
fn lateness(events: &[Event]) -> u64 {
    let late = events.iter().filter_map(|event| match event {
        Event::Late(late) => Some(late),
        _ => None,
    });
    late.sum()
}

/// Compares what the processes have sent to one upstream with what they were told. The time for which a process could not run does
/// not count.
fn judge(
    form: usize,
    name: &str,
    events: &[Vec<Event>],
    admitted: &[u64],
    stood_still: u64,
    failures: &mut Vec<String>,
) {
    let told = events.iter().enumerate().flat_map(|(process, events)| {
        events.iter().filter_map(move |event| match *event {
            Event::Told {
                form: of,
                at,
                until,
            } if of == form => Some((at, until, process)),
            _ => None,
        })
    });
    let mut told: Vec<_> = told.collect();
    told.sort_unstable();
    // The first refusal of each window.
    let mut windows: Vec<(u64, u64, usize)> = Vec::new();
    for (at, until, process) in told.iter().copied() {
        if windows.last().is_none_or(|(_, last, _)| at >= *last) {
            windows.push((at, until, process));
        }
    }
    let (mut within_a_second, mut own, mut late) = (0, 0, 0);
    for (at, until, told) in windows.iter().copied() {
        for (process, events) in events.iter().enumerate() {
            let sent = events.iter().filter_map(|event| match *event {
                Event::Sent(of, sent) if of == form => Some(sent),
                _ => None,
            });
            let sent: Vec<_> = sent.filter(|sent| *sent > at && *sent < until).collect();
            if process == told {
                own += sent.len();
            } else {
                let in_time = sent.iter().filter(|sent| **sent <= at + SECOND).count();
                within_a_second += in_time;
                late += sent.len() - in_time;
            }
        }
    }
    // Whole cycles: from the first request to the first one after the last pause.
    let starts: Vec<_> = windows
        .iter()
        .filter_map(|(_, until, _)| admitted.iter().find(|at| **at >= *until).copied())
        .collect();
    let (first, last) = (admitted[0], *starts.last().expect("a pause that has ended"));
    let sent = admitted.iter().filter(|at| **at < last).count();
    #[expect(
        clippy::cast_precision_loss,
        clippy::float_arithmetic,
        reason = "small numbers"
    )]
    let share = (sent as f64 / LIMIT as f64)
        / ((last - first).saturating_sub(stood_still) as f64 / WINDOW as f64);
    println!(
        "{name} | {} | {} | {within_a_second} | {share:.3}",
        windows.len(),
        told.len()
    );
    if own > 0 || late > 0 || share < 0.9 || windows.len() < 3 {
        failures.push(format!(
            "{name}: {own} by the process itself, {late} by others after a second, {share:.3}, {} windows",
            windows.len()
        ));
    }
}
