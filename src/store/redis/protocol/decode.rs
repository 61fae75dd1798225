//! Decodes the replies of the script.

use std::borrow::Cow;

use redis::Value as RedisValue;
use rmp::{Marker, decode};
use smallvec::SmallVec;

use super::call_plan::{BatchEntry, CallPlan, Group};
use super::counts::{Count, Value, header};
use super::errors::{self, malformed_reply};
use super::last_reply::LastReply;
use super::packed_counter;
use super::server_name::ServerName;
use crate::algorithm::{QuotaCheck, State};
use crate::decision::{Answer, QuotaAnswer, Receipt, Source, Wait};
use crate::error::Error;
use crate::quota::Quota;

/// The answers to the checks of one entry.
#[derive(Clone, Debug)]
pub(crate) struct EntryReply {
    /// The answers to the admitted checks, in order.
    pub(crate) admitted: SmallVec<[Answer; 1]>,
    /// The answer to all other checks.
    pub(crate) refused: Option<Answer>,
}

impl EntryReply {
    /// Returns the answer to the last check.
    pub(crate) fn into_last(mut self) -> Option<Answer> {
        self.refused.or_else(|| self.admitted.pop())
    }
}

/// Decodes the reply to a call. The answer to a check of several levels has the quotas of all of them. The inner error
/// fails one entry, the outer one the whole call.
pub(crate) fn decode_replies(
    reply: RedisValue,
    server: &ServerName,
    entries: &[BatchEntry<'_>],
    plan: &CallPlan<'_>,
) -> Result<Vec<Result<EntryReply, Error>>, Error> {
    let RedisValue::BulkString(packed) = reply else {
        return Err(malformed_reply("not a packed array", server));
    };
    let mut rest = &*packed;
    // The entries tell the length.
    decode::read_array_len(&mut rest).map_err(|_| malformed_reply("not an array", server))?;
    let mut reader = ReplyReader {
        rest,
        time: 0,
        plan,
        server,
        nonsense: None,
    };
    reader.time = reader.number_of_call()?;
    let mut charges = Vec::with_capacity(entries.len());
    charges.resize_with(entries.len(), || None);
    // First what a loop has decided, then what it has left and all other groups.
    for is_of_loop in [true, false] {
        for group in plan.groups.iter().filter(|group| group.is_usual || !is_of_loop) {
            let charges = charges.get_mut(group.entries.clone()).unwrap_or_default();
            let entries = entries.get(group.entries.clone()).unwrap_or_default();
            for (charge, entry) in charges.iter_mut().zip(entries) {
                if charge.is_none() && !(is_of_loop && reader.skip_false()) {
                    *charge = Some(reader.charge(entry, group)?);
                }
            }
            if group.is_shared {
                reader.shared(group, charges)?;
            }
        }
    }
    if !reader.rest.is_empty() {
        return Err(malformed_reply("more values than expected", server));
    }
    let groups = plan
        .groups
        .iter()
        .flat_map(|group| group.entries.clone().map(move |_| group));
    let replies = groups.zip(charges.into_iter().flatten());
    Ok(replies
        .map(|(group, charge)| Ok(reader.reply(group, charge?)))
        .collect())
}

/// What the script has replied to an entry.
struct Charge {
    /// The checks that were admitted.
    admitted: u64,
    /// The units that were charged beyond the cost.
    extra: u32,
    /// Whether a reply to refused checks follows, or the checks only look.
    has_refused: bool,
    levels: SmallVec<[LevelReply; 1]>,
}

/// What the script has replied for a level, in the order of the quotas of its count.
#[derive(Default)]
struct LevelReply {
    charged: SmallVec<[LastReply; 1]>,
    /// The units that were charged from the next check on that has no answer yet.
    later_units: u64,
    refused: SmallVec<[QuotaAnswer; 1]>,
}

/// Returns the units that a check of this cost has charged.
fn units(cost: u32, extra: u32) -> u64 {
    if cost == 0 {
        0
    } else {
        u64::from(cost) + u64::from(extra)
    }
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
    /// Reads the reply to an entry. The outer error makes the rest unreadable too.
    fn charge(
        &mut self,
        entry: &BatchEntry<'_>,
        group: &Group,
    ) -> Result<Result<Charge, Error>, Error> {
        if let Some(text) = self.text()? {
            return Ok(Err(errors::from_script(&text, self.server)));
        }
        let (mut admitted, mut extra) = (self.number_of_call()?, 0);
        if entry.more() > 0 {
            // In place of the number of admitted checks stands that of charged units.
            let cost = group.levels.first().map_or(0, |level| level.cost);
            extra = u32::try_from(admitted.saturating_sub(cost.into())).unwrap_or(u32::MAX);
            admitted = admitted.min(1);
        }
        let count = u64::from(entry.count);
        if admitted > count || extra > entry.more() {
            return Err(malformed_reply(
                "more checks admitted than sent",
                self.server,
            ));
        }
        let mut charge = Charge {
            admitted,
            extra,
            has_refused: admitted < count || group.levels.iter().all(|level| level.cost == 0),
            levels: SmallVec::new(),
        };
        let plan = self.plan;
        for level in &group.levels {
            let mut replied = LevelReply::default();
            if let Some(count_of_level) = plan.count(level) {
                if admitted > 0 && level.cost > 0 && !group.is_shared {
                    replied.charged = self.charged(count_of_level)?;
                    replied.later_units = admitted * units(level.cost, extra);
                }
                if admitted < count || level.cost == 0 {
                    replied.refused = self.refused(count_of_level, level.cost)?;
                }
            }
            charge.levels.push(replied);
        }
        Ok(self.take_nonsense().map_or(Ok(charge), Err))
    }

    /// Reads the replies of the values of a group that shares them, in the order of their numbers. Each is the reply to the
    /// last of its charges.
    fn shared(
        &mut self,
        group: &Group,
        charges: &mut [Option<Result<Charge, Error>>],
    ) -> Result<(), Error> {
        let plan = self.plan;
        let numbers = plan.numbers_of(group).chunks(group.levels.len().max(1));
        let mut uses = Vec::new();
        for (entry, (charge, own)) in charges.iter().zip(numbers).enumerate() {
            let Some(Ok(charge)) = charge else {
                continue;
            };
            for (index, (level, number)) in group.levels.iter().zip(own).enumerate() {
                let units = charge.admitted * units(level.cost, charge.extra);
                if units > 0 {
                    uses.push((*number, entry, index, units));
                }
            }
        }
        uses.sort_unstable();
        for uses in uses.chunk_by(|(one, ..), (next, ..)| one == next) {
            let level = uses
                .first()
                .and_then(|(_, _, index, _)| group.levels.get(*index));
            let Some(count) = level.and_then(|level| plan.count(level)) else {
                continue;
            };
            let (replies, nonsense) = (self.charged(count)?, self.take_nonsense());
            let mut later_units = 0;
            for (_, entry, index, units) in uses.iter().rev() {
                later_units += units;
                let charge = charges.get_mut(*entry).and_then(Option::as_mut);
                match (charge, &nonsense) {
                    (Some(charge), Some(error)) => *charge = Err(error.clone()),
                    (Some(Ok(charge)), None) => {
                        if let Some(replied) = charge.levels.get_mut(*index) {
                            (replied.charged, replied.later_units) = (replies.clone(), later_units);
                        }
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Returns the answers to the checks of an entry.
    fn reply(&self, group: &Group, mut charge: Charge) -> EntryReply {
        let is_look = group.levels.iter().all(|level| level.cost == 0);
        let answers = if is_look { 0 } else { charge.admitted };
        let mut admitted = SmallVec::new();
        for _ in 0..answers {
            for (level, replied) in group.levels.iter().zip(&mut charge.levels) {
                let own = units(level.cost, charge.extra);
                replied.later_units = replied.later_units.saturating_sub(own);
            }
            let mut answer = self.answer(group, &charge, |replied, quota, at| {
                match replied.charged.get(at) {
                    Some(last) => Some(last.before(replied.later_units, quota, self.time)),
                    // A level of cost 0.
                    None => replied.refused.get(at).cloned(),
                }
            });
            answer.set_extra(charge.extra);
            admitted.push(answer);
        }
        let refused = charge.has_refused.then(|| {
            self.answer(group, &charge, |replied, _, at| {
                replied.refused.get(at).cloned()
            })
        });
        EntryReply { admitted, refused }
    }

    /// Returns an answer with the quotas of all levels in the order in which each was asked. `reply` has that of a quota by
    /// its place in the count of a level.
    fn answer(
        &self,
        group: &Group,
        charge: &Charge,
        reply: impl Fn(&LevelReply, &Quota, usize) -> Option<QuotaAnswer>,
    ) -> Answer {
        let mut answers = SmallVec::<[((usize, usize), QuotaAnswer); 4]>::new();
        for (level, replied) in group.levels.iter().zip(&charge.levels) {
            let quotas = self
                .plan
                .count(level)
                .map_or(&[][..], |count| &count.quotas);
            for (at, (place, quota)) in quotas.iter().enumerate() {
                let answer = reply(replied, quota, at);
                answers.extend(answer.map(|answer| ((level.check, *place), answer)));
            }
        }
        answers.sort_by_key(|(place, _)| *place);
        let answers = answers.into_iter().map(|(_, answer)| answer);
        Answer::at(self.time, Source::Redis, answers)
    }

    /// Reads the reply of a count to a charge, for each of its quotas.
    fn charged(&mut self, count: &Count<'_>) -> Result<SmallVec<[LastReply; 1]>, Error> {
        if count.value == Value::Row {
            let counters = self.counters(count)?;
            return Ok(counters.into_iter().map(LastReply::Counter).collect());
        }
        let mut replies = SmallVec::new();
        for _ in &count.quotas {
            let (used, reset) = (self.units()?, self.number()?);
            let receipt = match count.value {
                Value::Buckets { .. } => Receipt::new(self.number()?, self.number()?),
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

    /// Reads the reply of a count to a cost that it refuses, or only looks at, for each of its quotas.
    fn refused(
        &mut self,
        count: &Count<'_>,
        cost: u32,
    ) -> Result<SmallVec<[QuotaAnswer; 1]>, Error> {
        if count.value == Value::Row {
            let time = self.time;
            let counters = self.counters(count)?.into_iter().zip(count.quotas());
            let answers = counters.map(|(mut counter, quota)| {
                QuotaAnswer::from(counter.evaluate(QuotaCheck::new(quota, cost, time)))
            });
            return Ok(answers.collect());
        }
        let mut answers = SmallVec::new();
        for _ in &count.quotas {
            let used = self.units()?;
            let wait = match self.integer()? {
                -1 => Wait::Never,
                0 => Wait::Zero,
                micros => Wait::Micros(self.non_negative(micros)),
            };
            answers.push(QuotaAnswer::from_micros(used, wait, self.number()?));
        }
        Ok(answers)
    }

    /// Reads the counters of a row, for each quota of a count. Quotas with one header have one counter.
    fn counters(&mut self, count: &Count<'_>) -> Result<SmallVec<[State; 1]>, Error> {
        let malformed = || malformed_reply("counters of another shape", self.server);
        let mut bytes = self.bytes()?.ok_or_else(malformed)?;
        let mut counters = SmallVec::<[State; 1]>::new();
        let mut last = None;
        for quota in count.quotas() {
            let (algorithm, own) = (quota.counted_by(), header(quota));
            if let (true, Some(counter)) = (last.as_ref() == Some(&own), counters.last()) {
                let counter = counter.clone();
                counters.push(counter);
                continue;
            }
            let counter = packed_counter::split(algorithm, &mut bytes).ok_or_else(malformed)?;
            counters.push(packed_counter::read(algorithm, counter).unwrap_or_else(|| {
                self.nonsense = Some("a counter of numbers that are not whole");
                State::empty(algorithm)
            }));
            last = Some(own);
        }
        if bytes.is_empty() {
            Ok(counters)
        } else {
            Err(malformed())
        }
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
    fn number_of_call(&mut self) -> Result<u64, Error> {
        let number = self.number()?;
        match self.nonsense {
            Some(cause) => Err(malformed_reply(cause, self.server)),
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
        let (mut whole, mut single, mut double) = (self.rest, self.rest, self.rest);
        if let Ok(number) = decode::read_int(&mut whole) {
            self.rest = whole;
            return Ok(number);
        }
        self.rest = if decode::read_f32(&mut single).is_ok() {
            single
        } else if decode::read_f64(&mut double).is_ok() {
            double
        } else {
            return Err(malformed_reply("not a number", self.server));
        };
        self.nonsense = Some("a number that is not whole");
        Ok(0)
    }

    /// Skips a `false`, if one comes next.
    fn skip_false(&mut self) -> bool {
        let mut rest = self.rest;
        let is_false = matches!(decode::read_bool(&mut rest), Ok(false));
        if is_false {
            self.rest = rest;
        }
        is_false
    }

    fn is_text_next(&self) -> bool {
        self.rest.first().is_some_and(|first| {
            use Marker::{FixStr, Str8, Str16, Str32};
            let marker = Marker::from_u8(*first);
            matches!(marker, FixStr(_) | Str8 | Str16 | Str32)
        })
    }

    /// Reads a text, if one comes next.
    fn text(&mut self) -> Result<Option<Cow<'r, str>>, Error> {
        Ok(self.bytes()?.map(String::from_utf8_lossy))
    }

    /// Reads the bytes of a text, if one comes next.
    fn bytes(&mut self) -> Result<Option<&'r [u8]>, Error> {
        if !self.is_text_next() {
            return Ok(None);
        }
        let length = decode::read_str_len(&mut self.rest).ok();
        let length = length.and_then(|length| usize::try_from(length).ok());
        let split = length.and_then(|length| self.rest.split_at_checked(length));
        let incomplete = || malformed_reply("incomplete text", self.server);
        let (bytes, rest) = split.ok_or_else(incomplete)?;
        self.rest = rest;
        Ok(Some(bytes))
    }
}
