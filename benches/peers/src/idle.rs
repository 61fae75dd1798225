//! One check at a time, without HTTP: the time that tollgate adds to a plain call of its script.

use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;
use redis::aio::MultiplexedConnection;
use tollgate::{Algorithm, Quota, RateLimiter, RedisStore};

use crate::args::Args;
use crate::replay;
use crate::support::load::{self, Decide, Load};
use crate::support::redis_server::RedisServer;
use crate::support::table::{self, beside, median, short};
use crate::support::textbook::connect;

/// As many turns as make the median steady; a turn is short, so that both see the same machine.
const TURNS_PER_ROUND: usize = 5;

const TURN: Duration = Duration::from_millis(200);

enum Asked {
    Tollgate(RateLimiter),
    /// The same script with the same arguments, through the redis crate.
    Bare(MultiplexedConnection, Cmd),
}

impl Decide for Asked {
    async fn decide(&self, _key: usize) -> bool {
        match self {
            Self::Tollgate(limiter) => limiter.check("ada").await.expect("an answer").is_allowed(),
            Self::Bare(connection, call) => {
                let reply = call
                    .query_async::<redis::Value>(&mut connection.clone())
                    .await;
                reply.is_ok()
            }
        }
    }
}

#[tokio::main]
pub(crate) async fn print(args: &Args) {
    let head = ["µs, one check at a time", "p50", "×", "p99", "p99.9"];
    let mut rows = Vec::new();
    for algorithm in [Algorithm::SlidingLog, Algorithm::Gcra] {
        rows.extend(measure(algorithm, args).await);
    }
    let title = "One check at a time, without HTTP";
    table::print(title, &head.map(str::to_owned), &rows);
}

async fn measure(algorithm: Algorithm, args: &Args) -> [Vec<String>; 2] {
    let server = RedisServer::start();
    // A window of a second: the log forgets as fast as it grows, for both.
    let quota = Quota::per_second(1_000_000).with_algorithm(algorithm);
    let store = RedisStore::open(&server.url()).expect("a URL");
    let limiter = RateLimiter::new(store.deadline(Duration::from_secs(10)), quota);
    let check = async || {
        let _ = limiter.check("ada").await.expect("an answer");
    };
    check().await;
    let call = replay::capture(&server, check()).await;
    // The protocol that the store speaks.
    let connection = connect(&format!("{}?protocol=resp3", server.url())).await;
    let asked = [Asked::Bare(connection, call), Asked::Tollgate(limiter)].map(Arc::new);
    let mut tails = [const { Vec::new() }; 2];
    for _ in 0..args.rounds * TURNS_PER_ROUND {
        for (asked, tails) in asked.iter().zip(&mut tails) {
            tails.push(turn(asked).await);
        }
    }
    let [bare, own] = &tails;
    let ratios = own.iter().zip(bare).map(|(own, bare)| own[0] / bare[0]);
    [
        row(format!("a bare EVALSHA, {algorithm:?}"), bare, 1.0),
        row(format!("tollgate, {algorithm:?}"), own, median(ratios)),
    ]
}

async fn turn(asked: &Arc<Asked>) -> [f64; 3] {
    let load = Load {
        tasks: 1,
        keys: 1,
        span: TURN,
    };
    let done = load::run(asked, load).await;
    assert_eq!(done.admitted, done.decisions, "all are admitted");
    done.latencies.tail()
}

fn row(name: String, tails: &[[f64; 3]], ratio: f64) -> Vec<String> {
    let of = |at: usize| median(tails.iter().map(|tail| tail[at]));
    let [p50, ratio] = beside(of(0), ratio);
    vec![name, p50, ratio, short(of(1)), short(of(2))]
}
