//! The command INCREX: a fixed window that the first request of a key opens, without a script.

use std::process::Command;

use redis::aio::ConnectionManager;
use tollgate_torture::{Bound, Contestant, Description, Entry, Offer, Reply, Setup, Verdict};

/// `None` where the server of this machine does not have the command.
pub(crate) fn entry() -> Option<Entry> {
    // The documentation calls it a single, atomic operation. A refusal tells no wait.
    let description = Description::new("increx", &server_version()?, Bound::FixedFromRequest)
        .resolution(std::time::Duration::from_millis(1))
        .offers(&[Offer::Redis, Offer::Cancel, Offer::Costs])
        .promises(&["threads", "processes", "edges", "costs", "cancelled"]);
    Some(Entry::new(description, |setup| async move {
        let client = redis::Client::open(setup.redis.as_str())?;
        let connection = client.get_connection_manager().await?;
        Ok(Increx { connection, setup })
    }))
}

/// The server's version, if it is Redis 8.8 or Valkey 9.2, or newer.
fn server_version() -> Option<String> {
    let output = Command::new("redis-server").arg("--version").output();
    let text = String::from_utf8_lossy(&output.ok()?.stdout).into_owned();
    let (name, version) = (text.split(' ').next()?, text.split("v=").nth(1)?);
    let version = version.split(' ').next()?;
    let mut numbers = version.split('.').map(|number| number.parse::<u32>().ok());
    let since = if name == "Valkey" { (9, 2) } else { (8, 8) };
    let has_it = (numbers.next()??, numbers.next()??) >= since;
    has_it.then(|| format!("{name}-{version}"))
}

struct Increx {
    connection: ConnectionManager,
    setup: Setup,
}

impl Contestant for Increx {
    fn check<'a>(&'a self, key: &'a str, cost: u32) -> Reply<'a, Verdict> {
        Box::pin(async move {
            let mut call = redis::cmd("INCREX");
            call.arg(key).arg("BYINT").arg(cost);
            call.arg("UBOUND").arg(self.setup.limit);
            let window = self.setup.window.as_millis().to_string();
            call.arg("PX").arg(window).arg("ENX");
            let reply = call.query_async(&mut self.connection.clone()).await?;
            let (_, charged): (u32, u32) = reply;
            Ok(Verdict::from(charged == cost))
        })
    }
}
