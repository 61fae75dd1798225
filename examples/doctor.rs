//! Checks whether a Redis is ready for rate limits: `cargo run --example doctor -- redis://127.0.0.1:6379`
//!
//! Without a URL it checks the Redis in `TOLLGATE_STORE`. Run it from the machine of the service, as the
//! Redis user of the service. Permissions are tested on keys with the default prefix, `tollgate`: if the
//! service calls `.prefix("shop")`, pass `shop` after the URL.
//!
//! | exit status | meaning |
//! |---|---|
//! | 0 | no problem was found |
//! | 1 | warnings: limits work, with a weaker guarantee |
//! | 2 | problems: checks fail, or limits may be exceeded |
//! | 3 | the URL is missing or invalid |

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
    let mut arguments = env::args().skip(1);
    let url = arguments.next().or_else(|| env::var("TOLLGATE_STORE").ok());
    let url = url.ok_or("no Redis to check: pass its URL, or set TOLLGATE_STORE")?;
    let prefix = arguments.next().unwrap_or_else(|| "tollgate".to_owned());
    let store = RedisStore::open(&url).map_err(|error| error.to_string())?;
    Ok(store.prefix(&prefix))
}
