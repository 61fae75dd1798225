//! Decodes the replies of the script.

use std::borrow::Cow;

use redis::Value;
use rmp::{Marker, decode};
use smallvec::SmallVec;

use super::encode::{BatchEntry, RunOfLevels};
use super::errors::{self, malformed_reply};
use super::last_reply::{LastReply, Numbers};
use super::packed_counter;
use super::server_name::ServerName;
use crate::decision::{Answer, QuotaAnswer, Receipt, Source, Wait};
use crate::error::Error;
use crate::quota::{Quota, Quotas};
use crate::store::requests::OwnedCheck;

/// The answers to the checks of one entry.
#[derive(Debug)]
pub(crate) struct EntryReply {
    /// The answers to the admitted checks, in order. Looks all see the same, so they share one.
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

/// Decodes the reply to a call of `entries`, some in runs of several levels. The answer to a check of several levels
/// has the quotas of all of them. The inner error fails one entry, the outer one the whole call.
pub(crate) fn decode_replies(
    reply: Value,
    server: &ServerName,
    entries: &[BatchEntry<'_>],
    runs: &[RunOfLevels],
) -> Result<Vec<Result<EntryReply, Error>>, Error> {
    let Value::BulkString(packed) = reply else {
        return Err(malformed_reply("not a packed array", server));
    };
    let mut rest = &*packed;
    // The entries tell the length.
    decode::read_array_len(&mut rest).map_err(|_| malformed_reply("not an array", server))?;
    let mut reader = ReplyReader {
        rest,
        time: 0,
        server,
        nonsense: None,
    };
    reader.time = reader.number_of_call()?;
    let mut replies = Vec::with_capacity(entries.len());
    let (mut left, mut runs) = (entries, runs.iter().peekable());
    while let Some((entry, others)) = left.split_first() {
        if let Some(run) = runs.next_if(|run| run.first == replies.len()) {
            let (of_run, others) = left.split_at(run.entries.min(left.len()));
            reader.run_of_levels(of_run, &run.values, &mut replies)?;
            left = others;
        } else {
            replies.push(reader.entry(entry)?);
            left = others;
        }
    }
    if !reader.rest.is_empty() {
        return Err(malformed_reply("more values than expected", server));
    }
    Ok(replies)
}

/// Reads a packed reply from front to back.
pub(super) struct ReplyReader<'a> {
    rest: &'a [u8],
    pub(super) time: u64,
    /// The server that sent the reply, for errors.
    pub(super) server: &'a ServerName,
    /// Why the part that is being read makes no sense, though what follows can be read.
    nonsense: Option<&'static str>,
}

impl<'a> ReplyReader<'a> {
    /// Reads the reply of one entry. The outer error makes the rest unreadable too.
    pub(super) fn entry(
        &mut self,
        entry: &BatchEntry<'_>,
    ) -> Result<Result<EntryReply, Error>, Error> {
        let BatchEntry { levels, count, .. } = *entry;
        let server = self.server;
        if let Some(text) = self.text()? {
            return Ok(Err(errors::from_script(&text, server)));
        }
        let mut admitted = self.number_of_call()?;
        let extra = match entry.more() {
            0 => None,
            // In place of the number of admitted checks stands that of charged units.
            more => {
                let cost = levels.first().map_or(0, |level| level.check().cost());
                let extra = admitted.saturating_sub(cost.into());
                admitted = admitted.min(1);
                Some(u32::try_from(extra).unwrap_or(u32::MAX)).filter(|extra| *extra <= more)
            }
        };
        if entry.more() > 0 && extra.is_none() || admitted > count.into() {
            return Err(malformed_reply(
                "more checks admitted than sent",
                self.server,
            ));
        }
        let is_look = || levels.iter().all(|level| level.check().cost() == 0);
        let answers = if admitted > 1 && is_look() {
            1
        } else {
            admitted
        };
        let mut reply = EntryReply {
            admitted: SmallVec::new(),
            refused: None,
        };
        if answers > 0 && self.is_text_next() {
            self.admitted_by_text(levels, answers, &mut reply)?;
        } else {
            for _ in 0..answers {
                reply.admitted.push(self.admitted(levels)?);
            }
        }
        if admitted < count.into() {
            reply.refused = Some(self.refused(levels)?);
        }
        for answer in &mut reply.admitted {
            answer.set_extra(extra.unwrap_or(0));
        }
        Ok(self.take_nonsense().map_or(Ok(reply), Err))
    }

    /// Returns the error of what was read since the last call, if it makes no sense.
    pub(super) fn take_nonsense(&mut self) -> Option<Error> {
        let cause = self.nonsense.take()?;
        Some(errors::malformed_entry(cause, self.server))
    }

    /// Reads the replies of all quotas to an admitted check.
    fn admitted(&mut self, levels: &[OwnedCheck]) -> Result<Answer, Error> {
        let time = self.time;
        let mut answer = Answer::at(time, Source::Redis, []);
        for level in levels {
            self.last_replies(level.check().quotas(), |quota, last| {
                answer.push(last.before(0, quota, time));
            })?;
        }
        Ok(answer)
    }

    /// Reads a text of counters that all admitted checks of one level share, and adds their answers.
    fn admitted_by_text(
        &mut self,
        levels: &[OwnedCheck],
        answers: u64,
        reply: &mut EntryReply,
    ) -> Result<(), Error> {
        let [level] = levels else {
            return Err(malformed_reply("a text of several levels", self.server));
        };
        let (time, check) = (self.time, level.check());
        let empty = || Answer::at(time, Source::Redis, []);
        reply.admitted.extend((0..answers).map(|_| empty()));
        self.last_replies(check.quotas(), |quota, last| {
            for (answer, later) in reply.admitted.iter_mut().zip((0..answers).rev()) {
                answer.push(last.before(later * u64::from(check.cost()), quota, time));
            }
        })
    }

    /// Reads the reply of each quota of a level: numbers or, in a text, the counters of one or more quotas.
    #[inline]
    pub(super) fn last_replies(
        &mut self,
        quotas: &Quotas,
        mut each: impl FnMut(&Quota, LastReply),
    ) -> Result<(), Error> {
        let mut counters: &[u8] = &[];
        for quota in quotas.iter() {
            if counters.is_empty() {
                counters = self.bytes()?.unwrap_or_default();
            }
            let reply = if counters.is_empty() {
                LastReply::Numbers(self.numbers(quota)?)
            } else {
                let algorithm = quota.counted_by();
                let counter = packed_counter::split(algorithm, &mut counters);
                let malformed = || malformed_reply("a counter of another shape", self.server);
                match packed_counter::read(algorithm, counter.ok_or_else(malformed)?) {
                    Some(counter) => LastReply::Counter(counter),
                    None => {
                        self.nonsense = Some("a counter of numbers that are not whole");
                        LastReply::Numbers(Numbers::default())
                    }
                }
            };
            each(quota, reply);
        }
        if counters.is_empty() {
            Ok(())
        } else {
            Err(malformed_reply("more counters than expected", self.server))
        }
    }

    #[inline]
    fn numbers(&mut self, quota: &Quota) -> Result<Numbers, Error> {
        let (used, reset) = (self.units()?, self.number()?);
        let receipt = if quota.counted_by().facts().needs_receipt {
            Receipt::new(self.number()?, self.number()?)
        } else {
            Receipt::default()
        };
        Ok(Numbers {
            used,
            reset,
            receipt,
        })
    }

    /// Reads the replies of all quotas to a refused check.
    fn refused(&mut self, levels: &[OwnedCheck]) -> Result<Answer, Error> {
        let mut answer = Answer::at(self.time, Source::Redis, []);
        for level in levels {
            for _ in level.check().quotas().iter() {
                let used = self.units()?;
                let wait = match self.integer()? {
                    -1 => Wait::Never,
                    0 => Wait::Zero,
                    micros => Wait::Micros(self.non_negative(micros)),
                };
                answer.push(QuotaAnswer::from_micros(used, wait, self.number()?));
            }
        }
        Ok(answer)
    }

    /// Reads used units. A log may hold more than a `u32`, which is as full as one that holds
    /// `u32::MAX`.
    fn units(&mut self) -> Result<u32, Error> {
        Ok(u32::try_from(self.number()?).unwrap_or(u32::MAX))
    }

    /// Reads a number that tells how to read what follows, so that nonsense makes the whole reply unreadable.
    pub(super) fn number_of_call(&mut self) -> Result<u64, Error> {
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

    fn is_text_next(&self) -> bool {
        self.rest.first().is_some_and(|first| {
            use Marker::{FixStr, Str8, Str16, Str32};
            let marker = Marker::from_u8(*first);
            matches!(marker, FixStr(_) | Str8 | Str16 | Str32)
        })
    }

    /// Reads a text, if one comes next.
    fn text(&mut self) -> Result<Option<Cow<'a, str>>, Error> {
        Ok(self.bytes()?.map(String::from_utf8_lossy))
    }

    /// Reads the bytes of a text, if one comes next.
    fn bytes(&mut self) -> Result<Option<&'a [u8]>, Error> {
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

#[cfg(test)]
mod tests {
    use rmp::encode;

    use super::*;
    use crate::error::ErrorKind;
    use crate::key::Key;
    use crate::quota::{Algorithm, Quotas};
    use crate::store::requests::{Check, OwnedCheck};

    fn entry(levels: &[OwnedCheck], count: u32) -> BatchEntry<'_> {
        BatchEntry {
            levels,
            count,
            may_repeat: false,
        }
    }

    fn level(quotas: &Quotas, cost: u32) -> OwnedCheck {
        let key = Key::from("k");
        Check::new(&key, &key, quotas, cost).into()
    }

    fn server() -> ServerName {
        ServerName::new("Redis", "127.0.0.1:6379")
    }

    /// One field of a reply.
    #[derive(Clone, Debug)]
    enum Field {
        Number(i64),
        Fraction(f64),
        Text(&'static str),
        Data(Vec<u8>),
    }

    fn numbers(numbers: &[i64]) -> Vec<Field> {
        numbers
            .iter()
            .map(|number| Field::Number(*number))
            .collect()
    }

    fn packed(fields: &[Field]) -> Value {
        let mut packed = Vec::new();
        encode::write_array_len(&mut packed, fields.len().try_into().unwrap()).unwrap();
        for field in fields {
            match field {
                Field::Number(number) => drop(encode::write_sint(&mut packed, *number).unwrap()),
                Field::Fraction(number) => encode::write_f64(&mut packed, *number).unwrap(),
                Field::Text(text) => encode::write_str(&mut packed, text).unwrap(),
                // The script packs data as a text.
                Field::Data(data) => {
                    encode::write_str_len(&mut packed, data.len().try_into().unwrap()).unwrap();
                    packed.extend(data);
                }
            }
        }
        Value::BulkString(packed)
    }

    #[test]
    fn each_entry_has_its_answers_or_an_error_of_its_own() {
        let log = Quotas::from(Quota::per_second(5));
        let meter = Quota::per_second(9).algorithm(Algorithm::Gcra);
        let both = Quotas::from([Quota::per_second(5), meter]);
        let reply = [
            numbers(&[1_000]),
            // Two of three are admitted.
            numbers(&[2, 3, 17, 4, 18, 4, 9, 19]),
            vec![Field::Text("WRONGTYPE Operation against a key")],
            numbers(&[1, 3, 17, 6, 7, 8, 2]),
            numbers(&[0, 5, -1, 9, 1, 0, 0]),
            // Looks share one reply.
            numbers(&[7, 3, 17]),
        ];
        let entries = [
            (vec![level(&log, 1)], 3),
            (vec![level(&log, 1)], 1),
            (vec![level(&both, 1)], 1),
            (vec![level(&both, 6)], 2),
            (vec![level(&log, 0)], 7),
        ];
        let entries: Vec<_> = entries
            .iter()
            .map(|(levels, count)| entry(levels, *count))
            .collect();
        let reply = packed(&reply.concat());
        let replies = decode_replies(reply, &server(), &entries, &[]).unwrap();
        let answers: Vec<_> = replies
            .into_iter()
            .map(|reply| {
                let reply = reply.map_err(|error| error.kind())?;
                assert!(reply.admitted.iter().all(|answer| answer.time() == 1_000));
                let quotas = |answer: &Answer| answer.quotas().to_vec();
                let admitted: Vec<_> = reply.admitted.iter().map(quotas).collect();
                Ok((admitted, reply.refused.as_ref().map(quotas)))
            })
            .collect();
        let said = QuotaAnswer::from_micros;
        let receipt = Receipt {
            generation: 8,
            position: 2,
            ..Receipt::default()
        };
        let metered = said(6, Wait::Zero, 7).with_receipt(receipt);
        assert_eq!(
            answers,
            [
                Ok((
                    vec![vec![said(3, Wait::Zero, 17)], vec![said(4, Wait::Zero, 18)]],
                    Some(vec![said(4, Wait::Micros(9), 19)])
                )),
                Err(ErrorKind::Misconfigured),
                Ok((vec![vec![said(3, Wait::Zero, 17), metered]], None)),
                Ok((
                    vec![],
                    Some(vec![said(5, Wait::Never, 9), said(1, Wait::Zero, 0)])
                )),
                Ok((vec![vec![said(3, Wait::Zero, 17)]], None)),
            ]
        );
    }

    fn used(answer: &Answer) -> Vec<(u32, u64)> {
        let quotas = answer.quotas().iter();
        let position = |quota: &QuotaAnswer| quota.receipt().position();
        quotas
            .map(|quota| (quota.used(), position(quota)))
            .collect()
    }

    #[test]
    fn the_entries_of_a_run_that_were_charged_together_share_the_replies_of_their_values() {
        let log = Quotas::from([Quota::per_second(50), Quota::per_hour(90)]);
        let meter = Quotas::from(Quota::per_second(90).algorithm(Algorithm::Gcra));
        let levels = [level(&log, 2), level(&meter, 3)];
        let entries = [
            entry(&levels, 1),
            entry(&levels, 2),
            entry(&levels, 2),
            entry(&levels, 2),
        ];
        // The value 1 is of the first and the last entry, 2 and 4 of others, 3 of all.
        let run = RunOfLevels {
            first: 0,
            entries: 4,
            values: vec![1, 3, 2, 3, 4, 3, 1, 3],
        };
        let reply = [
            numbers(&[1_000]),
            // The third was decided alone.
            numbers(&[1, 3]),
            numbers(&[6, 17, 16, 18, 4, 7, 14, 8]),
            numbers(&[25, 9, 500, 125]),
            // One check admitted, one refused.
            numbers(&[1, 2, 1, 2, 1, 28, 9, 500, 128, 2, 0, 1, 2, 5, 1, 28, 4, 9]),
        ];
        let decoded = |reply: &[Field], entries: &[BatchEntry<'_>], run: &RunOfLevels| {
            decode_replies(packed(reply), &server(), entries, std::slice::from_ref(run))
        };
        let replies = decoded(&reply.concat(), &entries, &run).unwrap();
        let replies: Vec<_> = replies.into_iter().map(Result::unwrap).collect();
        let admitted = |index: usize| -> Vec<_> {
            let reply: &EntryReply = &replies[index];
            reply.admitted.iter().map(used).collect()
        };
        assert_eq!(admitted(0), [[(2, 0), (12, 0), (13, 113)]]);
        assert_eq!(
            admitted(1),
            [[(2, 0), (12, 0), (16, 116)], [(4, 0), (14, 0), (19, 119)]]
        );
        assert_eq!(admitted(2), [[(2, 0), (2, 0), (28, 128)]]);
        assert_eq!(
            admitted(3),
            [[(4, 0), (14, 0), (22, 122)], [(6, 0), (16, 0), (25, 125)]]
        );
        let refused = replies.iter().map(|reply| reply.refused.is_some());
        assert_eq!(refused.collect::<Vec<_>>(), [false, false, true, false]);
        // An entry that is not in the run.
        for index in [0, 5] {
            let mut fields = reply.concat();
            fields[2] = Field::Number(index);
            let error = decoded(&fields, &entries, &run).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidReply);
        }
    }

    /// The data of a counter: numbers of eight bytes, as doubles, and of four.
    #[expect(clippy::cast_precision_loss, reason = "below 2^53")]
    fn data(numbers: &[(u64, usize)]) -> Vec<u8> {
        let bytes = numbers.iter().flat_map(|(number, size)| match size {
            8 => (*number as f64).to_be_bytes().to_vec(),
            _ => u32::try_from(*number).unwrap().to_be_bytes().to_vec(),
        });
        bytes.collect()
    }

    const TIME: u64 = 7_000_000;

    fn fixed_window(count: u64) -> Vec<u8> {
        data(&[(5, 8), (TIME / 1_000_000, 8), (count, 4)])
    }

    fn sliding_counter(previous: u64, count: u64) -> Vec<u8> {
        let window = TIME / 1_000_000;
        data(&[(4, 8), (window, 8), (previous, 4), (count, 4)])
    }

    fn gcra(units: u64, poured: u64) -> Vec<u8> {
        data(&[(3, 8), (TIME, 8), (units, 4), (0, 8), (poured, 4), (10, 4)])
    }

    fn numbers_of(answer: &Answer) -> Vec<(u32, u64, u64, u64)> {
        let quotas = answer.quotas().iter();
        let numbers = quotas.map(|quota| {
            let (reset, receipt) = (quota.reset_after(), quota.receipt());
            let micros = u64::try_from(reset.as_micros()).unwrap();
            (
                quota.used(),
                micros,
                receipt.generation(),
                receipt.position(),
            )
        });
        numbers.collect()
    }

    #[test]
    fn a_text_holds_the_counters_of_the_next_quotas_after_the_last_check() {
        let of = |algorithm| Quota::per_second(10).algorithm(algorithm);
        let [fixed, counter, meter] = [
            Algorithm::FixedWindow,
            Algorithm::SlidingCounter,
            Algorithm::Gcra,
        ];
        let all = Quotas::from([of(fixed), of(counter), of(meter)]);
        let log = Quotas::from([Quota::per_second(10), of(fixed)]);
        let (all, log) = ([level(&all, 2)], [level(&log, 1)]);
        let entries = [entry(&all, 3), entry(&log, 1)];
        let first = [fixed_window(7), sliding_counter(0, 6), gcra(6, 9)].concat();
        let reply = [
            numbers(&[TIME.try_into().unwrap(), 3]),
            vec![Field::Data(first.clone())],
            numbers(&[1, 3, 17]),
            vec![Field::Data(fixed_window(8))],
        ];
        let decoded =
            |fields: Vec<Field>| decode_replies(packed(&fields), &server(), &entries, &[]);
        let replies = decoded(reply.concat()).unwrap();
        let replies = replies.into_iter().map(Result::unwrap);
        let answers: Vec<Vec<_>> = replies
            .map(|reply| reply.admitted.iter().map(numbers_of).collect())
            .collect();
        let second = 1_000_000;
        // A window that is new at this time returns its units in the next second, one by one.
        let counter = |used: u32| {
            (
                used,
                2 * second - (u64::from(used) - 1) * second / u64::from(used),
                4,
                7,
            )
        };
        assert_eq!(
            answers,
            [
                vec![
                    vec![(3, second, 5, 7), counter(2), (2, 100_000, 3, 5)],
                    vec![(5, second, 5, 7), counter(4), (4, 100_000, 3, 7)],
                    vec![(7, second, 5, 7), counter(6), (6, 100_000, 3, 9)],
                ],
                vec![vec![(3, 17, 0, 0), (8, second, 5, 7)]],
            ]
        );
        // Cut short, and too long.
        let with = |data: &[u8]| {
            let mut reply = reply.concat();
            reply[2] = Field::Data(data.to_vec());
            decoded(reply)
        };
        for data in [&first[..first.len() - 1], &[&first[..], &[0]].concat()] {
            let error = with(data).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidReply);
        }
        // A number that is not whole, in each of the counters: the length of the data is right.
        for at in [7, 27, 51] {
            let mut broken = first.clone();
            broken[at] = 1;
            assert_eq!(kinds(with(&broken)), [Some(ErrorKind::InvalidReply), None]);
        }
    }

    /// The kind of error of each entry.
    fn kinds(replies: Result<Vec<Result<EntryReply, Error>>, Error>) -> Vec<Option<ErrorKind>> {
        let replies = replies.unwrap().into_iter();
        let errors = replies.map(|reply| {
            let error = reply.err()?;
            assert!(error.is_of_one_check(), "{error}");
            Some(error.kind())
        });
        errors.collect()
    }

    #[test]
    fn numbers_that_make_no_sense_are_the_error_of_their_entry() {
        let log = Quotas::from(Quota::per_second(5));
        let levels = [level(&log, 1)];
        let entries = [entry(&levels, 1), entry(&levels, 2), entry(&levels, 1)];
        let whole = numbers(&[9, 1, 3, 17, 1, 4, 18, 4, 9, 19, 0, 5, 7, 7]);
        let invalid = Some(ErrorKind::InvalidReply);
        for (at, number) in [(5, -1), (6, -1), (7, -1), (8, -2), (9, -1)] {
            let mut fields = whole.clone();
            fields[at] = Field::Number(number);
            let replies = decode_replies(packed(&fields), &server(), &entries, &[]);
            assert_eq!(kinds(replies), [None, invalid, None], "{at}");
        }
        for fraction in [0.5, f64::NAN, 0.1] {
            let mut fields = whole.clone();
            fields[8] = Field::Fraction(fraction);
            let replies = decode_replies(packed(&fields), &server(), &entries, &[]);
            assert_eq!(kinds(replies), [None, invalid, None], "{fraction}");
        }
        // Those that share a value that makes no sense.
        let levels = [level(&log, 1), level(&log, 2)];
        let entries = [entry(&levels, 1), entry(&levels, 1), entry(&levels, 1)];
        let run = RunOfLevels {
            first: 0,
            entries: 3,
            values: vec![1, 3, 2, 3, 1, 4],
        };
        let replies = |fields: &[i64]| {
            decode_replies(
                packed(&numbers(fields)),
                &server(),
                &entries,
                std::slice::from_ref(&run),
            )
        };
        assert_eq!(
            kinds(replies(&[9, 0, 2, 5, 1, 5, 4, 6, 2, 6])),
            [None, None, None]
        );
        assert_eq!(
            kinds(replies(&[9, 0, 2, 5, 1, 5, 4, -6, 2, 6])),
            [invalid, invalid, None]
        );
    }

    #[test]
    fn a_reply_of_another_shape_is_an_error() {
        let quotas = Quotas::from(Quota::per_second(5));
        let levels = [level(&quotas, 1)];
        let decoded = |reply| decode_replies(reply, &server(), &[entry(&levels, 2)], &[]);
        let whole = numbers(&[9, 1, 3, 5, 3, 7, 5]);
        let Value::BulkString(bytes) = packed(&whole) else {
            unreachable!()
        };
        assert!(decoded(Value::BulkString(bytes.clone())).is_ok());
        let with = |at: usize, field| {
            let mut fields = whole.clone();
            fields[at] = field;
            packed(&fields)
        };
        let half_a_text = [bytes[0], bytes[1], 0xa5, b'x'];
        let mut replies = vec![
            Value::Nil,
            Value::Int(1),
            Value::Array(vec![]),
            Value::BulkString(half_a_text.to_vec()),
            packed(&[&whole[..], &whole[..1]].concat()),
            with(0, Field::Number(-1)),
            with(0, Field::Text("9")),
            with(1, Field::Number(-1)),
            with(1, Field::Number(3)),
            with(1, Field::Fraction(0.5)),
            with(4, Field::Text("OK")),
        ];
        // Cut off anywhere.
        replies.extend((0..bytes.len()).map(|end| Value::BulkString(bytes[..end].to_vec())));
        for reply in replies {
            let error = decoded(reply.clone()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidReply, "{reply:?}");
        }
    }
}
