//! Bursts at the edges of windows: `cargo run --example boundary --features test-util`
//!
//! Sends the same hostile traffic to every algorithm, on a clock that this moves by hand, and prints
//! how many requests were admitted in any span as long as the window. Draws it, too, to
//! `docs/boundary.svg` or the path that is given.

#[path = "boundary/picture.rs"]
mod picture;
#[path = "boundary/traffic.rs"]
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
        "limit {LIMIT} in {} s; admitted in any such span",
        WINDOW / 1_000
    );
    for algorithm in ALGORITHMS {
        let admitted = Admitted::by(algorithm).await?;
        println!("  {}", admitted.caption());
        // Decides as the sliding log does, so one picture shows both.
        if algorithm != Algorithm::SortedSetLog {
            drawn.push(admitted);
        }
    }
    fs::write(&path, picture::of(&drawn)?)?;
    println!("drawn to {}", path.display());
    Ok(())
}
