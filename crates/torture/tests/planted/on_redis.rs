//! Limiters in Redis: a sorted set of charges.

use std::sync::Mutex;
use std::time::{Duration, Instant, UNIX_EPOCH};

use redis::Cmd;
use tollgate_torture::{Contestant, Failure, Reply, Setup, Verdict};

use crate::memory::locked;

/// KEYS: one. ARGV: limit, window in microseconds, cost, time of the caller or 0, whether to restart on a step back.
const SCRIPT: &str = "
local time, now = redis.call('TIME'), tonumber(ARGV[4])
if now == 0 then now = time[1] * 1000000 + time[2] end
local limit, window, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2]
if last and tonumber(last) > now then
  if ARGV[5] == '1' then redis.call('DEL', KEYS[1]) end
  -- Otherwise time stands still until a window has passed by the clock as it is now.
  if ARGV[4] == '0' and tonumber(last) > now + window then
    local moved = redis.call('ZRANGE', KEYS[1], 0, -1)
    for _, member in ipairs(moved) do redis.call('ZADD', KEYS[1], now, member) end
  end
end
local expired = string.format('%.0f', now - window)
-- Without memory, a script fails at its first write, unless that removes something.
if redis.call('ZCOUNT', KEYS[1], '-inf', expired) > 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', expired)
end
if redis.call('ZCARD', KEYS[1]) + cost > limit then return 0 end
for unit = 1, cost do
  redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[6] .. ':' .. unit)
end
redis.call('PEXPIRE', KEYS[1], math.ceil(window / 1000) + 1)
return 1";

pub(crate) struct OnRedis {
    fault: &'static str,
    setup: Setup,
    client: redis::Client,
    /// The hash of the script, which only one of them uses.
    hash: String,
    /// Until when the circuit breaker of two of them is open.
    open_until: Mutex<Instant>,
}

impl OnRedis {
    pub(crate) async fn connect(fault: &'static str, setup: Setup) -> Result<Self, Failure> {
        let client = redis::Client::open(setup.redis.as_str())?;
        let mut connection = client.get_multiplexed_async_connection().await?;
        let load = redis::cmd("SCRIPT").arg("LOAD").arg(SCRIPT).to_owned();
        Ok(Self {
            fault,
            hash: load.query_async(&mut connection).await?,
            setup,
            client,
            open_until: Mutex::new(Instant::now()),
        })
    }

    fn command(&self, key: &str, cost: u32) -> Cmd {
        let mut command = match self.fault {
            "script-once" => redis::cmd("EVALSHA").arg(&self.hash).to_owned(),
            _ => redis::cmd("EVAL").arg(SCRIPT).to_owned(),
        };
        #[expect(clippy::disallowed_methods, reason = "the planted fault")]
        let own_time = std::time::SystemTime::now().duration_since(UNIX_EPOCH);
        let own_time = own_time.map_or(0, |time| time.as_micros());
        let time = if self.fault == "own-clock" {
            own_time
        } else {
            0
        };
        let window = self.setup.window.as_micros();
        let restarts = u8::from(self.fault == "restarts-on-step");
        command
            .arg(1)
            .arg(key)
            .arg(self.setup.limit)
            .arg(window.to_string());
        command.arg(cost).arg(time.to_string()).arg(restarts);
        command.arg(unique());
        command
    }

    async fn ask(&self, key: &str, cost: u32) -> Result<bool, Failure> {
        let mut connection = self.client.get_multiplexed_async_connection().await?;
        Ok(self.command(key, cost).query_async(&mut connection).await?)
    }
}

/// A member that no other charge has, of any process.
fn unique() -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static LAST: AtomicU64 = AtomicU64::new(0);
    format!(
        "{}-{}",
        std::process::id(),
        LAST.fetch_add(1, Ordering::Relaxed)
    )
}

impl Contestant for OnRedis {
    fn check<'a>(&'a self, key: &'a str, cost: u32) -> Reply<'a, Verdict> {
        Box::pin(async move {
            if Instant::now() < *locked(&self.open_until) {
                return match self.fault {
                    "fails-closed" => Ok(false.into()),
                    _ => Err(Failure::new("the circuit breaker is open")),
                };
            }
            let patience = Duration::from_millis(if self.fault == "fails-open" {
                50
            } else {
                1_000
            });
            let asked = tokio::time::timeout(patience, self.ask(key, cost)).await;
            let mut asked = asked.map_err(Failure::from).flatten();
            if asked.is_err()
                && ["fails-closed", "charges-again-with-breaker"].contains(&self.fault)
            {
                *locked(&self.open_until) = Instant::now() + Duration::from_millis(30);
            }
            // As a client does that sends again until it has an answer: a call that fails in the end hides what it charged.
            for _ in 0..9 {
                if asked.is_err() && self.fault.starts_with("charges-again") {
                    asked = self.ask(key, cost).await;
                }
            }
            if asked.is_err() && self.fault == "fails-open" {
                asked = Ok(true);
            }
            if asked.is_err() && self.fault == "fails-closed" {
                asked = Ok(false);
            }
            asked.map(Verdict::from)
        })
    }
}
