//! The bytes that a decision adds to the append-only file and to the stream for replicas.

use std::time::{Duration, Instant};

use crate::args::Args;
use crate::contestant::Contestant;
use crate::sample::Sample;
use crate::steady::{Load, Steady};
use crate::support::redis_server::RedisServer;
use crate::support::spent::Meter;
use crate::support::table::{self, beside, median, short};

/// The live units of a key, and the number of keys.
const LIVE: [(u32, usize); 2] = [(10, 1_024), (90, 256)];

const FILE: [&str; 6] = [
    "--appendonly",
    "yes",
    "--appendfsync",
    "no",
    "--auto-aof-rewrite-percentage",
    "0",
];

/// Copies to a replica at once instead of after five seconds.
const AT_ONCE: [&str; 2] = ["--repl-diskless-sync-delay", "0"];

pub(crate) async fn print(args: &Args) {
    let server = args.start_server(&[&FILE[..], &AT_ONCE].concat());
    let _replica = start_replica(&server, args);
    let mut contestants = Contestant::algorithms(&server);
    contestants.extend(Contestant::natives(&server).await);
    contestants.push(Contestant::textbook(&server).await);
    let mut meter = Meter::new(server.connect());
    println!("\n### Append-only file and replication\n\nIn the steady state.");
    for (live, keys) in LIVE {
        let load = Load {
            tasks: 64,
            keys,
            live,
            quotas: 1,
            cost: 1,
        };
        let mut samples = Vec::new();
        for contestant in &contestants {
            let mut steady = Steady::new(&server, contestant, load, args).await;
            let mut of_contestant = Vec::new();
            for _ in 0..args.rounds {
                of_contestant.push(steady.turn(&mut meter, args).await);
            }
            samples.push(of_contestant);
        }
        let title = format!("Bytes appended at about {live} live units a key; 64 at a time");
        print_table(&title, &contestants, &samples);
    }
}

/// The last contestant is the textbook.
fn print_table(title: &str, contestants: &[Contestant], samples: &[Vec<Sample>]) {
    let median_of = |samples: &[Sample], of: fn(&Sample) -> f64| median(samples.iter().map(of));
    let textbook = samples.last().expect("the textbook is the last");
    let row = |(contestant, samples): (&Contestant, &Vec<Sample>)| {
        let live = median_of(samples, |sample| sample.live.unwrap_or_default());
        let mut row = vec![contestant.name.to_owned(), short(live)];
        let bytes: [fn(&Sample) -> f64; 2] = [|one| one.spent.appended, |one| one.spent.replicated];
        for of in bytes {
            let (own, its) = (median_of(samples, of), median_of(textbook, of));
            row.extend(beside(own, own / its));
        }
        row
    };
    let rows: Vec<_> = contestants.iter().zip(samples).map(row).collect();
    let head = "per decision|live units|to the file|×|to a replica|×";
    let head: Vec<_> = head.split('|').map(str::to_owned).collect();
    table::print(title, &head, &rows);
}

/// Starts a replica and waits until it is in sync.
fn start_replica(server: &RedisServer, args: &Args) -> RedisServer {
    let replica = args.start_server(&[]);
    replica.replicate(server.port());
    let mut connection = server.connect();
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let info = redis::cmd("INFO").arg("replication").query(&mut connection);
        let info: String = info.expect("INFO answers");
        if info.contains("state=online") {
            return replica;
        }
        assert!(Instant::now() < deadline, "the replica is not in sync");
        std::thread::sleep(Duration::from_millis(10));
    }
}
