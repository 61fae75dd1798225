//! Products that are exact in Lua too, whose numbers are doubles. `lua/counters.lua` has the same functions.
//!
//! A double holds every integer below 2^53. So where time is multiplied by units, it is counted in ticks: the
//! smallest power of ten of microseconds for which units × window is below 2^53. With a limit of 100, a tick
//! is one microsecond for every window up to 366 days.

/// A double holds every integer below this number.
const EXACT: u64 = 1 << 53;

/// Returns the tick, in microseconds, in which `units` × `window` is exact.
#[inline]
pub(super) fn tick(units: u64, window: u64) -> u64 {
    let mut tick = 1;
    // For most quotas the first round is the only one, and it needs no division.
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
    // Most ticks are 1, and a division takes longer than all other arithmetic of a check.
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

/// The place of a time in windows that begin at multiples of their length since the epoch.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowPlace {
    /// The number of windows before this one.
    pub(super) index: u64,
    /// The time until the next window begins.
    pub(super) left: u64,
}

#[inline]
pub(super) fn aligned(now: u64, window: u64) -> WindowPlace {
    WindowPlace {
        index: now / window,
        left: window - now % window,
    }
}

pub(super) fn saturate(units: u64) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX)
}

/// Returns the time to live of a stored count, in milliseconds: two windows and one second.
///
/// A charge renews the time to live if less is left than the charge may count, so about once a window. The
/// extra second covers rounding to milliseconds, which matters for windows of a few milliseconds.
pub(crate) fn time_to_live_millis(window: u64) -> u64 {
    (2 * window).div_ceil(1_000) + 1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tick_is_the_smallest_power_of_ten_for_which_products_are_exact() {
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
