//! Limits how often it can run for a name: `cargo run -p own_store -- ada`
//!
//! Each name is admitted three times per minute. The counts are in `own_store.db`, which several processes
//! can share.

use std::process::ExitCode;

use tollgate::{Quota, RateLimiter};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, tollgate::Error> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "ada".to_owned());
    let store = own_store::open("own_store.db")?;
    let limiter = RateLimiter::new(store, Quota::per_minute(3)).name("runs");
    let decision = limiter.check(name).await?;
    if let Some(wait) = decision.retry_after() {
        println!("refused: retry in {wait:.1?}");
        return Ok(ExitCode::FAILURE);
    }
    println!("admitted: {} left", decision.remaining());
    Ok(ExitCode::SUCCESS)
}
