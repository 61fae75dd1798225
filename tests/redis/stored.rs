//! The bytes that the script stores, written by hand. `lua/README.md` describes them.

use redis::{Commands, Connection};

/// The code of a log, and the bytes before the data of the only section of a value.
pub(crate) const DATA: usize = 15;

/// The runs of a segment.
const SEGMENT: usize = 64;

/// Packs the data of a log or a segment of units charged at these times: `second` is that of the list, or
/// the offset of a segment.
fn packed(times: &[u64], second: u32, before: u32) -> Vec<u8> {
    let base = *times.first().expect("a run");
    #[expect(clippy::cast_precision_loss, reason = "below 2^53")]
    let mut data = (base as f64).to_be_bytes().to_vec();
    data.extend(second.to_be_bytes());
    data.extend(before.to_be_bytes());
    for (time, position) in times.iter().zip(before + 1..) {
        data.extend(
            u32::try_from(time - base)
                .expect("a narrow run")
                .to_be_bytes(),
        );
        data.extend(position.to_be_bytes());
    }
    data
}

/// Stores a large log of units charged at these times, which lives for an hour, with a window of at most 18
/// minutes.
pub(crate) fn store_log(connection: &mut Connection, value: &str, window: u64, times: &[u64]) {
    let (seconds, _): (u32, u32) = redis::cmd("TIME").query(connection).unwrap();
    let expires = seconds + 3_600;
    let listed = (times.len() - 1) / SEGMENT * SEGMENT;
    let segments = times[..listed].chunks(SEGMENT).zip(0..);
    let mut segments: Vec<_> = segments
        .map(|(times, number)| packed(times, 0, number * 64))
        .collect();
    let oldest = segments.remove(0);
    let list = format!("{value}:log:{window}");
    for segments in segments.chunks(1_000) {
        let () = connection.rpush(&list, segments).unwrap();
    }
    let mut bytes = expires.to_be_bytes().to_vec();
    bytes.push(b'l');
    bytes.extend(&window.to_be_bytes()[2..]);
    bytes.extend([0, 1, 0, 0]);
    let newest = packed(&times[listed..], expires, u32::try_from(listed).unwrap());
    bytes.extend(&newest[..16]);
    // Both are with positions.
    bytes.push(0);
    bytes.extend(oldest);
    bytes.extend(&newest[16..]);
    let () = connection.set_ex(value, bytes, 3_600).unwrap();
    let () = connection.expire(&list, 3_600).unwrap();
}

/// The double at the start of the data of a value's only section: the base of a log, the generation of a
/// counter.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a time"
)]
pub(crate) fn first_time(value: &[u8]) -> u64 {
    let double = value[DATA..DATA + 8].try_into().expect("eight bytes");
    f64::from_be_bytes(double) as u64
}

/// The units up to and with the last run of a log.
pub(crate) fn last_position(value: &[u8]) -> u32 {
    let position = value.last_chunk().expect("a run");
    u32::from_be_bytes(*position)
}
