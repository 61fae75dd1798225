//! Local decisions: what a lease saves of the distance to Redis, and whether the limit holds meanwhile.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tollgate::{Key, Quota, RateLimiter, Source};

use crate::support::args::Args;
use crate::support::distance::Distance;
use crate::support::latencies::Latencies;
use crate::support::redis_server::RedisServer;
use crate::support::table::{self, median, short};
use crate::traffic::{self, Answer, Call, Traffic, admissions};
use crate::{over, percent, store};

const PROCESSES: u32 = 2;
/// Checks a second of each process.
const RATE: u32 = 5_000;
const CALLERS: u32 = 1_000;
const SECOND: Duration = Duration::from_secs(1);

/// As often as the clients of the others report. It is the longest lease of a limit per second.
const LEASE: Duration = Duration::from_millis(100);

/// One hot key, and medium ones: each process checks each of these 200 times a second, so 20 times in a lease.
const KEYS: [(&str, usize); 2] = [("one hot key", 1), ("25 medium keys", 25)];

/// The round trips, as text and in microseconds.
const ROUND_TRIPS: [(&str, u64); 3] = [("0.2 ms", 200), ("2 ms", 2_000), ("20 ms", 20_000)];

struct Sample {
    /// p50, p99 and p99.9 in microseconds, at half of the limit.
    tail: [f64; 3],
    /// In percent of the checks at half of the limit.
    from_lease: f64,
    /// At a limit that is exceeded by half: the excess of the worst second of a key, and what was used of the limit.
    over: f64,
    used: f64,
    /// The round trip of an idle connection, in microseconds.
    ping: f64,
}

pub(crate) async fn print(args: &Args) {
    let (mut rows, mut gains) = (Vec::new(), Vec::new());
    for (about, keys) in KEYS {
        for (round_trip, micros) in ROUND_TRIPS {
            let round_trip = (round_trip, Duration::from_micros(micros));
            let mut samples = [Vec::new(), Vec::new()];
            for _ in 0..args.rounds {
                for (with_lease, samples) in [false, true].into_iter().zip(&mut samples) {
                    samples.push(measure(keys, round_trip.1, with_lease, args.span).await);
                }
            }
            let [without, with] = &samples;
            rows.push(row(about, round_trip.0, "no", without));
            rows.push(row(about, round_trip.0, "100 ms", with));
            gains.push(gain(about, round_trip.0, without, with));
        }
    }
    let head = "keys|round trip|measured, µs|lease|p50, µs|p99, µs|p99.9, µs|from the lease, %\
                |over the limit, %|of the limit used, %";
    let head: Vec<_> = head.split('|').map(str::to_owned).collect();
    let title = format!(
        "Local decisions: {PROCESSES} processes, {RATE} checks a second each; medians of {} rounds of {:?}",
        args.rounds, args.span
    );
    table::print(&title, &head, &rows);
    let head = ["keys", "round trip", "p50", "p99", "p99.9"];
    let title = "How many times shorter a check is with a lease";
    table::print(title, &head.map(str::to_owned), &gains);
}

/// Measures latencies at half of the limit, and then whether a limit holds that is exceeded by half.
async fn measure(keys: usize, round_trip: Duration, with_lease: bool, span: Duration) -> Sample {
    let redis = RedisServer::start();
    let urls: Vec<_> = (0..PROCESSES)
        .map(|_| Distance::to(redis.port(), round_trip).url())
        .collect();
    let each = PROCESSES * RATE / u32::try_from(keys).expect("few keys");
    let limiters = |limit| {
        let limiter = |url: &String| {
            let limiter = RateLimiter::new(store(url), Quota::per_second(limit));
            let limiter = limiter.name(format!("limit-{limit}"));
            match with_lease {
                true => limiter.lease(LEASE),
                false => limiter,
            }
        };
        urls.iter().map(limiter).collect::<Vec<_>>()
    };
    let calls = run(limiters(each * 2), keys, span / 4 + span).await;
    let mut latencies = Latencies::new();
    let measured = calls.iter().filter(|call| call.start >= span / 4);
    let (mut all, mut from_lease) = (0, 0);
    for call in measured {
        assert!(call.is_admitted(), "a check at half of the limit");
        latencies.record(call.end - call.start);
        all += 1;
        from_lease += u64::from(call.answer == Answer::FromLease);
    }
    let limit = each * 2 / 3;
    // Whole windows as they are counted: callers use the limit up at the beginning of each.
    let window = SECOND + if with_lease { LEASE } else { Duration::ZERO };
    let until = window * u32::try_from(span.as_secs() + 1).expect("a short time");
    let calls = run(limiters(limit), keys, until).await;
    let mut by_key: BTreeMap<usize, Vec<&Call>> = BTreeMap::new();
    for call in &calls {
        by_key.entry(call.key).or_default().push(call);
    }
    let most = by_key.into_values().map(|calls| {
        let admissions = admissions(calls);
        admissions.most_within(SECOND)
    });
    let most = most.max().unwrap_or_default();
    let admitted = calls.iter().filter(|call| call.is_admitted()).count();
    let millis = u64::try_from(until.as_millis()).expect("a short time");
    let possible = u64::from(limit) * keys as u64 * millis;
    Sample {
        tail: latencies.tail(),
        from_lease: percent(from_lease, all),
        over: over(most, limit),
        used: percent(admitted as u64 * 1_000, possible),
        ping: ping(&urls[0]),
    }
}

/// Runs both processes for a time.
async fn run(limiters: Vec<RateLimiter>, keys: usize, until: Duration) -> Vec<Call> {
    for limiter in &limiters {
        // Connects.
        let _ = limiter.peek("warm-up").await.expect("Redis answers");
    }
    let names: Vec<Key> = (0..keys).map(|key| Key::from(key.to_string())).collect();
    let begin = Instant::now();
    let traffic = Traffic {
        rate: RATE,
        callers: CALLERS,
        keys,
        from: Duration::ZERO,
        until,
    };
    let processes = limiters.into_iter().map(|limiter| {
        let names = names.clone();
        traffic.start(begin, move |key| check(limiter.clone(), names[key].clone()))
    });
    traffic::join(processes.collect()).await
}

async fn check(limiter: RateLimiter, key: Key) -> Answer {
    let decision = limiter.check(&key).await.expect("Redis answers");
    match (decision.is_allowed(), decision.source()) {
        (false, _) => Answer::Refused,
        (true, Source::Lease) => Answer::FromLease,
        (true, _) => Answer::Admitted,
    }
}

/// Returns the median round trip of an idle connection, in microseconds.
fn ping(url: &str) -> f64 {
    let client = redis::Client::open(url).expect("a URL");
    let mut connection = client.get_connection().expect("the server is ready");
    let pings = (0..20).map(|_| {
        let begin = Instant::now();
        let answer: String = redis::cmd("PING").query(&mut connection).expect("a PONG");
        drop(answer);
        begin.elapsed().as_secs_f64() * 1e6
    });
    median(pings)
}

fn row(keys: &str, round_trip: &str, lease: &str, samples: &[Sample]) -> Vec<String> {
    let of = |value: &dyn Fn(&Sample) -> f64| short(median(samples.iter().map(value)));
    let mut row = vec![keys.to_owned(), round_trip.to_owned()];
    row.push(of(&|sample| sample.ping));
    row.push(lease.to_owned());
    row.extend([0, 1, 2].map(|at| of(&|sample| sample.tail[at])));
    row.push(of(&|sample| sample.from_lease));
    // The worst of all rounds.
    let over = samples.iter().map(|sample| sample.over);
    row.push(short(over.fold(0.0, f64::max)));
    row.push(of(&|sample| sample.used));
    row
}

fn gain(keys: &str, round_trip: &str, without: &[Sample], with: &[Sample]) -> Vec<String> {
    let gain = |at: usize| {
        let pairs = without.iter().zip(with);
        short(median(
            pairs.map(|(without, with)| without.tail[at] / with.tail[at]),
        ))
    };
    let mut row = vec![keys.to_owned(), round_trip.to_owned()];
    row.extend([0, 1, 2].map(gain));
    row
}
