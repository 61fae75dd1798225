//! Draws the pictures of the guide, with the numbers of real limiters: `cargo run --example pictures`
//!
//! They go to `docs`, or to the directory in the first argument: who is charged by levels and by nested layers, the charges of an
//! estimate and its settlement, an outage of Redis, and the shares of a limit.

mod costs;
mod drawing;
mod levels;
mod outage;
mod shares;

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let directory = env::args_os().nth(1).map(PathBuf::from);
    let directory = directory.unwrap_or_else(|| "docs".into());
    let pictures = [
        ("levels", levels::drawn().await?),
        ("costs", costs::drawn().await?),
        ("outage", outage::drawn()),
        ("shares", shares::drawn().await?),
    ];
    for (name, picture) in pictures {
        let path = directory.join(name).with_extension("svg");
        fs::write(&path, picture)?;
        println!("{}", path.display());
    }
    Ok(())
}
