//! Decodes the replies of the script.
#![cfg_attr(
    not(test),
    expect(
        clippy::indexing_slicing,
        reason = "a group has the indexes of its entries, and a level that of its check"
    )
)]

use std::mem;

use redis::Value as RedisValue;
use rmp::{Marker, decode};
use smallvec::SmallVec;

use super::call_number::split_packed;
use super::call_plan::{BatchEntry, CallPlan, Group, ScriptLevel};
use super::counts::{Count, Value};
use super::errors::{self, malformed_reply};
use super::last_reply::LastReply;
use super::packed_counter::{self, TakenCounter};
use super::server_name::ServerName;
use crate::algorithm::CountState;
use crate::decision::{Answer, Answers, QuotaAnswer, Receipt, Source, Wait};
use crate::error::Error;
use crate::quota::Quota;

/// The answers to the checks of one entry, in order.
pub(crate) type EntryAnswers = SmallVec<[Answers; 1]>;

/// Decodes the reply to a call, which echoes its number. The inner error fails one entry, the outer one the whole call.
pub(crate) fn decode_replies(
    reply: RedisValue,
    server: &ServerName,
    entries: &[BatchEntry<'_>],
    plan: &CallPlan<'_>,
) -> Result<Vec<Result<EntryAnswers, Error>>, Error> {
    let RedisValue::BulkString(packed) = reply else {
        return Err(malformed_reply("not a packed array", server));
    };
    // The entries tell the length.
    let Some((_, rest)) = split_packed(&packed) else {
        return Err(malformed_reply("not an array", server));
    };
    let mut reader = ReplyReader {
        rest,
        time: 0,
        plan,
        server,
        nonsense: None,
    };
    reader.time = reader.required_number()?;
    let mut replies = reader.read_entries(entries)?;
    if !reader.rest.is_empty() {
        return Err(malformed_reply("more values than expected", server));
    }
    let mut answers = Vec::with_capacity(entries.len());
    for group in &plan.groups {
        for index in group.entries.clone() {
            answers.push(match &mut replies[index] {
                EntryReply::Charged(charge) => {
                    Ok(reader.entry_answers(&entries[index], group, charge))
                }
                EntryReply::Failed(error) => Err(error.clone()),
                EntryReply::Unread => Err(reader.malformed("no answer")),
            });
        }
    }
    Ok(answers)
}

/// What a reply says about an entry.
enum EntryReply {
    /// A loop of the script has left it, and it comes later in the reply.
    Unread,
    Charged(EntryCharge),
    Failed(Error),
}

/// The reply of the script to an entry.
struct EntryCharge {
    /// The checks that were admitted.
    admitted: u64,
    /// The units that were charged beyond the cost.
    extra: u32,
    levels: SmallVec<[CountReply; 1]>,
}

/// The reply of the script for a count of a level, in the order of its quotas.
#[derive(Default)]
struct CountReply {
    /// The checks that were charged: all that were admitted, unless the quota is soft.
    charged_checks: u64,
    charged: SmallVec<[LastReply; 1]>,
    /// The units that were charged from the next check on that has no answer yet.
    later_units: u64,
    refused: SmallVec<[QuotaAnswer; 1]>,
}

fn units(cost: u64, extra: u32) -> u64 {
    if cost == 0 {
        0
    } else {
        cost + u64::from(extra)
    }
}

/// Counts what is held beside the quotas of each level as used. `is_admitted` is whether the check was.
fn count_reserved(entry: &BatchEntry<'_>, answers: &mut Answers, is_admitted: bool) {
    for (level, answer) in entry.levels.iter().zip(answers.iter_mut()) {
        let check = level.check();
        if check.quotas.has_held() {
            let refused_cost = if is_admitted { 0 } else { check.cost };
            answer.count_reserved(check.quotas, refused_cost);
        }
    }
}

const OTHER_COUNTERS: &str = "counters of another shape";

/// A charge to a value that other entries of its group charge too. In the order of the reply.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct SharedCharge {
    number: u64,
    entry: usize,
    level: usize,
    units: u64,
}

/// Reads a packed reply from front to back.
struct ReplyReader<'r, 'a> {
    rest: &'r [u8],
    time: u64,
    plan: &'r CallPlan<'a>,
    /// The server that sent the reply, for errors.
    server: &'r ServerName,
    /// Why the part that is being read makes no sense, though what follows can be read.
    nonsense: Option<&'static str>,
}

impl<'r> ReplyReader<'r, '_> {
    fn read_entries(&mut self, entries: &[BatchEntry<'_>]) -> Result<Vec<EntryReply>, Error> {
        let plan = self.plan;
        let mut replies = Vec::with_capacity(entries.len());
        replies.resize_with(entries.len(), || EntryReply::Unread);
        // First what a loop has decided, then what it has left and all other groups.
        for group in plan.groups.iter().filter(|group| group.is_usual) {
            for index in group.entries.clone() {
                if !self.skip_false() {
                    replies[index] = self.read_entry(&entries[index], group)?;
                }
            }
        }
        for group in &plan.groups {
            for index in group.entries.clone() {
                if matches!(replies[index], EntryReply::Unread) {
                    replies[index] = self.read_entry(&entries[index], group)?;
                }
            }
            if group.is_shared {
                self.read_shared(group, &mut replies[group.entries.clone()])?;
            }
        }
        Ok(replies)
    }

    /// An error makes the rest of the reply unreadable too.
    fn read_entry(&mut self, entry: &BatchEntry<'_>, group: &Group) -> Result<EntryReply, Error> {
        if let Some(text) = self.bytes()? {
            let text = String::from_utf8_lossy(text);
            return Ok(EntryReply::Failed(errors::from_script(&text, self.server)));
        }
        let mut admitted = self.required_number()?;
        let mut extra = 0;
        if entry.more() > 0 {
            // The number of charged units stands in place of the number of admitted checks.
            let cost = group.levels.first().map_or(0, |level| level.cost);
            extra = u32::try_from(admitted.saturating_sub(cost)).unwrap_or(u32::MAX);
            admitted = admitted.min(1);
        }
        if admitted > u64::from(entry.count) || extra > entry.more() {
            return Err(self.malformed("more checks admitted than sent"));
        }
        let mut charge = EntryCharge {
            admitted,
            extra,
            levels: SmallVec::new(),
        };
        for level in &group.levels {
            let reply = self.read_level(level, group, &charge)?;
            charge.levels.push(reply);
        }
        Ok(match self.take_nonsense() {
            None => EntryReply::Charged(charge),
            Some(error) => EntryReply::Failed(error),
        })
    }

    fn read_level(
        &mut self,
        level: &ScriptLevel,
        group: &Group,
        charge: &EntryCharge,
    ) -> Result<CountReply, Error> {
        let count = self.plan.count(level);
        let mut reply = CountReply {
            charged_checks: charge.admitted,
            ..CountReply::default()
        };
        if count.is_soft() {
            reply.charged_checks = self.required_number()?;
            if reply.charged_checks > charge.admitted {
                return Err(self.malformed("more checks charged than admitted"));
            }
        }
        // Units that are held are not charged, and answered as a look.
        let is_held_from = count.is_held_from();
        if reply.charged_checks > 0 && level.cost > 0 && !group.is_shared && !is_held_from {
            reply.charged = self.charged(count)?;
            reply.later_units = reply.charged_checks * units(level.cost, charge.extra);
        }
        let checks = u64::from(group.count);
        if reply.charged_checks < checks || level.cost == 0 || checks == 0 || is_held_from {
            let is_look = checks == 0 || is_held_from && charge.admitted > 0;
            let cost = if is_look { 0 } else { level.cost };
            reply.refused = self.refused(count, cost)?;
        }
        Ok(reply)
    }

    /// Reads the replies of the values of a group that shares them, in the order of their numbers. Each is the reply to the
    /// last of its charges.
    fn read_shared(&mut self, group: &Group, entries: &mut [EntryReply]) -> Result<(), Error> {
        let mut charges = self.shared_charges(group, entries);
        charges.sort_unstable();
        for charges in charges.chunk_by(|one, next| one.number == next.number) {
            let count = self.plan.count(&group.levels[charges[0].level]);
            let last = self.charged(count)?;
            let nonsense = self.take_nonsense();
            let mut later_units = 0;
            for charge in charges.iter().rev() {
                later_units += charge.units;
                let entry = &mut entries[charge.entry];
                if let Some(error) = &nonsense {
                    *entry = EntryReply::Failed(error.clone());
                } else if let EntryReply::Charged(own) = entry {
                    let level = &mut own.levels[charge.level];
                    level.charged = last.clone();
                    level.later_units = later_units;
                }
            }
        }
        Ok(())
    }

    fn shared_charges(&self, group: &Group, entries: &[EntryReply]) -> Vec<SharedCharge> {
        let numbers = self.plan.key_numbers(group);
        let mut charges = Vec::new();
        for (entry, (reply, numbers)) in entries
            .iter()
            .zip(numbers.chunks(group.levels.len().max(1)))
            .enumerate()
        {
            let EntryReply::Charged(charge) = reply else {
                continue;
            };
            for (index, level) in group.levels.iter().enumerate() {
                let checks = charge.levels[index].charged_checks;
                let units = checks * units(level.cost, charge.extra);
                if units > 0 {
                    charges.push(SharedCharge {
                        number: numbers[index],
                        entry,
                        level: index,
                        units,
                    });
                }
            }
        }
        charges
    }

    /// Returns the answers to the checks of an entry. Those that were refused, or charge nothing, get the same answer.
    fn entry_answers(
        &self,
        entry: &BatchEntry<'_>,
        group: &Group,
        charge: &mut EntryCharge,
    ) -> EntryAnswers {
        let is_free = group.levels.iter().all(|level| level.cost == 0);
        let admitted = if is_free { 0 } else { charge.admitted };
        let mut all = EntryAnswers::new();
        for number in 0..admitted {
            for (level, replied) in group.levels.iter().zip(&mut charge.levels) {
                let own = units(level.cost, charge.extra);
                replied.later_units = replied.later_units.saturating_sub(own);
            }
            let mut answers = self.answers(group, charge, |replied, (count, quota), at| {
                let charged = replied.charged.get(at);
                match charged.filter(|_| number < replied.charged_checks) {
                    Some(last) => Some(last.before(replied.later_units, count, quota, self.time)),
                    // A level of cost 0, or a soft quota that is exceeded.
                    None => replied.refused.get(at).cloned(),
                }
            });
            count_reserved(entry, &mut answers, true);
            all.push(answers);
        }
        // A charge is answered as a cost of 0.
        let others = u64::from(group.count.max(1)).saturating_sub(admitted);
        if others > 0 {
            charge.extra = 0;
            let mut refused = self.answers(group, charge, |replied, _, at| {
                replied.refused.get(at).cloned()
            });
            count_reserved(entry, &mut refused, false);
            all.extend((1..others).map(|_| refused.clone()));
            all.push(refused);
        }
        all
    }

    /// Returns an answer for each level of a check, with its quotas in the order in which they were asked. `reply` has
    /// the answer of a quota by its place in a count.
    fn answers(
        &self,
        group: &Group,
        charge: &EntryCharge,
        reply: impl Fn(&CountReply, (&Count<'_>, &Quota), usize) -> Option<QuotaAnswer>,
    ) -> Answers {
        let mut answers = Answers::default();
        for _ in 0..group.checks {
            let answer = Answer::at(self.time, Source::Redis, []);
            answers.push(answer.with_extra_units(charge.extra));
        }
        for (level, replied) in group.levels.iter().zip(&charge.levels) {
            let count = self.plan.count(level);
            for (at, (place, quota)) in count.quotas.iter().enumerate() {
                if let Some(answer) = reply(replied, (count, quota), at) {
                    answers[level.check].put(*place, answer);
                }
            }
        }
        answers
    }

    /// Reads the reply of a count to a charge, for each of its quotas.
    fn charged(&mut self, count: &Count<'_>) -> Result<SmallVec<[LastReply; 1]>, Error> {
        let mut replies = SmallVec::new();
        if count.name.value == Value::Row {
            for counter in self.counters(count)? {
                replies.push(LastReply::Counter(counter));
            }
            return Ok(replies);
        }
        for _ in &count.quotas {
            let used = self.units()?;
            let mut reset = self.number()?;
            let receipt = match count.name.value {
                Value::Buckets { .. } => Receipt::new(self.number()?, self.number()?),
                // The note about the holder stands in its place.
                Value::InFlight | Value::Held => Receipt::new(mem::take(&mut reset), 0),
                _ => Receipt::default(),
            };
            replies.push(LastReply::Numbers {
                used,
                reset,
                receipt,
            });
        }
        Ok(replies)
    }

    /// Reads the reply of a count to a cost that it refuses, or to a cost of 0, for each of its quotas.
    fn refused(
        &mut self,
        count: &Count<'_>,
        cost: u64,
    ) -> Result<SmallVec<[QuotaAnswer; 1]>, Error> {
        if count.name.value == Value::Row {
            let time = self.time;
            let cost = u32::try_from(cost).unwrap_or(u32::MAX);
            let mut answers = SmallVec::new();
            for (mut counter, quota) in self.counters(count)?.into_iter().zip(count.quotas()) {
                let outcome = counter.evaluate(&count.quota_check(quota, cost, time));
                answers.push(QuotaAnswer::from(outcome).softened(quota));
            }
            return Ok(answers);
        }
        let mut answers = SmallVec::new();
        for quota in count.quotas() {
            let used = self.units()?;
            let wait = match self.integer()? {
                -1 => Wait::Never,
                0 => Wait::Zero,
                micros => Wait::Micros(self.non_negative(micros)),
            };
            let reset = self.number()?;
            answers.push(match count.name.value {
                // The note about the holder.
                Value::InFlight | Value::Held => {
                    QuotaAnswer::from_micros(used, wait, 0).with_receipt(Receipt::new(reset, 0))
                }
                _ => QuotaAnswer::from_micros(used, wait, reset).softened(quota),
            });
        }
        Ok(answers)
    }

    /// Reads the counters of a row, for each quota of a count. Quotas with one header have one counter.
    fn counters(&mut self, count: &Count<'_>) -> Result<SmallVec<[CountState; 1]>, Error> {
        let Some(mut bytes) = self.bytes()? else {
            return Err(self.malformed(OTHER_COUNTERS));
        };
        let mut counters = SmallVec::<[CountState; 1]>::new();
        for quotas in count.by_counter() {
            let algorithm = quotas[0].1.algorithm();
            let counter = match packed_counter::take(algorithm, &mut bytes) {
                TakenCounter::Counter(counter) => counter,
                TakenCounter::Nonsense => {
                    self.nonsense = Some("a counter of numbers that are not whole");
                    CountState::empty(algorithm)
                }
                TakenCounter::Missing => return Err(self.malformed(OTHER_COUNTERS)),
            };
            for _ in 1..quotas.len() {
                counters.push(counter.clone());
            }
            counters.push(counter);
        }
        if bytes.is_empty() {
            Ok(counters)
        } else {
            Err(self.malformed(OTHER_COUNTERS))
        }
    }

    fn malformed(&self, cause: &str) -> Error {
        malformed_reply(cause, self.server)
    }

    /// Returns the error of what was read since the last call, if it makes no sense.
    fn take_nonsense(&mut self) -> Option<Error> {
        let cause = self.nonsense.take()?;
        Some(errors::malformed_entry(cause, self.server))
    }

    /// Reads used units. A log may hold more than a `u32`, which is as full as one that holds
    /// `u32::MAX`.
    fn units(&mut self) -> Result<u32, Error> {
        Ok(u32::try_from(self.number()?).unwrap_or(u32::MAX))
    }

    /// Reads a number that tells how to read what follows, so that nonsense makes the whole reply unreadable.
    fn required_number(&mut self) -> Result<u64, Error> {
        let number = self.number()?;
        match self.nonsense {
            Some(cause) => Err(self.malformed(cause)),
            None => Ok(number),
        }
    }

    fn number(&mut self) -> Result<u64, Error> {
        let number = self.integer()?;
        Ok(self.non_negative(number))
    }

    fn non_negative(&mut self, number: i64) -> u64 {
        u64::try_from(number).unwrap_or_else(|_| {
            self.nonsense = Some("a number out of range");
            0
        })
    }

    fn integer(&mut self) -> Result<i64, Error> {
        if let Some(number) = self.next(|rest| decode::read_int(rest).ok()) {
            return Ok(number);
        }
        let is_fraction = self.next(|rest| decode::read_f32(rest).ok()).is_some()
            || self.next(|rest| decode::read_f64(rest).ok()).is_some();
        if !is_fraction {
            return Err(self.malformed("not a number"));
        }
        self.nonsense = Some("a number that is not whole");
        Ok(0)
    }

    /// Skips a `false`, if one comes next.
    fn skip_false(&mut self) -> bool {
        self.next(|rest| decode::read_bool(rest).ok().filter(|truth| !truth))
            .is_some()
    }

    fn next<T>(&mut self, read: impl FnOnce(&mut &'r [u8]) -> Option<T>) -> Option<T> {
        let mut rest = self.rest;
        let value = read(&mut rest)?;
        self.rest = rest;
        Some(value)
    }

    /// Reads the bytes of a text, if one comes next.
    fn bytes(&mut self) -> Result<Option<&'r [u8]>, Error> {
        use Marker::{FixStr, Str8, Str16, Str32};
        let next = self.rest.first().map(|first| Marker::from_u8(*first));
        if !matches!(next, Some(FixStr(_) | Str8 | Str16 | Str32)) {
            return Ok(None);
        }
        let text = self.next(|rest| {
            let length = decode::read_str_len(rest).ok()?.try_into().ok()?;
            rest.split_off(..length)
        });
        match text {
            Some(text) => Ok(Some(text)),
            None => Err(self.malformed("incomplete text")),
        }
    }
}

#[cfg(test)]
mod tests {
    use rmp::encode;

    use super::*;
    use crate::error::ErrorKind;
    use crate::key::Key;
    use crate::quota::{Algorithm, Quotas};
    use crate::store::requests::{OwnedCheck, Subject};

    /// One field of a reply.
    #[derive(Clone, Debug)]
    enum Field {
        Number(i64),
        Fraction(f64),
        False,
        Text(Vec<u8>),
    }

    fn numbers(numbers: &[i64]) -> Vec<Field> {
        numbers.iter().copied().map(Field::Number).collect()
    }

    /// Packs a reply to a call with the number 0.
    fn packed(fields: &[Field]) -> Vec<u8> {
        let mut packed = Vec::new();
        let length = 1 + fields.len();
        encode::write_array_len(&mut packed, length.try_into().unwrap()).unwrap();
        encode::write_uint(&mut packed, 0).unwrap();
        for field in fields {
            match field {
                Field::Number(number) => drop(encode::write_sint(&mut packed, *number).unwrap()),
                Field::Fraction(number) => encode::write_f64(&mut packed, *number).unwrap(),
                Field::False => encode::write_bool(&mut packed, false).unwrap(),
                Field::Text(text) => {
                    encode::write_str_len(&mut packed, text.len().try_into().unwrap()).unwrap();
                    packed.extend(text);
                }
            }
        }
        packed
    }

    type Replies = Result<Vec<Result<EntryAnswers, Error>>, Error>;

    /// Decodes the reply to entries of one key each: quotas, cost and number of checks.
    fn decoded(entries: &[(&Quotas, u32, u32)], reply: Vec<u8>) -> Replies {
        let key = Key::from("k");
        let owned = |(quotas, cost, _): &(&Quotas, u32, u32)| {
            let check = Subject::new(&key, &key, quotas).check(*cost);
            [check.owned()]
        };
        let levels: Vec<[OwnedCheck; 1]> = entries.iter().map(owned).collect();
        let entries: Vec<_> = (levels.iter().zip(entries))
            .map(|(levels, (.., count))| BatchEntry {
                levels,
                count: *count,
                may_repeat: false,
            })
            .collect();
        let server = ServerName::new("Redis", "127.0.0.1:6379");
        let plan = CallPlan::new(&entries);
        decode_replies(RedisValue::BulkString(reply), &server, &entries, &plan)
    }

    /// The kind of error of each entry.
    fn kinds(replies: Replies) -> Vec<Option<ErrorKind>> {
        let kind = |reply: Result<EntryAnswers, Error>| Some(reply.err()?.kind());
        replies.unwrap().into_iter().map(kind).collect()
    }

    #[test]
    fn what_a_loop_decides_comes_first_and_each_entry_has_its_answers_or_an_error() {
        let log = Quotas::from(Quota::per_second(5));
        let entries = [(&log, 1, 1), (&log, 1, 3), (&log, 1, 1), (&log, 0, 7)];
        let reply = [
            numbers(&[1_000]),
            // The loop has left the third to the general path.
            numbers(&[1, 3, 17]),
            vec![Field::False],
            // Two of three are admitted.
            numbers(&[2, 4, 18, 4, 9, 19]),
            vec![Field::Text(b"WRONGTYPE this key holds no count".to_vec())],
            // Looks share one reply.
            numbers(&[7, 3, 0, 17]),
        ];
        let replies = decoded(&entries, packed(&reply.concat())).unwrap();
        let answers: Vec<_> = replies
            .into_iter()
            .map(|reply| {
                let answers = reply.map_err(|error| error.kind())?;
                let quotas = answers.iter().map(|answers| answers[0].quotas().to_vec());
                Ok(quotas.collect::<Vec<_>>())
            })
            .collect();
        let said = |used, wait, reset| vec![QuotaAnswer::from_micros(used, wait, reset)];
        let admitted = |used, reset| said(used, Wait::Zero, reset);
        assert_eq!(
            answers,
            [
                Ok(vec![admitted(3, 17)]),
                Ok(vec![
                    admitted(3, 18),
                    admitted(4, 18),
                    said(4, Wait::Micros(9), 19)
                ]),
                Err(ErrorKind::Misconfigured),
                Ok(vec![admitted(3, 17); 7]),
            ]
        );
    }

    #[test]
    fn the_note_about_a_holder_is_the_generation_of_the_receipt_of_its_slots() {
        use crate::decision::Holding;
        let quotas = Quotas::from([
            Quota::in_flight(5),
            Quota::per_second(9),
            Quota::in_flight(7),
        ]);
        let key = Key::from("k");
        let message = Holding::new([1; 16], 3, 1, 2, std::time::Duration::from_secs(15));
        let check = Subject::new(&key, &key, &quotas)
            .check(1)
            .with_holding(&message);
        let levels = [check.owned()];
        let entries = [BatchEntry {
            levels: &levels,
            count: 3,
            may_repeat: false,
        }];
        // Two of three are admitted. The log comes first, then the slots of the highest limit.
        let reply = [9, 2, 2, 17, 2, 0, 17, 7, 1, 7, 1, 7, 0, 2, 7, 1, 2];
        let plan = CallPlan::new(&entries);
        let reply = RedisValue::BulkString(packed(&numbers(&reply)));
        let server = ServerName::new("Redis", "127.0.0.1:6379");
        let answers = decode_replies(reply, &server, &entries, &plan).unwrap();
        let slots = |used, wait, note| {
            QuotaAnswer::from_micros(used, wait, 0).with_receipt(Receipt::new(note, 0))
        };
        let rate = |used| QuotaAnswer::from_micros(used, Wait::Zero, 17);
        let found: Vec<_> = answers[0]
            .as_ref()
            .unwrap()
            .iter()
            .map(|answers| answers[0].quotas().to_vec())
            .collect();
        let admitted = |slots_used, units| {
            let of_slots = slots(slots_used, Wait::Zero, 1);
            vec![of_slots, rate(units), of_slots]
        };
        assert_eq!(
            found,
            [
                admitted(5, 1),
                admitted(7, 2),
                vec![
                    slots(7, Wait::Micros(1), 2),
                    rate(2),
                    slots(7, Wait::Zero, 2)
                ],
            ]
        );
    }

    #[test]
    fn numbers_that_make_no_sense_are_the_error_of_their_entry() {
        let log = Quotas::from(Quota::per_second(5));
        let entries = [(&log, 1, 2), (&log, 2, 2), (&log, 3, 2)];
        let whole = numbers(&[9, 2, 3, 17, 1, 4, 18, 4, 9, 19, 0, 5, 7, 7]);
        assert_eq!(kinds(decoded(&entries, packed(&whole))), [None; 3]);
        let invalid = Some(ErrorKind::InvalidReply);
        for (at, field) in [
            (5, Field::Number(-1)),
            (6, Field::Number(-1)),
            (7, Field::Number(-1)),
            (8, Field::Number(-2)),
            (9, Field::Fraction(0.5)),
            (6, Field::Fraction(f64::NAN)),
        ] {
            let mut fields = whole.clone();
            fields[at] = field.clone();
            let found = kinds(decoded(&entries, packed(&fields)));
            assert_eq!(found, [None, invalid, None], "{at} {field:?}");
        }
    }

    #[test]
    fn counters_that_no_script_stores_are_the_error_of_their_entry() {
        let of = |algorithm| Quota::per_second(10).with_algorithm(algorithm);
        let [meter, window] = [Algorithm::Gcra, Algorithm::FixedWindow].map(of);
        let (both, window) = (Quotas::from([meter, window.clone()]), Quotas::from(window));
        let entries = [(&both, 1, 1), (&window, 1, 1)];
        let row = |level: u32| {
            let mut row = Vec::new();
            // By their headers, the fixed window comes first.
            for double in [5.0_f64, 7.0] {
                row.extend(double.to_be_bytes());
            }
            row.extend(2_u32.to_be_bytes());
            for double in [5.0_f64, 7.0] {
                row.extend(double.to_be_bytes());
            }
            row.extend(level.to_be_bytes());
            row.extend(0.0_f64.to_be_bytes());
            row.extend([2_u32, 10].map(u32::to_be_bytes).concat());
            row
        };
        let reply = |row: Vec<u8>| {
            let of_window = row[..20].to_vec();
            let fields = [Field::Number(7_000_000), Field::Number(1), Field::Text(row)];
            let last = [Field::Number(1), Field::Text(of_window)];
            decoded(&entries, packed(&[&fields[..], &last].concat()))
        };
        assert_eq!(kinds(reply(row(2))), [None, None]);
        let invalid = Some(ErrorKind::InvalidReply);
        // Above the rate, whose product with a window might exceed all numbers.
        assert_eq!(kinds(reply(row(u32::MAX))), [invalid, None]);
        // A reply of another length cannot be read.
        for length in [20, 55, 57] {
            let mut other = row(2);
            other.resize(length, 0);
            assert_eq!(reply(other).unwrap_err().kind(), ErrorKind::InvalidReply);
        }
    }

    #[test]
    fn a_reply_of_another_shape_is_an_error() {
        let log = Quotas::from(Quota::per_second(5));
        let entries = [(&log, 1, 2)];
        let whole = numbers(&[9, 1, 3, 5, 3, 7, 5]);
        let bytes = packed(&whole);
        assert_eq!(kinds(decoded(&entries, bytes.clone())), [None]);
        let with = |at: usize, field| {
            let mut fields = whole.clone();
            fields[at] = field;
            packed(&fields)
        };
        let mut replies = vec![
            packed(&[&whole[..], &whole[..1]].concat()),
            with(0, Field::Number(-1)),
            with(0, Field::Text(b"9".to_vec())),
            with(1, Field::Number(-1)),
            with(1, Field::Number(3)),
            with(1, Field::Fraction(0.5)),
            with(4, Field::Text(b"OK".to_vec())),
        ];
        // Cut off anywhere.
        replies.extend((0..bytes.len()).map(|end| bytes[..end].to_vec()));
        for reply in replies {
            let error = decoded(&entries, reply.clone()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidReply, "{reply:?}");
        }
    }
}
