//! cargo run --example outsider -- run --short
//!
//! The token bucket of the crate `ratelimit`, which is not in the list, as a contestant.

use std::{future::ready, process::ExitCode};

use ratelimit::Ratelimiter;
use tollgate_torture::{Bound, Contestant, Description, Entry, Offer, Reply, Verdict};

struct Outsider(Ratelimiter);

impl Contestant for Outsider {
    fn check<'a>(&'a self, _: &'a str, cost: u32) -> Reply<'a, Verdict> {
        Box::pin(ready(Ok(self.0.try_wait_n(cost.into()).is_ok().into())))
    }
}

fn main() -> ExitCode {
    let ratelimit = Description::new("ratelimit", "2.0.0", Bound::Bucket)
        .offers(&[Offer::Costs])
        .promises(&["threads", "edges", "costs"]);
    tollgate_torture::main([Entry::new(ratelimit, |setup| async move {
        let bucket = Ratelimiter::builder(setup.limit.into()).period(setup.window);
        let bucket = bucket
            .max_tokens(setup.limit.into())
            .initial_available(setup.limit.into());
        Ok(Outsider(bucket.build()?))
    })])
}
