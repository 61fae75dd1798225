//! The memory of a full key, next to the textbook's with two kinds of members.

use std::time::Duration;

use redis::Connection;
use tollgate::{Algorithm, RedisStore};

use crate::support::costs::{algorithms, fill, limiter, memory_of, memory_of_all};
use crate::support::redis_server::{RedisServer, run, times_to_live};
use crate::support::table::{self, beside};

const UNITS: [u32; 2] = [10, 1_000];

/// Fills the textbook's key with units, 100 µs apart. A member that is only a time is lost if another request
/// has the same time; a sequence number prevents that.
const FILL: &str = r"
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
for unit = 1, ARGV[1] do
  local at = ('%.0f'):format(now + unit * 100)
  redis.call('ZADD', KEYS[1], at, ARGV[2] == 'time' and at or at .. ':' .. unit)
end
";

pub(crate) async fn print(server: &RedisServer) {
    let mut connection = server.connect();
    let members = ["time:sequence", "time"];
    let [sequence, time] = members.map(|members| of_textbook(&mut connection, members));
    let mut rows = Vec::new();
    for (name, algorithm) in algorithms() {
        rows.push(row(name, of_algorithm(server, algorithm).await, sequence));
    }
    rows.push(row("textbook, members `time`", time, sequence));
    rows.push(row("textbook, members `time:sequence`", sequence, sequence));
    let head = ["a full key", "bytes at 10 units", "×", "at 1 000", "×"];
    table::print("Memory per key", &head.map(str::to_owned), &rows);
}

async fn of_algorithm(server: &RedisServer, algorithm: Algorithm) -> [u64; 2] {
    let mut connection = server.connect();
    let mut bytes = [0; 2];
    for (bytes, units) in bytes.iter_mut().zip(UNITS) {
        run(&mut connection, &["FLUSHALL"]);
        let store = RedisStore::open(&server.url()).expect("a URL");
        let limiter = limiter(store.deadline(Duration::from_secs(10)), algorithm, units).await;
        fill(&limiter, "ada", units).await;
        let keys = times_to_live(&mut connection);
        *bytes = memory_of_all(&mut connection, &keys);
    }
    bytes
}

fn of_textbook(connection: &mut Connection, members: &str) -> [u64; 2] {
    UNITS.map(|units| {
        run(connection, &["FLUSHALL"]);
        let (key, units) = ("ratelimit:ada", units.to_string());
        run(connection, &["EVAL", FILL, "1", key, &units, members]);
        memory_of(connection, key)
    })
}

fn row(name: &str, bytes: [u64; 2], textbook: [u64; 2]) -> Vec<String> {
    let mut row = vec![name.to_owned()];
    for (own, its) in bytes.into_iter().zip(textbook) {
        let [_, ratio] = beside(own as f64, own as f64 / its as f64);
        row.extend([own.to_string(), ratio]);
    }
    row
}
