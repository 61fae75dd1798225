//! One row: a way to share the limit, at one distance and with one traffic.

use std::env::current_exe;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use crate::region::{Answered, LEASE, LIMIT, Orders, WINDOW, Way, unix_micros};
use crate::spans::{Admission, Admissions};
use crate::support::distance::Distance;
use crate::support::latencies::Latencies;
use crate::support::redis_server::RedisServer;
use crate::support::spent::Meter;
use crate::support::table::short;

/// Until the first units have left their window, and a process knows its part of the limit.
const WARM_UP: Duration = WINDOW.saturating_add(LEASE).saturating_add(LEASE);

pub(crate) struct Cell {
    pub(crate) traffic: &'static str,
    /// What each region asks for, in parts of the limit.
    pub(crate) parts: Vec<f64>,
    pub(crate) way: Way,
    pub(crate) round_trip: Duration,
    /// Whether the first region is cut off, from a quarter of the time on, for a window and a half.
    pub(crate) is_cut: bool,
    pub(crate) span: Duration,
}

pub(crate) struct Row {
    traffic: &'static str,
    way: Way,
    round_trip: Duration,
    worst: u64,
    /// Of what an exact limit without a distance would admit, in percent.
    served: f64,
    /// The same, of the requests of the first region while it was cut off.
    served_in_cut: Option<f64>,
    p50: f64,
    p99: f64,
    calls: f64,
}

impl Cell {
    pub(crate) fn measure(self, round: u64) -> Row {
        let mut servers: Vec<RedisServer> = Vec::new();
        let mut distances: Vec<Distance> = Vec::new();
        let mut regions = Vec::new();
        for (region, part) in self.parts.iter().enumerate() {
            if servers.is_empty() || !self.way.has_home() {
                servers.push(RedisServer::start());
            }
            let server = servers.last().expect("a server");
            let distance = Distance::to(server.port(), self.round_trip);
            let orders = Orders {
                url: distance.url(),
                way: self.way,
                rate: part * f64::from(LIMIT) / WINDOW.as_secs_f64(),
                lasts: WARM_UP + self.span,
                seed: 1_000 * round + region as u64,
            };
            distances.push(distance);
            regions.push(start(&orders));
        }
        // All have started, and begin.
        sleep(Duration::from_secs(2) + 4 * self.round_trip);
        regions
            .iter_mut()
            .for_each(|region| drop(region.stdin.take()));
        let begin = unix_micros() + micros(WARM_UP);
        sleep(WARM_UP);
        let mut meters: Vec<Meter> = servers
            .iter()
            .map(|server| Meter::new(server.connect()))
            .collect();
        meters.iter_mut().for_each(Meter::begin);
        let mut cut = None;
        if self.is_cut {
            sleep(self.span / 4);
            distances[0].cut_for(WINDOW * 3 / 2);
            let cut_at = unix_micros();
            cut = Some((cut_at, cut_at + micros(WINDOW * 3 / 2)));
        }
        let answers: Vec<Vec<Answered>> = regions.into_iter().map(answers).collect();
        let calls: f64 = meters.iter_mut().map(|meter| meter.spent().scripts).sum();
        self.row(begin, cut, &answers, calls)
    }

    fn row(
        &self,
        begin: u64,
        cut: Option<(u64, u64)>,
        answers: &[Vec<Answered>],
        calls: f64,
    ) -> Row {
        let mut latencies = Latencies::new();
        let mut requests = 0;
        let mut admissions = Vec::new();
        for answered in answers.iter().flatten() {
            let is_measured = answered.start >= begin;
            requests += u64::from(is_measured);
            if !answered.is_admitted {
                continue;
            }
            // The worst window may lie before the rest is measured.
            admissions.push(Admission {
                start: Duration::from_micros(answered.start),
                end: Duration::from_micros(answered.end),
                units: 1,
            });
            if is_measured {
                latencies.record(Duration::from_micros(answered.end - answered.start));
            }
        }
        let possible = f64::from(LIMIT) * self.span.as_secs_f64() / WINDOW.as_secs_f64();
        let in_cut = cut.map(|(from, to)| {
            let of_first = answers[0].iter();
            let asked: Vec<_> = of_first
                .filter(|own| (from..to).contains(&own.start))
                .collect();
            let admitted = asked.iter().filter(|own| own.is_admitted).count();
            100.0 * admitted as f64 / asked.len().max(1) as f64
        });
        let [p50, p99, _] = latencies.tail();
        Row {
            traffic: self.traffic,
            way: self.way,
            round_trip: self.round_trip,
            worst: Admissions::new(admissions).most_within(WINDOW),
            served: 100.0 * latencies.len() as f64 / possible.min(requests as f64),
            served_in_cut: in_cut,
            p50: p50 / 1_000.0,
            p99: p99 / 1_000.0,
            calls: calls / requests as f64,
        }
    }
}

fn start(orders: &Orders) -> Child {
    let (variable, text) = orders.variable();
    let program = current_exe().expect("a program");
    let mut command = Command::new(program);
    let command = command.env(variable, text);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().expect("a region")
}

fn answers(mut region: Child) -> Vec<Answered> {
    let mut text = String::new();
    let mut output = region.stdout.take().expect("its output");
    output.read_to_string(&mut text).expect("its answers");
    assert!(region.wait().expect("its end").success(), "a region failed");
    let answers = text.lines().map(Answered::parse);
    answers
        .map(|answered| answered.expect("an answer"))
        .collect()
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).expect("a short time")
}

impl Row {
    pub(crate) const HEAD: [&str; 9] = [
        "requests",
        "way",
        "round trip, ms",
        "worst window",
        "served, %",
        "of the region cut off, %",
        "p50, ms",
        "p99, ms",
        "calls a request",
    ];

    pub(crate) fn columns(&self) -> Vec<String> {
        let in_cut = self.served_in_cut.map_or_else(|| "–".to_owned(), short);
        vec![
            self.traffic.to_owned(),
            self.way.name().to_owned(),
            self.round_trip.as_millis().to_string(),
            self.worst.to_string(),
            short(self.served),
            in_cut,
            short(self.p50),
            short(self.p99),
            short(self.calls),
        ]
    }
}
