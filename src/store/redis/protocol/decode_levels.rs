//! Decodes the replies to checks of several levels, some of which were charged together.

use smallvec::SmallVec;

use super::decode::{EntryReply, ReplyReader};
use super::encode::BatchEntry;
use super::errors::malformed_reply;
use super::last_reply::LastReply;
use crate::decision::{Answer, Source};
use crate::error::Error;

/// The reply of a value to the last of the checks that were charged to it together.
#[derive(Clone, Default)]
struct SharedReply {
    /// The checks that have no answer yet.
    checks: u64,
    quotas: SmallVec<[LastReply; 2]>,
    /// The error of all checks, if the reply makes no sense.
    error: Option<Error>,
}

impl ReplyReader<'_> {
    /// Reads the reply of a run of several levels, whose values have these numbers: which entries were decided
    /// alone, then the replies of the values to the others, then the replies of the entries that were decided alone.
    pub(super) fn run_of_levels(
        &mut self,
        entries: &[BatchEntry<'_>],
        values: &[u64],
        replies: &mut Vec<Result<EntryReply, Error>>,
    ) -> Result<(), Error> {
        let mut is_alone = vec![false; entries.len()];
        for _ in 0..self.number_of_call()? {
            let number = usize::try_from(self.number_of_call()?).unwrap_or_default();
            let is_alone = number
                .checked_sub(1)
                .and_then(|index| is_alone.get_mut(index));
            *is_alone.ok_or_else(|| malformed_reply("no such entry", self.server))? = true;
        }
        let mut shared = self.shared_replies(entries, values, &is_alone)?;
        let mut values = values;
        for (entry, is_alone) in entries.iter().zip(is_alone) {
            let (own, others) = values.split_at(entry.levels.len().min(values.len()));
            values = others;
            replies.push(if is_alone {
                self.entry(entry)?
            } else {
                self.shared_answers(entry, own, &mut shared)
            });
        }
        Ok(())
    }

    /// Reads the replies of the values, which stand level by level, and counts their checks.
    fn shared_replies(
        &mut self,
        entries: &[BatchEntry<'_>],
        values: &[u64],
        is_alone: &[bool],
    ) -> Result<Vec<SharedReply>, Error> {
        let last_value = values.iter().max().copied().unwrap_or_default();
        let values_of_call = usize::try_from(last_value).unwrap_or_default();
        let mut shared = vec![SharedReply::default(); values_of_call + 1];
        let levels = entries.first().map_or(0, |entry| entry.levels.len());
        for level in 0..levels {
            let values = values.iter().skip(level).step_by(levels);
            for ((entry, value), is_alone) in entries.iter().zip(values).zip(is_alone) {
                let index = usize::try_from(*value).unwrap_or_default();
                if let (false, Some(shared), Some(level)) =
                    (*is_alone, shared.get_mut(index), entry.levels.get(level))
                {
                    if shared.checks == 0 {
                        self.last_replies(level.check().quotas(), |_, last| {
                            shared.quotas.push(last);
                        })?;
                        shared.error = self.take_nonsense();
                    }
                    shared.checks += u64::from(entry.count);
                }
            }
        }
        Ok(shared)
    }

    /// Returns the answers to an entry that was charged together with others.
    fn shared_answers(
        &self,
        entry: &BatchEntry<'_>,
        values: &[u64],
        shared: &mut [SharedReply],
    ) -> Result<EntryReply, Error> {
        let of_entry = values
            .iter()
            .filter_map(|value| shared.get(usize::try_from(*value).ok()?));
        let error = of_entry.filter_map(|shared| shared.error.clone()).next();
        let answers = (0..entry.count).map(|_| {
            let mut answer = Answer::at(self.time, Source::Redis, []);
            for (level, value) in entry.levels.iter().zip(values) {
                let index = usize::try_from(*value).unwrap_or_default();
                if let Some(shared) = shared.get_mut(index) {
                    shared.checks = shared.checks.saturating_sub(1);
                    let check = level.check();
                    let later_units = shared.checks * u64::from(check.cost());
                    for (quota, last) in check.quotas().iter().zip(&shared.quotas) {
                        answer.push(last.before(later_units, quota, self.time));
                    }
                }
            }
            answer
        });
        let reply = EntryReply {
            admitted: answers.collect(),
            refused: None,
        };
        error.map_or(Ok(reply), Err)
    }
}
