//! Quotas whose windows are the days, weeks or months of a time zone.

use super::calendar::Calendar;
use super::calendar_windows::CalendarUnit;
use super::quota::Quota;
use crate::error::ConfigError;

#[cfg_attr(docsrs, doc(cfg(feature = "calendar")))]
impl Quota {
    /// Creates a quota of `limit` units in each day of a time zone, from midnight to midnight, or from
    /// [another time](Self::starting_at) on.
    ///
    /// See [`per_calendar_month`](Self::per_calendar_month), which says what all calendar windows have in common.
    ///
    /// # Errors
    ///
    /// Returns an error if the database has no zone of this name.
    pub fn per_calendar_day(limit: u32, zone: &str) -> Result<Self, ConfigError> {
        let calendar = Calendar::new(CalendarUnit::Day, zone)?;
        Ok(Self::from_calendar(limit, calendar))
    }

    /// Creates a quota of `limit` units in each week of a time zone. Weeks begin on Mondays, as in ISO 8601, or
    /// on another day: see [`starting_on`](Self::starting_on).
    ///
    /// See [`per_calendar_month`](Self::per_calendar_month), which says what all calendar windows have in common.
    ///
    /// # Errors
    ///
    /// Returns an error if the database has no zone of this name.
    pub fn per_calendar_week(limit: u32, zone: &str) -> Result<Self, ConfigError> {
        let calendar = Calendar::new(CalendarUnit::Week, zone)?;
        Ok(Self::from_calendar(limit, calendar))
    }

    /// Creates a quota of `limit` units in each month of a time zone, for plans that are billed by the month.
    ///
    /// `zone` is a name of the [IANA database](https://www.iana.org/time-zones), such as `Europe/Berlin` or `UTC`.
    /// The database of the system is used, or a copy in the program if the system has none. A month begins on its
    /// first day, or on a billing day: see [`starting_on`](Self::starting_on).
    ///
    /// Calendar windows are counted as [`FixedWindow`](crate::Algorithm::FixedWindow) counts aligned windows: never more than the
    /// limit in one window, by the clock of the store. `retry_after` and `reset_after` end where the next window
    /// begins. Days with a change to or from summer time have 23 or 25 hours. A day whose midnight is skipped
    /// begins when the skipped time ends.
    ///
    /// [`window`](Self::window) is the nominal length: 1, 7 or 31 days.
    ///
    /// # What a change keeps
    ///
    /// A change of the limit, the zone, the first day or the time at which it begins keeps the count. Months are numbered, so a count of May in
    /// Berlin is one of May in New York. For the hours in which it is June in one zone and May in the other, the
    /// new zone keeps the later count, which then counts until the end of its June. If a change moves a key into a
    /// later window, the units that were charged in the earlier one are forgotten: for example if a billing day is
    /// replaced by the first day of the month. While processes with both zones run, up to twice the limit is
    /// admitted.
    ///
    /// # Errors
    ///
    /// Returns an error if the database has no zone of this name.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::Quota;
    ///
    /// let plan = Quota::per_calendar_month(1_000_000, "Europe/Berlin")?;
    /// assert_eq!(plan, "1000000/month@Europe/Berlin".parse()?);
    ///
    /// let billed_on_the_17th = plan.starting_on(17)?;
    /// assert_eq!(billed_on_the_17th.to_string(), "1000000/month:17@Europe/Berlin");
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub fn per_calendar_month(limit: u32, zone: &str) -> Result<Self, ConfigError> {
        let calendar = Calendar::new(CalendarUnit::Month, zone)?;
        Ok(Self::from_calendar(limit, calendar))
    }

    /// Sets the day on which each calendar window begins: of a month the billing day from 1 to 31, of a week
    /// the day from 1 (Monday) to 7 (Sunday). The default is 1.
    ///
    /// In a month without that day, the window begins on the last day of the month: with 31, on 28 or 29
    /// February, and on 31 March again.
    ///
    /// # Errors
    ///
    /// Returns an error if the day is out of range, or if the window is not a calendar week or month.
    pub fn starting_on(mut self, day: u8) -> Result<Self, ConfigError> {
        let Some(calendar) = &self.calendar else {
            let rule = "only a calendar week or month has one";
            return Err(ConfigError::quota_part("first day", &day.to_string(), rule));
        };
        self.calendar = Some(calendar.starting_on(day)?);
        Ok(self)
    }

    /// Sets the local time at which each calendar window begins, such as 04:00 for the days of a shift, a market or a game.
    /// The default is midnight.
    ///
    /// A time that summer time skips is the end of the gap; of a time that occurs twice, it is the first. As text, it follows
    /// the unit or the [first day](Self::starting_on): `day:04:00@Europe/Paris`, `week:2:04:00@Europe/Paris`.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no such time, or if the window is not one of a calendar.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::Quota;
    ///
    /// let quota = Quota::per_calendar_day(500, "Europe/Paris")?.starting_at(4, 0)?;
    /// assert_eq!(quota, "500/day:04:00@Europe/Paris".parse()?);
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    pub fn starting_at(mut self, hour: u8, minute: u8) -> Result<Self, ConfigError> {
        let Some(calendar) = &self.calendar else {
            let rule = "only a calendar window has one";
            let time = format!("{hour:02}:{minute:02}");
            return Err(ConfigError::quota_part("start of a day", &time, rule));
        };
        self.calendar = Some(calendar.starting_at(hour, minute)?);
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::Algorithm;

    #[test]
    fn a_first_day_needs_a_calendar_week_or_month() {
        for (quota, day, rule) in [
            (Quota::per_calendar_month(1, "UTC"), 32, "from 1 to 31"),
            (
                Quota::per_calendar_week(1, "UTC"),
                8,
                "from 1 (Monday) to 7 (Sunday)",
            ),
            (
                Quota::per_calendar_day(1, "UTC"),
                1,
                "a calendar day has none",
            ),
            (Ok(Quota::per_day(1)), 1, "only a calendar week or month"),
        ] {
            let error = quota.unwrap().starting_on(day).unwrap_err().to_string();
            assert!(error.contains(rule), "{error}");
        }
        let error = Quota::per_calendar_day(1, "Mars").unwrap_err().to_string();
        assert!(
            error.contains("\"Mars\": it is a name of the IANA database"),
            "{error}"
        );
    }

    #[test]
    fn a_start_needs_a_time_of_day_and_a_calendar() {
        for (quota, hour, minute, rule) in [
            (
                Quota::per_calendar_day(1, "UTC"),
                24,
                0,
                "from 00:00 to 23:59",
            ),
            (Quota::per_calendar_day(1, "UTC"), 4, 60, "\"04:60\""),
            (Quota::per_calendar_day(1, "UTC"), 255, 255, "\"255:255\""),
            (Ok(Quota::per_day(1)), 4, 0, "only a calendar window"),
        ] {
            let error = quota.unwrap().starting_at(hour, minute).unwrap_err();
            assert!(error.to_string().contains(rule), "{error}");
        }
        // The first day and the time stay, in either order.
        let month = Quota::per_calendar_month(1, "UTC").unwrap();
        let day_first = month.clone().starting_on(17).unwrap().starting_at(4, 5);
        let time_first = month.starting_at(4, 5).unwrap().starting_on(17).unwrap();
        assert_eq!(day_first.as_ref(), Ok(&time_first));
        assert_eq!(time_first.to_string(), "1/month:17:04:05@UTC");
    }

    #[test]
    #[should_panic(expected = "counted as a fixed window")]
    fn another_algorithm_for_a_calendar_window_panics() {
        let quota = Quota::per_calendar_day(1, "UTC").unwrap();
        let _ = quota.with_algorithm(Algorithm::Gcra);
    }
}
