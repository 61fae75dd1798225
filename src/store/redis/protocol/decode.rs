//! Decodes the replies of the script.

use std::borrow::Cow;

use redis::Value as RedisValue;
use rmp::{Marker, decode};
use smallvec::SmallVec;

use super::counts::{Count, Value, header};
use super::encode::{BatchEntry, CallPlan, Level, Run};
use super::errors::{self, malformed_reply};
use super::last_reply::{LastReply, Numbers};
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
    let mut decided: Vec<Option<Result<EntryReply, Error>>> = Vec::new();
    decided.resize_with(entries.len(), || None);
    // First what a loop has decided, then what it has left, and all other runs.
    for run in plan.runs.iter().filter(|run| run.is_usual) {
        for index in run.entries.clone() {
            if let (false, Some(entry), Some(place)) = (
                reader.skip_false(),
                entries.get(index),
                decided.get_mut(index),
            ) {
                let parts = reader.entry(entry, run)?;
                *place = Some(parts.map(|parts| reader.reply(run, &parts, &[], &mut Vec::new())));
            }
        }
    }
    for run in &plan.runs {
        let (entries, decided) = (
            entries.get(run.entries.clone()).unwrap_or_default(),
            decided.get_mut(run.entries.clone()).unwrap_or_default(),
        );
        reader.run(run, entries, decided)?;
    }
    if !reader.rest.is_empty() {
        return Err(malformed_reply("more values than expected", server));
    }
    let unanswered = || Err(malformed_reply("no answer", server));
    let replies = decided.into_iter();
    Ok(replies
        .map(|reply| reply.unwrap_or_else(unanswered))
        .collect())
}

/// What the script has replied to an entry.
struct EntryParts {
    /// The checks that were admitted.
    admitted: u64,
    /// Whether a reply to refused checks follows, or the checks only look.
    has_refused: bool,
    /// The units that were charged beyond the cost.
    extra: u32,
    levels: SmallVec<[LevelParts; 1]>,
}

impl EntryParts {
    /// Returns the units that a check has charged to a level.
    fn units_of(&self, level: &Level) -> u64 {
        match level.cost {
            0 => 0,
            cost => u64::from(cost) + u64::from(self.extra),
        }
    }
}

/// What the script has replied for a level, in the order of the quotas of its count.
#[derive(Default)]
struct LevelParts {
    charged: Replies,
    refused: SmallVec<[QuotaAnswer; 1]>,
}

type Replies = SmallVec<[LastReply; 1]>;

/// A value that several entries of a run have charged.
struct SharedValue {
    number: u64,
    /// The units of the checks that have no answer yet.
    units: u64,
    replies: Replies,
    /// The error of all its checks, if the reply makes no sense.
    error: Option<Error>,
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
    /// Reads the replies to the entries of a run that have none yet.
    fn run(
        &mut self,
        run: &Run,
        entries: &[BatchEntry<'_>],
        decided: &mut [Option<Result<EntryReply, Error>>],
    ) -> Result<(), Error> {
        let mut parts = Vec::with_capacity(entries.len());
        for (entry, decided) in entries.iter().zip(&*decided) {
            parts.push(match decided {
                Some(_) => None,
                None => Some(self.entry(entry, run)?),
            });
        }
        let numbers = self.plan.numbers_of(run).chunks(run.levels.len().max(1));
        let mut shared = self.shared_values(run, &parts)?;
        for ((parts, own), decided) in parts.into_iter().zip(numbers).zip(decided) {
            if let Some(parts) = parts {
                let reply = parts.map(|parts| self.reply(run, &parts, own, &mut shared));
                let mut values = shared.iter().filter(|value| own.contains(&value.number));
                let error = values.find_map(|value| value.error.clone());
                *decided = Some(error.map_or(reply, Err));
            }
        }
        Ok(())
    }

    /// Reads the reply to an entry. The outer error makes the rest unreadable too.
    fn entry(
        &mut self,
        entry: &BatchEntry<'_>,
        run: &Run,
    ) -> Result<Result<EntryParts, Error>, Error> {
        if let Some(text) = self.text()? {
            return Ok(Err(errors::from_script(&text, self.server)));
        }
        let (mut admitted, mut extra) = (self.number_of_call()?, Some(0));
        if entry.more() > 0 {
            // In place of the number of admitted checks stands that of charged units.
            let cost = run.levels.first().map_or(0, |level| level.cost);
            let beyond = admitted.saturating_sub(cost.into());
            extra = u32::try_from(beyond)
                .ok()
                .filter(|extra| *extra <= entry.more());
            admitted = admitted.min(1);
        }
        let (Some(extra), true) = (extra, admitted <= entry.count.into()) else {
            return Err(malformed_reply(
                "more checks admitted than sent",
                self.server,
            ));
        };
        let mut parts = EntryParts {
            admitted,
            has_refused: admitted < entry.count.into()
                || run.levels.iter().all(|level| level.cost == 0),
            extra,
            levels: SmallVec::new(),
        };
        for level in &run.levels {
            let (plan, mut replied) = (self.plan, LevelParts::default());
            if let Some(count) = plan.count_of(level) {
                if admitted > 0 && level.cost > 0 && !level.is_shared {
                    replied.charged = self.charged(count)?;
                }
                if admitted < entry.count.into() || level.cost == 0 {
                    replied.refused = self.refused(count, level.cost)?;
                }
            }
            parts.levels.push(replied);
        }
        Ok(self.take_nonsense().map_or(Ok(parts), Err))
    }

    /// Reads the replies of the shared values of a run, in the order of their numbers.
    fn shared_values(
        &mut self,
        run: &Run,
        parts: &[Option<Result<EntryParts, Error>>],
    ) -> Result<Vec<SharedValue>, Error> {
        let plan = self.plan;
        let mut charged: Vec<(u64, usize, u64)> = Vec::new();
        if run.levels.iter().any(|level| level.is_shared) {
            let numbers = plan.numbers_of(run).chunks(run.levels.len());
            for (parts, own) in parts.iter().zip(numbers) {
                let Some(Ok(parts)) = parts else {
                    continue;
                };
                for (index, (level, number)) in run.levels.iter().zip(own).enumerate() {
                    let units = parts.admitted * parts.units_of(level);
                    if level.is_shared && units > 0 {
                        charged.push((*number, index, units));
                    }
                }
            }
            charged.sort_unstable();
        }
        let mut values = Vec::<SharedValue>::new();
        for (number, level, units) in charged {
            if let Some(known) = values.last_mut().filter(|known| known.number == number) {
                known.units += units;
                continue;
            }
            let level = run.levels.get(level);
            let count = level.and_then(|level| plan.count_of(level));
            let replies = count.map(|count| self.charged(count)).transpose()?;
            values.push(SharedValue {
                number,
                units,
                replies: replies.unwrap_or_default(),
                error: self.take_nonsense(),
            });
        }
        Ok(values)
    }

    /// Returns the answers to the checks of an entry, whose keys have these numbers.
    fn reply(
        &self,
        run: &Run,
        parts: &EntryParts,
        own: &[u64],
        shared: &mut [SharedValue],
    ) -> EntryReply {
        let is_look = run.levels.iter().all(|level| level.cost == 0);
        let answers = if is_look { 0 } else { parts.admitted };
        let admitted = (0..answers).rev().map(|later| {
            let mut answer = self.answer(run, |index, quota, at| {
                let level = run.levels.get(index)?;
                let replied = parts.levels.get(index)?;
                let number = own.get(index).filter(|_| level.is_shared);
                let value = number.and_then(|number| {
                    let at = shared.binary_search_by_key(number, |value| value.number);
                    shared.get_mut(at.ok()?)
                });
                match value {
                    Some(value) => {
                        if at == 0 {
                            value.units = value.units.saturating_sub(parts.units_of(level));
                        }
                        let reply = value.replies.get(at)?;
                        Some(reply.before(value.units, quota, self.time))
                    }
                    None if level.cost == 0 => replied.refused.get(at).cloned(),
                    None => {
                        let later = later * u64::from(level.cost);
                        Some(replied.charged.get(at)?.before(later, quota, self.time))
                    }
                }
            });
            answer.set_extra(parts.extra);
            answer
        });
        let admitted = admitted.collect();
        let refused = parts.has_refused.then(|| {
            self.answer(run, |index, _, at| {
                parts.levels.get(index)?.refused.get(at).cloned()
            })
        });
        EntryReply { admitted, refused }
    }

    /// Returns an answer with the quotas of all levels in the order in which each was asked. `reply` has that of a level,
    /// and of the place of a quota in its count.
    fn answer(
        &self,
        run: &Run,
        mut reply: impl FnMut(usize, &Quota, usize) -> Option<QuotaAnswer>,
    ) -> Answer {
        let mut answer = Answer::at(self.time, Source::Redis, []);
        let mut of_check = SmallVec::<[(usize, QuotaAnswer); 4]>::new();
        for (index, level) in run.levels.iter().enumerate() {
            if level.is_first_of_check() {
                push_in_order(&mut of_check, &mut answer);
            }
            let Some(count) = self.plan.count_of(level) else {
                continue;
            };
            for (at, (place, quota)) in count.quotas.iter().enumerate() {
                if let Some(quota_answer) = reply(index, quota, at) {
                    of_check.push((*place, quota_answer));
                }
            }
        }
        push_in_order(&mut of_check, &mut answer);
        answer
    }

    /// Reads the reply of a count to a charge, for each of its quotas.
    fn charged(&mut self, count: &Count<'_>) -> Result<Replies, Error> {
        if count.value == Value::Row {
            let counters = self.counters(count)?;
            return Ok(counters.into_iter().map(LastReply::Counter).collect());
        }
        let mut replies = Replies::new();
        for _ in &count.quotas {
            let (used, reset) = (self.units()?, self.number()?);
            let receipt = match count.value {
                Value::Buckets { .. } => Receipt::new(self.number()?, self.number()?),
                _ => Receipt::default(),
            };
            replies.push(LastReply::Numbers(Numbers {
                used,
                reset,
                receipt,
            }));
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

/// Appends the answers of the quotas of a check in the order of its list.
fn push_in_order(of_check: &mut SmallVec<[(usize, QuotaAnswer); 4]>, answer: &mut Answer) {
    of_check.sort_by_key(|(place, _)| *place);
    for (_, quota_answer) in of_check.drain(..) {
        answer.push(quota_answer);
    }
}
