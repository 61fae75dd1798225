//! redis-cell: GCRA in a module of Redis. `REDIS_CELL` is the path of the module; without it, it is no contestant.

use std::time::Duration;

use redis::aio::ConnectionManager;
use tollgate_torture::{Bound, Contestant, Description, Entry, Offer, Reply, Setup, Verdict};

pub(crate) fn entry() -> Option<Entry> {
    let module = std::env::var("REDIS_CELL").ok()?;
    // It calls itself a single, atomic command. The wait is in seconds, equivalent to `Retry-After`.
    let description = Description::new("redis-cell", "0.5.0", Bound::Bucket)
        .shortest_window(Duration::from_secs(1))
        .resolution(Duration::from_millis(1))
        .offers(&[Offer::Redis, Offer::Cancel, Offer::Costs, Offer::Waits])
        .promises(&[
            "threads",
            "processes",
            "edges",
            "costs",
            "cancelled",
            "waits",
        ]);
    let entry = Entry::new(description, |setup| async move {
        let client = redis::Client::open(setup.redis.as_str())?;
        let connection = client.get_connection_manager().await?;
        Ok(RedisCell { connection, setup })
    });
    Some(entry.server_arguments(&["--loadmodule", &module]))
}

struct RedisCell {
    connection: ConnectionManager,
    setup: Setup,
}

impl Contestant for RedisCell {
    fn check<'a>(&'a self, key: &'a str, cost: u32) -> Reply<'a, Verdict> {
        Box::pin(async move {
            let (limit, window) = (self.setup.limit, self.setup.window.as_secs());
            let mut call = redis::cmd("CL.THROTTLE");
            // A burst of the limit is written as one less.
            call.arg(key)
                .arg(limit.saturating_sub(1))
                .arg(limit)
                .arg(window)
                .arg(cost);
            let connection = &mut self.connection.clone();
            let (refused, .., wait, _): (bool, i64, i64, i64, i64) =
                call.query_async(connection).await?;
            Ok(match refused {
                true => Verdict::refused(u64::try_from(wait).ok().map(Duration::from_secs)),
                false => Verdict::admitted(),
            })
        })
    }
}
