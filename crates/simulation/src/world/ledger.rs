//! The account of each key of a budget: what clients have reserved and used, and what the server has charged.
//!
//! - Used units and those of valid permits are never more than the limit. Beyond it come only: what is used beyond a permit or
//!   after its loss, what is charged after a lease has ended, grants without the store, and once more the limit where data
//!   was lost or the clock stepped forward.
//! - A process is never charged more than it has used, and in the end not less. What an entry stood for that the server has
//!   lost, or kept for an hour, may be charged twice.
//! - Of a process that was killed, what it used in its last third of a lease may be missing.

use std::collections::{BTreeMap, BTreeSet};

use super::budgets::{BUDGET, RESERVE_LEASE, StoredBudget};
use super::holders::{HolderEntry, HolderId, Holders, Life};

/// The longest time until use is charged where nothing fails, in milliseconds: a third of a lease by a slow clock, and a round
/// trip.
const CHARGED_WITHIN: u64 = RESERVE_LEASE / 3 + 200;

/// A time of the world, and the number of the event.
type Position = (u64, u64);

/// The keys of budgets that a permit is of, each as the limiter and the key.
pub(crate) type BudgetKeys = Vec<String>;

/// The changes, uses and charges of a key.
#[derive(Debug, Default)]
struct Account {
    /// The changes of the sum that is bounded by the limit: used units and those of valid permits, less what may exceed it.
    changes: Vec<(Position, i64)>,
    /// The used units, as the server has them.
    used: i64,
    charged: BTreeMap<HolderId, i64>,
    uses: BTreeMap<Life, Vec<(u64, u32)>>,
    /// Whether the server may have forgotten entries, and the holders of which it has.
    may_forget: bool,
    forgotten: BTreeSet<HolderId>,
}

/// A permit of units that is held.
#[derive(Debug)]
struct Reservation {
    life: Life,
    keys: BudgetKeys,
    left: u32,
    used: u32,
    has_spoken: bool,
    /// When it was certainly not lost.
    valid_at: Position,
    is_lost: bool,
    /// Whether its client sees at once that it is lost.
    is_watched: bool,
}

/// The accounts of a world.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    accounts: BTreeMap<String, Account>,
    reservations: BTreeMap<u64, Reservation>,
    /// The processes that were killed, when, and whether nothing had failed for a lease.
    killed: BTreeMap<Life, (u64, bool)>,
    now: u64,
    events: u64,
}

impl Account {
    fn change(&mut self, at: Position, units: i64) {
        if units != 0 {
            self.changes.push((at, units));
        }
    }

    fn used_by(&self, life: Life) -> i64 {
        let uses = self.uses.get(&life).into_iter().flatten();
        uses.map(|(_, units)| i64::from(*units)).sum()
    }
}

impl Ledger {
    pub(crate) fn set_time(&mut self, now: u64) {
        self.now = now;
    }

    fn next_position(&mut self) -> Position {
        self.events += 1;
        (self.now, self.events)
    }

    fn change(&mut self, keys: &BudgetKeys, at: Position, units: i64) {
        for key in keys {
            self.accounts
                .entry(key.clone())
                .or_default()
                .change(at, units);
        }
    }

    /// Begins a permit. The store has not granted it if it `is_own_decision` of the process.
    pub(crate) fn begin(
        &mut self,
        call: u64,
        life: Life,
        (keys, units): (BudgetKeys, u32),
        is_watched: bool,
        is_own_decision: bool,
    ) {
        let at = self.next_position();
        self.change(&keys, at, units.into());
        if is_own_decision {
            self.change(&keys, at, -i64::from(units));
        }
        let reservation = Reservation {
            life,
            keys,
            left: units,
            used: 0,
            has_spoken: false,
            valid_at: at,
            is_lost: false,
            is_watched,
        };
        self.reservations.insert(call, reservation);
    }

    /// Takes in that units are used by a permit that is valid, unless it is known to be lost. Returns all that it has used.
    pub(crate) fn use_units(&mut self, call: u64, units: u32) -> u32 {
        let at = self.next_position();
        let Some(reservation) = self.reservations.get_mut(&call) else {
            return units;
        };
        let within = units.min(reservation.left);
        reservation.left -= within;
        reservation.used += units;
        reservation.has_spoken = true;
        if !reservation.is_lost {
            reservation.valid_at = at;
        }
        let all = reservation.used;
        let keys = reservation.keys.clone();
        let life = reservation.life;
        // Either those of the permit fall, and what is beyond them may exceed the limit; or all may.
        self.change(&keys, at, -i64::from(units));
        for key in keys {
            let account = self.accounts.entry(key).or_default();
            account.uses.entry(life).or_default().push((at.0, units));
        }
        all
    }

    /// Returns the units that a permit has left, and whether its client has said that some are used.
    pub(crate) fn left(&self, call: u64) -> (u32, bool) {
        let held = self.reservations.get(&call);
        held.map_or((0, true), |held| (held.left, held.has_spoken))
    }

    /// Takes in that a permit is lost. Its client would have seen it by its last step, which was `seen_at`.
    pub(crate) fn lose(&mut self, call: u64, seen_at: u64) {
        let Some(reservation) = self.reservations.get_mut(&call) else {
            return;
        };
        if reservation.is_lost {
            return;
        }
        reservation.is_lost = true;
        let at = reservation.valid_until(seen_at);
        let keys = reservation.keys.clone();
        let left = reservation.left;
        self.change(&keys, at, -i64::from(left));
    }

    /// Ends a permit.
    pub(crate) fn end(&mut self, call: u64) {
        let at = self.next_position();
        if let Some(ended) = self.reservations.remove(&call)
            && !ended.is_lost
        {
            self.change(&ended.keys, at, -i64::from(ended.left));
        }
    }

    /// Returns how many permits a process holds.
    pub(crate) fn held_by(&self, process: usize) -> u64 {
        let held = self.reservations.values();
        held.filter(|held| held.life.0 == process).count() as u64
    }

    /// Ends all permits of a process that is killed. Nothing had failed for a lease if `is_quiet`.
    pub(crate) fn end_process(&mut self, life: Life, seen_at: u64, is_quiet: bool) {
        self.killed.insert(life, (self.now, is_quiet));
        let held = self.reservations.iter();
        let held = held.filter(|(_, held)| held.life == life);
        let calls: Vec<u64> = held.map(|(call, _)| *call).collect();
        for call in calls {
            self.lose(call, seen_at);
            self.reservations.remove(&call);
        }
    }

    /// Lets each limit be granted once more, or that of one key.
    pub(crate) fn excuse(&mut self, key: Option<&str>) {
        let at = self.next_position();
        for (name, account) in &mut self.accounts {
            if key.is_none_or(|key| key == name) {
                account.change(at, -i64::from(BUDGET));
                account.may_forget = true;
            }
        }
    }

    /// Lets units be used that were not reserved, beyond the limit.
    pub(crate) fn charge_beyond(&mut self, key: String, units: u32) {
        let at = self.next_position();
        self.change(&vec![key], at, -i64::from(units));
    }

    /// Takes in a command about a key. Returns a violation: it charges what was not used.
    ///
    /// It `is_plain` if it is a check by a process that has no permit of the key at any time.
    pub(super) fn take_in(
        &mut self,
        (key, is_plain): (&str, bool),
        before: &StoredBudget,
        after: &StoredBudget,
        holders: &Holders,
        server_time: i64,
    ) -> Option<String> {
        let at = self.next_position();
        let account = self.accounts.entry(key.to_owned()).or_default();
        let charged = match after.charged_since(before) {
            Ok(charged) => charged,
            Err(charged) => return Some(format!("the counts of {key} are charged {charged:?}")),
        };
        // An entry that has ended an hour ago stops no late message: the clock may have stepped by that. This was forgotten.
        let entry_before = |entry: &HolderEntry| {
            let earlier = before.entry(entry.holder);
            earlier
                .filter(|earlier| earlier.ends == entry.ends || !earlier.is_forgotten(server_time))
        };
        let mut senders = after.entries.iter().filter(|entry| {
            let earlier = entry_before(entry);
            earlier.is_none_or(|earlier| earlier.sequence < entry.sequence)
        });
        let sender = senders.next();
        if let Some(entry) = sender {
            let earlier = entry_before(entry);
            let is_forgotten = account.may_forget && earlier.is_none();
            if is_forgotten {
                account.forgotten.insert(entry.holder);
            }
            let has_ended = earlier.is_none_or(|earlier| earlier.ends <= server_time);
            if has_ended {
                account.change(at, -charged.max(0));
            }
        }
        account.change(at, after.used() - account.used);
        account.used = after.used();
        let Some(entry) = sender else {
            let is_known = charged <= 0 || is_plain;
            return (!is_known).then(|| {
                format!("a message that is late or repeated charges {charged} units of {key}")
            });
        };
        let sum = account.charged.entry(entry.holder).or_default();
        *sum += charged;
        let sum = *sum;
        let owner = holders.owner(entry.holder)?;
        let used = account.used_by(owner);
        let is_doubtful = account.forgotten.contains(&entry.holder);
        (sum > used && !is_doubtful).then(|| {
            let (process, _) = owner;
            format!(
                "process {process} is charged {sum} units of {key}, of which it has used {used}"
            )
        })
    }

    /// Judges all accounts at the end. Returns the violations.
    pub(super) fn judge(&mut self, holders: &Holders) -> Vec<String> {
        let mut violations = Vec::new();
        for call in self.reservations.keys() {
            violations.push(format!("the units of call {call} are held at the end"));
        }
        for (key, account) in &mut self.accounts {
            violations.extend(judge_sum(key, account));
            for life in account.uses.keys() {
                let killed = self.killed.get(life).copied();
                violations.extend(judge_use(key, account, (*life, killed), holders));
            }
        }
        violations
    }
}

impl Reservation {
    fn valid_until(&self, seen_at: u64) -> Position {
        if self.is_watched {
            self.valid_at.max((seen_at, u64::MAX))
        } else {
            self.valid_at
        }
    }
}

/// Used units and those of valid permits are never more than the limit.
fn judge_sum(key: &str, account: &mut Account) -> Option<String> {
    account.changes.sort_unstable();
    let mut sum = 0;
    for (number, (at, units)) in account.changes.iter().enumerate() {
        sum += units;
        let next = account.changes.get(number + 1);
        // The changes of one event come together.
        let is_whole = next.is_none_or(|(next_at, _)| next_at != at);
        if is_whole && sum > i64::from(BUDGET) {
            let from = at.0;
            return Some(format!(
                "{sum} of {BUDGET} units of {key} are used or reserved from {from} ms"
            ));
        }
    }
    None
}

/// All that a process has used is charged to it in the end.
fn judge_use(
    key: &str,
    account: &Account,
    (life, killed): (Life, Option<(u64, bool)>),
    holders: &Holders,
) -> Option<String> {
    let charged = account
        .charged
        .iter()
        .filter(|(holder, _)| holders.owner(**holder) == Some(life))
        .map(|(_, units)| units)
        .sum::<i64>();
    let until = match killed {
        None => u64::MAX,
        Some((at, true)) => at.saturating_sub(CHARGED_WITHIN),
        Some((_, false)) => return None,
    };
    let uses = account.uses.get(&life).into_iter().flatten();
    let uses = uses.filter(|(at, _)| *at < until);
    let used: i64 = uses.map(|(_, units)| i64::from(*units)).sum();
    let (process, _) = life;
    (charged < used).then(|| {
        format!("process {process} is charged {charged} units of {key}, of which it has used {used} in time")
    })
}
