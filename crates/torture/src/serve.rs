//! The line protocol, for contestants in Rust.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::contestant::{Contestant, Failure, Setup};
use crate::entry::Entry;
use crate::history::micros;

/// Speaks the protocol for a contestant in Rust, until its input ends.
pub(crate) fn serve(entry: &Entry, runtime: &Handle) -> Result<(), Failure> {
    println(&entry.description);
    let mut contestant: Option<Arc<dyn Contestant>> = None;
    for line in std::io::stdin().lines() {
        let line = line?;
        let (id, request) = line.split_once(' ').unwrap_or((&line, ""));
        if let Some(setup) = request.strip_prefix("setup ") {
            let made = set_up(entry, setup, runtime);
            match made {
                Ok(made) => {
                    contestant = Some(made);
                    println(format_args!("{id} done"));
                }
                Err(error) => println(format_args!("{id} failed {error}")),
            }
            continue;
        }
        let Some(contestant) = contestant.clone() else {
            println(format_args!("{id} failed no setup"));
            continue;
        };
        let id = id.to_owned();
        let request = request.to_owned();
        // Calls overlap.
        runtime.spawn(async move {
            match answer(&*contestant, &request).await {
                Ok(reply) => println(format_args!("{id} {reply}")),
                Err(error) => println(format_args!("{id} failed {error}")),
            }
        });
    }
    Ok(())
}

fn set_up(entry: &Entry, setup: &str, runtime: &Handle) -> Result<Arc<dyn Contestant>, Failure> {
    let words: Vec<_> = setup.split(' ').collect();
    let [limit, window, ref redis @ ..] = words[..] else {
        return Err(Failure::new("expected LIMIT WINDOW REDIS"));
    };
    let window = Duration::from_micros(window.parse()?);
    let redis = redis.first().copied().unwrap_or_default().to_owned();
    runtime.block_on(entry.make(Setup::new(limit.parse()?, window, redis)))
}

async fn answer(contestant: &dyn Contestant, request: &str) -> Result<String, Failure> {
    let words: Vec<_> = request.split(' ').collect();
    let done = "done".to_owned();
    match *words {
        ["check", key, cost] => {
            let verdict = contestant.check(key, cost.parse()?).await?;
            Ok(match (verdict.admitted, verdict.retry_after) {
                (true, _) => format!("admitted {}", verdict.receipt),
                (false, Some(wait)) => format!("refused {}", micros(wait)),
                (false, None) => "refused".to_owned(),
            })
        }
        ["refund", key, receipt, units] => {
            let refund = contestant.refund(key, receipt.parse()?, units.parse()?);
            refund.await.map(|()| done)
        }
        ["acquire", key] => {
            let slot = contestant.acquire(key).await?;
            Ok(slot.map_or_else(|| "refused".to_owned(), |slot| format!("admitted {slot}")))
        }
        ["release", key, slot] => {
            let release = contestant.release(key, slot.parse()?);
            release.await.map(|()| done)
        }
        _ => Err(Failure::new(format!("unknown request {request:?}"))),
    }
}

/// Writes a line of the protocol. Standard output is line-buffered.
fn println(line: impl std::fmt::Display) {
    // Without a reader, the input ends soon, too.
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}
