//! The page on migrating from other limiters.

use http::StatusCode;

use super::defaults::default_of;
use super::requests::{refusing, send, without_address, without_key};
use crate::markdown::{Block, numbers};

/// Checks that the window is the burst times the interval.
pub(super) fn quotas(block: &Block) -> Result<(), String> {
    for row in block.rows() {
        let [_, interval, burst, quota] = &row[..] else {
            return Err(format!("{row:?} has other columns"));
        };
        let arguments = numbers(&quota.replace('_', ""));
        let [limit, window] = &arguments[..] else {
            return Err(format!("{quota} is not a limit and a window"));
        };
        let unit = if quota.contains("from_millis") {
            "ms"
        } else {
            "s"
        };
        let expected =
            millis(interval) * burst.parse::<u64>().map_err(|error| error.to_string())?;
        if limit != burst || millis(&format!("{window} {unit}")) != expected {
            return Err(format!("{quota} is not {burst} in {expected} ms"));
        }
    }
    Ok(())
}

/// Reads "4 s" or "500 ms".
fn millis(text: &str) -> u64 {
    let number: u64 = numbers(text).concat().parse().expect("a number");
    if text.ends_with("ms") {
        number
    } else {
        1_000 * number
    }
}

/// Checks the column of this crate against a refused request.
pub(super) fn headers(block: &Block) -> Result<(), String> {
    let refused = send(&refusing());
    for row in block.rows() {
        let [what, _, here] = &row[..] else {
            return Err(format!("{row:?} has other columns"));
        };
        let matches = if what.starts_with("body") {
            default_of("RateLimitLayer::responder").is_some_and(|(body, _)| body == here)
        } else if what.starts_with("status") {
            let statuses = [without_key(), without_address()];
            numbers(here) == statuses.map(|status: StatusCode| status.as_u16().to_string())
        } else {
            let mut names = what.split('`').skip(1).step_by(2);
            names.all(|name| refused.headers().contains_key(name) == (here != "not sent"))
        };
        if !matches {
            return Err(format!("{what} is not {here:?}"));
        }
    }
    Ok(())
}
