//! Contestants around the same handler, measured over HTTP.

use crate::args::Args;
use crate::child::Server;
use crate::client::{Answers, Client};
use crate::contestants::Contestant;
use crate::support::redis_server::RedisServer;
use crate::support::spent::{Meter, Spent};
use crate::support::table::{self, beside, median, short};
use crate::workload::Workload;

/// The measurements of one contestant in one round.
struct Sample {
    per_second: f64,
    /// p50, p99, p99.9 in microseconds.
    tail: [f64; 3],
    spent: Option<Spent>,
    /// Since the contestant began, the warm-up included.
    admitted: u64,
    wrong: u64,
}

pub(crate) fn print(workload: &Workload, args: &Args) {
    let connections = args.connections.unwrap_or(workload.connections);
    let mut samples: Vec<Vec<Sample>> = args.contestants.iter().map(|_| Vec::new()).collect();
    for _ in 0..args.rounds {
        for (contestant, of_contestant) in args.contestants.iter().zip(&mut samples) {
            of_contestant.push(measure(contestant, workload, connections, args));
        }
    }
    let admitted = if workload.admits {
        ""
    } else {
        "|most admitted"
    };
    let head = "|× bare|requests/s|p50 µs|p99|p99.9|Redis CPU µs|scripts|commands";
    let head = format!("{head}{admitted}|wrong");
    let head: Vec<_> = head.split('|').map(str::to_owned).collect();
    let rows = args.contestants.iter().zip(&samples);
    let rows = rows.map(|(contestant, own)| row(contestant, workload, own, &samples[0]));
    let title = format!("{}; connections: {connections}", workload.told);
    table::print(&title, &head, &rows.collect::<Vec<_>>());
}

/// In a process and on a Redis that nothing else has used.
fn measure(
    contestant: &Contestant,
    workload: &Workload,
    connections: usize,
    args: &Args,
) -> Sample {
    let redis = contestant.on_redis.then(RedisServer::start);
    let url = redis.as_ref().map_or_else(String::new, RedisServer::url);
    let server = Server::start(contestant.name, workload, &url);
    let client = Client::new(server.port, workload, connections);
    let warm_up = client.run(args.warm_up);
    let mut meter = redis.as_ref().map(|redis| Meter::new(redis.connect()));
    if let Some(meter) = &mut meter {
        meter.begin();
    }
    let measured = client.run(args.span);
    Sample {
        per_second: measured.per_second(),
        tail: measured.latencies.tail(),
        spent: meter.map(|mut meter| meter.spent().per(measured.latencies.len())),
        admitted: warm_up.admitted + measured.admitted,
        wrong: wrong(workload, &warm_up, &measured),
    }
}

/// How many answers are not what the workload expects: refusals of what is within the limit,
/// admissions above the limit, and whatever is neither.
fn wrong(workload: &Workload, warm_up: &Answers, measured: &Answers) -> u64 {
    let other = warm_up.other + measured.other;
    if workload.admits {
        return other + warm_up.refused + measured.refused;
    }
    let admitted = warm_up.admitted + measured.admitted;
    other + admitted.saturating_sub(workload.limit.into())
}

fn row(
    contestant: &Contestant,
    workload: &Workload,
    own: &[Sample],
    bare: &[Sample],
) -> Vec<String> {
    let of = |value: &dyn Fn(&Sample) -> f64| median(own.iter().map(value));
    let ratios = own
        .iter()
        .zip(bare)
        .map(|(own, bare)| own.per_second / bare.per_second);
    let [per_second, ratio] = beside(of(&|sample| sample.per_second), median(ratios));
    let mut row = vec![contestant.name.to_owned(), ratio, per_second];
    row.extend([0, 1, 2].map(|at| short(of(&|sample| sample.tail[at]))));
    let costs: [fn(&Spent) -> f64; 3] = [|one| one.cpu, |one| one.scripts, |one| one.commands];
    row.extend(costs.map(|cost| match own[0].spent {
        Some(_) => short(of(&|sample| sample.spent.as_ref().map_or(0.0, cost))),
        None => String::new(),
    }));
    // Without a limiter there is nothing to be wrong about.
    let limits = contestant.name != "bare";
    let shown = |number: u64| {
        if limits {
            number.to_string()
        } else {
            String::new()
        }
    };
    if !workload.admits {
        row.push(shown(
            own.iter().map(|sample| sample.admitted).max().unwrap_or(0),
        ));
    }
    row.push(shown(own.iter().map(|sample| sample.wrong).sum()));
    row
}
