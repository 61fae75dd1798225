//! One call of the script: checks in, answers out. The format is that of `lua/decide.lua`.

use std::borrow::Cow;
use std::io;
use std::io::Write;

use redis::{Cmd, RedisWrite, Value};
use rmp::{Marker, decode, encode};
use smallvec::SmallVec;

use super::key_names::KeyNames;
use crate::decision::{Answer, QuotaAnswer, Receipt, Source, Wait};
use crate::error::{Error, ErrorKind};
use crate::quota::{Algorithm, Quota, Quotas};
use crate::store::redis::protocol::errors as error;
use crate::store::redis::script::Script;
use crate::store::requests::{Check, Credit, Refund};

/// How many there are of each quota and of each run.
const FIELDS_OF_QUOTA: usize = 6;
const FIELDS_OF_RUN: usize = 4;

/// The numbers of a call, of each list of quotas, of each quota in it, and of each run of entries.
#[cfg(test)]
pub(crate) const CALL_FIELDS: [&str; 1] = ["plans"];
#[cfg(test)]
pub(crate) const PLAN_FIELDS: [&str; 1] = ["quotas"];
#[cfg(test)]
pub(crate) const QUOTA_FIELDS: [&str; FIELDS_OF_QUOTA] =
    ["algorithm", "parts", "counter", "limit", "window", "life"];
#[cfg(test)]
pub(crate) const RUN_FIELDS: [&str; FIELDS_OF_RUN] = ["entries", "plan", "cost", "count"];

/// What the script says of a call, of each entry, and of each quota of a check: one that was
/// admitted, with its receipt where the algorithm gives one, or one that was refused.
#[cfg(test)]
pub(crate) const CALL_REPLY_FIELDS: [&str; 1] = ["time"];
#[cfg(test)]
pub(crate) const ENTRY_REPLY_FIELDS: [&str; 1] = ["admitted"];
#[cfg(test)]
pub(crate) const ADMITTED_FIELDS: [&str; 2] = ["used", "reset"];
#[cfg(test)]
pub(crate) const RECEIPT_FIELDS: [&str; 2] = ["stamp", "mark"];
#[cfg(test)]
pub(crate) const REFUSED_FIELDS: [&str; 3] = ["used", "wait", "reset"];

/// The arguments of a refund, for each stored count.
pub(crate) const REFUND_FIELDS: [&str; 11] = [
    "algorithm",
    "parts",
    "limit",
    "window",
    "life",
    "units",
    "time",
    "stamp",
    "mark",
    "cost",
    "held",
];

/// The arguments of a gift: for all, and for each stored count.
pub(crate) const GIVE_FIELDS: [&str; 1] = ["units"];
pub(crate) const GIVE_COUNT_FIELDS: [&str; 5] = ["algorithm", "parts", "limit", "window", "life"];

/// About how long the name of a key is: what a command makes room for.
const NAME_LENGTH: usize = 64;

/// The most numbers and texts of a call that are packed one behind the other, which is read in half the time
/// that an array takes. A function of Lua returns 8 000 values at most.
const MOST_FIELDS_APART: usize = 4_000;

/// The most units that several checks of one entry may ask for together: the queue sees to it, and the
/// script fails an entry that asks for more.
pub(crate) const UNITS_OF_ENTRY: u64 = 100_000;

/// Checks of one cost on the same key and quotas, which the script decides one after the other, as
/// if each had come alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchEntry<'a> {
    pub(crate) check: Check<'a>,
    pub(crate) count: u32,
}

/// A call that decides these entries in their order.
pub(crate) fn decide(script: &Script, names: &KeyNames, entries: &[BatchEntry<'_>]) -> Cmd {
    let plans = QuotaLists::of(entries);
    let keys = entries.iter().map(|entry| counts(entry.check.quotas()));
    let keys = keys.sum();
    let mut call = script.call(keys, 1, NAME_LENGTH);
    for entry in entries {
        names.write(entry.check.subject, &mut call);
    }
    let runs = plans.runs(entries);
    // Writing to a command does not fail.
    let _ = plans.pack(&runs, &mut call.writer_for_next_arg());
    call
}

/// How many stored counts quotas have.
fn counts(quotas: &Quotas) -> usize {
    quotas.strictest().count()
}

/// So many entries in a row that have the number of their plan, their cost and their count in common.
struct EntryRun {
    entries: u64,
    alike: [u64; 3],
}

/// The different lists of quotas in a call, of which there is mostly one.
struct QuotaLists<'a> {
    plans: SmallVec<[&'a Quotas; 4]>,
    /// The plan of each entry.
    of_entries: SmallVec<[usize; 64]>,
}

impl<'a> QuotaLists<'a> {
    fn of(entries: &[BatchEntry<'a>]) -> Self {
        let mut plans = SmallVec::<[&Quotas; 4]>::new();
        let of_entries = entries.iter().map(|entry| {
            let quotas = entry.check.quotas();
            let known = plans.iter().position(|plan| *plan == quotas);
            known.unwrap_or_else(|| {
                plans.push(quotas);
                plans.len() - 1
            })
        });
        let of_entries = of_entries.collect();
        Self { plans, of_entries }
    }

    fn runs(&self, entries: &[BatchEntry<'_>]) -> SmallVec<[EntryRun; 4]> {
        let mut runs = SmallVec::<[EntryRun; 4]>::new();
        for (entry, plan) in entries.iter().zip(&self.of_entries) {
            // Lua counts from 1.
            let alike = [
                *plan as u64 + 1,
                entry.check.cost().into(),
                entry.count.into(),
            ];
            match runs.last_mut() {
                Some(run) if run.alike == alike => run.entries += 1,
                _ => runs.push(EntryRun { entries: 1, alike }),
            }
        }
        runs
    }

    /// The plans, and the entries in runs, as the numbers of which they are made.
    fn pack(&self, runs: &[EntryRun], out: &mut impl Write) -> io::Result<()> {
        let of_plans = self
            .plans
            .iter()
            .map(|plan| 1 + FIELDS_OF_QUOTA * plan.len());
        let fields = 1 + of_plans.sum::<usize>() + FIELDS_OF_RUN * runs.len();
        if fields > MOST_FIELDS_APART {
            encode::write_array_len(out, u32::try_from(fields).unwrap_or(u32::MAX))?;
        }
        self.pack_plans(out)?;
        for EntryRun { entries, alike } in runs {
            encode::write_uint(out, *entries)?;
            for field in alike {
                encode::write_uint(out, *field)?;
            }
        }
        Ok(())
    }

    fn pack_plans(&self, out: &mut impl Write) -> io::Result<()> {
        encode::write_uint(out, self.plans.len() as u64)?;
        for plan in &self.plans {
            encode::write_uint(out, plan.len() as u64)?;
            for (quota, counter) in plan.with_counters() {
                let algorithm = quota.counted_by();
                encode::write_str(out, file_of(algorithm))?;
                encode::write_uint(out, algorithm.parts())?;
                encode::write_uint(out, counter as u64 + 1)?;
                encode::write_uint(out, quota.limit().into())?;
                encode::write_uint(out, quota.window_micros())?;
                encode::write_str(out, &life_of(quota).to_string())?;
            }
        }
        Ok(())
    }
}

/// A call of the script that takes units back.
pub(crate) fn refund(script: &Script, names: &KeyNames, refund: &Refund<'_>) -> Cmd {
    let keys = counts(refund.quotas());
    let mut call = script.call(keys, keys * REFUND_FIELDS.len(), NAME_LENGTH);
    names.write(refund.subject, &mut call);
    for (quota, answer) in refund.charged() {
        let receipt = answer.receipt();
        let algorithm = quota.counted_by();
        call.write_arg(file_of(algorithm).as_bytes());
        call.arg(algorithm.parts());
        call.arg(quota.limit()).arg(quota.window_micros());
        call.arg(life_of(quota));
        call.arg(refund.units()).arg(refund.answer().time());
        call.arg(receipt.stamp).arg(receipt.mark);
        call.arg(refund.cost).arg(refund.held);
    }
    call
}

/// A call of the script that has fewer units count, by the strictest quota of each stored count.
pub(crate) fn credit(script: &Script, names: &KeyNames, give: &Credit<'_>) -> Cmd {
    let keys = counts(give.quotas());
    let args = GIVE_FIELDS.len() + keys * GIVE_COUNT_FIELDS.len();
    let mut call = script.call(keys, args, NAME_LENGTH);
    names.write(give.subject, &mut call);
    call.arg(give.units());
    for quota in give.quotas().strictest() {
        let algorithm = quota.counted_by();
        call.write_arg(file_of(algorithm).as_bytes());
        call.arg(algorithm.parts());
        call.arg(quota.limit()).arg(quota.window_micros());
        call.arg(life_of(quota));
    }
    call
}

/// How long a count is kept after it was last renewed, in milliseconds. A log without a trim may grow for
/// one window and then counts for another. The second more keeps brief windows from being at the mercy
/// of a millisecond.
fn life_of(quota: &Quota) -> u64 {
    (2 * quota.window_micros()).div_ceil(1_000) + 1_000
}

/// The file in `lua/` that counts so.
fn file_of(algorithm: Algorithm) -> &'static str {
    algorithm.facts().script
}

/// Whether what it charges is found again by a receipt: the units of a log are, by their time.
fn gives_receipts(algorithm: Algorithm) -> bool {
    algorithm.facts().needs_receipt
}

/// What the checks of one entry came to.
#[derive(Debug)]
pub(crate) struct EntryReply {
    /// The answers to those that were admitted, in order. Of looks, which all see the same, one.
    pub(crate) admitted: SmallVec<[Answer; 1]>,
    /// The answer to all others.
    pub(crate) refused: Option<Answer>,
}

impl EntryReply {
    /// The answer to the check that came last.
    pub(crate) fn last(&self) -> Option<&Answer> {
        self.refused.as_ref().or_else(|| self.admitted.last())
    }

    pub(crate) fn into_last(mut self) -> Option<Answer> {
        self.refused.or_else(|| self.admitted.pop())
    }
}

/// What each entry of a call came to, of which `asked` tells quotas, cost and count; outside that,
/// what befell the whole call.
pub(crate) fn decode<'a>(
    reply: Value,
    asked: impl Iterator<Item = (&'a Quotas, u32, u32)>,
) -> Result<Vec<Result<EntryReply, Error>>, Error> {
    let Value::BulkString(packed) = reply else {
        return Err(unexpected("no packed reply"));
    };
    let mut rest = &*packed;
    // What is behind the head says how much there is.
    decode::read_array_len(&mut rest).map_err(|_| unexpected("no list"))?;
    let mut reply = Reply { rest, time: 0 };
    reply.time = reply.number()?;
    let granted: Result<Vec<_>, _> = asked
        .map(|(quotas, cost, count)| reply.entry(quotas, cost, count))
        .collect();
    match granted {
        Ok(_) if !reply.rest.is_empty() => Err(unexpected("more than it was asked")),
        granted => granted,
    }
}

/// A reply that is read from its head.
struct Reply<'a> {
    rest: &'a [u8],
    time: u64,
}

impl Reply<'_> {
    /// What one entry came to. Outside: the rest cannot be read either.
    fn entry(
        &mut self,
        quotas: &Quotas,
        cost: u32,
        count: u32,
    ) -> Result<Result<EntryReply, Error>, Error> {
        if let Some(text) = self.text()? {
            return Ok(Err(error::from_script(&text)));
        }
        let admitted = self.number()?;
        if admitted > count.into() {
            return Err(unexpected("more than it was asked"));
        }
        let told = if cost == 0 { admitted.min(1) } else { admitted };
        Ok(Ok(EntryReply {
            admitted: (0..told)
                .map(|_| self.answer(quotas, Self::admitted))
                .collect::<Result<_, _>>()?,
            refused: if admitted < count.into() {
                Some(self.answer(quotas, Self::refused)?)
            } else {
                None
            },
        }))
    }

    /// What all quotas say of a check.
    fn answer(
        &mut self,
        quotas: &Quotas,
        of_quota: impl Fn(&mut Self, &Quota) -> Result<QuotaAnswer, Error>,
    ) -> Result<Answer, Error> {
        let answers = quotas.iter().map(|quota| of_quota(self, quota));
        let answers: SmallVec<[QuotaAnswer; 2]> = answers.collect::<Result<_, _>>()?;
        Ok(Answer::at(self.time, Source::Redis, answers))
    }

    fn admitted(&mut self, quota: &Quota) -> Result<QuotaAnswer, Error> {
        let (used, reset) = (self.units()?, self.number()?);
        let receipt = if gives_receipts(quota.counted_by()) {
            Receipt {
                stamp: self.number()?,
                mark: self.number()?,
                ..Receipt::default()
            }
        } else {
            Receipt::default()
        };
        Ok(QuotaAnswer::from_micros(used, Wait::Zero, reset).with_receipt(receipt))
    }

    fn refused(&mut self, _: &Quota) -> Result<QuotaAnswer, Error> {
        let used = self.units()?;
        let wait = match self.integer()? {
            -1 => Wait::Never,
            0 => Wait::Zero,
            micros => Wait::Micros(whole(micros)?),
        };
        Ok(QuotaAnswer::from_micros(used, wait, self.number()?))
    }

    /// Units that are used. A log that holds more than a limit can name is as full as one that holds
    /// just that.
    fn units(&mut self) -> Result<u32, Error> {
        Ok(u32::try_from(self.number()?).unwrap_or(u32::MAX))
    }

    fn number(&mut self) -> Result<u64, Error> {
        whole(self.integer()?)
    }

    fn integer(&mut self) -> Result<i64, Error> {
        decode::read_int(&mut self.rest).map_err(|_| unexpected("no number"))
    }

    /// A text, unless a number comes next.
    fn text(&mut self) -> Result<Option<Cow<'_, str>>, Error> {
        let is_text = self.rest.first().is_some_and(|first| {
            use Marker::{FixStr, Str8, Str16, Str32};
            let marker = Marker::from_u8(*first);
            matches!(marker, FixStr(_) | Str8 | Str16 | Str32)
        });
        if !is_text {
            return Ok(None);
        }
        let length = decode::read_str_len(&mut self.rest).ok();
        let length = length.and_then(|length| usize::try_from(length).ok());
        let split = length.and_then(|length| self.rest.split_at_checked(length));
        let (text, rest) = split.ok_or_else(|| unexpected("half a text"))?;
        self.rest = rest;
        Ok(Some(String::from_utf8_lossy(text)))
    }
}

fn whole(number: i64) -> Result<u64, Error> {
    u64::try_from(number).map_err(|_| unexpected("a number out of range"))
}

pub(crate) fn unexpected(what: &str) -> Error {
    Error::new(
        ErrorKind::InvalidReply,
        format!("Redis did not answer as the script does: {what}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;
    use crate::quota::{Quota, Quotas};
    use crate::store::redis::script::Scripts;
    use crate::store::requests::Subject;
    use redis::Arg::Simple;

    /// The keys and arguments of a call of these entries: quotas, cost and count.
    fn written(entries: &[(&Quotas, u32, u32)]) -> String {
        let (limiter, key) = (Key::from("l"), Key::from("k"));
        let entries: Vec<_> = entries
            .iter()
            .map(|(quotas, cost, count)| BatchEntry {
                check: Check {
                    subject: Subject {
                        limiter: &limiter,
                        key: &key,
                        quotas,
                    },
                    cost: *cost,
                },
                count: *count,
            })
            .collect();
        let call = decide(
            &Scripts::shared().decide,
            &KeyNames::default().with_prefix("p"),
            &entries,
        );
        let args = call.args_iter().skip(2).map(|arg| match arg {
            Simple(bytes) => bytes.to_vec(),
            _ => unreachable!(),
        });
        let mut args: Vec<_> = args.collect();
        let mut packed = &*args.pop().unwrap();
        let mut words: Vec<_> = args
            .into_iter()
            .map(|arg| String::from_utf8(arg).unwrap())
            .collect();
        while let Some(first) = packed.first() {
            words.push(if first & 0xe0 == 0xa0 {
                let (text, rest) = decode::read_str_from_slice(packed).unwrap();
                packed = rest;
                text.to_owned()
            } else {
                let number: u64 = decode::read_int(&mut packed).unwrap();
                number.to_string()
            });
        }
        words.join(" ")
    }

    #[test]
    fn plans_travel_once_and_entries_that_are_alike_as_one_run() {
        let two = Quotas::from([Quota::per_second(5), Quota::per_second(9)]);
        let buckets = Algorithm::SlidingBuckets(60);
        let one = Quotas::from(Quota::per_minute(7).algorithm(buckets));
        let (log, tally) = ("p:v1:{l,k}:log:1000000", "p:v1:{l,k}:buckets60:60000000");
        let plans = "2 2 sliding_log 1 1 5 1000000 3000 sliding_log 1 1 9 1000000 3000 \
            1 sliding_buckets 60 1 7 60000000 121000";
        // Not the same quotas, but equal ones.
        let equal = Quotas::from([Quota::per_second(5), Quota::per_second(9)]);
        assert_eq!(
            written(&[
                (&two, 3, 1),
                (&equal, 3, 1),
                (&one, 4, 1),
                (&one, 4, 2),
                (&two, 4, 2)
            ]),
            format!("5 {log} {log} {tally} {tally} {log} {plans} 2 1 3 1 1 2 4 1 1 2 4 2 1 1 4 2")
        );
    }

    #[test]
    fn a_call_that_the_server_does_not_know_is_the_same_with_the_text() {
        let script = &Scripts::shared().decide;
        let mut call = script.call(1, 1, 1);
        call.arg("key").arg(7);
        let words = |call: &Cmd| {
            let args = call.args_iter().map(|arg| match arg {
                Simple(bytes) => bytes.to_vec(),
                _ => unreachable!(),
            });
            args.collect::<Vec<_>>()
        };
        let (by_hash, by_text) = (words(&call), words(&script.by_text(&call)));
        assert_eq!(
            (by_hash[0].as_slice(), by_text[0].as_slice()),
            (&b"EVALSHA"[..], &b"EVAL"[..])
        );
        assert!(by_text[1].starts_with(b"--[["));
        assert_eq!(by_hash[2..], [&b"1"[..], b"key", b"7"]);
        assert_eq!(by_text[2..], by_hash[2..]);
    }

    /// One field of a reply.
    #[derive(Clone, Debug)]
    enum Field {
        Number(i64),
        Text(&'static str),
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
                Field::Text(text) => encode::write_str(&mut packed, text).unwrap(),
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
            // Looks are told once.
            numbers(&[7, 3, 17]),
        ];
        let asked = [
            (&log, 1, 3),
            (&log, 1, 1),
            (&both, 1, 1),
            (&both, 6, 2),
            (&log, 0, 7),
        ];
        let reply = packed(&reply.concat());
        let granted = decode(reply, asked.into_iter()).unwrap();
        let answers: Vec<_> = granted
            .into_iter()
            .map(|granted| {
                let granted = granted.map_err(|error| error.kind())?;
                assert!(granted.admitted.iter().all(|answer| answer.time() == 1_000));
                let quotas = |answer: &Answer| answer.quotas().to_vec();
                let admitted: Vec<_> = granted.admitted.iter().map(quotas).collect();
                Ok((admitted, granted.refused.as_ref().map(quotas)))
            })
            .collect();
        let said = QuotaAnswer::from_micros;
        let receipt = Receipt {
            stamp: 8,
            mark: 2,
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

    #[test]
    fn a_reply_of_another_shape_is_an_error() {
        let quotas = Quotas::from(Quota::per_second(5));
        let decoded = |reply| decode(reply, [(&quotas, 1, 2)].into_iter());
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
            with(2, Field::Number(-1)),
            with(4, Field::Text("OK")),
            with(5, Field::Number(-2)),
            with(6, Field::Number(-1)),
        ];
        // Cut off anywhere.
        replies.extend((0..bytes.len()).map(|end| Value::BulkString(bytes[..end].to_vec())));
        for reply in replies {
            let error = decoded(reply.clone()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidReply, "{reply:?}");
        }
    }
}
