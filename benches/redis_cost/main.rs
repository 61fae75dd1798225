//! The cost of a decision in Redis: commands, CPU, network bytes and memory for each algorithm and the
//! textbook's sorted set, and how the cost grows. Prints tables; `../README.md` says how they are measured.
#![expect(
    clippy::float_arithmetic,
    clippy::cast_precision_loss,
    reason = "what is measured is shown to three digits"
)]

mod appended;
mod args;
mod charges;
mod contestant;
mod filling;
mod growth;
mod held;
mod sample;
mod setting;
mod steady;

#[path = "../support/mod.rs"]
mod support;

use args::{Args, Part};

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), lexopt::Error> {
    let args = Args::parse()?;
    let server = args.start_server(&[]);
    println!("{}", args.head(&server).await);
    for part in &args.parts {
        match part {
            Part::Held => held::print(&server).await,
            Part::Steady => steady::print(&server, &args).await,
            Part::Filling => filling::print(&server, &args).await,
            Part::Charges => charges::print(&server, &args).await,
            Part::Appended => appended::print(&args).await,
            Part::Growth => growth::print(&server, &args).await,
        }
    }
    Ok(())
}
