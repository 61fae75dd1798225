//! How the cost of a decision grows when one setting varies.

use std::time::Duration;

use crate::args::Args;
use crate::sample::{Sample, Samples};
use crate::setting::{HOUR, Setting};
use crate::support::redis_server::RedisServer;
use crate::support::table::{self, median, short};

/// One line of settings.
struct Line {
    along: &'static str,
    settings: Vec<(String, Setting)>,
}

pub(crate) async fn print(server: &RedisServer, args: &Args) {
    println!("\n### Growth\n\nOne setting varies; no unit expires unless the window is a second.");
    for line in [limits(), keys(), windows(), tasks(), quotas()] {
        let mut measured = Vec::new();
        for (value, setting) in &line.settings {
            let samples = Samples::take(server, setting, args).await;
            samples.warn(&format!("{} {value}", line.along));
            measured.push(samples);
        }
        let cpu = |sample: &Sample| sample.spent.cpu;
        print_table(&line, "Redis CPU µs", &measured, &[cpu]);
        let tail: [fn(&Sample) -> f64; 3] =
            [|one| one.tail[0], |one| one.tail[1], |one| one.tail[2]];
        print_table(&line, "µs at p50 / p99 / p99.9", &measured, &tail);
    }
}

/// Half of each limit is used before; as many keys as leave room for what is measured.
fn limits() -> Line {
    let limits = [10, 100, 1_000, 10_000, 100_000_u32];
    let setting = |limit: u32| Setting {
        limit,
        used: limit / 2,
        keys: usize::try_from(500_000 / limit).map_or(10, |keys| keys.max(10)),
        ..Setting::MANY_KEYS
    };
    line("limit", limits, setting)
}

fn keys() -> Line {
    let keys = [1, 100, 10_000, 1_000_000];
    let setting = |keys| Setting {
        keys,
        ..Setting::MANY_KEYS
    };
    line("keys", keys, setting)
}

fn windows() -> Line {
    let windows = [("1 s", 1), ("1 min", 60), ("1 h", 3_600), ("1 day", 86_400)];
    let setting = |(_, seconds)| Setting {
        window: Duration::from_secs(seconds),
        keys: 1_000,
        ..Setting::MANY_KEYS
    };
    let settings = windows.map(|window| (window.0.to_owned(), setting(window)));
    Line {
        along: "window",
        settings: settings.into(),
    }
}

fn tasks() -> Line {
    let tasks = [1, 8, 64, 256, 1_024];
    let setting = |tasks| Setting {
        tasks,
        ..Setting::MANY_KEYS
    };
    line("at a time", tasks, setting)
}

fn quotas() -> Line {
    let setting = |quotas| Setting {
        quotas,
        window: HOUR,
        ..Setting::MANY_KEYS
    };
    line("quotas per check", [1, 2, 3, 4, 5], setting)
}

fn line<T: Copy + ToString, const N: usize>(
    along: &'static str,
    values: [T; N],
    setting: impl Fn(T) -> Setting,
) -> Line {
    let settings = values.map(|value| (value.to_string(), setting(value)));
    Line {
        along,
        settings: settings.into(),
    }
}

/// Each cell has what was asked for; the ratio is that of the largest to the smallest of the first.
fn print_table(line: &Line, what: &str, measured: &[Samples], of: &[fn(&Sample) -> f64]) {
    let mut head = vec![line.along.to_owned()];
    head.extend(line.settings.iter().map(|(value, _)| value.clone()));
    head.push("largest / smallest".to_owned());
    let names = measured[0].0.iter().map(|(name, _)| *name);
    let row = |(at, name): (usize, &str)| {
        let median_of = |samples: &Samples, of: fn(&Sample) -> f64| {
            samples
                .0
                .get(at)
                .map(|(_, samples)| median(samples.iter().map(of)))
        };
        let mut row = vec![name.to_owned()];
        for samples in measured {
            let values = of
                .iter()
                .filter_map(|of| median_of(samples, *of))
                .map(short);
            row.push(values.collect::<Vec<_>>().join(" / "));
        }
        let firsts = measured
            .iter()
            .filter_map(|samples| median_of(samples, of[0]));
        let firsts: Vec<f64> = firsts.collect();
        let largest = firsts.iter().copied().fold(0.0, f64::max);
        let smallest = firsts.iter().copied().fold(f64::INFINITY, f64::min);
        row.push(format!("{:.2}", largest / smallest));
        row
    };
    let rows: Vec<_> = names.enumerate().map(row).collect();
    table::print(&format!("Along {}: {what}", line.along), &head, &rows);
}
