//! Counts how often it is run for each name, in a file: `cargo run -p own_store -- ada` is admitted three times a
//! minute, also by several processes at once.

use std::process::ExitCode;

use own_store::SqliteStore;
use tollgate::{Quota, RateLimiter};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, tollgate::Error> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "ada".to_owned());
    let store = SqliteStore::open("own_store.db")?;
    let limiter = RateLimiter::new(store, Quota::per_minute(3)).name("runs");
    let decision = limiter.check(name).await?;
    if let Some(wait) = decision.retry_after() {
        println!("refused: again in {wait:.1?}");
        return Ok(ExitCode::FAILURE);
    }
    println!("admitted: {} left", decision.remaining());
    Ok(ExitCode::SUCCESS)
}
