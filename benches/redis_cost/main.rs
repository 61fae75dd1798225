//! The cost of a decision in Redis: commands, CPU, network bytes and memory for each algorithm and the
//! textbook's sorted set, and how the cost grows. Prints tables; `../README.md` says how they are measured.
#![expect(
    clippy::float_arithmetic,
    clippy::cast_precision_loss,
    reason = "what is measured is shown to three digits"
)]

mod args;
mod contestant;
mod cost;
mod growth;
mod held;
mod setting;

#[path = "../support/mod.rs"]
mod support;

use args::{Args, Part};
use support::redis_server::RedisServer;

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), lexopt::Error> {
    let args = Args::parse()?;
    let server = RedisServer::start();
    println!("{}", args.told(&server));
    for part in &args.parts {
        match part {
            Part::Held => held::print(&server).await,
            Part::Cost => cost::print(&server, &args).await,
            Part::Growth => growth::print(&server, &args).await,
        }
    }
    Ok(())
}
