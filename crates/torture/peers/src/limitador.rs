//! limitador: fixed windows in memory. Its docs guarantee never to go over the limits there.

use std::collections::HashMap;
use std::future::ready;
use std::time::Duration;

use limitador::RateLimiter;
use limitador::limit::{Context, Limit};
use tollgate_torture::{Bound, Contestant, Description, Entry, Failure, Offer, Reply, Verdict};

pub(crate) fn entry() -> Entry {
    let description = Description::new("limitador", "0.14.0", Bound::FixedFromRequest)
        .shortest_window(Duration::from_secs(1))
        .offers(&[Offer::Costs])
        .promises(&["threads", "edges", "costs"]);
    Entry::new(description, |setup| async move {
        let variables = vec!["key".try_into().map_err(|_| Failure::new("a variable"))?];
        let seconds = setup.window.as_secs();
        let limiter = RateLimiter::new(100_000);
        limiter.add_limit(Limit::new(
            "torture",
            setup.limit.into(),
            seconds,
            vec![],
            variables,
        ));
        Ok(Limitador(limiter))
    })
}

struct Limitador(RateLimiter);

impl Contestant for Limitador {
    fn check<'a>(&'a self, key: &'a str, cost: u32) -> Reply<'a, Verdict> {
        let values = HashMap::from([("key".to_owned(), key.to_owned())]);
        let context = Context::from(values);
        let checked =
            self.0
                .check_rate_limited_and_update(&"torture".into(), &context, cost.into());
        let verdict = checked.map(|result| Verdict::from(!result.limited));
        Box::pin(ready(
            verdict.map_err(|error| Failure::new(format!("{error:?}"))),
        ))
    }
}
