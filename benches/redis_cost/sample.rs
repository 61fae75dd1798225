//! Commands, CPU and bytes per decision, next to the textbook's in the same round.

use std::sync::Arc;
use std::time::Duration;

use crate::args::Args;
use crate::contestant::{Contestant, Limiter, prepare};
use crate::setting::Setting;
use crate::support::redis_server::{RedisServer, run};
use crate::support::spent::{Meter, Spent};
use crate::support::table::{self, beside, median, short};

/// The measurements of one contestant in one round.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sample {
    pub(crate) spent: Spent,
    pub(crate) per_second: f64,
    /// p50, p99, p99.9 in microseconds.
    pub(crate) tail: [f64; 3],
    /// The part of the decisions that are not what the setting expects.
    pub(crate) wrong: f64,
    /// The units that were charged to a key in the last window, in the steady state.
    pub(crate) live: Option<f64>,
    /// The mean of what decisions say is used, if they say it.
    pub(crate) used: Option<f64>,
}

impl Sample {
    /// Runs a limiter that is warm.
    pub(crate) async fn take(
        meter: &mut Meter,
        limiter: &Arc<Limiter>,
        setting: &Setting,
        span: Duration,
    ) -> Self {
        limiter.take_used();
        meter.begin();
        let done = limiter.run(setting.load(span)).await;
        let spent = meter.spent();
        let wrong = if setting.admits {
            done.decisions - done.admitted
        } else {
            done.admitted
        };
        Self {
            spent: spent.per(done.decisions),
            per_second: done.per_second(),
            tail: done.latencies.tail(),
            wrong: wrong as f64 / done.decisions as f64,
            live: None,
            used: limiter.take_used(),
        }
    }
}

/// By contestant, then by round.
pub(crate) struct Samples(pub(crate) Vec<(&'static str, Vec<Sample>)>);

impl Samples {
    /// On an empty server, while no unit expires. Contestants take turns in each round.
    pub(crate) async fn take(server: &RedisServer, setting: &Setting, args: &Args) -> Self {
        run(&mut server.connect(), &["FLUSHALL", "SYNC"]);
        let contestants = contestants(server, setting).await;
        let limiters = contestants.iter().map(|one| one.limiter(setting));
        let limiters: Vec<_> = limiters.collect();
        prepare(server, &limiters, setting).await;
        let mut meter = Meter::new(server.connect());
        let mut samples: Vec<_> = contestants.iter().map(|one| (one.name, vec![])).collect();
        for _ in 0..args.rounds {
            for (limiter, (_, of_contestant)) in limiters.iter().zip(&mut samples) {
                limiter.run(setting.load(setting.warm_up())).await;
                of_contestant.push(Sample::take(&mut meter, limiter, setting, args.span).await);
            }
        }
        Self(samples)
    }

    /// Prints how often a decision was not what the setting expects, so that no number hides it.
    pub(crate) fn warn(&self, setting: &str) {
        for (name, samples) in &self.0 {
            let wrong = samples.iter().map(|sample| sample.wrong);
            let wrong = wrong.fold(0.0, f64::max);
            if wrong > 0.0 {
                let percent = wrong * 100.0;
                println!("\n{setting}: {name} decided {percent:.2} % otherwise");
            }
        }
    }

    /// Prints a row for each contestant. The last one is the textbook.
    pub(crate) fn print(&self, title: &str) {
        self.warn(title);
        let Self(samples) = self;
        let (_, textbook) = samples.last().expect("the textbook is the last");
        let is_steady = textbook.iter().any(|sample| sample.live.is_some());
        let live = if is_steady { "live units|`used`|" } else { "" };
        let head = format!(
            "per decision|{live}calls|commands|×|Redis CPU µs|×|bytes in|×|bytes out|×|decisions/s|×|p50 µs|p99|p99.9"
        );
        let head: Vec<_> = head.split('|').map(str::to_owned).collect();
        let row = |(name, samples): &(&str, Vec<Sample>)| {
            let both = |of: fn(&Sample) -> f64| {
                let pairs = samples.iter().zip(textbook);
                let ratios = pairs.map(|(own, its)| of(own) / of(its));
                beside(median(samples.iter().map(of)), median(ratios))
            };
            let tail = |at: usize| short(median(samples.iter().map(|sample| sample.tail[at])));
            let mut row = vec![(*name).to_owned()];
            if is_steady {
                row.push(median_if_known(samples, |sample| sample.live));
                row.push(median_if_known(samples, |sample| sample.used));
            }
            let scripts = samples.iter().map(|sample| sample.spent.scripts);
            row.push(short(median(scripts)));
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
}

fn median_if_known(samples: &[Sample], of: fn(&Sample) -> Option<f64>) -> String {
    let values: Vec<_> = samples.iter().filter_map(of).collect();
    if values.is_empty() {
        return String::new();
    }
    short(median(values))
}

async fn contestants(server: &RedisServer, setting: &Setting) -> Vec<Contestant> {
    let mut contestants = Contestant::algorithms(server);
    if setting.quotas == 1 {
        contestants.extend(Contestant::natives(server).await);
        contestants.push(Contestant::textbook_pool(server, setting.tasks).await);
        contestants.push(Contestant::textbook(server).await);
    }
    contestants
}
