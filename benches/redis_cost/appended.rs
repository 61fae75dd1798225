//! The bytes that a decision adds to the append-only file, which are those that replicas get.

use crate::args::Args;
use crate::contestant::Contestant;
use crate::sample::Sample;
use crate::steady::{Load, Steady};
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

pub(crate) async fn print(args: &Args) {
    let server = args.start_server(&FILE);
    let mut contestants = Contestant::algorithms(&server);
    contestants.extend(Contestant::module(&server).await);
    contestants.push(Contestant::textbook(&server).await);
    let mut meter = Meter::new(server.connect());
    let mut rows: Vec<_> = contestants
        .iter()
        .map(|one| vec![one.name.to_owned()])
        .collect();
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
        let median_of = |samples: &[Sample], of: fn(&Sample) -> f64| median(samples.iter().map(of));
        let appended = |samples: &[Sample]| median_of(samples, |sample| sample.spent.appended);
        let textbook = appended(samples.last().expect("the textbook is the last"));
        for (row, samples) in rows.iter_mut().zip(&samples) {
            let live = median_of(samples, |sample| sample.live.unwrap_or_default());
            let bytes = appended(samples);
            row.push(short(live));
            row.extend(beside(bytes, bytes / textbook));
        }
    }
    println!("\n### Append-only file\n\nIn the steady state. Replicas get the same bytes.");
    let head = "per decision|live units|bytes at about 10|×|live units|bytes at about 90|×";
    let head: Vec<_> = head.split('|').map(str::to_owned).collect();
    table::print("Bytes for the append-only file; 64 at a time", &head, &rows);
}
