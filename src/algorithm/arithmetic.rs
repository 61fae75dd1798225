//! Products that stay exact in Lua, whose numbers are doubles. Twin of `lua/arithmetic.lua`.
//!
//! Where units are multiplied by time, time is counted in ticks: the smallest power of ten of
//! microseconds for which units × window stays below 2^53, up to where a double holds every integer.
//! With a limit of 100, that is a microsecond for windows of up to 366 days.

/// Below this, doubles are exact.
const EXACT: u64 = 1 << 53;

/// The tick, in microseconds, in which so many units × window is exact.
pub(super) fn tick(units: u64, window: u64) -> u64 {
    let mut tick = 1;
    while u128::from(units) * u128::from(window.div_ceil(tick)) >= u128::from(EXACT) {
        tick *= 10;
    }
    tick
}

/// The window of time that `now` is in, counted from the epoch, and how long until the next begins.
pub(super) fn aligned(now: u64, window: u64) -> (u64, u64) {
    (now / window, window - now % window)
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
