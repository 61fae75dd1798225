//! Windows of a calendar as the algorithms take them: their numbers, and the times at which they begin.

const HOUR_MICROS: u64 = 3_600_000_000;
const DAY_MICROS: u64 = 24 * HOUR_MICROS;

/// The unit of a calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CalendarUnit {
    Day,
    Week,
    Month,
}

impl CalendarUnit {
    #[cfg(feature = "calendar")]
    pub(super) const ALL: [Self; 3] = [Self::Day, Self::Week, Self::Month];

    /// Returns the name in the text of a quota.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
        }
    }

    /// Returns the length of the longest window in a zone without summer time, in microseconds.
    pub(super) const fn nominal_micros(self) -> u64 {
        match self {
            Self::Day => DAY_MICROS,
            Self::Week => 7 * DAY_MICROS,
            Self::Month => 31 * DAY_MICROS,
        }
    }

    /// Returns the number that stands for the window of a count, in memory and in Redis, where other counts have the
    /// length of their window: no other quota has a window that long.
    ///
    /// It does not depend on the zone or the first day, so that a change of these keeps the count.
    #[cfg(feature = "calendar")]
    pub(super) const fn counted_micros(self, ordinal: u8) -> u64 {
        FIRST_CALENDAR_COUNT + 4 * (ordinal as u64) + self as u64
    }
}

/// More than the longest window of a quota, 366 days.
const FIRST_CALENDAR_COUNT: u64 = 400 * DAY_MICROS;

/// Returns the length of the longest window of a count, in microseconds, from the number that stands for its
/// window.
///
/// A window of a calendar may be two hours longer than its days, at the end of summer time.
pub(crate) const fn longest_window(counted_micros: u64) -> u64 {
    if counted_micros < FIRST_CALENDAR_COUNT {
        return counted_micros;
    }
    let unit = match (counted_micros - FIRST_CALENDAR_COUNT) % 4 {
        0 => CalendarUnit::Day,
        1 => CalendarUnit::Week,
        _ => CalendarUnit::Month,
    };
    unit.nominal_micros() + 2 * HOUR_MICROS
}

/// A few windows in a row: one around the expected time, one before it, and those that follow.
///
/// A server decides by its own clock, so its time may be in the window before or after the expected one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CalendarWindows {
    /// The number of the first window. The numbers of a unit are consecutive, and the same in all zones.
    pub(super) first: u64,
    /// The time at which each window begins, in microseconds since 1970.
    pub(super) starts: [u64; Self::STARTS],
}

/// The window that a check is in, of a calendar or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AlignedWindow {
    pub(crate) index: u64,
    /// The time until the next window begins, in microseconds.
    pub(crate) left: u64,
    /// The length of the next window, in microseconds.
    pub(crate) next_length: u64,
}

impl AlignedWindow {
    /// The window of a time after the last year of the calendar.
    #[cfg(feature = "calendar")]
    pub(super) const LAST: Self = Self {
        index: 1 << 50,
        left: 1 << 50,
        next_length: 0,
    };
}

impl CalendarWindows {
    pub(super) const STARTS: usize = 5;

    /// No windows: no time is in one of them.
    #[cfg(feature = "calendar")]
    pub(super) const NONE: Self = Self {
        first: 0,
        starts: [0; Self::STARTS],
    };

    /// Returns whether a time is in the second window, so that the one before it and those after it are known.
    #[cfg(feature = "calendar")]
    pub(super) fn are_around(&self, now: u64) -> bool {
        matches!(self.starts, [_, start, end, ..] if start <= now && now < end)
    }

    /// The number of the first window, and the start of each.
    #[cfg(feature = "redis")]
    pub(crate) fn parts(&self) -> (u64, &[u64]) {
        (self.first, &self.starts)
    }

    /// Returns the window at a time, or `None` if it is not one of those of which the next one is known.
    pub(super) fn window_at(&self, now: u64) -> Option<AlignedWindow> {
        let windows = (self.first..).zip(self.starts.windows(3));
        let mut windows = windows.filter_map(|(index, starts)| match starts {
            &[start, end, next_end] if start <= now && now < end => Some(AlignedWindow {
                index,
                left: end - now,
                next_length: next_end.saturating_sub(end),
            }),
            _ => None,
        });
        windows.next()
    }
}
