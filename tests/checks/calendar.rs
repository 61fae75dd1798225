//! Calendar windows begin at the same microsecond in memory and in Redis, over years of boundaries in ten zones.

use std::time::Duration;

use tollgate::Quota;

use crate::support::both::Both;
use crate::support::cases::some_or_all;
use crate::support::redis_server::RedisServer;
use crate::support::test_time::TestTime;

const MICRO: Duration = Duration::from_micros(1);

/// Zones with and without summer time, with changes at midnight, of half an hour and of two hours. The last five change as
/// others do.
const ZONES: [&str; 10] = [
    "UTC",
    "America/New_York",
    "America/Havana",
    "Antarctica/Troll",
    "Australia/Lord_Howe",
    "Europe/Berlin",
    "America/Santiago",
    "Africa/Cairo",
    "Asia/Beirut",
    "Asia/Kolkata",
];

/// All zones, or one of each kind, for which every change waits.
fn zones() -> impl Iterator<Item = &'static str> {
    let kinds = ZONES.len() / 2;
    ZONES.into_iter().take(some_or_all(kinds, ZONES.len()))
}

/// Uses up each window, waits as long as the stores say, and returns the lengths of all windows but the first, which has
/// begun before.
async fn walk(time: &mut TestTime, quota: Quota, windows: usize) -> Vec<Duration> {
    let limiters = Both::uncached(time, quota.clone());
    let mut lengths = Vec::with_capacity(windows);
    for number in 0..windows {
        let all = limiters.decide("ada", quota.limit()).await;
        assert!(all.allowed, "{quota}, window {number}");
        let more = limiters.decide("ada", 1).await;
        let wait = more.wait().expect("a refusal");
        assert_eq!(all.whole.reset_after, wait, "{quota}, window {number}");
        lengths.push(wait);
        time.advance(wait - MICRO);
        let early = limiters.decide("ada", 1).await;
        assert_eq!(early.wait(), Some(MICRO), "{quota}, window {number}");
        time.advance(MICRO);
    }
    lengths.split_off(1)
}

/// Days of each length in hours, from the shortest.
fn hours(lengths: &[Duration]) -> Vec<(u64, usize)> {
    let mut hours: Vec<u64> = lengths
        .iter()
        .map(|length| length.as_secs() / 3_600)
        .collect();
    hours.sort_unstable();
    let runs = hours.chunk_by(PartialEq::eq);
    runs.map(|run| (run[0], run.len())).collect()
}

#[tokio::test]
async fn months_of_ten_years_begin_at_the_same_time_in_both_stores() {
    let server = RedisServer::start();
    for zone in zones() {
        let quota: Quota = format!("3/month:31@{zone}").parse().expect("a quota");
        let lengths = walk(&mut TestTime::new(&server), quota, 121).await;
        let years: Duration = lengths.iter().sum();
        // From the end of June 2025 to that of June 2035, with the leap days of 2028 and 2032.
        assert_eq!(years, Duration::from_secs(3_652 * 86_400), "{zone}");
    }
}

#[tokio::test]
async fn days_and_weeks_of_a_year_begin_at_the_same_time_in_both_stores() {
    let server = RedisServer::start();
    for zone in zones() {
        let day: Quota = format!("3/day@{zone}").parse().expect("a quota");
        let days = hours(&walk(&mut TestTime::new(&server), day, 366).await);
        let expected: &[(u64, usize)] = match zone {
            "UTC" | "Asia/Kolkata" => &[(24, 365)],
            // A step of half an hour.
            "Australia/Lord_Howe" => &[(23, 1), (24, 364)],
            "Antarctica/Troll" => &[(22, 1), (24, 363), (26, 1)],
            _ => &[(23, 1), (24, 363), (25, 1)],
        };
        assert_eq!(days, expected, "{zone}");
        let week: Quota = format!("3/week:7@{zone}").parse().expect("a quota");
        let weeks = walk(&mut TestTime::new(&server), week, 53).await;
        let year: Duration = weeks.iter().sum();
        assert_eq!(year, Duration::from_secs(364 * 86_400), "{zone}");
    }
}

/// In Berlin, there is no 02:30 on one of these days, and on another one there are two. On Lord Howe, clocks step by half an hour at
/// 02:00.
#[tokio::test]
async fn days_that_begin_at_another_time_begin_at_the_same_time_in_both_stores() {
    let server = RedisServer::start();
    for zone in ["Europe/Berlin", "Australia/Lord_Howe"] {
        let day: Quota = format!("3/day:02:30@{zone}").parse().expect("a quota");
        let days = walk(&mut TestTime::new(&server), day, 366).await;
        let year: Duration = days.iter().sum();
        assert_eq!(year, Duration::from_secs(365 * 86_400), "{zone}");
    }
}

#[tokio::test]
async fn a_change_of_the_billing_day_keeps_the_count_of_the_same_or_a_later_month() {
    const DAY: Duration = Duration::from_secs(86_400);
    let server = RedisServer::start();
    let mut time = TestTime::new(&server);
    let of_first = "10/month:1@UTC";
    let of_17th = "10/month:17@UTC";
    let quota = |text: &str| text.parse::<Quota>().expect("a quota");
    let all = Both::new(&time, quota(of_first)).decide("nobody", 10).await;
    // The fifth day of the next month.
    time.advance(all.whole.reset_after + 4 * DAY);
    for (from, to, kept) in [(of_first, of_17th, 4), (of_17th, of_first, 0)] {
        let charged = Both::new(&time, quota(from)).decide(from, 4).await;
        assert!(charged.allowed);
        let looked = Both::new(&time, quota(to)).decide(from, 0).await;
        assert_eq!(looked.used(), kept, "from {from} to {to}");
    }
    // In the month of the 17th, the kept units count until that of the first has ended there, too.
    for (days, used) in [(31, 4), (13, 0)] {
        time.advance(days * DAY);
        let looked = Both::new(&time, quota(of_17th)).decide(of_first, 0).await;
        assert_eq!(looked.used(), used);
    }
    // Two days later it is the 20th: both say that it is this month.
    time.advance(2 * DAY);
    let charged = Both::new(&time, quota(of_first)).decide("later", 4).await;
    assert!(charged.allowed);
    let looked = Both::new(&time, quota(of_17th)).decide("later", 0).await;
    assert_eq!(looked.used(), 4);
}

#[tokio::test]
async fn a_change_of_the_zone_or_of_the_limit_keeps_the_count() {
    let server = RedisServer::start();
    let time = TestTime::new(&server);
    let limiters = |text: &str| Both::new(&time, text.parse::<Quota>().expect("a quota"));
    let charged = limiters("10/month@Europe/Berlin").decide("ada", 4).await;
    assert!(charged.allowed);
    for (text, used) in [
        ("10/month@America/New_York", 4),
        ("3/month@Asia/Tokyo", 4),
        ("10/week@Europe/Berlin", 0),
        ("10/minute fixed-window", 0),
    ] {
        let looked = limiters(text).decide("ada", 0).await;
        assert_eq!(looked.used(), used, "{text}");
    }
}

/// Windows of zones that are at different dates, and the windows that can be the current one within the given days. Every
/// change waits for the days and the weeks.
const UNITS: [(&[&str], u32, u32); 3] = [
    (&["day"], 12, 14),
    // Mondays, and Sundays: a week may have begun eight days later elsewhere.
    (&["week", "week:7"], 30, 8),
    (&["month", "month:31"], 95, 6),
];

/// The first is two dates ahead of the others for an hour or two each day, from 10:00 UTC on.
const DISTANT_ZONES: [&str; 4] = [
    "Pacific/Kiritimati",
    "Etc/GMT+12",
    "Pacific/Pago_Pago",
    "Pacific/Auckland",
];

#[tokio::test]
async fn zones_whose_dates_differ_by_two_share_the_limit_of_each_window() {
    let server = RedisServer::start();
    for (units, days, windows) in UNITS.into_iter().take(some_or_all(2, 3)) {
        let mut time = TestTime::new(&server);
        let quotas = DISTANT_ZONES.iter().flat_map(|zone| {
            let quota = |unit: &&str| format!("10/{unit}@{zone}").parse().expect("a quota");
            units.iter().map(quota).collect::<Vec<Quota>>()
        });
        let limiters: Vec<_> = quotas.map(|quota| Both::uncached(&time, quota)).collect();
        let mut admitted = 0;
        // Half past each hour from 9 to 12 UTC, of each day.
        let day = Duration::from_secs(86_400);
        let since_midnight = Duration::from_micros(time.now()).as_micros() % day.as_micros();
        let since_midnight = Duration::from_micros(u64::try_from(since_midnight).unwrap());
        time.advance(day - since_midnight + Duration::from_secs(9 * 3_600 + 1_800));
        for _ in 0..days {
            for step in [1, 1, 1, 21] {
                // Each zone asks again after each other one.
                for limiters in limiters.iter().chain(&limiters) {
                    for cost in [7, 3] {
                        let decided = limiters.decide("ada", cost).await;
                        admitted += cost * u32::from(decided.allowed);
                    }
                }
                time.advance(Duration::from_secs(step * 3_600));
            }
        }
        println!("{units:?}: {admitted} of 10 admitted in {days} days");
        assert!(admitted <= 10 * windows, "{units:?}: {admitted}");
        assert!(admitted >= 10 * (windows - 4), "{units:?}: {admitted}");
    }
}
