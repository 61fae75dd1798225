//! The page on migrating from another limiter.

use tollgate::store::TestStore;
use tollgate::{Quota, Rejection, key};

use super::requests::{layer, refusing, send};
use crate::markdown::Block;

/// Checks that the window is the burst times the interval.
pub(super) fn quotas(block: &Block) -> Result<(), String> {
    for row in block.rows() {
        let [_, interval, burst, written] = &row[..] else {
            return Err(format!("{row:?} has other columns"));
        };
        let units = format!("{burst}/{interval}").parse::<Quota>();
        let units = units.map_err(|error| error.to_string())?;
        let window = (units.window() * units.limit()).as_secs();
        let quota = format!("`Quota::new({burst}, Duration::from_secs({window}))`");
        if *written != quota {
            return Err(format!("{written} should be {quota}"));
        }
    }
    Ok(())
}

/// Checks the column of this crate against a refused request.
pub(super) fn headers(block: &Block) -> Result<(), String> {
    let refused = send(&refusing());
    for row in block.rows() {
        let [what, _, here] = &row[..] else {
            return Err(format!("{row:?} has other columns"));
        };
        let matches = match what.split(' ').next() {
            Some("body") => {
                let rejection = refused.extensions().get::<Rejection>();
                rejection.is_some_and(|rejection| *here == format!("`{rejection}`"))
            }
            Some("status") => {
                let by_header = layer(TestStore::new()).key(key::header("x-api-key"));
                here.starts_with(send(&by_header).status().as_str())
            }
            _ => {
                let mut names = what.split('`').skip(1).step_by(2);
                let is_sent = !here.starts_with("not sent");
                names.all(|name| refused.headers().contains_key(name) == is_sent)
            }
        };
        if !matches {
            return Err(format!("{what} is not {here:?}"));
        }
    }
    Ok(())
}
