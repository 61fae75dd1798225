//! Commands, CPU and bytes per decision, next to the textbook's in the same round.

use crate::args::Args;
use crate::contestant::Contestant;
use crate::setting::Setting;
use crate::support::redis_server::{RedisServer, run};
use crate::support::spent::{Meter, Spent};
use crate::support::table::{self, beside, median, short};

const WORKLOADS: [(&str, Setting); 3] = [
    ("10 000 keys, all admitted", Setting::MANY_KEYS),
    ("one hot key, all admitted", Setting::HOT_KEY),
    ("one key, all refused", Setting::REFUSED),
];

const TASKS: [usize; 3] = [1, 64, 512];

/// What one contestant did in one round.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sample {
    pub(crate) spent: Spent,
    pub(crate) per_second: f64,
    /// p50, p99, p99.9 in microseconds.
    pub(crate) tail: [f64; 3],
    /// The part of the decisions that are not what the setting expects.
    pub(crate) wrong: f64,
}

/// By contestant, then by round.
pub(crate) struct Samples(pub(crate) Vec<(&'static str, Vec<Sample>)>);

impl Samples {
    /// On an empty server. Contestants take turns in each round.
    pub(crate) async fn take(server: &RedisServer, setting: &Setting, args: &Args) -> Self {
        run(&mut server.connect(), &["FLUSHALL", "SYNC"]);
        let contestants = Contestant::all(server, setting).await;
        let mut meter = Meter::new(server.connect());
        let mut samples: Vec<_> = contestants.iter().map(|one| (one.name, vec![])).collect();
        for _ in 0..args.rounds {
            for (contestant, (_, of_contestant)) in contestants.iter().zip(&mut samples) {
                contestant.run(setting.load(setting.warm_up())).await;
                meter.begin();
                let done = contestant.run(setting.load(args.span)).await;
                let wrong = if setting.admits {
                    done.decisions - done.admitted
                } else {
                    done.admitted
                };
                of_contestant.push(Sample {
                    spent: meter.spent().per(done.decisions),
                    per_second: done.per_second(),
                    tail: done.latencies.tail(),
                    wrong: wrong as f64 / done.decisions as f64,
                });
            }
        }
        Self(samples)
    }

    /// Says what was decided otherwise than the setting expects, so that no number hides it.
    pub(crate) fn warn(&self, setting: &str) {
        for (name, samples) in &self.0 {
            let wrong = samples
                .iter()
                .map(|sample| sample.wrong)
                .fold(0.0, f64::max);
            if wrong > 0.0 {
                println!(
                    "\n{setting}: {name} decided {:.2} % otherwise",
                    wrong * 100.0
                );
            }
        }
    }
}

pub(crate) async fn print(server: &RedisServer, args: &Args) {
    for (workload, setting) in WORKLOADS {
        for tasks in TASKS {
            let samples = Samples::take(server, &Setting { tasks, ..setting }, args).await;
            let title = format!("{workload}; {tasks} at a time");
            samples.warn(&title);
            print_table(&title, &samples);
        }
    }
}

fn print_table(title: &str, Samples(samples): &Samples) {
    let head = "per decision|calls|commands|×|Redis CPU µs|×|bytes in|×|bytes out|×|decisions/s|×|p50 µs|p99|p99.9";
    let head: Vec<_> = head.split('|').map(str::to_owned).collect();
    let (_, textbook) = samples.last().expect("the textbook is the last");
    let row = |(name, samples): &(&str, Vec<Sample>)| {
        let both = |of: fn(&Sample) -> f64| {
            let ratios = samples
                .iter()
                .zip(textbook)
                .map(|(own, its)| of(own) / of(its));
            beside(median(samples.iter().map(of)), median(ratios))
        };
        let tail = |at: usize| short(median(samples.iter().map(|sample| sample.tail[at])));
        let mut row = vec![
            (*name).to_owned(),
            short(median(samples.iter().map(|sample| sample.spent.scripts))),
        ];
        row.extend(both(|sample| sample.spent.commands));
        row.extend(both(|sample| sample.spent.cpu));
        row.extend(both(|sample| sample.spent.received));
        row.extend(both(|sample| sample.spent.sent));
        row.extend(both(|sample| sample.per_second));
        row.extend([0, 1, 2].map(tail));
        row
    };
    table::print(title, &head, &samples.iter().map(row).collect::<Vec<_>>());
}
