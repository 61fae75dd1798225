//! Products that stay exact in Lua, whose numbers are doubles. Twin of `lua/arithmetic.lua`.
//!
//! Products of units and time count the time in ticks. A tick is the smallest power of ten of
//! microseconds that keeps units × window below 2^53, the limit up to which a double holds every
//! integer. With a limit of 100, a tick is a microsecond for windows of up to 366 days.

/// Doubles are exact below this number.
const EXACT: u64 = 1 << 53;

/// Returns the tick, in microseconds, in which `units` × `window` is exact.
#[inline]
pub(super) fn tick(units: u64, window: u64) -> u64 {
    let mut tick = 1;
    // The first round needs no division: for most quotas it is the only one.
    let mut ticks = window;
    while u128::from(units) * u128::from(ticks) >= u128::from(EXACT) {
        tick *= 10;
        ticks = window.div_ceil(tick);
    }
    tick
}

/// Converts microseconds to ticks, rounded down.
#[inline]
pub(super) fn ticks(micros: u64, tick: u64) -> u64 {
    // A division takes longer than everything else that a check calculates.
    if tick == 1 { micros } else { micros / tick }
}

/// Converts microseconds to ticks, rounded up.
#[inline]
pub(super) fn ticks_up(micros: u64, tick: u64) -> u64 {
    if tick == 1 {
        micros
    } else {
        micros.div_ceil(tick)
    }
}

/// Returns the index of the aligned window that `now` is in, counted from the epoch, and the time
/// until the next window begins.
#[inline]
pub(super) fn aligned(now: u64, window: u64) -> (u64, u64) {
    let (index, elapsed) = (now / window, now % window);
    (index, window - elapsed)
}

pub(super) fn saturate(units: u64) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX)
}

/// Returns how long a stored count lives after it was last renewed, in milliseconds.
///
/// That is two windows and a second. A count is renewed when less is left than a charge may count, so about
/// once a window. The second keeps short windows from depending on a millisecond.
pub(crate) fn time_to_live_millis(window: u64) -> u64 {
    (2 * window).div_ceil(1_000) + 1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_is_the_smallest_power_of_ten_that_keeps_products_exact() {
        let day = 86_400_000_000;
        for (units, window, expected) in [
            (0, 366 * day, 1),
            (100, 366 * day, 1),
            (1_000, 366 * day, 10),
            (u64::from(u32::MAX), 366 * day, 100_000_000),
            (u64::from(u32::MAX), 1_000, 1),
        ] {
            assert_eq!(tick(units, window), expected, "{units} in {window}");
        }
    }
}
