//! Looks whether a Redis is fit to count on: `cargo run --example doctor -- redis://127.0.0.1:6379`
//!
//! Without an argument it looks at `TOLLGATE_STORE`. Run it as the user and from the machine that the
//! service will have. For scripts, its exit status is
//!
//! - 0: as it should be, as far as could be seen,
//! - 1: warnings: it works, and promises less than it could,
//! - 2: problems: checks fail, or more is admitted than the limits say,
//! - 3: nothing was looked at, since there is no URL of a Redis.

use std::env;
use std::process::ExitCode;

use tollgate::RedisStore;
use tollgate::doctor::Severity;

#[tokio::main]
async fn main() -> ExitCode {
    let store = match store() {
        Ok(store) => store,
        Err(error) => {
            eprintln!("doctor: {error}");
            return ExitCode::from(3);
        }
    };
    let report = store.doctor().await;
    println!("{report}");
    match report.worst() {
        Severity::Problem => ExitCode::from(2),
        Severity::Warning => ExitCode::from(1),
        _ => ExitCode::SUCCESS,
    }
}

fn store() -> Result<RedisStore, String> {
    let url = env::args()
        .nth(1)
        .or_else(|| env::var("TOLLGATE_STORE").ok());
    let url = url.ok_or("no server to examine: pass the URL of a Redis, or set TOLLGATE_STORE")?;
    RedisStore::open(&url).map_err(|error| error.to_string())
}
