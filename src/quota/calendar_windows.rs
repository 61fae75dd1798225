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

/// The window that a check is in, of a calendar or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AlignedWindow {
    pub(crate) index: u64,
    /// The time until the next window begins, in microseconds.
    pub(crate) left: u64,
    /// The length of the next window, in microseconds.
    pub(crate) next_length: u64,
    /// The length of the window after that, if windows follow a calendar.
    ///
    /// The same count may then be used in another zone, which may be two windows ahead: dates differ by up to two, at 26
    /// hours between the time zones.
    pub(crate) after_next_length: Option<u64>,
}

impl AlignedWindow {
    /// The window of a time after the last year of the calendar.
    #[cfg(feature = "calendar")]
    pub(super) const LAST: Self = Self {
        index: 1 << 50,
        left: 1 << 50,
        next_length: 0,
        after_next_length: Some(0),
    };

    /// Returns the last window that a stored count may be of. A later one is in the future, because the clock has stepped
    /// back.
    #[inline]
    pub(crate) fn last_index(&self) -> u64 {
        self.index + 1 + u64::from(self.after_next_length.is_some())
    }

    /// Returns the time until a window has ended, from this one to the last one that a stored count may be of.
    #[inline]
    pub(crate) fn left_from(&self, index: u64) -> u64 {
        let Self {
            left, next_length, ..
        } = *self;
        match index.saturating_sub(self.index) {
            0 => left,
            1 => left + next_length,
            _ => left + next_length + self.after_next_length.unwrap_or(0),
        }
    }
}
