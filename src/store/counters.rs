//! The counts of one limiter and key, for all of its quotas.

use smallvec::SmallVec;

use crate::algorithm::{
    Bytes, Changes, Charge, CountState, Holds, QuotaCheck, QuotaOutcome, UnitsBefore,
    time_to_live_millis,
};
use crate::decision::{Answer, Answers, Holding, HoldingNote, QuotaAnswer, Source, Wait};
use crate::error::{Error, ErrorKind};
use crate::quota::{Algorithm, Quota, Shares, fnv_1a, longest_window};
use crate::store::requests::{Adjust, Change, Check, Subject};

/// The counts of one limiter and key, with the rules of every [`Algorithm`]. For stores outside this crate.
///
/// A [`Store`](crate::Store) keeps one value for each limiter and key, for example as a row of a database. To
/// decide a check, it reads the value, calls [`check`](Self::check), and writes the value back in the same
/// transaction. The decisions are the same as in [`MemoryStore`](crate::MemoryStore) and
/// [`RedisStore`](crate::RedisStore), to the microsecond. The value is [bytes](Self::to_bytes), which the feature
/// `serde` writes, too.
///
/// # Time
///
/// `now` is the time of the store's clock, in microseconds. Read the clock inside the lock or the transaction:
/// an earlier reading looks like a clock that stepped back. Units that were charged later than `now` count as
/// charged now. So if the clock steps back, no units are freed, and none counts for longer than one window. For
/// quotas of calendar windows, count the time from 1970, in UTC.
// A log for all windows of `SlidingLog`, one for each length of bucket, and a count for each other algorithm and window.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    counts: SmallVec<[Count; 1]>,
}

/// The outcome of [`Counters::check_all`].
#[derive(Debug)]
#[non_exhaustive]
pub struct CheckOutcome {
    /// One answer for each check, in their order.
    pub answers: Answers,
    /// Whether the store has to write the counters back.
    pub is_changed: bool,
}

/// The outcome of each quota of a check.
type QuotaOutcomes = SmallVec<[QuotaOutcome; 2]>;

/// The algorithm and the window of a stored count, and the number of a soft quota.
type CountId = (Algorithm, u64, u8);

/// The stored count of a quota: see [`stored_count`](Quota::stored_count).
#[derive(Clone, Debug)]
struct Count {
    algorithm: Algorithm,
    window: u64,
    /// The number of a soft quota, which has a count of its own.
    soft: u8,
    state: CountState,
    /// The end of the time to live, in milliseconds of the store's clock. The counters have the same end, because they
    /// share a key in Redis.
    dies_at: u64,
    /// The used part of the limit, in 1/1024, as of the last check with a cost. If several quotas share the
    /// count, it is the largest part.
    used_part: u16,
}

/// The first bytes of stored counters: a byte that begins no text, and the version of the format.
const FORMAT: [u8; 2] = [0xc7, 1];

/// A key that has used at most this part of its limits may be dropped, in 1/1024.
pub(super) const DROPPABLE_PART: u16 = 512;

impl Counters {
    /// Creates empty counters.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Decides a check, and charges it to all of its quotas if all of them admit it.
    ///
    /// `source` is the [`Source`] of the answer: [`Source::Other`] for a store outside this crate.
    ///
    /// A check that is refused, or that costs 0, changes no count. So it is not necessary to write the
    /// counters back, except that units in the future are moved to now.
    #[inline]
    pub fn check(&mut self, check: Check<'_>, source: Source, now: u64) -> Answer {
        match check.quotas.single() {
            _ if check.quotas.has_held() => self.check_beside_held(&check, source, now),
            Some(quota)
                if check.extra_units == 0 && check.holding.is_none() && !quota.is_soft() =>
            {
                Answer::single(now, source, self.check_one(&check, quota, now))
            }
            _ => self.check_several(&check, source, now),
        }
    }

    /// Decides a check as [`check`](Self::check) does, but charges nothing.
    ///
    /// To decide several checks together, use [`check_all`](Self::check_all).
    pub fn decide(&mut self, check: Check<'_>, source: Source, now: u64) -> Answer {
        if check.quotas.has_held() {
            return self.decide_beside_held(&check, source, now);
        }
        let (outcomes, row) = self.evaluate_all(check, now);
        self.renew(row, now);
        answer_by_outcomes(&check, outcomes, source, now)
    }

    /// Decides checks together, each by the counters at the same index: all of them are charged, or none.
    ///
    /// Each check has counters of its own: see [`Check::verify_distinct`]. `source` and `now` are those of
    /// [`check`](Self::check).
    pub fn check_all(
        counters: &mut [Self],
        checks: &[Check<'_>],
        source: Source,
        now: u64,
    ) -> CheckOutcome {
        let decided: Answers = match checks {
            // The only check need not know what others would be answered.
            [_] => Answers::default(),
            _ => {
                let pairs = checks.iter().zip(&mut *counters);
                pairs
                    .map(|(check, own)| own.decide(*check, source, now))
                    .collect()
            }
        };
        let pairs = checks.iter().zip(counters);
        let answers = if decided.are_admitted() {
            pairs
                .map(|(check, own)| own.check(*check, source, now))
                .collect()
        } else {
            pairs.for_each(|(check, own)| own.state(*check, now));
            decided
        };
        let is_admitted = answers.are_admitted();
        let is_changed = checks
            .iter()
            .any(|check| is_admitted && check.cost > 0 || check.holding.is_some());
        CheckOutcome {
            answers,
            is_changed,
        }
    }

    /// Writes what a holder [states](Holding::is_stated) with a check that is refused because another one is. Does nothing for
    /// other checks.
    pub(super) fn state(&mut self, check: Check<'_>, now: u64) {
        self.charge_spent(check, now);
        let holding = check.holding.filter(|_| check.quotas.have_holders());
        if let Some(holding) = holding.filter(|holding| holding.is_written_if_refused()) {
            self.write_holder(&check, holding, false, now);
        }
    }

    /// Checks a single quota, which is the usual case, with one lookup of its count.
    #[inline]
    fn check_one(&mut self, check: &Check<'_>, quota: &Quota, now: u64) -> QuotaAnswer {
        self.remove_dead(now);
        let mut row = self.row();
        let id = quota.stored_count(check.lease_micros);
        let check = check.quota_check(quota, now);
        let outcome = if let Some(count) = self.find(id) {
            count.check(check, &mut row)
        } else {
            let mut count = Count::new(id);
            let outcome = count.check(check, &mut row);
            if outcome.changes.any(Changes::CHARGED) {
                self.counts.push(count);
            }
            outcome
        };
        // A refusal changes nothing.
        if row.changes != Changes::NONE {
            row.ask(id, &check);
            self.renew(row, now);
        }
        outcome.into()
    }

    /// Checks any number of quotas. Charges what the check asks beyond its cost, up to the part of what is left that it may get.
    #[inline(never)]
    fn check_several(&mut self, check: &Check<'_>, source: Source, now: u64) -> Answer {
        let (quotas, cost) = (check.quotas, check.cost);
        let (mut outcomes, mut row) = self.evaluate_all(*check, now);
        let mut extra = 0;
        let has_room = |outcome: &QuotaOutcome| outcome.wait == Wait::Zero;
        let is_admitted = quotas
            .iter()
            .zip(&outcomes)
            .all(|(quota, outcome)| has_room(outcome) || quota.is_soft());
        if cost > 0 && is_admitted {
            let pairs = quotas.iter().zip(&outcomes);
            let rooms = pairs.map(|(quota, outcome)| quota.limit().saturating_sub(outcome.used));
            let left = rooms.min().unwrap_or(0).saturating_sub(cost);
            let most = quotas.max_cost().saturating_sub(cost);
            // Neither slots nor units of soft quotas are held in advance.
            extra = match quotas.has_slots() || quotas.has_soft() {
                true => 0,
                false => check.granted_extra_units(left).min(most),
            };
            let charge = Check {
                cost: cost + extra,
                ..*check
            };
            // A soft quota without room is not charged.
            for (index, quota) in quotas.charging(check.lease_micros) {
                if outcomes.get(index).is_some_and(has_room) {
                    self.charge(charge, quota, now, &mut row);
                }
            }
            let rates = quotas.iter().zip(&mut outcomes);
            let charged = rates.filter(|(quota, own)| !quota.is_in_flight() && has_room(own));
            for (quota, outcome) in charged {
                *outcome = self.evaluate(check.subject.check(0), quota, now, &mut row);
            }
        }
        let holding = check.holding.filter(|_| quotas.has_slots());
        if !is_admitted {
            self.state(*check, now);
        } else if let Some(holding) = holding {
            self.write_holder(check, holding, true, now);
            let slots = quotas.iter().zip(&mut outcomes);
            for (_, outcome) in slots.filter(|(quota, _)| quota.is_in_flight()) {
                outcome.used = outcome.used.saturating_add(holding.wanted);
            }
        }
        if cost > 0 {
            self.update_used_parts(check.subject, &outcomes);
        }
        self.renew(row, now);
        let mut answer = answer_by_outcomes(check, outcomes, source, now);
        answer.set_extra_units(extra);
        answer
    }

    /// Decides a check of quotas beside which processes hold units. With a holding it takes some of these, and charges
    /// nothing but what was spent. Otherwise its cost is charged.
    #[inline(never)]
    fn check_beside_held(&mut self, check: &Check<'_>, source: Source, now: u64) -> Answer {
        let decided = self.decide_beside_held(check, source, now);
        if !decided.is_admitted() {
            self.state(*check, now);
            return decided;
        }
        if let Some(holding) = check.unit_holding() {
            self.write_holder(check, holding, true, now);
        } else if check.cost > 0 {
            self.charge_all(*check, now);
        }
        let units = check.unit_holding().map_or(0, |holding| holding.wanted);
        let held = UnitsBefore {
            units: decided.reserved(check.quotas).saturating_add(units),
            note: HoldingNote::None,
        };
        let note = decided.quotas().last().map(QuotaAnswer::receipt);
        let mut answer = self.answer_beside_held(check.subject.check(0), held, source, now);
        if let (Some(note), [.., held]) = (note, answer.quotas_mut()) {
            *held = held.with_receipt(note);
        }
        answer
    }

    fn decide_beside_held(&mut self, check: &Check<'_>, source: Source, now: u64) -> Answer {
        self.charge_spent(*check, now);
        let held = self.with_holders(Algorithm::Held, now, |holds| {
            (holds.before(check.unit_holding(), now), Changes::NONE)
        });
        self.answer_beside_held(*check, held, source, now)
    }

    /// Answers a check with the counts of its quotas, and then with what is held beside them.
    fn answer_beside_held(
        &mut self,
        check: Check<'_>,
        held: UnitsBefore,
        source: Source,
        now: u64,
    ) -> Answer {
        let (outcomes, row) = self.evaluate_all(check, now);
        self.renew(row, now);
        let mut answer = answer_by_outcomes(&check, outcomes, source, now);
        answer.push(held.outcome().into());
        answer.count_reserved(check.quotas, check.cost);
        answer
    }

    fn charge_spent(&mut self, check: Check<'_>, now: u64) {
        let Some(holding) = check.unit_holding() else {
            return;
        };
        let due = self.with_holders(Algorithm::Held, now, |holds| {
            let due = holds.spend(holding, now);
            (due, Changes::RENEWED.only_if(due > 0))
        });
        if due > 0 {
            self.charge_all(check.subject.check(due), now);
        }
    }

    fn evaluate_all(&mut self, check: Check<'_>, now: u64) -> (QuotaOutcomes, Row) {
        self.remove_dead(now);
        let mut row = self.row();
        let outcomes = check.quotas.iter().map(|quota| {
            let mut outcome = self.evaluate(check, quota, now, &mut row);
            if quota.leaves_out(check.cost) {
                outcome.wait = Wait::Never;
            }
            outcome
        });
        (outcomes.collect(), row)
    }

    fn evaluate(
        &mut self,
        check: Check<'_>,
        quota: &Quota,
        now: u64,
        row: &mut Row,
    ) -> QuotaOutcome {
        let (id, holding) = (quota.stored_count(check.lease_micros), check.holding);
        let check = check.quota_check(quota, now);
        if quota.is_in_flight() {
            return self.with_holders(Algorithm::InFlight, now, |slots| {
                (slots.decide(&check, holding), Changes::NONE)
            });
        }
        if !quota.is_soft() {
            row.ask(id, &check);
        }
        let Some(count) = self.find(id) else {
            return CountState::empty(id.0).evaluate(&check);
        };
        let outcome = count.state.evaluate(&check);
        count.note(outcome.changes, now, row);
        count.note_soft(outcome.changes, &check);
        outcome
    }

    /// Takes the granted slots or units of a check back.
    pub(crate) fn take_back(&mut self, check: &Check<'_>, holding: &Holding, now: u64) {
        self.with_holders(holder_count(check), now, |holds| {
            ((), holds.take_back(holding))
        });
    }

    fn write_holder(&mut self, check: &Check<'_>, holding: &Holding, is_granted: bool, now: u64) {
        self.with_holders(holder_count(check), now, |holds| {
            ((), holds.write(holding, is_granted, now))
        });
    }

    /// Applies a change to the holders of slots or of units, once what has ended is gone.
    fn with_holders<T>(
        &mut self,
        algorithm: Algorithm,
        now: u64,
        change: impl FnOnce(&mut Holds) -> (T, Changes),
    ) -> T {
        let mut count = self.take((algorithm, 0, 0));
        let mut none = Holds::default();
        let holders = count.state.holds().unwrap_or(&mut none);
        let expired = holders.expire(now);
        let (value, changes) = change(holders);
        let is_empty = holders.is_empty();
        count.used_part = if holders.holds_none(now) { 0 } else { u16::MAX };
        count.note(expired | changes, now, &mut Row::default());
        if !is_empty {
            self.counts.push(count);
        }
        value
    }

    fn take(&mut self, id: CountId) -> Count {
        let index = self.counts.iter().position(|count| count.has_id(id));
        index.map_or_else(|| Count::new(id), |index| self.counts.swap_remove(index))
    }

    /// Returns the holders of slots, for [`Store::holders`](crate::Store::holders).
    pub fn holders(&mut self, now: u64) -> Vec<Holding> {
        self.with_holders(Algorithm::InFlight, now, |slots| {
            (slots.held(now), Changes::NONE)
        })
    }

    fn charge(&mut self, check: Check<'_>, quota: &Quota, now: u64, row: &mut Row) {
        let id = quota.stored_count(check.lease_micros);
        let check = check.quota_check(quota, now);
        if self.find(id).is_none() {
            self.counts.push(Count::new(id));
        }
        if let Some(count) = self.find(id) {
            let expires = count.expires();
            let changes = count.state.charge(&check, expires);
            count.note(changes, now, row);
            if count.is_in_row() {
                row.ask(count.charged(), &check);
            }
            count.note_soft(changes, &check);
        }
    }

    /// Returns the end of the time to live of the counters.
    #[inline]
    fn row(&self) -> Row {
        let counters = self.counts.iter().filter(|count| count.is_in_row());
        Row {
            dies_at: counters.map(|counter| counter.dies_at).max().unwrap_or(0),
            ..Row::default()
        }
    }

    /// Gives the counters the time to live that they need after their changes.
    #[inline]
    fn renew(&mut self, row: Row, now: u64) {
        if row.changes != Changes::NONE {
            let dies_at = row.renewed(now);
            for counter in self.counts.iter_mut().filter(|count| count.is_in_row()) {
                counter.dies_at = dies_at;
            }
        }
    }

    fn update_used_parts(&mut self, subject: Subject<'_>, outcomes: &[QuotaOutcome]) {
        let (quotas, lease) = (subject.quotas, subject.lease_micros);
        for (_, quota) in quotas.charging(lease) {
            if let Some(count) = self.find(quota.stored_count(lease)) {
                count.used_part = 0;
            }
        }
        // A key that only soft quotas count is dropped first when other keys need the room.
        let pairs = quotas.iter().zip(outcomes);
        for (quota, outcome) in pairs.filter(|(quota, _)| !quota.is_soft()) {
            if let Some(count) = self.find(quota.stored_count(lease)) {
                let part = used_part(count.algorithm, outcome.used, quota.limit());
                count.used_part = count.used_part.max(part);
            }
        }
    }

    #[inline]
    fn find(&mut self, id: CountId) -> Option<&mut Count> {
        self.counts.iter_mut().find(|count| count.has_id(id))
    }

    /// Charges the cost of a check to all counts, also beyond the limits.
    fn charge_all(&mut self, check: Check<'_>, now: u64) {
        let subject = check.subject;
        let look = subject.check(0);
        let (_, mut row) = self.evaluate_all(look, now);
        for (_, quota) in subject.quotas.charging(subject.lease_micros) {
            self.charge(check, quota, now, &mut row);
        }
        let quotas = subject.quotas.iter();
        let outcomes: QuotaOutcomes = quotas
            .map(|quota| self.evaluate(look, quota, now, &mut row))
            .collect();
        self.update_used_parts(subject, &outcomes);
        self.renew(row, now);
        // A count that takes no units has not begun.
        self.remove_dead(now);
    }

    /// Changes the units of the counters: see [`Change`].
    pub fn adjust(&mut self, adjust: Adjust<'_>, now: u64) {
        if let Change::Charge { units } = adjust.change
            && units > 0
        {
            return self.charge_all(adjust.subject.check(units), now);
        }
        for (quota, charged) in adjust.counts() {
            match (adjust.change, charged) {
                (Change::Reset, _) => {
                    let id = quota.stored_count(adjust.lease_micros);
                    self.counts.retain(|count| !count.has_id(id));
                }
                (
                    Change::Refund {
                        answer,
                        cost,
                        units,
                        held,
                    },
                    Some(charged),
                ) if units > 0 => {
                    let charge = Charge {
                        time: answer.time(),
                        receipt: charged.receipt(),
                        cost,
                        is_open: held > 0,
                    };
                    let units = units.min(cost);
                    self.give_back(adjust.subject, quota, now, |state, check| {
                        state.refund(&check, charge, units)
                    });
                }
                (Change::Refund { .. } | Change::Charge { .. }, _) => {}
                (Change::Credit { units }, _) => {
                    self.give_back(adjust.subject, quota, now, |state, check| {
                        state.credit(&check, units)
                    });
                }
            }
        }
    }

    /// Gives back units of the count of a quota, and removes the count if none is left.
    fn give_back(
        &mut self,
        subject: Subject<'_>,
        quota: &Quota,
        now: u64,
        give_back: impl FnOnce(&mut CountState, QuotaCheck<'_>) -> Changes,
    ) {
        self.remove_dead(now);
        let id = quota.stored_count(subject.lease_micros);
        if let Some(count) = self.find(id) {
            let check = subject.check(0).quota_check(quota, now);
            let changes = give_back(&mut count.state, check);
            // The time to live of counters stays.
            count.note(changes, now, &mut Row::default());
            if changes.any(Changes::EMPTIED) {
                self.counts.retain(|count| !count.has_id(id));
            }
        }
    }

    /// Drops the counts that have expired, as Redis drops an expired key.
    #[inline]
    pub(super) fn remove_dead(&mut self, now: u64) {
        if self.counts.iter().any(|count| count.is_dead(now)) {
            self.counts.retain(|count| !count.is_dead(now));
        }
    }

    /// Returns the counters as bytes, for a store to keep: about 4 bytes for each charge of a log, and 30 for a counter.
    ///
    /// [`from_bytes`](Self::from_bytes) reads them back, also with another version of this crate, in another process or
    /// on another machine. Version 1 of the format, with numbers in LEB128 (7 bits a byte, the lowest first):
    ///
    /// - the byte 0xC7, and the version;
    /// - the number of counts, and for each count: its algorithm, window, number of a soft quota, end of life, used part,
    ///   and the fields of its state in the order of the source. The times of a log are differences;
    /// - four bytes, the lowest first: the FNV-1a hash of all before.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = FORMAT.to_vec();
        (self.counts.len() as u64).write(&mut bytes);
        self.counts.iter().for_each(|count| count.write(&mut bytes));
        let hash = fnv_1a(&bytes).to_le_bytes();
        bytes.extend_from_slice(&hash);
        bytes
    }

    /// Reads counters from the bytes that [`to_bytes`](Self::to_bytes) has returned.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`InvalidReply`](ErrorKind::InvalidReply) if the bytes are damaged, of another program, or
    /// of a newer version of the format. A store returns it for the checks of that key: it does not open the
    /// [`CircuitBreaker`](crate::store::protocol::CircuitBreaker), because the other keys may be well.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let counters = Self::parse(bytes);
        counters.ok_or_else(|| {
            let text = match bytes {
                [first, version, ..] if *first == FORMAT[0] && *version > FORMAT[1] => format!(
                    "the stored counters have version {version} of their format: update tollgate, which knows version {}",
                    FORMAT[1]
                ),
                _ => "the stored bytes are no counters: remove them, or use another table or prefix".to_owned(),
            };
            Error::new(ErrorKind::InvalidReply, text).for_one_check()
        })
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (body, hash) = bytes.split_last_chunk()?;
        let mut rest = body.strip_prefix(&FORMAT)?;
        if fnv_1a(body).to_le_bytes() != *hash {
            return None;
        }
        let counts = Vec::read(&mut rest)?;
        let counts = SmallVec::from_vec(counts);
        rest.is_empty().then_some(Self { counts })
    }

    /// Returns whether there are no counters, so that a store can drop the key.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// Returns the time after which a store can drop the key, in microseconds of the store's clock.
    ///
    /// `None` if there are no counters. Otherwise, it is at most two windows and a second after the last
    /// change.
    #[must_use]
    pub fn expires_at(&self) -> Option<u64> {
        let last = self.counts.iter().map(|count| count.dies_at).max()?;
        Some(last.saturating_mul(1_000))
    }

    pub(super) fn is_idle(&self, now: u64) -> bool {
        self.counts.iter().all(|count| count.is_idle(now))
    }

    /// Returns the largest used part of any limit, in 1/1024; 0 if all units have returned.
    pub(super) fn used_part(&self, now: u64) -> u16 {
        let active = self.counts.iter().filter(|count| !count.is_idle(now));
        active.map(|count| count.used_part).max().unwrap_or(0)
    }
}

/// Serializes the [bytes](Self::to_bytes), as a list of numbers. To keep counters in a file or a table, write the bytes.
#[cfg(feature = "serde")]
impl serde::Serialize for Counters {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_bytes().serialize(serializer)
    }
}

/// Deserializes the [bytes](Self::from_bytes).
#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for Counters {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let bytes = Vec::<u8>::deserialize(deserializer)?;
        Self::from_bytes(&bytes).map_err(serde::de::Error::custom)
    }
}

impl Bytes for Count {
    fn write(&self, bytes: &mut Vec<u8>) {
        self.algorithm.write(bytes);
        self.window.write(bytes);
        self.soft.write(bytes);
        self.dies_at.write(bytes);
        self.used_part.write(bytes);
        self.state.write(bytes);
    }

    fn read(bytes: &mut &[u8]) -> Option<Self> {
        let algorithm = Algorithm::read(bytes)?;
        Some(Self {
            algorithm,
            window: Bytes::read(bytes)?,
            soft: Bytes::read(bytes)?,
            dies_at: Bytes::read(bytes)?,
            used_part: Bytes::read(bytes)?,
            state: CountState::read(algorithm, bytes)?,
        })
    }
}

impl Count {
    fn new((algorithm, window, soft): CountId) -> Self {
        Self {
            algorithm,
            window,
            soft,
            state: CountState::empty(algorithm),
            dies_at: 0,
            used_part: 0,
        }
    }

    #[inline]
    fn has_id(&self, id: CountId) -> bool {
        (self.algorithm, self.window, self.soft) == id
    }

    #[inline]
    fn check(&mut self, check: QuotaCheck<'_>, row: &mut Row) -> QuotaOutcome {
        let rewound = self.state.rewind(&check);
        self.note(rewound, check.now, row);
        let expires = self.expires();
        let outcome = self.state.check(&check, expires);
        self.note(outcome.changes, check.now, row);
        if check.cost > 0 {
            self.used_part = used_part(self.algorithm, outcome.used, check.limit);
        }
        outcome
    }

    /// Returns the id with the time for which the last charge may count, in place of the window.
    fn charged(&self) -> CountId {
        let window = self.window * self.state.windows();
        (self.algorithm, window, self.soft)
    }

    fn is_in_row(&self) -> bool {
        self.soft == 0 && is_in_row(self.algorithm)
    }

    fn is_soft_counter(&self) -> bool {
        self.soft > 0 && is_in_row(self.algorithm)
    }

    /// Returns the end of the time to live as Redis knows it, in microseconds.
    #[inline]
    fn expires(&self) -> u64 {
        whole_seconds(self.dies_at)
    }

    /// Notes what a change does to the time to live.
    #[inline]
    fn note(&mut self, changes: Changes, now: u64, row: &mut Row) {
        if self.is_in_row() {
            row.changes = row.changes | changes;
        } else if changes.any(Changes::RENEWED) && !self.is_soft_counter() {
            let window = self.state.longest_window().unwrap_or(self.window);
            self.dies_at = now / 1_000 + time_to_live_millis(window);
        }
    }

    /// Notes what a change does to the time to live of a soft counter, which is a row of its own.
    #[inline]
    fn note_soft(&mut self, changes: Changes, check: &QuotaCheck<'_>) {
        if self.is_soft_counter() && changes != Changes::NONE {
            let mut row = Row {
                dies_at: self.dies_at,
                changes,
                ..Row::default()
            };
            row.ask(self.charged(), check);
            self.dies_at = row.renewed(check.now);
        }
    }

    fn is_dead(&self, now: u64) -> bool {
        self.dies_at <= now / 1_000
    }

    fn is_idle(&self, now: u64) -> bool {
        self.state.is_idle(&QuotaCheck {
            limit: 0,
            window: self.window,
            bucket: 0,
            cost: 0,
            now,
            // Not known here. Then the count is used, until its time to live is over.
            calendar: None,
            shares: &Shares::NONE,
            share: None,
        })
    }
}

fn answer_by_outcomes(
    check: &Check<'_>,
    outcomes: QuotaOutcomes,
    source: Source,
    now: u64,
) -> Answer {
    let answers = check.quotas.iter().zip(outcomes);
    let answers = answers.map(|(quota, outcome)| QuotaAnswer::from(outcome).softened(quota));
    Answer::at(now, source, answers)
}

fn holder_count(check: &Check<'_>) -> Algorithm {
    if check.quotas.has_held() {
        Algorithm::Held
    } else {
        Algorithm::InFlight
    }
}

/// Returns whether counts of this algorithm are counters, which share one key in Redis.
fn is_in_row(algorithm: Algorithm) -> bool {
    use Algorithm::{FixedWindow, Gcra, SlidingCounter, Total};
    matches!(algorithm, FixedWindow | SlidingCounter | Gcra | Total)
}

/// The question of a request to the counters of a key, and the changes that it has made.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    /// The end of the time to live before the request, in milliseconds; 0 if there are no counters.
    dies_at: u64,
    changes: Changes,
    /// How long a unit that is charged now may count, in microseconds.
    needs: u64,
    /// The full time to live, in milliseconds.
    time_to_live: u64,
}

impl Row {
    /// Notes a quota of the request.
    #[inline]
    fn ask(&mut self, (algorithm, window, _): CountId, check: &QuotaCheck<'_>) {
        let (needs, longest) = match algorithm {
            // Until the end of the next aligned window.
            Algorithm::SlidingCounter => (2 * window - check.now % window, window),
            Algorithm::FixedWindow => (check.fixed_window_needs(), longest_window(window)),
            // A level drains in whole ticks, each below a hundred-thousandth of the window.
            Algorithm::Gcra => (window + window / 100_000, window),
            // Totals with any idle times are one count, so its id has none.
            Algorithm::Total => (check.window, check.window),
            _ => return,
        };
        let time_to_live = time_to_live_millis(longest);
        self.needs = self.needs.max(needs);
        self.time_to_live = self.time_to_live.max(time_to_live);
    }

    /// Returns the end of the time to live after the changes. A charge renews it only if it is too short.
    #[inline]
    fn renewed(self, now: u64) -> u64 {
        let known = whole_seconds(self.dies_at);
        if self.changes.any(Changes::RENEWED) || known < now + self.needs {
            (now / 1_000 + self.time_to_live).max(known / 1_000)
        } else {
            self.dies_at
        }
    }
}

/// Returns the end of a time to live in milliseconds as Redis stores it in a value, in whole seconds: here in
/// microseconds.
#[inline]
fn whole_seconds(dies_at: u64) -> u64 {
    (dies_at / 1_000).min(u32::MAX.into()) * 1_000_000
}

/// Returns `used` of `limit` in 1/1024, rounded up. Of a total, no unit is forgotten early: it would be admitted again, whatever
/// time passes.
#[inline]
fn used_part(algorithm: Algorithm, used: u32, limit: u32) -> u16 {
    if algorithm == Algorithm::Total && used > 0 {
        return u16::MAX;
    }
    let part = (u64::from(used) * 1_024).div_ceil(u64::from(limit.max(1)));
    u16::try_from(part).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests;
