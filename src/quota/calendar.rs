//! Calendars: the days, weeks or months of a time zone.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, RwLock};

use jiff::civil::{Date, Time};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Span, Timestamp};

use super::calendar_windows::{AlignedWindow, CalendarUnit};
use super::number::parse_number;
use crate::error::ConfigError;

/// Day 0 of all numbers of days, which are then above 0 for every time that a store may have. A Saturday.
const FIRST_DATE: Date = Date::constant(0, 1, 1);

/// The number of the first Monday.
const FIRST_MONDAY: i64 = 2;

/// A time in the year 9999, in microseconds since 1970. Later times, which no server has, are as this one.
const LAST_TIME: u64 = 253_000_000_000_000_000;

/// The rule for text that has the form of a calendar window but is none.
const RULE: &str = "it is a unit and a time zone of the IANA database, like month@Europe/Berlin, day@UTC, \
                    month:17@UTC for months that begin on the 17th, or day:04:00@UTC for days that begin at 04:00";

/// The days, weeks or months of a time zone. Cloning is cheap.
#[derive(Clone)]
pub(crate) struct Calendar {
    shared: Arc<Shared>,
    /// How many other calendars of this unit precede it in a list of quotas. Each has its own count.
    ordinal: u8,
}

struct Shared {
    rule: WindowRule,
    /// The windows around the last check. Computing them takes a microsecond.
    latest: RwLock<CalendarWindows>,
}

/// When windows begin.
#[derive(Clone)]
struct WindowRule {
    unit: CalendarUnit,
    /// The day on which windows begin: of a month from 1 to 31, of a week from 1 (Monday) to 7 (Sunday).
    first_day: i8,
    /// The local time at which windows begin on that day.
    begins_at: Time,
    zone: TimeZone,
}

/// A few windows in a row: one around the expected time, one before it, and those that follow.
///
/// A server decides by its own clock, so its time may be in the window before or after the expected one.
#[derive(Clone, Copy, Debug)]
struct CalendarWindows {
    /// The number of the first window. The numbers of a unit are consecutive, and the same in all zones.
    first: u64,
    /// The time at which each window begins, in microseconds since 1970.
    starts: [u64; Self::STARTS],
}

impl Calendar {
    pub(super) fn new(unit: CalendarUnit, zone: &str) -> Result<Self, ConfigError> {
        let known = TimeZone::get(zone)
            .ok()
            .filter(|zone| zone.iana_name().is_some());
        let zone = known.ok_or_else(|| {
            let rule = "it is a name of the IANA database, like Europe/Berlin or UTC";
            ConfigError::quota_part("time zone", zone, rule)
        })?;
        Ok(Self::by(WindowRule {
            unit,
            first_day: 1,
            begins_at: Time::midnight(),
            zone,
        }))
    }

    fn by(rule: WindowRule) -> Self {
        let latest = RwLock::new(CalendarWindows::NONE);
        Self {
            shared: Arc::new(Shared { rule, latest }),
            ordinal: 0,
        }
    }

    pub(super) fn starting_on(&self, day: u8) -> Result<Self, ConfigError> {
        let rule = self.shared.rule.clone();
        let last = match rule.unit {
            CalendarUnit::Day => 0,
            CalendarUnit::Week => 7,
            CalendarUnit::Month => 31,
        };
        let days = match rule.unit {
            CalendarUnit::Day => "a calendar day has none",
            CalendarUnit::Week => "of a week, it is from 1 (Monday) to 7 (Sunday)",
            CalendarUnit::Month => "of a month, it is from 1 to 31",
        };
        let valid = i8::try_from(day)
            .ok()
            .filter(|day| (1..=last).contains(day));
        match valid {
            Some(first_day) => Ok(Self::by(WindowRule { first_day, ..rule })),
            None => Err(ConfigError::quota_part("first day", &day.to_string(), days)),
        }
    }

    pub(super) fn starting_at(&self, hour: u8, minute: u8) -> Result<Self, ConfigError> {
        let begins_at = i8::try_from(hour)
            .ok()
            .zip(i8::try_from(minute).ok())
            .and_then(|(hour, minute)| Time::new(hour, minute, 0, 0).ok());
        let rule = self.shared.rule.clone();
        begins_at
            .map(|begins_at| Self::by(WindowRule { begins_at, ..rule }))
            .ok_or_else(|| {
                let time = format!("{hour:02}:{minute:02}");
                ConfigError::quota_part("start of a day", &time, "it is from 00:00 to 23:59")
            })
    }

    /// Parses the form that is displayed: `month@Europe/Berlin`, `month:17@Europe/Berlin`, `day:04:00@Europe/Berlin`,
    /// `week:2:04:00@Europe/Berlin`.
    pub(super) fn parse(text: &str) -> Result<Self, ConfigError> {
        let (window, zone) = text.split_once('@').ok_or_else(|| malformed(text))?;
        let parts: Vec<&str> = window.split(':').map(str::trim).collect();
        let (word, day, time) = match *parts {
            [word] => (word, None, None),
            [word, day] => (word, Some(day), None),
            [word, hour, minute] => (word, None, Some((hour, minute))),
            [word, day, hour, minute] => (word, Some(day), Some((hour, minute))),
            _ => return Err(malformed(text)),
        };
        let unit = CalendarUnit::ALL
            .into_iter()
            .find(|unit| unit.word() == word)
            .ok_or_else(|| malformed(text))?;
        let mut calendar = Self::new(unit, zone.trim())?;
        if let Some(day) = day {
            let day = parse_number(day).ok_or_else(|| malformed(text))?;
            calendar = calendar.starting_on(day)?;
        }
        if let Some((hour, minute)) = time {
            let hour = two_digits(hour).ok_or_else(|| malformed(text))?;
            let minute = two_digits(minute).ok_or_else(|| malformed(text))?;
            calendar = calendar.starting_at(hour, minute)?;
        }
        Ok(calendar)
    }

    pub(super) fn unit(&self) -> CalendarUnit {
        self.shared.rule.unit
    }

    pub(super) fn zone(&self) -> &str {
        self.shared.rule.zone.iana_name().unwrap_or_default()
    }

    fn facts(&self) -> (CalendarUnit, i8, Time, &str) {
        let rule = &self.shared.rule;
        (rule.unit, rule.first_day, rule.begins_at, self.zone())
    }

    pub(super) fn counted_micros(&self) -> u64 {
        self.shared.rule.unit.counted_micros(self.ordinal)
    }

    pub(super) fn ordinal(&self) -> u8 {
        self.ordinal
    }

    /// Gives the calendar a count of its own behind so many other calendars of its unit.
    pub(super) fn counted_after(self, ordinal: u8) -> Self {
        Self { ordinal, ..self }
    }

    /// Returns the number of the window before that at a time, and the times at which it and the next five begin.
    #[cfg(feature = "redis")]
    pub(crate) fn starts_around(&self, now: u64) -> (u64, [u64; CalendarWindows::STARTS]) {
        let windows = self.windows_around(now);
        (windows.first, windows.starts)
    }

    fn windows_around(&self, now: u64) -> CalendarWindows {
        if let Ok(latest) = self.shared.latest.try_read()
            && latest.are_around(now)
        {
            return *latest;
        }
        let windows = self.shared.rule.compute(now);
        // Another thread may be reading or writing it. Then a later check stores it.
        if let Ok(mut latest) = self.shared.latest.try_write() {
            *latest = windows;
        }
        windows
    }

    pub(crate) fn window_at(&self, now: u64) -> AlignedWindow {
        if let Ok(latest) = self.shared.latest.try_read()
            && let Some(window) = latest.window_at(now)
        {
            return window;
        }
        let windows = self.windows_around(now);
        windows.window_at(now).unwrap_or(AlignedWindow::LAST)
    }
}

fn two_digits(text: &str) -> Option<u8> {
    parse_number(text).filter(|_| text.len() == 2)
}

fn malformed(text: &str) -> ConfigError {
    ConfigError::quota_part("calendar window", text, RULE)
}

impl CalendarWindows {
    const STARTS: usize = 6;

    /// No windows: no time is in one of them.
    const NONE: Self = Self {
        first: 0,
        starts: [0; Self::STARTS],
    };

    /// Returns whether a time is in the second window, so that the one before it and those after it are known.
    fn are_around(&self, now: u64) -> bool {
        matches!(self.starts, [_, start, end, ..] if start <= now && now < end)
    }

    /// `None` unless the next two windows are known, too.
    fn window_at(&self, now: u64) -> Option<AlignedWindow> {
        (self.first..)
            .zip(self.starts.windows(4))
            .find_map(|(index, starts)| match starts {
                &[start, end, next_end, after_next_end] if start <= now && now < end => {
                    Some(AlignedWindow {
                        index,
                        left: end - now,
                        next_length: next_end.saturating_sub(end),
                        after_next_length: Some(after_next_end.saturating_sub(next_end)),
                    })
                }
                _ => None,
            })
    }
}

impl WindowRule {
    /// The number of the day on which week 0 begins, a few days before day 0.
    fn week_0_start(&self) -> i64 {
        FIRST_MONDAY - 7 + i64::from(self.first_day) - 1
    }

    /// Computes the windows around a time.
    ///
    /// If the time at which a day begins occurs twice, it is before that time for a while, although the day has begun. Then
    /// the time is in the third window.
    fn compute(&self, now: u64) -> CalendarWindows {
        let first = self.estimate(now.min(LAST_TIME)) - 1;
        let mut starts = [0; CalendarWindows::STARTS];
        for (start, index) in starts.iter_mut().zip(first..) {
            *start = self.start(index);
        }
        CalendarWindows {
            first: u64::try_from(first).unwrap_or_default(),
            starts,
        }
    }

    fn estimate(&self, now: u64) -> i64 {
        let time = i64::try_from(now)
            .ok()
            .and_then(|micros| Timestamp::from_microsecond(micros).ok())
            .unwrap_or(Timestamp::MAX);
        let since_midnight = self.begins_at.duration_since(Time::midnight());
        let date = self
            .zone
            .to_datetime(time)
            .saturating_sub(since_midnight)
            .date();
        match self.unit {
            CalendarUnit::Day => day_number(date),
            CalendarUnit::Week => (day_number(date) - self.week_0_start()).div_euclid(7),
            CalendarUnit::Month => {
                let month = i64::from(date.year()) * 12 + i64::from(date.month()) - 1;
                month - i64::from(date.day() < self.first_day.min(date.days_in_month()))
            }
        }
    }

    /// Returns the time at which a window begins, in microseconds since 1970.
    ///
    /// If summer time skips the time at which a day begins, the day begins after the gap. If that time occurs twice, the day
    /// begins at the first one.
    fn start(&self, index: i64) -> u64 {
        let start = self.first_date(index).and_then(|date| self.start_on(date));
        match start {
            Some(start) => u64::try_from(start.as_microsecond()).unwrap_or(0),
            None => u64::MAX,
        }
    }

    fn start_on(&self, date: Date) -> Option<Timestamp> {
        let start = self
            .zone
            .to_ambiguous_timestamp(date.to_datetime(self.begins_at));
        if let AmbiguousOffset::Gap { .. } = start.offset() {
            let before_gap = start.earlier().ok()?;
            let end_of_gap = self.zone.following(before_gap).next()?;
            return Some(end_of_gap.timestamp());
        }
        start.compatible().ok()
    }

    /// Returns the first date of a window, or `None` beyond the year 9999. In a month without the first day, it is
    /// the last day of the month.
    fn first_date(&self, index: i64) -> Option<Date> {
        match self.unit {
            CalendarUnit::Day => date_from_number(index),
            CalendarUnit::Week => date_from_number(7 * index + self.week_0_start()),
            CalendarUnit::Month => {
                let year = i16::try_from(index.div_euclid(12)).ok()?;
                let month = i8::try_from(index.rem_euclid(12) + 1).ok()?;
                let first = Date::new(year, month, 1).ok()?;
                Date::new(year, month, self.first_day.min(first.days_in_month())).ok()
            }
        }
    }
}

fn day_number(date: Date) -> i64 {
    date.duration_since(FIRST_DATE).as_hours() / 24
}

fn date_from_number(day_number: i64) -> Option<Date> {
    let days = Span::new().try_days(day_number).ok()?;
    FIRST_DATE.checked_add(days).ok()
}

impl PartialEq for Calendar {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared) || self.facts() == other.facts()
    }
}

impl Eq for Calendar {}

impl Hash for Calendar {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.facts().hash(state);
    }
}

impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Calendar({self})")
    }
}

/// Formats the calendar as it is parsed.
impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, first_day, begins_at, zone) = self.facts();
        f.write_str(unit.word())?;
        if first_day > 1 {
            write!(f, ":{first_day}")?;
        }
        if begins_at != Time::midnight() {
            write!(f, ":{:02}:{:02}", begins_at.hour(), begins_at.minute())?;
        }
        write!(f, "@{zone}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::longest_window;

    /// Zones with and without summer time, with changes at midnight, of half an hour, of two hours, and of a whole day.
    const ZONES: [&str; 12] = [
        "UTC",
        "Europe/Berlin",
        "America/New_York",
        "America/Sao_Paulo",
        "America/Havana",
        "America/St_Johns",
        "Africa/Cairo",
        "Antarctica/Troll",
        "Asia/Kolkata",
        "Asia/Gaza",
        "Australia/Lord_Howe",
        "Pacific/Apia",
    ];
    const SECOND: u64 = 1_000_000;
    /// The beginnings of 2010 and of 2021, in seconds since 1970.
    const YEARS: std::ops::Range<u64> = 1_262_304_000..1_609_459_200;

    /// The date of each day since 1970 as year, month, day and days of the month.
    fn dates() -> Vec<[i64; 4]> {
        let mut dates = Vec::new();
        for year in 1970..2022 {
            let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            let february = 28 + i64::from(is_leap);
            let lengths = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
            for (month, length) in (1..).zip(lengths) {
                dates.extend((1..=length).map(|day| [year, month, day, length]));
            }
        }
        dates
    }

    /// The number of the window that a day since 1970 belongs to, from any first window.
    fn label(calendar: &Calendar, dates: &[[i64; 4]], day: i64) -> i64 {
        let first_day = i64::from(calendar.shared.rule.first_day);
        match calendar.unit() {
            CalendarUnit::Day => day,
            // 1970-01-01 was a Thursday.
            CalendarUnit::Week => (day + 4 - first_day).div_euclid(7),
            CalendarUnit::Month => {
                let [year, month, day, length] = dates[usize::try_from(day).unwrap()];
                year * 12 + month - i64::from(day < first_day.min(length))
            }
        }
    }

    fn calendars(zone: &str) -> Vec<Calendar> {
        [
            "day",
            "day:00:30",
            "day:02:30",
            "week",
            "week:7",
            "week:2:04:00",
            "month",
            "month:17",
            "month:31",
            "month:31:23:30",
        ]
        .iter()
        .map(|window| Calendar::parse(&format!("{window}@{zone}")).unwrap())
        .collect()
    }

    /// A model that asks the zone only for its offset, each half an hour: a window begins when the local date and time reach
    /// the start of its first day for the first time.
    #[test]
    fn windows_begin_with_the_local_date_for_eleven_years_in_twelve_zones() {
        let dates = dates();
        for name in ZONES {
            let zone = TimeZone::get(name).unwrap();
            let calendars = calendars(name);
            // The first number of the calendar, the first of the model, and the latest of the model.
            let mut known: Vec<Option<(i64, i64)>> = vec![None; calendars.len()];
            for second in YEARS.step_by(1_800) {
                let time = i64::try_from(second).unwrap();
                let offset = zone.to_offset(Timestamp::from_second(time).unwrap());
                let local = time + i64::from(offset.seconds());
                for (calendar, known) in calendars.iter().zip(&mut known) {
                    let begins_at = calendar.shared.rule.begins_at;
                    let since_midnight = begins_at.duration_since(Time::midnight());
                    let day = (local - since_midnight.as_secs()).div_euclid(86_400);
                    let window = calendar.window_at(second * SECOND);
                    let index = i64::try_from(window.index).unwrap();
                    let label = label(calendar, &dates, day);
                    let (shift, latest) = known.unwrap_or((index - label, label));
                    // If midnight occurs twice, the local date steps back for a while.
                    let latest = latest.max(label);
                    assert_eq!(index, latest + shift, "{calendar} at {time}");
                    *known = Some((shift, latest));
                }
            }
        }
    }

    #[test]
    fn windows_follow_each_other_without_a_gap() {
        for calendar in ZONES.iter().flat_map(|name| calendars(name)) {
            let mut now = YEARS.start * SECOND;
            while now < YEARS.end * SECOND {
                let window = calendar.window_at(now);
                let last = calendar.window_at(now + window.left - 1);
                assert_eq!((last.index, last.left), (window.index, 1), "{calendar}");
                let next = calendar.window_at(now + window.left);
                assert!(next.index > window.index, "{calendar} at {now}");
                if next.index == window.index + 1 {
                    assert_eq!(next.left, window.next_length, "{calendar}");
                }
                assert!(next.left <= longest_window(calendar.counted_micros()));
                now += window.left;
            }
        }
    }

    fn hours(text: &str, seconds: u64) -> u64 {
        let calendar = Calendar::parse(text).unwrap();
        let window = calendar.window_at(seconds * SECOND);
        let windows = calendar.windows_around(seconds * SECOND);
        let [_, start, end, ..] = windows.starts;
        assert_eq!(window.left, end - seconds * SECOND);
        (end - start) / SECOND / 3_600
    }

    #[test]
    fn days_with_a_change_of_summer_time_have_23_or_25_hours() {
        // Noon of 29 March, 25 October and 26 October 2026, UTC.
        assert_eq!(hours("day@Europe/Berlin", 1_774_785_600), 23);
        assert_eq!(hours("day@Europe/Berlin", 1_792_929_600), 25);
        assert_eq!(hours("day@Europe/Berlin", 1_793_016_000), 24);
        assert_eq!(hours("day@UTC", 1_774_785_600), 24);
        // February 2027, February 2028, and the week of 29 March 2026.
        assert_eq!(hours("month@UTC", 1_802_000_000), 28 * 24);
        assert_eq!(hours("month@UTC", 1_834_000_000), 29 * 24);
        assert_eq!(hours("week@Europe/Berlin", 1_774_785_600), 7 * 24 - 1);
    }

    #[test]
    fn days_may_begin_at_another_time() {
        // 04:00 in Paris, on 18 June 2026.
        let four = 1_781_748_000 * SECOND;
        let at_four = "day:04:00@Europe/Paris";
        assert_eq!(index(at_four, four - 1) + 1, index(at_four, four));
        assert_eq!(index(at_four, four), index("day@Europe/Paris", four));
        // On 29 March 2026, Berlin had no time from 02:00 to 03:00, or 01:00 UTC; on 25 October 2026, it had 02:30 twice, first at
        // 00:30 UTC.
        let at_half = "day:02:30@Europe/Berlin";
        for start in [1_774_746_000, 1_792_888_200] {
            let start = start * SECOND;
            assert_eq!(index(at_half, start - 1) + 1, index(at_half, start));
            assert_eq!(
                index(at_half, start),
                index(at_half, start + 7_200 * SECOND)
            );
        }
        assert_eq!(hours(at_four, 1_781_748_000), 24);
    }

    #[test]
    fn a_month_without_the_billing_day_begins_on_its_last_day() {
        let calendar = Calendar::parse("month:31@UTC").unwrap();
        // 2027-01-31, 2027-02-28, 2027-03-31, 2027-04-30 and 2028-02-29.
        for start in [
            1_801_353_600,
            1_803_772_800,
            1_806_451_200,
            1_809_043_200,
            1_835_395_200,
        ] {
            let before = calendar.window_at(start * SECOND - 1);
            assert_eq!(before.left, 1, "{start}");
            assert_eq!(calendar.window_at(start * SECOND).index, before.index + 1);
        }
    }

    #[test]
    fn a_day_that_a_zone_skipped_has_no_window() {
        // Samoa had no 30 December 2011.
        let calendar = Calendar::parse("day@Pacific/Apia").unwrap();
        let end_of_29 = 1_325_239_200 * SECOND;
        let before = calendar.window_at(end_of_29 - 1);
        let after = calendar.window_at(end_of_29);
        assert_eq!((before.left, after.index), (1, before.index + 2));
        assert_eq!(after.left, 24 * 3_600 * SECOND);
    }

    #[test]
    fn a_day_that_has_begun_does_not_end_when_the_clocks_go_back_before_midnight() {
        // In Newfoundland, on 7 November 2010, the clocks went from 00:01 back to 23:01. 02:30 UTC was the first
        // midnight.
        let midnight = 1_289_097_000 * SECOND;
        let zone = "day@America/St_Johns";
        let half_an_hour = 1_800 * SECOND;
        let day = index(zone, midnight);
        assert_eq!(index(zone, midnight + half_an_hour), day);
        assert_eq!(day, index(zone, midnight - 1) + 1);
        let next_midnight = midnight + 25 * 3_600 * SECOND;
        assert_eq!(index(zone, next_midnight - 1), day);
        assert_eq!(index(zone, next_midnight), day + 1);
    }

    /// The number of the window at a time, without the windows of an earlier check.
    fn index(text: &str, now: u64) -> u64 {
        let calendar = Calendar::parse(text).unwrap();
        calendar.window_at(now).index
    }

    #[test]
    fn zones_number_their_windows_alike() {
        // Noon of 18 June 2026, UTC, when it is the same date in all of them.
        let noon = 1_781_784_000 * SECOND;
        for unit in ["day", "day:04:00", "week", "week:7", "month", "month:17"] {
            let in_utc = index(&format!("{unit}@UTC"), noon);
            for zone in ["Europe/Berlin", "America/New_York"] {
                let text = format!("{unit}@{zone}");
                assert_eq!(index(&text, noon), in_utc, "{text}");
            }
        }
    }

    #[test]
    fn every_time_is_in_a_window() {
        for calendar in calendars("America/New_York") {
            for now in [0, 1, SECOND, LAST_TIME, LAST_TIME * 2, u64::MAX] {
                let window = calendar.window_at(now);
                assert!(window.left > 0, "{calendar} at {now}");
            }
        }
    }

    #[test]
    fn threads_that_ask_for_distant_times_each_get_theirs() {
        let calendar = Calendar::parse("month@Europe/Berlin").unwrap();
        let times = [1_262_304_000, 1_400_000_000, 1_609_459_200].map(|time: u64| time * SECOND);
        let expected = times.map(|time| {
            Calendar::parse("month@Europe/Berlin")
                .unwrap()
                .window_at(time)
        });
        std::thread::scope(|scope| {
            for (time, expected) in times.into_iter().zip(expected) {
                let calendar = &calendar;
                scope.spawn(move || {
                    for _ in 0..10_000 {
                        assert_eq!(calendar.window_at(time), expected);
                    }
                });
            }
        });
    }

    #[test]
    fn the_error_of_malformed_text_names_the_broken_rule() {
        for (text, rule) in [
            ("month@", "IANA database"),
            (
                "month@Europe/Atlantis",
                "\"Europe/Atlantis\": it is a name of the IANA database",
            ),
            ("month@EST5EDT,M3.2.0,M11.1.0", "IANA database"),
            ("year@UTC", "it is a unit and a time zone"),
            ("@UTC", "it is a unit and a time zone"),
            ("month:0@UTC", "from 1 to 31"),
            ("month:32@UTC", "from 1 to 31"),
            ("month:-1@UTC", "it is a unit and a time zone"),
            ("month:x@UTC", "it is a unit and a time zone"),
            ("month:@UTC", "it is a unit and a time zone"),
            ("week:8@UTC", "from 1 (Monday) to 7 (Sunday)"),
            ("day:1@UTC", "a calendar day has none"),
            ("day:24:00@UTC", "\"24:00\": it is from 00:00 to 23:59"),
            ("day:04:60@UTC", "\"04:60\": it is from 00:00 to 23:59"),
            ("day:4:00@UTC", "day:04:00@UTC"),
            ("day:04:0@UTC", "day:04:00@UTC"),
            ("day:04:00:00@UTC", "a calendar day has none"),
            ("week:2:04:00:00@UTC", "day:04:00@UTC"),
            ("week:04:00+1@UTC", "day:04:00@UTC"),
            ("day@Europe/Berlin+04:00", "IANA database"),
        ] {
            let error = Calendar::parse(text).unwrap_err().to_string();
            assert!(error.contains(rule), "{text}: {error}");
        }
    }

    #[test]
    fn displayed_text_parses_to_an_equal_calendar() {
        for calendar in ZONES.iter().flat_map(|name| calendars(name)) {
            let parsed = Calendar::parse(&calendar.to_string()).unwrap();
            assert_eq!(parsed, calendar);
        }
        let calendar = Calendar::parse(" month : 17 @ europe/berlin ").unwrap();
        assert_eq!(calendar.to_string(), "month:17@Europe/Berlin");
    }
}
