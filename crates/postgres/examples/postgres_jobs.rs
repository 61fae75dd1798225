//! Jobs of several processes that share a limit in Postgres: `cargo run --package tollgate-postgres --example postgres_jobs`
//!
//! Pass the URL of a database, or set `STORE`. Start it twice: the two processes together run five jobs a second.

use std::time::Duration;

use tollgate::{Quota, RateLimiter};
use tollgate_postgres::PostgresRows;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args()
        .nth(1)
        .or_else(|| std::env::var("STORE").ok());
    let url = url.ok_or("pass a URL, such as postgres://shop:secret@127.0.0.1/shop")?;
    let rows = PostgresRows::open(&url)?.schema("jobs");
    rows.migrate().await?;
    for line in rows.doctor().await? {
        println!("{line}");
    }
    let limiter = RateLimiter::new(rows.into_store(), Quota::per_second(5)).name("jobs");
    for job in 1..=12 {
        let decision = limiter
            .until_ready("mails", 1, Duration::from_secs(10))
            .await?;
        println!(
            "job {job} runs, {} more may start now",
            decision.remaining()
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
