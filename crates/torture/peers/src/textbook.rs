//! The tutorials' sorted set, with the time of Redis, on a connection that reconnects.

use redis::aio::ConnectionManager;
use tollgate_torture::{Bound, Contestant, Description, Entry, Offer, Reply, Setup, Verdict};

/// KEYS: one. ARGV: the limit, the window in milliseconds.
const SCRIPT: &str = include_str!("../../../../benches/textbook.lua");

pub(crate) fn entry() -> Entry {
    // The tutorials call the script atomic, and the window sliding.
    let description = Description::new("textbook", "sorted-set", Bound::Sliding)
        .offers(&[Offer::Redis, Offer::Cancel])
        .promises(&["threads", "processes", "edges", "cancelled"]);
    Entry::new(description, |setup| async move {
        let client = redis::Client::open(setup.redis.as_str())?;
        let connection = client.get_connection_manager().await?;
        Ok(Textbook { connection, setup })
    })
}

struct Textbook {
    connection: ConnectionManager,
    setup: Setup,
}

impl Contestant for Textbook {
    fn check<'a>(&'a self, key: &'a str, _: u32) -> Reply<'a, Verdict> {
        Box::pin(async move {
            let mut call = redis::cmd("EVAL");
            call.arg(SCRIPT).arg(1).arg(key);
            call.arg(self.setup.limit)
                .arg(self.setup.window.as_millis().to_string());
            let admitted: bool = call.query_async(&mut self.connection.clone()).await?;
            Ok(Verdict::from(admitted))
        })
    }
}
