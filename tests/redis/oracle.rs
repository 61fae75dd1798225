//! Redis against a naive model: 25 000 checks, or 100 000 if all cases are asked for, many in one call, of usual and unusual
//! shapes.
//!
//! The model keeps a list of charges for each log, follows the rules of `lua/README.md` one check after the other, and
//! finds waits by trying times. It shares no code with the crate.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use futures_util::future::{join, join_all};
use proptest::prelude::RngExt as _;
use proptest::test_runner::{RngAlgorithm, TestRng};
use redis::Commands;
use tollgate::store::TestClock;
use tollgate::store::protocol::{Answer, Answers, Subject};
use tollgate::{Algorithm, Error, ErrorKind, Key, Quota, Quotas, RedisStore};

use crate::support::algorithms::quota_by;
use crate::support::cases::some_or_all;
use crate::support::redis_server::{RedisServer, run};
use crate::support::stored::{log_of, name_of};
use crate::support::test_time::TestTime;
use crate::support::{ask, runtime};

const KEYS: [&str; 3] = ["ada", "bob", "cem"];
/// All its values are lists of another program.
const FOREIGN: &str = "foreign";

/// What stands in front of the loop of an algorithm to let it decide alone: the general path begins with `math.ceil`.
const LOOP_ALONE: &str = "local math = nil\n";

/// What stands there to let the general path decide alone: no run is usual. The client expects `false` for each entry that
/// the loop has left.
const GENERAL_PATH_ALONE: &str = r"
local packer, usual = cmsgpack, 0
local cmsgpack = {}
function cmsgpack.unpack(packed)
  local args = { packer.unpack(packed) }
  args = args[2] and args or args[1]
  local at = args[2]
  while args[at] do
    usual, args[at] = usual + args[at] * args[at + 2], 0
    at = at + args[at + 1]
  end
  return args
end
function cmsgpack.pack(reply)
  local whole = { reply[1], reply[2] }
  for _ = 1, usual do
    whole[#whole + 1] = false
  end
  for index = 3, #reply do
    whole[#whole + 1] = reply[index]
  end
  return packer.pack(whole)
end
";

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    /// As in production.
    Both,
    GeneralPathAlone,
    /// Checks are sent one by one, first to a script whose loop has no general path behind it.
    LoopAlone,
}

/// The charges of an exact log, of a log of buckets, or of a sorted set.
#[derive(Debug, Default)]
struct Log {
    /// Time and units, oldest first.
    runs: Vec<(u64, u64)>,
    /// The longest window that charged, and the largest limit that charged with it.
    longest: u64,
    largest: u64,
    expires: u64,
}

/// When a key expires whose value counts for `window`, in whole seconds.
fn expiry(now: u64, window: u64) -> u64 {
    (now / 1_000 + (2 * window).div_ceil(1_000) + 1_000) / 1_000
}

fn units_of<'a>(runs: impl IntoIterator<Item = &'a (u64, u64)>) -> u64 {
    runs.into_iter().map(|(_, units)| units).sum()
}

impl Log {
    fn used(&self, now: u64, window: u64) -> u64 {
        let window = window.min(self.longest);
        let counts = self.runs.iter().filter(|(time, _)| time + window > now);
        units_of(counts)
    }

    /// Moves charges later than the clock to the clock, and drops those that had expired at the newest.
    fn open(&mut self, bucket: u64, clock: u64, now: u64) {
        let Some(&(newest, _)) = self.runs.last().filter(|(newest, _)| *newest > clock) else {
            return;
        };
        let edge = newest - bucket.saturating_sub(1);
        self.runs.retain(|(time, _)| time + self.longest > edge);
        let moved = units_of(self.runs.iter().filter(|(time, _)| *time >= clock));
        self.runs.retain(|(time, _)| *time < clock);
        self.runs.push((clock, moved));
        self.expires = expiry(now, self.longest);
    }

    /// Charges units for quotas of which the longest window has this limit.
    fn charge(&mut self, (window, limit): (u64, u64), clock: u64, now: u64, units: u64) {
        let first_of = |window: u64| self.runs.partition_point(|(time, _)| time + window <= now);
        let asked = first_of(window.min(self.longest));
        let is_changed = (window, limit) > (self.longest, self.largest) && window >= self.longest;
        if is_changed {
            (self.longest, self.largest) = (window, limit);
        }
        let mut kept = asked;
        if self.longest > window {
            // Of what all asked windows have left behind, the newest units stay.
            kept = first_of(self.longest);
            let has_enough = |first: &usize| units_of(&self.runs[*first..asked]) >= self.largest;
            kept = (kept..=asked).rev().find(has_enough).unwrap_or(kept);
        }
        let is_due = self.expires * 1_000_000 < clock + self.longest;
        if is_changed || is_due || 2 * kept >= self.runs.len() {
            self.runs.drain(..kept);
        }
        if is_due {
            self.expires = expiry(now, self.longest);
        }
        match self.runs.last_mut().filter(|(time, _)| *time == clock) {
            Some((_, newest)) => *newest += units,
            None => self.runs.push((clock, units)),
        }
    }

    /// Returns the time from which on at most `target` units count.
    fn time_of(&self, now: u64, window: u64, target: u64) -> u64 {
        let window = window.min(self.longest);
        let mut left = self.used(now, window);
        for (time, units) in self.runs.iter().filter(|(time, _)| time + window > now) {
            if left <= target {
                break;
            }
            left -= units;
            if left <= target {
                return time + window - now;
            }
        }
        0
    }
}

/// A counter as of its last charge.
#[derive(Clone, Copy, Debug)]
enum Counter {
    Fixed {
        window: u64,
        count: u64,
    },
    Sliding {
        window: u64,
        previous: u64,
        count: u64,
    },
    /// The level is in units times the window.
    Gcra {
        time: u64,
        level: u64,
        rate: u64,
    },
    Total {
        count: u64,
    },
}

impl Counter {
    fn new(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::FixedWindow => Self::Fixed {
                window: 0,
                count: 0,
            },
            Algorithm::SlidingCounter => Self::Sliding {
                window: 0,
                previous: 0,
                count: 0,
            },
            Algorithm::Total => Self::Total { count: 0 },
            _ => Self::Gcra {
                time: 0,
                level: 0,
                rate: 0,
            },
        }
    }

    /// Moves a counter that is ahead of the clock.
    fn open(&mut self, length: u64, now: u64) {
        let current = now / length;
        match self {
            Self::Fixed { window, .. } => *window = (current + 1).min(*window),
            Self::Sliding {
                window,
                previous,
                count,
            } if *window > current => {
                (*window, *previous, *count) = (current, 0, *previous + *count);
            }
            Self::Sliding { .. } | Self::Total { .. } => {}
            Self::Gcra { time, .. } => *time = now.min(*time),
        }
    }

    /// Returns the counter as of a time, if nothing is charged until then.
    fn at(self, length: u64, now: u64) -> Self {
        let current = now / length;
        match self {
            Self::Fixed { window, .. } if window < current => Self::Fixed {
                window: current,
                count: 0,
            },
            Self::Sliding { window, count, .. } if window < current => {
                let previous = if window + 1 == current { count } else { 0 };
                Self::Sliding {
                    window: current,
                    previous,
                    count: 0,
                }
            }
            Self::Gcra { time, level, rate } => {
                let level = level.saturating_sub((now - time) * rate);
                Self::Gcra {
                    time: now,
                    level,
                    rate,
                }
            }
            same => same,
        }
    }

    fn used(self, length: u64, now: u64) -> u64 {
        match self.at(length, now) {
            Self::Fixed { count, .. } | Self::Total { count } => count,
            Self::Sliding {
                window,
                previous,
                count,
            } => {
                let overlap = (window + 1) * length - now;
                count + (previous * overlap).div_ceil(length)
            }
            Self::Gcra { level, .. } => level.div_ceil(length),
        }
    }

    fn charge(&mut self, quota: &Quota, length: u64, now: u64, units: u64) {
        *self = self.at(length, now);
        match self {
            Self::Fixed { count, .. } | Self::Sliding { count, .. } | Self::Total { count } => {
                *count += units;
            }
            Self::Gcra { level, rate, .. } => {
                (*level, *rate) = (*level + units * length, quota.limit().into());
            }
        }
    }

    /// Returns the time from which on at most `target` units count: they never grow.
    fn time_of(self, length: u64, now: u64, target: u64) -> u64 {
        let (mut early, mut late) = (0, 4 * length);
        while early < late {
            let middle = early.midpoint(late);
            if self.used(length, now + middle) <= target {
                late = middle;
            } else {
                early = middle + 1;
            }
        }
        early
    }
}

#[derive(Debug)]
enum Value {
    Log(Log),
    Counter(Counter),
}

/// A key of a check with the number of its plan, and the cost.
type Level = (&'static str, usize, u32);

/// Returns how many eighths of what is left a check that wants more may get.
fn eighths(more: u32) -> u32 {
    1 + more % 8
}

/// The numbers of a quota: the units used, the wait (-1 if it never admits), and the time until more units are left.
type Numbers = (u64, i64, u64);

/// The numbers of all levels, and the units beyond the cost. `None` for a key of another program.
type Reply = Option<(Vec<Vec<Numbers>>, u64)>;

/// The name of a key, and if it has several counters, the algorithm and the window of one.
type Place = (String, Option<(String, u64)>);

#[derive(Default)]
struct Model {
    plans: Vec<Quotas>,
    values: HashMap<Place, Value>,
    now: u64,
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap()
}

impl Model {
    /// The name of the key that counts a quota, and if it has several counters, which one. The quotas of a list that share a
    /// key are opened together.
    fn place(key: &str, quota: &Quota) -> Place {
        let (algorithm, window) = (quota.algorithm(), quota.window());
        let name = name_of(&format!("{{l,{key}}}"), algorithm, window);
        let is_row = name.ends_with('}');
        // All totals of a key are one count.
        let window = match algorithm {
            Algorithm::Total => 0,
            _ => micros(window),
        };
        (name, is_row.then(|| (format!("{algorithm:?}"), window)))
    }

    /// The length of a bucket, or 0, and the time of a charge.
    fn clock(&self, quota: &Quota) -> (u64, u64) {
        match quota.algorithm() {
            Algorithm::SlidingBuckets(count) => {
                let bucket = micros(quota.window()).div_ceil(count.into());
                (bucket, (self.now / bucket + 1) * bucket - 1)
            }
            _ => (0, self.now),
        }
    }

    fn value(&mut self, key: &str, quota: &Quota) -> &mut Value {
        let new = || match quota.algorithm() {
            algorithm @ (Algorithm::FixedWindow
            | Algorithm::SlidingCounter
            | Algorithm::Gcra
            | Algorithm::Total) => Value::Counter(Counter::new(algorithm)),
            _ => Value::Log(Log::default()),
        };
        self.values
            .entry(Self::place(key, quota))
            .or_insert_with(new)
    }

    fn used(&mut self, key: &str, quota: &Quota) -> u64 {
        let (now, window) = (self.now, micros(quota.window()));
        match self.value(key, quota) {
            Value::Log(log) => log.used(now, window),
            Value::Counter(counter) => counter.used(window, now),
        }
    }

    /// Opens the values of a level, and returns the units that all quotas have left; -1 if a limit is 0.
    fn room(&mut self, key: &str, quotas: &Quotas) -> i64 {
        let mut left = i64::MAX;
        for quota in quotas.iter() {
            let (now, (bucket, clock)) = (self.now, self.clock(quota));
            match self.value(key, quota) {
                Value::Log(log) => log.open(bucket, clock, now),
                Value::Counter(counter) => counter.open(micros(quota.window()), now),
            }
            left = left.min(i64::from(quota.limit()) - self.used(key, quota).cast_signed());
        }
        match quotas.iter().any(|quota| quota.limit() == 0) {
            true => -1,
            false => left.max(0),
        }
    }

    fn charge(&mut self, key: &str, quotas: &Quotas, units: u64) {
        let mut charged = Vec::new();
        for quota in quotas.iter() {
            let (now, (_, clock), place) = (self.now, self.clock(quota), Self::place(key, quota));
            if charged.contains(&place) {
                continue;
            }
            // Of quotas that share a value, the longest window is asked; of a counter, the lowest limit charges.
            let sharing = || {
                quotas
                    .iter()
                    .filter(|other| Self::place(key, other) == place)
            };
            let asked = |quota: &Quota| (micros(quota.window()), u64::from(quota.limit()));
            let longest = sharing().map(asked).max().unwrap();
            let strictest = sharing().min_by_key(|quota| quota.limit()).unwrap();
            match self.value(key, quota) {
                Value::Log(log) => log.charge(longest, clock, now, units),
                Value::Counter(counter) => counter.charge(strictest, longest.0, now, units),
            }
            charged.push(place);
        }
    }

    fn numbers(&mut self, key: &str, quotas: &Quotas, cost: u64) -> Vec<Numbers> {
        let mut numbers = Vec::new();
        for quota in quotas.iter() {
            let (now, window, limit) = (self.now, micros(quota.window()), quota.limit().into());
            let used = self.used(key, quota);
            let value = &*self.value(key, quota);
            let time_of = |target| match value {
                Value::Log(log) => log.time_of(now, window, target),
                Value::Counter(counter) => counter.time_of(window, now, target),
            };
            let is_total = quota.algorithm() == Algorithm::Total;
            let has_no_room = cost > 0 && used + cost > limit;
            let wait = if cost.max(1) > limit || is_total && has_no_room {
                -1
            } else if has_no_room {
                time_of(limit - cost).cast_signed()
            } else {
                0
            };
            let reset = match used.min(limit).checked_sub(1) {
                Some(target) if !is_total => time_of(target),
                _ => 0,
            };
            numbers.push((used, wait, reset));
        }
        numbers
    }

    fn decide(&mut self, levels: &[Level], more: u32) -> Reply {
        let mut least = i64::MAX;
        for (key, plan, cost) in levels {
            if *key == FOREIGN {
                return None;
            }
            let quotas = self.plans[*plan].clone();
            least = least.min(self.room(key, &quotas) - i64::from(*cost));
        }
        let left = least.max(0).cast_unsigned();
        let part = left * u64::from(eighths(more)) / 8;
        let extra = part.min(more.into());
        let mut replies = Vec::new();
        for (key, plan, cost) in levels {
            let (quotas, cost) = (self.plans[*plan].clone(), u64::from(*cost));
            let is_charged = least >= 0 && cost > 0;
            if is_charged {
                self.charge(key, &quotas, cost + extra);
            }
            replies.push(self.numbers(key, &quotas, if is_charged { 0 } else { cost }));
        }
        Some((replies, extra))
    }

    /// Forgets what has expired in Redis, which must not count any more.
    fn forget(&mut self, stored: &[(String, i128)]) {
        let now = self.now;
        self.values.retain(|place, value| {
            if stored.iter().any(|(name, _)| *name == place.0) {
                return true;
            }
            let used = match value {
                Value::Log(log) => log.used(now, log.longest),
                // Forgotten with its units.
                Value::Counter(Counter::Total { .. }) => 0,
                Value::Counter(counter) => {
                    counter.used(place.1.as_ref().map_or(0, |(_, window)| *window), now)
                }
            };
            assert_eq!(used, 0, "{place:?} has expired: {value:?}");
            false
        });
    }
}

/// One sequence of calls.
struct Sequence {
    random: TestRng,
    time: TestTime,
    store: RedisStore,
    loop_alone: RedisStore,
    mode: Mode,
    model: Model,
    window: u64,
    is_steady: bool,
    is_large: bool,
}

#[derive(Debug, Default)]
struct Counts {
    entries: usize,
    refused: usize,
    failed: usize,
    grants: usize,
    by_loop: usize,
    algorithms_of_loops: BTreeSet<String>,
    longest_log: u64,
}

impl Sequence {
    fn new(server: &RedisServer, seed: u64, mode: Mode) -> Self {
        let mut seeds = [0; 32];
        seeds[..8].copy_from_slice(&seed.to_be_bytes());
        let mut random = TestRng::from_seed(RngAlgorithm::ChaCha, &seeds);
        let time = TestTime::new(server);
        let with = |text: &str| {
            let clock = format!("{}\n{text}", include_str!("../support/clock.lua"));
            let store = RedisStore::open(&server.url()).unwrap();
            store
                .with_clock_source(&clock, TestClock::new())
                .deadline(Duration::from_secs(10))
                .refusal_cache(Duration::ZERO)
        };
        let general = if mode == Mode::GeneralPathAlone {
            GENERAL_PATH_ALONE
        } else {
            ""
        };
        let mut sequence = Self {
            store: with(general),
            loop_alone: with(LOOP_ALONE),
            window: [1_000, 50_000, 7_777_777, 3_600_000_000][random.random_range(0..4)],
            is_steady: seed % 2 == 1,
            is_large: seed % 8 >= 6,
            model: Model::default(),
            random,
            time,
            mode,
        };
        sequence.make_plans(seed);
        if sequence.is_large {
            sequence.fill_logs();
        }
        sequence
    }

    fn pick<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.random.random_range(0..values.len())]
    }

    fn quota(&mut self, algorithm: Algorithm) -> Quota {
        let windows = self.pick(&[1, 2, 5]);
        let limits = match (self.is_large, self.is_steady) {
            (true, _) => [900, 1_500, 2_500, 5_000],
            (false, true) => [10, 40, 90, 90],
            (false, false) => [1, 3, 10, 40],
        };
        let limit = self.pick(&limits);
        quota_by(
            algorithm,
            limit,
            Duration::from_micros(self.window * windows),
        )
    }

    /// Makes plans of several quotas each; steady keys have one quota, of which the limit changes.
    fn make_plans(&mut self, seed: u64) {
        let mut algorithms = Algorithm::ALL.to_vec();
        algorithms.extend([Algorithm::SlidingBuckets(1), Algorithm::Total]);
        if self.is_steady {
            // In turn, so that a few sequences meet the loop of each.
            let turn = usize::try_from(seed / 2).unwrap() % algorithms.len();
            algorithms = vec![algorithms[turn]];
        } else if self.random.random_bool(0.5) {
            algorithms = vec![self.pick(&algorithms)];
        }
        for _ in 0..3 {
            let count = if self.is_steady {
                1
            } else {
                self.random.random_range(1..4)
            };
            let mut quotas: Vec<Quota> = Vec::new();
            for _ in 0..count {
                let algorithm = self.pick(&algorithms);
                quotas.push(self.quota(algorithm));
            }
            if let (true, Some(first)) = (self.is_steady, self.model.plans.first()) {
                let limit = quotas[0].limit();
                let first = first.iter().next().unwrap();
                quotas = vec![quota_by(first.algorithm(), limit, first.window())];
            }
            self.model.plans.push(quotas.into());
        }
        // A list of another program under each name.
        for quota in self.model.plans.iter().flat_map(Quotas::iter) {
            let name = Model::place(FOREIGN, quota).0;
            let connection = self.time.connection();
            let deadline = ["HSET", "test:deadlines", &name, "9000000000000"];
            for command in [&["DEL", &name][..], &["RPUSH", &name, "x"], &deadline] {
                run(connection, command);
            }
        }
    }

    /// Stores exact logs of some thousand charges, which are read in pages.
    fn fill_logs(&mut self) {
        let quotas = self.model.plans.iter().flat_map(Quotas::iter);
        let is_log = |quota: &&Quota| quota.algorithm() == Algorithm::SlidingLog;
        let Some(quota) = quotas
            .filter(is_log)
            .max_by_key(|quota| quota.limit())
            .cloned()
        else {
            return;
        };
        let (now, window, count) = (
            self.time.now(),
            micros(quota.window()),
            quota.limit() * 3 / 4,
        );
        let times: Vec<_> = (0..u64::from(count))
            .map(|unit| now - unit * window / 5_000)
            .rev()
            .collect();
        let mut runs: Vec<(u64, u64)> = times.iter().map(|time| (*time, 1)).collect();
        runs.dedup_by_key(|(time, _)| *time);
        if runs.len() < times.len() {
            return;
        }
        let expires = expiry(now, window);
        let bytes = log_of(
            u32::try_from(expires).unwrap(),
            window,
            quota.limit(),
            &times,
        );
        for key in KEYS {
            let (name, _) = Model::place(key, &quota);
            let deadline = (now / 1_000 + (2 * window).div_ceil(1_000) + 1_000).to_string();
            let connection = self.time.connection();
            let () = connection.set(&name, &bytes).unwrap();
            run(connection, &["HSET", "test:deadlines", &name, &deadline]);
            let (longest, largest, runs) = (window, quota.limit().into(), runs.clone());
            let log = Log {
                runs,
                longest,
                largest,
                expires,
            };
            self.model.values.insert((name, None), Value::Log(log));
        }
    }

    fn entry(&mut self) -> (Vec<Level>, u32) {
        let costs: &[u32] = match (self.is_large, self.is_steady) {
            (true, _) => &[1, 1, 7, 100, 400],
            (false, true) => &[0, 1, 1, 1, 1, 1, 1, 2, 5],
            (false, false) => &[0, 1, 1, 1, 2, 5],
        };
        let (plan, cost, key) = (
            self.random.random_range(0..3),
            self.pick(costs),
            self.pick(&KEYS),
        );
        if !self.is_steady && self.random.random_bool(0.3) {
            // Two keys, of which the second is often shared with other entries of the call.
            let other = if self.random.random_bool(0.7) && key != KEYS[2] {
                KEYS[2]
            } else {
                KEYS[(KEYS.iter().position(|known| *known == key).unwrap() + 1) % 3]
            };
            let (plan_of_other, cost_of_other) =
                (self.pick(&[0, 0, plan]), self.pick(&[0, 1, cost]));
            return (
                vec![(key, plan, cost), (other, plan_of_other, cost_of_other)],
                0,
            );
        }
        if self.random.random_bool(0.05) {
            return (vec![(FOREIGN, plan, cost)], 0);
        }
        let more = if self.is_steady || cost == 0 {
            0
        } else {
            self.pick(&[0, 0, 0, 5, 40])
        };
        (vec![(key, plan, cost)], more)
    }

    /// The checks of one call. Some are the same as the one before.
    fn entries(&mut self) -> Vec<(Vec<Level>, u32)> {
        let mut entries = Vec::new();
        let most = if self.is_steady { 10 } else { 16 };
        for _ in 0..self.random.random_range(1..most) {
            let entry = self.entry();
            let again = if self.is_steady || entry.1 > 0 {
                1
            } else {
                self.pick(&[1, 1, 1, 3])
            };
            entries.extend(std::iter::repeat_n(entry, again));
        }
        entries
    }

    fn step_clock(&mut self) {
        let window = self.window;
        let steps = [
            0,
            1,
            window / 50,
            window / 10,
            window / 3,
            window,
            3 * window,
        ];
        let step = self.pick(if self.is_steady { &steps[1..5] } else { &steps });
        let step = self.random.random_range(0..=step);
        self.time.advance(Duration::from_micros(step));
        self.forget();
        if self
            .random
            .random_bool(if self.is_steady { 0.005 } else { 0.03 })
        {
            let most = self.pick(&[window, 6 * window]);
            self.time
                .step_back(Duration::from_micros(self.random.random_range(0..most)));
            self.forget();
        }
    }

    fn forget(&mut self) {
        self.model.now = self.time.now();
        let stored = self.time.times_to_live();
        self.model.forget(&stored);
    }

    /// Sends entries to Redis in one call, while a look at another key is in flight.
    async fn send(
        &self,
        store: &RedisStore,
        entries: &[(Vec<Level>, u32)],
    ) -> Vec<Result<Answers, Error>> {
        let (limiter, other) = (Key::from("l"), Key::from("other"));
        let keys: Vec<Vec<Key>> = entries
            .iter()
            .map(|(levels, _)| levels.iter().map(|(key, ..)| Key::from(*key)).collect())
            .collect();
        let sent = entries.iter().zip(&keys).map(|((levels, more), keys)| {
            let checks: Vec<_> = levels
                .iter()
                .zip(keys)
                .map(|((_, plan, cost), key)| {
                    Subject::new(&limiter, key, &self.model.plans[*plan]).check(*cost)
                })
                .collect();
            async move {
                match checks.as_slice() {
                    [check] => ask(store, &[check.with_extra_units(*more, eighths(*more))]).await,
                    _ => ask(store, &checks).await,
                }
            }
        });
        if entries.len() == 1 {
            return join_all(sent).await;
        }
        let look = [Subject::new(&limiter, &other, &self.model.plans[0]).check(0)];
        let look = ask(store, &look);
        join(look, join_all(sent)).await.1
    }

    async fn call(&mut self, counts: &mut Counts) {
        let entries = self.entries();
        let mut answers = Vec::new();
        if self.mode == Mode::LoopAlone {
            for entry in &entries {
                let entry = std::slice::from_ref(entry);
                let mut answer = self.send(&self.loop_alone, entry).await.remove(0);
                if answer.is_ok() {
                    let (_, plan, _) = entry[0].0[0];
                    let algorithms = self.model.plans[plan].iter().map(Quota::algorithm);
                    counts
                        .algorithms_of_loops
                        .extend(algorithms.map(|of| format!("{of:?}")));
                    counts.by_loop += 1;
                }
                if let Err(error) = &answer {
                    assert!(error.to_string().contains("math"), "{error}");
                    answer = self.send(&self.store, entry).await.remove(0);
                }
                answers.push(answer);
            }
        } else {
            answers = self.send(&self.store, &entries).await;
        }
        for (index, (answer, (levels, more))) in answers.into_iter().zip(&entries).enumerate() {
            let expected = self.model.decide(levels, *more);
            let found = match answer {
                Ok(answers) => {
                    let extra = answers
                        .iter()
                        .map(|answer| u64::from(answer.extra_units()))
                        .sum();
                    counts.refused += usize::from(!answers.iter().all(Answer::is_admitted));
                    counts.grants += usize::from(extra > 0);
                    Some((answers.iter().map(numbers_of).collect::<Vec<_>>(), extra))
                }
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
                    counts.failed += 1;
                    None
                }
            };
            let plans = &self.model.plans;
            assert_eq!(
                found, expected,
                "entry {index} of {entries:?} at {}, {plans:?}",
                self.model.now
            );
            counts.entries += 1;
        }
        let logs = self.model.values.values().map(|value| match value {
            Value::Log(log) => units_of(&log.runs),
            Value::Counter(_) => 0,
        });
        counts.longest_log = counts.longest_log.max(logs.max().unwrap_or_default());
    }
}

fn numbers_of(answer: &Answer) -> Vec<Numbers> {
    let numbers = answer.quotas().iter().map(|quota| {
        let wait = match (quota.is_admitted(), quota.retry_after()) {
            (true, _) => 0,
            (false, None) => -1,
            (false, Some(wait)) => micros(wait).cast_signed(),
        };
        (quota.used().into(), wait, micros(quota.reset_after()))
    });
    numbers.collect()
}

#[test]
fn checks_of_any_shape_are_decided_as_by_a_naive_model() {
    let server = RedisServer::start();
    let runtime = runtime();
    let mut counts = Counts::default();
    let mut seed = 0;
    let parts = some_or_all(1, 4);
    while counts.entries < parts * 25_000 {
        // The same sequence in each way.
        for mode in [Mode::Both, Mode::GeneralPathAlone, Mode::LoopAlone] {
            let mut sequence = Sequence::new(&server, seed, mode);
            if mode == Mode::LoopAlone && !sequence.is_steady {
                // Hardly a check is usual.
                continue;
            }
            let steps = if sequence.is_steady { 80 } else { 60 };
            for step in 0..steps {
                sequence.step_clock();
                let outcome =
                    std::panic::AssertUnwindSafe(|| runtime.block_on(sequence.call(&mut counts)));
                if std::panic::catch_unwind(outcome).is_err() {
                    panic!("seed {seed}, {mode:?}, step {step}");
                }
            }
        }
        seed += 1;
    }
    println!("{seed} sequences: {counts:?}");
    assert!(
        counts.by_loop > parts * 1_000
            && counts.grants > parts * 250
            && counts.failed > parts * 250,
        "{counts:?}"
    );
    assert!(
        counts.refused > parts * 2_500 && counts.longest_log > 4_500,
        "{counts:?}"
    );
    // Five algorithms have a loop, one of them with two numbers of buckets.
    assert_eq!(counts.algorithms_of_loops.len(), 6, "{counts:?}");
}
