//! tower-rate-limiter: a fixed window in memory, and GCRA on Redis. Each check costs one unit.

use std::time::Duration;

use tollgate_torture::{
    Bound, Contestant, Description, Entry, Failure, Offer, Reply, Setup, Verdict,
};
use tower_rate_limiter::{FixedWindow, GcraQuota, MemoryStore, RateLimitPolicy, RedisGcra};

const VERSION: &str = "0.2.0-alpha.0";

pub(crate) fn entries() -> [Entry; 2] {
    // Its docs call the wait of a refusal the earliest one, but promise no strict microseconds on Redis, where the policy
    // takes a connection that does not reconnect.
    let memory = Description::new(
        "tower-rate-limiter-memory",
        VERSION,
        Bound::FixedFromRequest,
    )
    .offers(&[Offer::Waits])
    .promises(&["threads", "edges", "waits"]);
    let redis = Description::new("tower-rate-limiter-redis", VERSION, Bound::Bucket)
        .offers(&[Offer::Redis, Offer::Cancel, Offer::Waits])
        .resolution(Duration::from_millis(1))
        .promises(&["threads", "processes", "edges", "cancelled", "skew"]);
    [
        Entry::new(memory, |setup| async move {
            let policy = FixedWindow::new(MemoryStore::new(), setup.limit.into(), setup.window);
            Ok(Policy(policy?))
        }),
        Entry::new(redis, on_redis),
    ]
}

async fn on_redis(setup: Setup) -> Result<Policy<RedisGcra>, Failure> {
    let client = redis::Client::open(setup.redis)?;
    let connection = client.get_multiplexed_async_connection().await?;
    let quota = GcraQuota::new(setup.limit, setup.window, setup.limit)?;
    Ok(Policy(RedisGcra::new(connection, quota)))
}

struct Policy<P>(P);

impl<P> Contestant for Policy<P>
where
    P: RateLimitPolicy + Send + Sync,
    P::Future: Send,
{
    fn check<'a>(&'a self, key: &'a str, _: u32) -> Reply<'a, Verdict> {
        let checking = self.0.check(key.to_owned());
        Box::pin(async move {
            let decision = checking
                .await
                .map_err(|error| Failure::new(format!("{error:?}")))?;
            Ok(match decision.is_rate_limited() {
                true => Verdict::refused(decision.retry_after()),
                false => Verdict::admitted(),
            })
        })
    }
}
