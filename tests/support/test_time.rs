//! One time for a memory store and a Redis: it stands until the test moves it.

use std::time::Duration;

use tollgate::store::TestClock;
use tollgate::{MemoryStore, RedisStore};

use super::redis_server::RedisServer;

const CLOCK: &str = include_str!("clock.lua");

/// Sets the clock, and lets every key live so much shorter: a time to live that is too short then
/// shows as a wrong decision, as it would if the time had really passed.
const MOVE: &str = r"
redis.call('SET', 'test:clock', ARGV[1])
for _, key in ipairs(redis.call('KEYS', '*')) do
  if key ~= 'test:clock' then
    local left = redis.call('PTTL', key)
    if left < 0 then
      return redis.error_reply('no time to live: ' .. key)
    end
    if left <= tonumber(ARGV[2]) then
      redis.call('DEL', key)
    else
      redis.call('PEXPIRE', key, left - ARGV[2])
    end
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
    pub(crate) fn new(server: &RedisServer) -> Self {
        let mut time = Self {
            clock: TestClock::new(),
            connection: server.connect(),
            elapsed: Duration::ZERO,
        };
        time.show(0);
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
        let before = self.elapsed.as_millis();
        self.elapsed += step;
        self.clock.advance(step);
        self.show(self.elapsed.as_millis() - before);
    }

    pub(crate) fn step_back(&mut self, step: Duration) {
        self.clock.step_back(step);
        self.show(0);
    }

    fn show(&mut self, aged_millis: u128) {
        redis::cmd("EVAL")
            .arg(MOVE)
            .arg(0)
            .arg(self.clock.now_micros())
            .arg(aged_millis.to_string())
            .exec(&mut self.connection)
            .expect("every key has a time to live");
    }

    /// A connection to the server, for what only the test does.
    pub(crate) fn connection(&mut self) -> &mut redis::Connection {
        &mut self.connection
    }
}
