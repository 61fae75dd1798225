//! What Redis stores: the name and the bytes of each value.

use std::time::Duration;

use redis::{Commands, Connection};
use tollgate::Algorithm;

/// The bytes of a log before its runs, and of each run.
pub(crate) const HEADER: usize = 29;
pub(crate) const RUN: usize = 12;

/// The name of the key that counts for the tag `{limiter,key}`.
pub(crate) fn name_of(tag: &str, algorithm: Algorithm, window: Duration) -> String {
    let window = window.as_micros();
    let suffix = match algorithm {
        Algorithm::SlidingLog => ":log".to_owned(),
        Algorithm::SlidingBuckets(count) => {
            format!(":buckets:{}", window.div_ceil(u128::from(count)))
        }
        Algorithm::SortedSetLog => format!(":set:{window}"),
        _ => String::new(),
    };
    format!("tollgate:v3:{tag}{suffix}")
}

/// A whole number as Lua stores it in eight bytes.
#[expect(clippy::cast_precision_loss, reason = "below 2^53")]
pub(crate) fn double(number: u64) -> [u8; 8] {
    (number as f64).to_be_bytes()
}

/// The number of a double at these bytes of a value.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a time"
)]
pub(crate) fn double_at(value: &[u8], at: usize) -> u64 {
    f64::from_be_bytes(value[at..at + 8].try_into().expect("eight bytes")) as u64
}

/// The time of the server in seconds.
pub(crate) fn seconds(connection: &mut Connection) -> u32 {
    let (seconds, _): (u32, u32) = redis::cmd("TIME").query(connection).unwrap();
    seconds
}

/// The bytes of a log with a unit at each of these times.
pub(crate) fn log_of(expires: u32, window: u64, limit: u32, times: &[u64]) -> Vec<u8> {
    let mut bytes = expires.to_be_bytes().to_vec();
    bytes.extend([0; 8]);
    bytes.push(b'l');
    bytes.extend(double(window));
    bytes.extend(limit.to_be_bytes());
    bytes.extend([0; 4]);
    for (time, position) in times.iter().zip(1_u32..) {
        bytes.extend(double(*time));
        bytes.extend(position.to_be_bytes());
    }
    bytes
}

/// Stores such a log, which lives for an hour.
pub(crate) fn store_log(
    connection: &mut Connection,
    name: &str,
    window: u64,
    limit: u32,
    times: &[u64],
) {
    let expires = seconds(connection) + 3_600;
    let () = connection
        .set_ex(name, log_of(expires, window, limit, times), 3_600)
        .unwrap();
}
