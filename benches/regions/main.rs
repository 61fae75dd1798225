//! One limit over five regions, by several ways to share it: each region is a process, behind a port that delays what passes.
//! Prints tables; `../README.md` says how they are measured.
#![expect(
    clippy::float_arithmetic,
    clippy::cast_precision_loss,
    reason = "what is measured is shown to three digits"
)]

mod cell;
mod region;
#[expect(dead_code, reason = "the worst window is a part of it")]
#[path = "../../tests/support/spans.rs"]
mod spans;
#[path = "../support/mod.rs"]
mod support;

use std::thread::scope;
use std::time::Duration;

use cell::{Cell, Row};
use region::{LIMIT, REGIONS, Way, is_region};
use support::args::{Args, Usage};
use support::table;

/// How the requests are spread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Traffic {
    /// One region asks for twice the limit.
    OneBusy,
    /// All regions together ask for twice the limit.
    AllBusy,
    /// All regions together ask for 0.8 of the limit.
    Below,
    /// The same, and one region is cut off for a window and a half.
    Cut,
}

impl Traffic {
    const ALL: [Self; 4] = [Self::OneBusy, Self::AllBusy, Self::Below, Self::Cut];

    fn name(self) -> &'static str {
        match self {
            Self::OneBusy => "one region at 2 × the limit",
            Self::AllBusy => "five regions at 0.4 × each",
            Self::Below => "five regions at 0.16 × each",
            Self::Cut => "the same, one region cut off",
        }
    }

    /// Returns what each region asks for, in parts of the limit.
    fn parts(self) -> Vec<f64> {
        match self {
            Self::OneBusy => vec![2.0],
            Self::AllBusy => vec![0.4; REGIONS],
            Self::Below | Self::Cut => vec![0.16; REGIONS],
        }
    }

    fn ways(self) -> &'static [Way] {
        match self {
            Self::Cut => &[Way::LeaseOrRefuse, Way::LeaseOrFallBack],
            _ => &[Way::Home, Way::LeaseOrRefuse],
        }
    }
}

const ROUND_TRIPS: [u64; 3] = [80, 150, 250];

fn main() -> Result<(), lexopt::Error> {
    if is_region() {
        region::run();
        return Ok(());
    }
    let args = Args::parse(Usage {
        parts: &["home", "apart"],
        option: None,
        rounds: 2,
        // Whole windows, whether they are counted for 20 s or, with the lease, for 22 s.
        span: Duration::from_secs(220),
    })?;
    for round in 1..=args.rounds {
        let mut cells = Vec::new();
        if args.has("home") {
            for traffic in Traffic::ALL {
                for way in traffic.ways() {
                    cells.extend(ROUND_TRIPS.map(|millis| cell(traffic, *way, millis, &args)));
                }
            }
        }
        if args.has("apart") {
            for traffic in [Traffic::OneBusy, Traffic::AllBusy, Traffic::Below] {
                cells.extend([Way::Divided, Way::Each].map(|way| cell(traffic, way, 0, &args)));
            }
        }
        // Each has few requests, so that all run at the same time.
        let rows: Vec<Row> = scope(|scope| {
            let measured: Vec<_> = cells
                .into_iter()
                .map(|cell| scope.spawn(move || cell.measure(round as u64)))
                .collect();
            let rows = measured.into_iter();
            rows.map(|row| row.join().expect("a row")).collect()
        });
        let title = format!(
            "Round {round}: a limit of {LIMIT} per 20 s, a lease of 2 s, {:?} for each row",
            args.span
        );
        let rows: Vec<_> = rows.iter().map(Row::columns).collect();
        table::print(&title, &Row::HEAD.map(str::to_owned), &rows);
    }
    Ok(())
}

fn cell(traffic: Traffic, way: Way, millis: u64, args: &Args) -> Cell {
    Cell {
        traffic: traffic.name(),
        parts: traffic.parts(),
        way,
        round_trip: Duration::from_millis(millis),
        is_cut: traffic == Traffic::Cut,
        span: args.span,
    }
}
