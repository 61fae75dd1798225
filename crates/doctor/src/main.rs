//! Examines whether a Redis is ready for rate limits: `cargo run --package tollgate-doctor -- redis://127.0.0.1:6379`
//!
//! The README has the arguments and the exit statuses.

use std::env;
use std::process::ExitCode;

use tollgate::RedisStore;
use tollgate_doctor::Severity;

#[tokio::main]
async fn main() -> ExitCode {
    let (store, is_strict) = match arguments() {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("doctor: {error}");
            return ExitCode::from(3);
        }
    };
    let report = tollgate_doctor::examine(&store).await;
    println!("{report}");
    match report.worst() {
        Severity::Problem => ExitCode::from(2),
        Severity::Warning => ExitCode::from(1),
        Severity::Ok => ExitCode::SUCCESS,
        _ if is_strict => ExitCode::from(4),
        _ => ExitCode::SUCCESS,
    }
}

/// The store, and whether each topic must be known.
fn arguments() -> Result<(RedisStore, bool), String> {
    let (options, arguments): (Vec<_>, Vec<_>) = env::args()
        .skip(1)
        .partition(|argument| argument.starts_with("--"));
    if options.iter().any(|option| option != "--strict") {
        // It may have the URL as its value, and so a password.
        return Err("unknown option: there is --strict".to_owned());
    }
    let mut arguments = arguments.into_iter();
    let url = arguments.next().or_else(|| env::var("TOLLGATE_STORE").ok());
    let url = url.ok_or("no Redis to check: pass its URL, or set TOLLGATE_STORE")?;
    let prefix = arguments.next().unwrap_or_else(|| "tollgate".to_owned());
    let store = RedisStore::open(&url).map_err(|error| error.to_string())?;
    Ok((store.prefix(&prefix), !options.is_empty()))
}
