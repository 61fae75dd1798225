//! One call of the script: checks in, answers out. The format is that of `lua/decide.lua`.

use redis::{Cmd, Value};
use smallvec::SmallVec;

use super::error;
use super::names::Prefix;
use crate::decision::{Answer, QuotaAnswer, Receipt, Source, Wait};
use crate::quota::Algorithm;
use crate::store::{Check, Refund};
use crate::{Error, ErrorKind};

/// The arguments of a check, and those of each of its quotas.
pub(super) const CHECK_FIELDS: [&str; 2] = ["cost", "quotas"];
pub(super) const QUOTA_FIELDS: [&str; 5] = ["algorithm", "parts", "key", "limit", "window"];

/// What the script says of each check, and of each of its quotas.
pub(super) const CHECK_REPLY_FIELDS: [&str; 1] = ["time"];
pub(super) const REPLY_FIELDS: [&str; 6] = ["used", "wait", "reset", "stamp", "mark", "back"];

/// The arguments of a refund, for each stored count.
pub(super) const REFUND_FIELDS: [&str; 10] = [
    "algorithm",
    "parts",
    "limit",
    "window",
    "units",
    "time",
    "stamp",
    "mark",
    "back",
    "used",
];

/// The keys and arguments of a call.
#[derive(Debug)]
pub(super) struct Call {
    keys: Vec<String>,
    args: Vec<Arg>,
    /// How many quotas each check has.
    quotas: SmallVec<[usize; 1]>,
}

#[derive(Debug)]
enum Arg {
    Number(u64),
    Count(usize),
    Algorithm(&'static str),
}

impl Call {
    /// A call that decides these checks in their order.
    pub(super) fn encode(prefix: &Prefix, checks: &[Check<'_>]) -> Self {
        let mut call = Self {
            keys: Vec::new(),
            args: Vec::new(),
            quotas: SmallVec::new(),
        };
        for check in checks {
            call.push(prefix, check);
        }
        call
    }

    /// A call of the other script, which takes units back.
    pub(super) fn encode_refund(prefix: &Prefix, refund: &Refund<'_>) -> Self {
        let mut args = Vec::new();
        for (quota, answer) in refund.charged() {
            let receipt = answer.receipt();
            let fields: [Arg; REFUND_FIELDS.len()] = [
                Arg::Algorithm(file_of(quota.counted_by())),
                Arg::Number(quota.counted_by().parts()),
                Arg::Number(quota.limit().into()),
                Arg::Number(quota.window_micros()),
                Arg::Number(refund.units().into()),
                Arg::Number(refund.answer().time()),
                Arg::Number(receipt.stamp),
                Arg::Number(receipt.mark),
                Arg::Number(receipt.back),
                Arg::Number(answer.used().into()),
            ];
            args.extend(fields);
        }
        Self {
            keys: prefix.names_of(refund.subject).collect(),
            args,
            quotas: SmallVec::new(),
        }
    }

    fn push(&mut self, prefix: &Prefix, check: &Check<'_>) {
        let keys_before = self.keys.len();
        self.keys.extend(prefix.names_of(check.subject));
        let quotas = check.quotas();
        self.quotas.push(quotas.len());
        let fields: [Arg; CHECK_FIELDS.len()] =
            [Arg::Number(check.cost().into()), Arg::Count(quotas.len())];
        self.args.extend(fields);
        for (quota, counter) in quotas.counted() {
            let fields: [Arg; QUOTA_FIELDS.len()] = [
                Arg::Algorithm(file_of(quota.counted_by())),
                Arg::Number(quota.counted_by().parts()),
                // Lua counts from 1.
                Arg::Count(keys_before + counter + 1),
                Arg::Number(quota.limit().into()),
                Arg::Number(quota.window_micros()),
            ];
            self.args.extend(fields);
        }
    }

    pub(super) fn write_to(&self, command: &mut Cmd) {
        command.arg(self.keys.len());
        for key in &self.keys {
            command.arg(key);
        }
        for arg in &self.args {
            match arg {
                Arg::Number(number) => command.arg(number),
                Arg::Count(count) => command.arg(count),
                Arg::Algorithm(name) => command.arg(name),
            };
        }
    }

    /// How many quotas the reply must speak of, check by check.
    pub(super) fn expected(&self) -> SmallVec<[usize; 1]> {
        self.quotas.clone()
    }
}

/// The file in `lua/` that counts so.
fn file_of(algorithm: Algorithm) -> &'static str {
    match algorithm {
        Algorithm::SlidingLog => "sliding_log",
        Algorithm::SortedSetLog => "sorted_set_log",
        Algorithm::SlidingCounter => "sliding_counter",
        Algorithm::SlidingBuckets(_) => "sliding_buckets",
        Algorithm::FixedWindow => "fixed_window",
        Algorithm::Gcra => "gcra",
    }
}

/// The answers of a call, check by check; outside that, what befell the whole call.
pub(super) fn decode(
    reply: Value,
    expected: &[usize],
) -> Result<Vec<Result<Answer, Error>>, Error> {
    let Value::Array(replies) = reply else {
        return Err(unexpected("no array"));
    };
    if replies.len() != expected.len() {
        return Err(unexpected("another number of checks"));
    }
    let answers = replies.into_iter().zip(expected);
    Ok(answers
        .map(|(reply, quotas)| answer(reply, *quotas))
        .collect())
}

fn answer(reply: Value, quotas: usize) -> Result<Answer, Error> {
    let expected = CHECK_REPLY_FIELDS.len() + quotas * REPLY_FIELDS.len();
    let numbers = match reply {
        Value::Array(numbers) if numbers.len() == expected => numbers,
        Value::BulkString(text) => return Err(error::from_script(&String::from_utf8_lossy(&text))),
        Value::SimpleString(text) => return Err(error::from_script(&text)),
        _ => return Err(unexpected("another number of quotas")),
    };
    whole_answer(&numbers).ok_or_else(|| unexpected("a number out of range"))
}

fn whole_answer(numbers: &[Value]) -> Option<Answer> {
    let (check, quotas) = numbers.split_at_checked(CHECK_REPLY_FIELDS.len())?;
    let [time] = check else {
        return None;
    };
    let answers: Option<SmallVec<[QuotaAnswer; 2]>> = quotas
        .chunks_exact(REPLY_FIELDS.len())
        .map(quota_answer)
        .collect();
    Some(Answer::at(number(time)?, Source::Redis, answers?))
}

fn quota_answer(fields: &[Value]) -> Option<QuotaAnswer> {
    let [used, wait, reset, stamp, mark, back] = fields else {
        return None;
    };
    let wait = match wait {
        Value::Int(-1) => Wait::Never,
        wait => match number(wait)? {
            0 => Wait::Zero,
            micros => Wait::Micros(micros),
        },
    };
    // A log that holds more than a limit can name is as full as one that holds just that.
    let used = u32::try_from(number(used)?).unwrap_or(u32::MAX);
    let receipt = Receipt {
        stamp: number(stamp)?,
        mark: number(mark)?,
        back: number(back)?,
    };
    Some(QuotaAnswer::from_micros(used, wait, number(reset)?).with_receipt(receipt))
}

fn number(value: &Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).ok(),
        _ => None,
    }
}

pub(super) fn unexpected(what: &str) -> Error {
    Error::new(
        ErrorKind::InvalidReply,
        format!("Redis did not answer as the script does: {what}"),
    )
}

#[cfg(test)]
mod tests {
    use redis::Arg::Simple;

    use super::*;
    use crate::store::check::Subject;
    use crate::{Key, Quota, Quotas};

    fn written(checks: &[(&Quotas, u32)]) -> Vec<String> {
        let (limiter, key) = (Key::from("l"), Key::from("k"));
        let checks: Vec<_> = checks
            .iter()
            .map(|(quotas, cost)| Check {
                subject: Subject {
                    limiter: &limiter,
                    key: &key,
                    quotas,
                },
                cost: *cost,
            })
            .collect();
        let mut command = Cmd::new();
        Call::encode(&Prefix::new("p"), &checks).write_to(&mut command);
        let args = command.args_iter().map(|arg| match arg {
            Simple(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
            _ => unreachable!(),
        });
        args.collect()
    }

    #[test]
    fn several_checks_travel_in_one_call() {
        let two = Quotas::from([Quota::per_second(5), Quota::per_second(9)]);
        let buckets = Algorithm::SlidingBuckets(60);
        let one = Quotas::from(Quota::per_minute(7).algorithm(buckets));
        let expected = "2 p:v1:{l,k}:log:1000000 p:v1:{l,k}:buckets60:60000000 \
            3 2 sliding_log 1 1 5 1000000 sliding_log 1 1 9 1000000 \
            4 1 sliding_buckets 60 2 7 60000000";
        assert_eq!(written(&[(&two, 3), (&one, 4)]).join(" "), expected);
    }

    #[test]
    fn each_check_has_an_answer_or_an_error_of_its_own() {
        let numbers =
            |numbers: &[i64]| Value::Array(numbers.iter().map(|n| Value::Int(*n)).collect());
        let reply = Value::Array(vec![
            numbers(&[1_000, 3, 0, 17, 8, 2, 1]),
            Value::BulkString(b"WRONGTYPE Operation against a key".to_vec()),
            numbers(&[1_000, 5, 9, 9, 0, 0, 0, 1, -1, 0, 0, 0, 0]),
        ]);
        let answers = decode(reply, &[1, 1, 2]).unwrap();
        assert_eq!(
            answers[0].as_ref().unwrap().quotas(),
            [
                QuotaAnswer::from_micros(3, Wait::Zero, 17).with_receipt(Receipt {
                    stamp: 8,
                    mark: 2,
                    back: 1
                })
            ]
        );
        assert_eq!(answers[0].as_ref().unwrap().time(), 1_000);
        assert_eq!(
            answers[1].as_ref().unwrap_err().kind(),
            ErrorKind::Misconfigured
        );
        assert_eq!(
            answers[2].as_ref().unwrap().quotas(),
            [
                QuotaAnswer::from_micros(5, Wait::Micros(9), 9),
                QuotaAnswer::from_micros(1, Wait::Never, 0)
            ]
        );
    }

    #[test]
    fn a_reply_of_another_shape_is_an_error() {
        let int = Value::Int;
        let whole = [int(9), int(1), int(0), int(0), int(0), int(0), int(0)];
        let with = |at: usize, value| {
            let mut numbers = whole.to_vec();
            numbers[at] = value;
            Value::Array(vec![Value::Array(numbers)])
        };
        assert!(decode(with(0, int(9)), &[1]).unwrap().remove(0).is_ok());
        for reply in [
            Value::Nil,
            int(1),
            Value::Array(vec![]),
            Value::Array(vec![int(1)]),
            Value::Array(vec![Value::Array(whole[1..].to_vec())]),
            with(0, int(-1)),
            with(1, int(-1)),
            with(2, int(-2)),
            with(3, Value::Nil),
            with(4, int(-1)),
            with(5, Value::Okay),
        ] {
            let answers = decode(reply.clone(), &[1]);
            let error = answers
                .and_then(|mut answers| answers.remove(0))
                .unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidReply, "{reply:?}");
        }
    }
}
