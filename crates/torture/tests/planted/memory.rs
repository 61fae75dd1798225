//! Limiters in memory.

use std::collections::{HashMap, VecDeque};
use std::future::ready;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tollgate_torture::{Contestant, Reply, Setup, Verdict};

/// A log of charges, and slots.
pub(crate) struct Memory {
    fault: &'static str,
    limit: u32,
    window: Duration,
    origin: Instant,
    keys: Mutex<HashMap<String, Key>>,
    /// The answers that callers wait for, if the limiter is poisoned by one who does not.
    answers: Mutex<VecDeque<Verdict>>,
}

#[derive(Default)]
struct Key {
    charges: Vec<Charge>,
    slots: u32,
    releases: u32,
    receipts: u64,
    window: u128,
}

struct Charge {
    at: Instant,
    units: u32,
    receipt: u64,
}

impl Memory {
    pub(crate) fn new(fault: &'static str, setup: &Setup) -> Self {
        Self {
            fault,
            limit: setup.limit,
            window: setup.window,
            origin: Instant::now(),
            keys: Mutex::default(),
            answers: Mutex::default(),
        }
    }

    fn decide(&self, key: &str, cost: u32) -> Verdict {
        let mut keys = locked(&self.keys);
        let now = Instant::now();
        let key = keys.entry(key.to_owned()).or_default();
        let window = (now - self.origin).as_micros() / self.window.as_micros();
        if self.fault == "fixed-window" {
            if window != key.window {
                key.charges.clear();
            }
            key.window = window;
        } else {
            key.charges.retain(|charge| now - charge.at < self.window);
        }
        let used: u32 = key.charges.iter().map(|charge| charge.units).sum();
        if used + cost <= self.limit {
            key.receipts += 1;
            let receipt = key.receipts;
            key.charges.push(Charge {
                at: now,
                units: cost,
                receipt,
            });
            return Verdict::admitted().with_receipt(receipt);
        }
        let mut missing = used + cost - self.limit;
        let needed = key.charges.iter().find(|charge| {
            let is_last = charge.units >= missing;
            missing = missing.saturating_sub(charge.units);
            is_last
        });
        let wait = needed.map(|charge| self.window - (now - charge.at));
        Verdict::refused(wait.and_then(|wait| match self.fault {
            "short-wait" => Some(wait.saturating_sub(Duration::from_millis(1))),
            "long-wait" => Some(wait + Duration::from_millis(1)),
            "tells-no-wait" => None,
            _ => Some(wait),
        }))
    }
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Contestant for Memory {
    fn check<'a>(&'a self, key: &'a str, cost: u32) -> Reply<'a, Verdict> {
        let verdict = self.decide(key, cost);
        if self.fault != "poisoned" {
            return Box::pin(ready(Ok(verdict)));
        }
        Box::pin(async move {
            locked(&self.answers).push_back(verdict);
            // A timer would round up to a millisecond.
            let start = Instant::now();
            while start.elapsed() < Duration::from_micros(200) {
                tokio::task::yield_now().await;
            }
            Ok(locked(&self.answers).pop_front().unwrap_or(verdict))
        })
    }

    fn refund<'a>(&'a self, key: &'a str, receipt: u64, units: u32) -> Reply<'a, ()> {
        // The second time from others.
        let is_twice = self.fault == "refunds-twice";
        let units = if is_twice { 2 * units } else { units };
        let mut keys = locked(&self.keys);
        let charges = keys
            .get_mut(key)
            .into_iter()
            .flat_map(|key| &mut key.charges);
        let mut left = units;
        for charge in charges
            .filter(|charge| charge.receipt == receipt || (is_twice && charge.receipt < receipt))
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
        {
            let taken = charge.units.min(left);
            charge.units -= taken;
            left -= taken;
        }
        Box::pin(ready(Ok(())))
    }

    fn acquire<'a>(&'a self, key: &'a str) -> Reply<'a, Option<u64>> {
        let mut keys = locked(&self.keys);
        let key = keys.entry(key.to_owned()).or_default();
        let is_free = key.slots < self.limit;
        key.slots += u32::from(is_free);
        Box::pin(ready(Ok(is_free.then_some(0))))
    }

    fn release<'a>(&'a self, key: &'a str, _: u64) -> Reply<'a, ()> {
        let mut keys = locked(&self.keys);
        let key = keys.entry(key.to_owned()).or_default();
        key.releases += 1;
        if self.fault != "leaks-a-slot" || key.releases != 50 {
            key.slots -= 1;
        }
        Box::pin(ready(Ok(())))
    }
}

/// A bucket that fills with the limit in a window.
pub(crate) struct TokenBucket {
    fault: &'static str,
    limit: u128,
    window: u128,
    /// The level in units times microseconds of the window, and its time.
    level: Mutex<(u128, Instant)>,
}

impl TokenBucket {
    pub(crate) fn new(fault: &'static str, setup: &Setup) -> Self {
        let (limit, window) = (u128::from(setup.limit), setup.window.as_micros());
        Self {
            fault,
            limit,
            window,
            level: Mutex::new((limit * window, Instant::now())),
        }
    }
}

impl Contestant for TokenBucket {
    fn check<'a>(&'a self, _: &'a str, cost: u32) -> Reply<'a, Verdict> {
        let before = Instant::now();
        let mut level = locked(&self.level);
        // A thread that waited for the lock sets the time back, and the next one fills the bucket again.
        let is_late = self.fault == "clock-before-lock";
        let now = if is_late { before } else { Instant::now() };
        let filled = now.saturating_duration_since(level.1).as_micros() * self.limit;
        level.0 = (level.0 + filled).min(self.limit * self.window);
        level.1 = now;
        let cost = u128::from(cost) * self.window;
        let is_admitted = level.0 >= cost;
        if is_admitted {
            level.0 -= cost;
        }
        // Work under the lock, as of a large table.
        while before.elapsed() < Duration::from_micros(50) {
            std::hint::spin_loop();
        }
        Box::pin(ready(Ok(is_admitted.into())))
    }
}

/// A fixed window, which the first request of a key opens.
pub(crate) struct OpenedWindow {
    fault: &'static str,
    limit: u32,
    window: Duration,
    /// The start of the window of each key, and its used units.
    keys: Mutex<HashMap<String, (Instant, u32)>>,
}

impl OpenedWindow {
    pub(crate) fn new(fault: &'static str, setup: &Setup) -> Self {
        Self {
            fault,
            limit: setup.limit,
            window: setup.window,
            keys: Mutex::default(),
        }
    }
}

impl Contestant for OpenedWindow {
    fn check<'a>(&'a self, key: &'a str, cost: u32) -> Reply<'a, Verdict> {
        let mut keys = locked(&self.keys);
        let now = Instant::now();
        let row = keys.entry(key.to_owned()).or_insert((now, 0));
        if now - row.0 >= self.window {
            *row = (now, 0);
        }
        let is_admitted = row.1 + cost <= self.limit;
        if self.fault == "check-then-act" {
            // Others check meanwhile, and find the same room.
            drop(keys);
            std::thread::yield_now();
            keys = locked(&self.keys);
        }
        if is_admitted && let Some(row) = keys.get_mut(key) {
            row.1 += cost;
        }
        Box::pin(ready(Ok(is_admitted.into())))
    }
}
