//! Decodes the replies of the script.

use std::borrow::Cow;

use redis::Value;
use rmp::{Marker, decode};
use smallvec::SmallVec;

use super::errors::{self, malformed_reply};
use super::server_name::ServerName;
use crate::decision::{Answer, QuotaAnswer, Receipt, Source, Wait};
use crate::error::Error;
use crate::quota::{Quota, Quotas};

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

/// Decodes the reply to a call of `entries`: quotas, cost and count of each. The inner error fails one
/// entry, the outer one the whole call.
pub(crate) fn decode_replies<'a>(
    reply: Value,
    server: &ServerName,
    entries: impl Iterator<Item = (&'a Quotas, u32, u32)>,
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
    };
    reader.time = reader.number()?;
    let mut replies = Vec::with_capacity(entries.size_hint().0);
    for (quotas, cost, count) in entries {
        replies.push(reader.entry(quotas, cost, count)?);
    }
    if !reader.rest.is_empty() {
        return Err(malformed_reply("more values than expected", server));
    }
    Ok(replies)
}

/// Decodes the reply to a call that decides checks together, whose quotas these are.
pub(crate) fn decode_together<'a>(
    reply: Value,
    server: &ServerName,
    checks: impl Iterator<Item = &'a Quotas>,
) -> Result<Vec<Answer>, Error> {
    let Value::BulkString(packed) = reply else {
        return Err(malformed_reply("not a packed array", server));
    };
    let mut rest = &*packed;
    decode::read_array_len(&mut rest).map_err(|_| malformed_reply("not an array", server))?;
    let mut reader = ReplyReader {
        rest,
        time: 0,
        server,
    };
    reader.time = reader.number()?;
    let is_admitted = reader.number()? > 0;
    let answers: Result<Vec<_>, _> = checks
        .map(|quotas| {
            if is_admitted {
                reader.answer(quotas, ReplyReader::admitted)
            } else {
                reader.answer(quotas, ReplyReader::refused)
            }
        })
        .collect();
    match answers {
        Ok(_) if !reader.rest.is_empty() => {
            Err(malformed_reply("more values than expected", server))
        }
        answers => answers,
    }
}

/// Reads a packed reply from front to back.
struct ReplyReader<'a> {
    rest: &'a [u8],
    time: u64,
    /// The server that sent the reply, for errors.
    server: &'a ServerName,
}

impl ReplyReader<'_> {
    /// Reads the reply of one entry. The outer error makes the rest unreadable too.
    fn entry(
        &mut self,
        quotas: &Quotas,
        cost: u32,
        count: u32,
    ) -> Result<Result<EntryReply, Error>, Error> {
        let server = self.server;
        if let Some(text) = self.text()? {
            return Ok(Err(errors::from_script(&text, server)));
        }
        let admitted = self.number()?;
        if admitted > count.into() {
            return Err(malformed_reply(
                "more checks admitted than sent",
                self.server,
            ));
        }
        let answers = if cost == 0 { admitted.min(1) } else { admitted };
        let mut reply = EntryReply {
            admitted: SmallVec::new(),
            refused: None,
        };
        for _ in 0..answers {
            reply.admitted.push(self.answer(quotas, Self::admitted)?);
        }
        if admitted < count.into() {
            reply.refused = Some(self.answer(quotas, Self::refused)?);
        }
        Ok(Ok(reply))
    }

    /// Reads the replies of all quotas to one check.
    fn answer(
        &mut self,
        quotas: &Quotas,
        read: impl Fn(&mut Self, &Quota) -> Result<QuotaAnswer, Error>,
    ) -> Result<Answer, Error> {
        let mut answer = Answer::at(self.time, Source::Redis, []);
        for quota in quotas.iter() {
            answer.push(read(self, quota)?);
        }
        Ok(answer)
    }

    fn admitted(&mut self, quota: &Quota) -> Result<QuotaAnswer, Error> {
        let (used, reset) = (self.units()?, self.number()?);
        let receipt = if quota.counted_by().facts().needs_receipt {
            Receipt {
                generation: self.number()?,
                position: self.number()?,
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
            micros => Wait::Micros(non_negative(micros, self.server)?),
        };
        Ok(QuotaAnswer::from_micros(used, wait, self.number()?))
    }

    /// Reads used units. A log may hold more than a `u32`, which is as full as one that holds
    /// `u32::MAX`.
    fn units(&mut self) -> Result<u32, Error> {
        Ok(u32::try_from(self.number()?).unwrap_or(u32::MAX))
    }

    fn number(&mut self) -> Result<u64, Error> {
        let server = self.server;
        non_negative(self.integer()?, server)
    }

    fn integer(&mut self) -> Result<i64, Error> {
        decode::read_int(&mut self.rest).map_err(|_| malformed_reply("not a number", self.server))
    }

    /// Reads a text, if one comes next.
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
        let incomplete = || malformed_reply("incomplete text", self.server);
        let (text, rest) = split.ok_or_else(incomplete)?;
        self.rest = rest;
        Ok(Some(String::from_utf8_lossy(text)))
    }
}

fn non_negative(number: i64, server: &ServerName) -> Result<u64, Error> {
    u64::try_from(number).map_err(|_| malformed_reply("a number out of range", server))
}

#[cfg(test)]
mod tests {
    use rmp::encode;

    use super::*;
    use crate::error::ErrorKind;
    use crate::quota::Algorithm;

    fn server() -> ServerName {
        ServerName::new("Redis", "127.0.0.1:6379")
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
            // Looks share one reply.
            numbers(&[7, 3, 17]),
        ];
        let entries = [
            (&log, 1, 3),
            (&log, 1, 1),
            (&both, 1, 1),
            (&both, 6, 2),
            (&log, 0, 7),
        ];
        let reply = packed(&reply.concat());
        let replies = decode_replies(reply, &server(), entries.into_iter()).unwrap();
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

    #[test]
    fn a_reply_of_another_shape_is_an_error() {
        let quotas = Quotas::from(Quota::per_second(5));
        let decoded = |reply| decode_replies(reply, &server(), [(&quotas, 1, 2)].into_iter());
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
