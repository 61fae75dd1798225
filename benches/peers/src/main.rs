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

use std::time::Duration;

use args::{Args, Mode};
use support::increx::{self, Increx};
use support::redis_server::RedisServer;

fn main() -> Result<(), lexopt::Error> {
    match Args::parse()? {
        Mode::Serve(serve) => child::serve(&serve),
        Mode::Bench(args) => bench(args),
    }
    Ok(())
}

fn bench(mut args: Args) {
    println!(
        "{} cores; medians of {} rounds of {:?} each.",
        std::thread::available_parallelism().map_or(0, usize::from),
        args.rounds,
        args.span,
    );
    if !has_increx() {
        println!("{}", increx::SKIPPED);
        args.contestants
            .retain(|one| one.name != contestants::INCREX);
    }
    for workload in &args.workloads {
        http::print(workload, &args);
    }
    if args.alone {
        alone::print(&args);
    }
    if args.idle {
        idle::print(&args);
    }
}

/// Whether the servers of this machine have the command.
#[tokio::main]
async fn has_increx() -> bool {
    let server = RedisServer::start();
    let url = server.url();
    let increx = Increx::connect(&url, 1, Duration::from_secs(1));
    increx.await.is_some()
}
