//! trypema: sliding windows in memory and on Redis. Its docs call admission best-effort under concurrency, and the wait a
//! hint, so it promises only what one caller sees.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use tollgate_torture::{
    Bound, Contestant, Description, Entry, Failure, Offer, Reply, Setup, Verdict,
};
use trypema::local::LocalRateLimiterProvider;
use trypema::redis::{RedisKey, RedisRateLimiterProvider};
use trypema::{BucketSize, RateLimit, RateLimitDecision, RateLimiterBuilder, WindowSize};

pub(crate) fn entries() -> [Entry; 2] {
    let describe = |name, offers: &[Offer]| {
        Description::new(name, "2.2.1", Bound::Sliding)
            .shortest_window(Duration::from_secs(1))
            .resolution(Duration::from_millis(10))
            .offers(offers)
            .promises(&["edges"])
    };
    let redis = [Offer::Redis, Offer::Cancel, Offer::Costs, Offer::Waits];
    [
        Entry::new(
            describe("trypema-memory", &[Offer::Costs, Offer::Waits]),
            in_memory,
        ),
        Entry::new(describe("trypema-redis", &redis), on_redis),
    ]
}

async fn in_memory(setup: Setup) -> Result<InMemory, Failure> {
    let builder = LocalRateLimiterProvider::builder();
    let builder = builder
        .window_size(window(&setup)?)
        .bucket_size(BucketSize::milliseconds(10)?);
    Ok(InMemory(builder.build()?, rate(&setup)?))
}

async fn on_redis(setup: Setup) -> Result<OnRedis, Failure> {
    let client = redis::Client::open(setup.redis.as_str())?;
    let builder = RedisRateLimiterProvider::builder(client.get_connection_manager().await?);
    let builder = builder
        .window_size(window(&setup)?)
        .bucket_size(BucketSize::milliseconds(10)?);
    Ok(OnRedis(builder.build()?, rate(&setup)?))
}

fn window(setup: &Setup) -> Result<WindowSize, Failure> {
    Ok(WindowSize::seconds(setup.window.as_secs())?)
}

fn rate(setup: &Setup) -> Result<RateLimit, Failure> {
    Ok(RateLimit::per_second(
        f64::from(setup.limit) / setup.window.as_secs_f64(),
    )?)
}

fn verdict(decision: &RateLimitDecision) -> Verdict {
    match decision {
        RateLimitDecision::Rejected { retry_after, .. } => Verdict::refused(Some(*retry_after)),
        _ => Verdict::admitted(),
    }
}

struct InMemory(Arc<LocalRateLimiterProvider>, RateLimit);

impl Contestant for InMemory {
    fn check<'a>(&'a self, key: &'a str, cost: u32) -> Reply<'a, Verdict> {
        let decision = self.0.absolute().inc(key, &self.1, cost.into());
        Box::pin(ready(Ok(verdict(&decision))))
    }
}

struct OnRedis(Arc<RedisRateLimiterProvider>, RateLimit);

impl Contestant for OnRedis {
    fn check<'a>(&'a self, key: &'a str, cost: u32) -> Reply<'a, Verdict> {
        Box::pin(async move {
            let key = RedisKey::try_from(key.to_owned())?;
            let decision = self.0.absolute().inc(&key, &self.1, cost.into()).await?;
            Ok(verdict(&decision))
        })
    }
}
