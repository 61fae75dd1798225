//! tollgate and other limiters around one axum handler, with the same load: requests per second relative to
//! the server without a limiter, latency percentiles, and the cost in Redis. `../../README.md` says how it is
//! measured.

mod alone;
mod args;
mod child;
mod client;
mod contestants;
mod http;
mod idle;
mod replay;
mod workload;

#[path = "../../support/mod.rs"]
mod support;

use args::{Args, Mode};

fn main() -> Result<(), lexopt::Error> {
    match Args::parse()? {
        Mode::Serve(serve) => child::serve(&serve),
        Mode::Bench(args) => bench(&args),
    }
    Ok(())
}

fn bench(args: &Args) {
    println!(
        "{} cores; medians of {} rounds of {:?} each.",
        std::thread::available_parallelism().map_or(0, usize::from),
        args.rounds,
        args.span,
    );
    for workload in &args.workloads {
        http::print(workload, args);
    }
    if args.alone {
        alone::print(args);
    }
    if args.idle {
        idle::print(args);
    }
}
