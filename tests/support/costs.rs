//! The cost of counting in Redis: the memory of a key and the commands of a check. A bench prints it, and a
//! test asserts its bounds.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::Connection;
use tollgate::{Algorithm, Quota, RateLimiter, RedisStore};

/// So long that no unit returns and no aligned window ends while a key is filled.
const WINDOW: Duration = Duration::from_secs(300 * 86_400);

/// Returns each algorithm with its name in tables: `Gcra`, `SlidingBuckets(60)`.
pub(crate) fn algorithms() -> impl Iterator<Item = (&'static str, Algorithm)> {
    let algorithms = Algorithm::ALL.iter().copied();
    algorithms.map(|algorithm| (&*format!("{algorithm:?}").leak(), algorithm))
}

/// A limiter that returns nothing while it is measured. The server knows its script already.
pub(crate) async fn limiter(store: RedisStore, algorithm: Algorithm, limit: u32) -> RateLimiter {
    let quota = Quota::new(limit, WINDOW).with_algorithm(algorithm);
    let limiter = RateLimiter::new(store, quota);
    let _ = limiter.peek("nobody").await.expect("the server answers");
    limiter
}

/// Sends checks of one unit, each after the one before, so that each has a different time. Concurrent checks would
/// coalesce, and a log stores units of one time together.
pub(crate) async fn fill(limiter: &RateLimiter, key: &str, units: u32) {
    for _ in 0..units {
        let decision = limiter.check(key).await;
        assert!(decision.expect("the server answers").is_allowed());
    }
}

/// What the server holds for a key, its name included, in bytes.
pub(crate) fn memory_of(connection: &mut Connection, key: &str) -> u64 {
    let mut usage = redis::cmd("MEMORY");
    // 0 samples: every member is looked at.
    usage.arg("USAGE").arg(key).arg("SAMPLES").arg(0);
    usage.query(connection).expect("the key is there")
}

/// The same for several keys together: a count may have more than one.
pub(crate) fn memory_of_all<T>(connection: &mut Connection, keys: &[(String, T)]) -> u64 {
    let keys = keys.iter();
    keys.map(|(key, _)| memory_of(connection, key)).sum()
}

/// Forgets what was called so far.
pub(crate) fn forget_calls(connection: &mut Connection) {
    let forgotten = redis::cmd("CONFIG").arg("RESETSTAT").exec(connection);
    forgotten.expect("CONFIG RESETSTAT");
}

/// How often each command was called since, but for those that measure.
pub(crate) fn calls(connection: &mut Connection) -> BTreeMap<String, u64> {
    let info = redis::cmd("INFO").arg("commandstats").query(connection);
    let info: String = info.expect("INFO answers");
    calls_in(&info)
}

/// The same, from what INFO has answered.
pub(crate) fn calls_in(info: &str) -> BTreeMap<String, u64> {
    let calls = info.lines().filter_map(|line| {
        let (name, stats) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let calls = stats.split(',').next()?.parse().ok()?;
        // Before Redis 7.0, subcommands have no separate lines.
        let measures = ["config", "config|resetstat", "info"].contains(&name);
        (!measures).then(|| (name.to_owned(), calls))
    });
    calls.collect()
}

/// How many commands scripts have run since. The call of the script is not one of them.
pub(crate) fn commands(connection: &mut Connection) -> u64 {
    let calls = calls(connection).into_iter();
    let in_scripts = calls.filter(|(name, _)| !["eval", "evalsha"].contains(&name.as_str()));
    in_scripts.map(|(_, calls)| calls).sum()
}
