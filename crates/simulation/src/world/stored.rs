//! The units in the values of a key.

use crate::server::StoredKey;

/// Returns the units that each count of a value has: of a log without expired runs, or of each counter of a row.
pub(super) fn stored_units(stored: &StoredKey<'_>) -> Vec<u32> {
    let text = stored.text.unwrap_or_default();
    if stored.name.ends_with(b"}") {
        row_units(text).unwrap_or_default()
    } else {
        log_units(text).into_iter().collect()
    }
}

fn log_units(text: &[u8]) -> Option<u32> {
    // Foreign bytes have none.
    text.get(12).filter(|mark| **mark == b'l')?;
    let last = number_at(text, text.len().checked_sub(4)?)?;
    Some(last.wrapping_sub(number_at(text, 25)?))
}

fn row_units(text: &[u8]) -> Option<Vec<u32>> {
    let length = u16::from_be_bytes(text.get(4..6)?.try_into().ok()?);
    let numbers = 6 + usize::from(length);
    let headers = text.get(6..numbers)?;
    let mut at = numbers;
    let mut units = Vec::new();
    for header in headers.chunks_exact(7) {
        let (counted, size) = match header.first()? {
            b'f' => (number_at(text, at + 16)?, 20),
            b'c' => {
                let previous = number_at(text, at + 16)?;
                (previous + number_at(text, at + 20)?, 24)
            }
            b'g' => {
                // Less than half a unit drains in a world. What a refund leaves of a unit that has drained a little is none.
                let rest = text.get(at + 20..at + 28)?.try_into().ok()?;
                let is_most = f64::from_be_bytes(rest) > window_in(header)? / 2.0;
                (number_at(text, at + 16)? + u32::from(is_most), 36)
            }
            b't' => (number_at(text, at + 8)?, 12),
            _ => return None,
        };
        units.push(counted);
        at += size;
    }
    Some(units)
}

/// Returns the window in the header of a counter. A unit of Gcra has as many parts.
fn window_in(header: &[u8]) -> Option<f64> {
    let mut bytes = [0; 8];
    bytes[2..].copy_from_slice(header.get(1..7)?);
    Some(u64::from_be_bytes(bytes) as f64)
}

fn number_at(text: &[u8], at: usize) -> Option<u32> {
    let bytes = text.get(at..at + 4)?.try_into().ok()?;
    Some(u32::from_be_bytes(bytes))
}
