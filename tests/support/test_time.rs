//! One time for a memory store and a Redis: it stands until the test moves it.

use std::time::Duration;

use tollgate::store::TestClock;
use tollgate::{MemoryStore, RedisStore};

use super::redis_server::RedisServer;

const CLOCK: &str = include_str!("clock.lua");

/// Sets the time, and deletes the keys whose time to live it ends: one that is too short then shows
/// as a wrong decision. A key without a time to live is an error.
const MOVE: &str = r"
redis.call('SET', 'test:clock', ARGV[1])
redis.call('SET', 'test:elapsed', ARGV[2])
for _, key in ipairs(redis.call('KEYS', '*')) do
  if key:sub(1, 5) ~= 'test:' then
    local deadline = redis.call('HGET', 'test:deadlines', key)
    if not deadline then
      return redis.error_reply('no time to live: ' .. key)
    end
    if tonumber(deadline) <= tonumber(ARGV[2]) then
      redis.call('DEL', key)
      redis.call('HDEL', 'test:deadlines', key)
    end
  end
end
for _, key in ipairs(redis.call('HKEYS', 'test:deadlines')) do
  if redis.call('EXISTS', key) == 0 then
    redis.call('HDEL', 'test:deadlines', key)
  end
end
return redis.status_reply('OK')
";

pub(crate) struct TestTime {
    clock: TestClock,
    connection: redis::Connection,
    elapsed: Duration,
}

impl TestTime {
    /// The time of a server, on which this leaves nothing else.
    pub(crate) fn new(server: &RedisServer) -> Self {
        let mut time = Self {
            clock: TestClock::new(),
            connection: server.connect(),
            elapsed: Duration::ZERO,
        };
        let flushed = redis::cmd("FLUSHALL").exec(&mut time.connection);
        flushed.expect("FLUSHALL");
        time.show();
        time
    }

    /// A memory store and a Redis store that live by this time.
    pub(crate) fn stores(&self, server: &RedisServer) -> (MemoryStore, RedisStore) {
        let redis = RedisStore::open(&server.url()).expect("a URL");
        (
            MemoryStore::with_clock(self.clock.clone()),
            redis
                .with_clock_source(CLOCK)
                // A slow machine is not what is tested.
                .deadline(Duration::from_secs(10)),
        )
    }

    pub(crate) fn advance(&mut self, step: Duration) {
        self.elapsed += step;
        self.clock.advance(step);
        self.show();
    }

    pub(crate) fn step_back(&mut self, step: Duration) {
        self.clock.step_back(step);
        self.show();
    }

    fn show(&mut self) {
        redis::cmd("EVAL")
            .arg(MOVE)
            .arg(0)
            .arg(self.clock.now_micros())
            .arg(self.elapsed.as_millis().to_string())
            .exec(&mut self.connection)
            .expect("every key has a time to live");
    }

    /// The keys of the store with what they have left to live, in milliseconds of this time.
    pub(crate) fn times_to_live(&mut self) -> Vec<(String, u128)> {
        let deadlines: Vec<(String, u128)> = redis::cmd("HGETALL")
            .arg("test:deadlines")
            .query(&mut self.connection)
            .expect("HGETALL answers");
        let elapsed = self.elapsed.as_millis();
        let left = deadlines
            .into_iter()
            .map(|(key, deadline)| (key, deadline - elapsed));
        left.collect()
    }

    /// A connection to the server, for what only the test does.
    pub(crate) fn connection(&mut self) -> &mut redis::Connection {
        &mut self.connection
    }
}
