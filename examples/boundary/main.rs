//! How many requests each algorithm admits around a window edge: `cargo run --example boundary`
//!
//! Sends the same bursts to every algorithm, on a test clock, and prints the most requests that were admitted
//! in any span as long as the window. The chart goes to `docs/boundary.svg`, or to the path in the first
//! argument.

mod picture;
mod traffic;

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use tollgate::Algorithm;
use traffic::{ALGORITHMS, Admitted, LIMIT, WINDOW};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let path = env::args_os().nth(1).map(PathBuf::from);
    let path = path.unwrap_or_else(|| "docs/boundary.svg".into());

    let mut drawn = Vec::new();
    println!(
        "limit {LIMIT} in {0} s; most requests admitted in any {0} s",
        WINDOW / 1_000
    );
    for algorithm in ALGORITHMS {
        let admitted = Admitted::by(algorithm).await?;
        println!("  {}", admitted.caption());
        // It decides like the sliding log, so one panel shows both.
        if algorithm != Algorithm::SortedSetLog {
            drawn.push(admitted);
        }
    }
    fs::write(&path, picture::of(&drawn)?)?;
    println!("chart written to {}", path.display());
    Ok(())
}
