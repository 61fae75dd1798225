//! The commands of sorted sets.

use super::commands::{Args, Outcome, arg, syntax_error};
use super::keyspace::{Data, Keyspace, Scores, wrong_type};
use super::number::{ScoreBound, float, format_number, int, range};
use super::reply::Reply;

/// The options of ZADD.
#[derive(Default)]
struct AddOptions {
    only_new: bool,
    only_known: bool,
    counts_changes: bool,
}

impl AddOptions {
    /// Reads the options in front of the scores. Returns the rest, too.
    fn parse(args: Args<'_>) -> (Self, Args<'_>) {
        let mut options = Self::default();
        let mut rest = args;
        while let Some((word, behind)) = rest.split_first() {
            match word.to_ascii_uppercase().as_slice() {
                b"NX" => options.only_new = true,
                b"XX" => options.only_known = true,
                b"CH" => options.counts_changes = true,
                _ => break,
            }
            rest = behind;
        }
        (options, rest)
    }
}

impl Keyspace {
    pub(super) fn zadd(&mut self, args: Args<'_>) -> Outcome {
        let key = arg(args, 0)?;
        let (options, pairs) = AddOptions::parse(&args[1..]);
        let Data::Set(set) = self.live_or(key, Data::Set(Scores::new())) else {
            return Err(wrong_type());
        };
        let mut count = 0;
        for pair in pairs.chunks(2) {
            let [score, member] = pair else {
                return Err(syntax_error());
            };
            let score = float(score)?;
            match set.get_mut(member) {
                Some(known) if !options.only_new => {
                    let is_changed = *known != score;
                    count += i64::from(options.counts_changes && is_changed);
                    *known = score;
                }
                None if !options.only_known => {
                    set.insert(member.clone(), score);
                    count += 1;
                }
                Some(_) | None => {}
            }
        }
        self.remove_if_empty(key);
        Ok(Reply::Int(count))
    }

    pub(super) fn zcard(&mut self, args: Args<'_>) -> Outcome {
        let set = self.set(arg(args, 0)?)?;
        Ok(Reply::count(set.map_or(0, |set| set.len())))
    }

    pub(super) fn zcount(&mut self, args: Args<'_>) -> Outcome {
        let low = ScoreBound::parse(arg(args, 1)?)?;
        let high = ScoreBound::parse(arg(args, 2)?)?;
        let Some(set) = self.set(arg(args, 0)?)? else {
            return Ok(Reply::Int(0));
        };
        let within = set
            .values()
            .filter(|score| low.is_below(**score) && high.is_above(**score));
        Ok(Reply::count(within.count()))
    }

    pub(super) fn zrange(&mut self, args: Args<'_>) -> Outcome {
        let from = int(arg(args, 1)?)?;
        let to = int(arg(args, 2)?)?;
        let has_scores = has_word(args, b"WITHSCORES").is_some();
        let Some(set) = self.set(arg(args, 0)?)? else {
            return Ok(Reply::Array(Vec::new()));
        };
        let members = sorted(set);
        let listed = &members[range(from, to, members.len())];
        Ok(listing(listed, has_scores))
    }

    pub(super) fn zrangebyscore(&mut self, args: Args<'_>) -> Outcome {
        let low = ScoreBound::parse(arg(args, 1)?)?;
        let high = ScoreBound::parse(arg(args, 2)?)?;
        let has_scores = has_word(args, b"WITHSCORES").is_some();
        let (skipped, most) = match has_word(args, b"LIMIT") {
            Some(at) => (int(arg(args, at + 1)?)?, int(arg(args, at + 2)?)?),
            None => (0, i64::MAX),
        };
        let Some(set) = self.set(arg(args, 0)?)? else {
            return Ok(Reply::Array(Vec::new()));
        };
        let mut members = sorted(set);
        members.retain(|(_, score)| low.is_below(*score) && high.is_above(*score));
        let from = usize::try_from(skipped).unwrap_or(0).min(members.len());
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let to = from.saturating_add(most).min(members.len());
        Ok(listing(&members[from..to], has_scores))
    }

    pub(super) fn zrem(&mut self, args: Args<'_>) -> Outcome {
        let key = arg(args, 0)?;
        let mut removed = 0;
        if let Some(set) = self.set(key)? {
            for member in &args[1..] {
                removed += usize::from(set.remove(member).is_some());
            }
        }
        self.remove_if_empty(key);
        Ok(Reply::count(removed))
    }

    pub(super) fn zremrangebyrank(&mut self, args: Args<'_>) -> Outcome {
        let key = arg(args, 0)?;
        let from = int(arg(args, 1)?)?;
        let to = int(arg(args, 2)?)?;
        let mut removed = 0;
        if let Some(set) = self.set(key)? {
            let members = sorted(set);
            let listed = &members[range(from, to, members.len())];
            let names: Vec<Vec<u8>> = listed.iter().map(|(member, _)| member.to_vec()).collect();
            removed = names.len();
            for name in names {
                set.remove(&name);
            }
        }
        self.remove_if_empty(key);
        Ok(Reply::count(removed))
    }
}

/// Returns the index of a word among the arguments.
fn has_word(args: Args<'_>, word: &[u8]) -> Option<usize> {
    args.iter().position(|arg| arg.eq_ignore_ascii_case(word))
}

/// Returns the members by score, those of one score by name.
fn sorted(set: &Scores) -> Vec<(&[u8], f64)> {
    let members = set
        .iter()
        .map(|(member, score)| (member.as_slice(), *score));
    let mut members: Vec<_> = members.collect();
    members.sort_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(b.0)));
    members
}

fn listing(members: &[(&[u8], f64)], has_scores: bool) -> Reply {
    let mut items = Vec::new();
    for (member, score) in members {
        items.push(Reply::Bulk(member.to_vec()));
        if has_scores {
            items.push(Reply::Bulk(format_number(*score)));
        }
    }
    Reply::Array(items)
}
