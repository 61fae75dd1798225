//! One clock for a memory store and a Redis. It moves only when the test moves it.

use std::time::Duration;

use tollgate::store::TestClock;
use tollgate::{MemoryStore, RedisStore};

use super::redis_server::RedisServer;

const CLOCK: &str = include_str!("clock.lua");

/// For how long a refusal is remembered here.
const MAX_AGE_OF_DENIALS: Duration = Duration::from_secs(1);

/// Sets the time and deletes the keys that expire, so that a TTL that is too short causes a wrong decision. A
/// key without a TTL is an error: the deadlines are as many as the keys, but for those of the tests.
const MOVE: &str = r"
redis.call('SET', 'test:clock', ARGV[1])
local now = math.floor(tonumber(ARGV[1]) / 1000)
local deadlines = redis.call('HGETALL', 'test:deadlines')
local alive = 0
for index = 1, #deadlines, 2 do
  local key, is_alive = deadlines[index], false
  if tonumber(deadlines[index + 1]) <= now then
    redis.call('DEL', key)
  else
    is_alive = redis.call('EXISTS', key) == 1
  end
  if is_alive then
    alive = alive + 1
  else
    redis.call('HDEL', 'test:deadlines', key)
  end
end
-- The time, and the deadlines unless there are none.
local of_tests = 1 + redis.call('EXISTS', 'test:deadlines')
if alive + of_tests < redis.call('DBSIZE') then
  for _, key in ipairs(redis.call('KEYS', '*')) do
    if key:sub(1, 5) ~= 'test:' and redis.call('HEXISTS', 'test:deadlines', key) == 0 then
      return redis.error_reply('no time to live: ' .. key)
    end
  end
end
return redis.status_reply('OK')
";

/// The time, and two stores that live by it.
pub(crate) struct TestTime {
    clock: TestClock,
    /// The clock of this process, which never steps.
    local: TestClock,
    connection: redis::Connection,
    pub(crate) memory: MemoryStore,
    pub(crate) redis: RedisStore,
    /// The same store in Redis, but refusals are not remembered: it is always asked.
    pub(crate) uncached: RedisStore,
}

impl TestTime {
    /// The time of a server, on which this leaves nothing else.
    pub(crate) fn new(server: &RedisServer) -> Self {
        Self::at(server, &server.url())
    }

    /// The same, with the URL of its store.
    pub(crate) fn at(server: &RedisServer, url: &str) -> Self {
        let (clock, local) = (TestClock::new(), TestClock::new());
        let redis = RedisStore::open(url)
            .expect("a URL")
            .with_clock_source(CLOCK, local.clone())
            // A slow machine is not what is tested.
            .deadline(Duration::from_secs(10));
        let mut time = Self {
            memory: MemoryStore::with_clock(clock.clone()),
            uncached: redis.fork().refusal_cache(Duration::ZERO),
            redis,
            connection: server.connect(),
            clock,
            local,
        };
        let flushed = redis::cmd("FLUSHALL").exec(&mut time.connection);
        flushed.expect("FLUSHALL");
        time.show();
        time
    }

    pub(crate) fn advance(&mut self, step: Duration) {
        self.clock.advance(step);
        self.local.advance(step);
        self.show();
    }

    /// The time in microseconds.
    pub(crate) fn now(&self) -> u64 {
        self.clock.now_micros()
    }

    /// Sets the clock back. What a server keeps lives until a time of that same clock; what this
    /// process remembers of it is soon too old.
    pub(crate) fn step_back(&mut self, step: Duration) {
        self.clock.step_back(step);
        self.local.advance(MAX_AGE_OF_DENIALS);
        self.show();
    }

    /// Steps the clock of the stores forward. That of this process goes on.
    pub(crate) fn step_forward(&mut self, step: Duration) {
        self.clock.advance(step);
        self.show();
    }

    /// What has died is gone from both stores as soon as it has, so that a step back cannot find it
    /// in one of them only.
    fn show(&mut self) {
        self.memory.remove_dead();
        redis::cmd("EVAL")
            .arg(MOVE)
            .arg(0)
            .arg(self.clock.now_micros())
            .exec(&mut self.connection)
            .expect("every key has a time to live");
    }

    /// The keys of the store with what they have left to live, in milliseconds of this time.
    pub(crate) fn times_to_live(&mut self) -> Vec<(String, i128)> {
        let deadlines: Vec<(String, i128)> = redis::cmd("HGETALL")
            .arg("test:deadlines")
            .query(&mut self.connection)
            .expect("HGETALL answers");
        let now = i128::from(self.clock.now_micros() / 1_000);
        let left = deadlines
            .into_iter()
            .map(|(key, deadline)| (key, deadline - now));
        left.collect()
    }

    /// A connection to the server, for what only the test does.
    pub(crate) fn connection(&mut self) -> &mut redis::Connection {
        &mut self.connection
    }
}
