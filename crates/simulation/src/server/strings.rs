//! The commands of strings.

use super::commands::{Args, Outcome, arg, syntax_error};
use super::keyspace::{Data, Entry, Keyspace, wrong_type};
use super::number::{int, range};
use super::reply::Reply;

/// The options of SET.
#[derive(Default)]
struct SetOptions {
    lives: Option<i64>,
    keeps_ttl: bool,
    only_new: bool,
}

impl SetOptions {
    fn parse(args: Args<'_>) -> Result<Self, Reply> {
        let mut options = Self::default();
        let mut words = args.iter();
        while let Some(word) = words.next() {
            match word.to_ascii_uppercase().as_slice() {
                b"PX" => {
                    let millis = words.next().ok_or_else(syntax_error)?;
                    let millis = int(millis)?;
                    if millis <= 0 {
                        return Err(Reply::error("ERR invalid expire time in 'set' command"));
                    }
                    options.lives = Some(millis);
                }
                b"KEEPTTL" => options.keeps_ttl = true,
                b"NX" => options.only_new = true,
                _ => return Err(syntax_error()),
            }
        }
        Ok(options)
    }
}

impl Keyspace {
    pub(super) fn get(&mut self, args: Args<'_>) -> Outcome {
        let text = self.text(arg(args, 0)?)?.cloned();
        Ok(text.map_or(Reply::Nil, Reply::Bulk))
    }

    /// Does not tell a key of another type from a missing one.
    pub(super) fn mget(&mut self, keys: Args<'_>) -> Reply {
        let texts = keys.iter().map(|key| match self.text(key) {
            Ok(Some(text)) => Reply::Bulk(text.clone()),
            Ok(None) | Err(_) => Reply::Nil,
        });
        Reply::Array(texts.collect())
    }

    pub(super) fn strlen(&mut self, args: Args<'_>) -> Outcome {
        let text = self.text(arg(args, 0)?)?;
        Ok(Reply::count(text.map_or(0, |text| text.len())))
    }

    pub(super) fn getrange(&mut self, args: Args<'_>) -> Outcome {
        let from = int(arg(args, 1)?)?;
        let to = int(arg(args, 2)?)?;
        let text = self.text(arg(args, 0)?)?;
        let part = text.map(|text| text[range(from, to, text.len())].to_vec());
        Ok(Reply::Bulk(part.unwrap_or_default()))
    }

    pub(super) fn set_text(&mut self, args: Args<'_>) -> Outcome {
        let key = arg(args, 0)?;
        let text = arg(args, 1)?;
        let options = SetOptions::parse(&args[2..])?;
        let now = self.millis();
        let known = self.live(key);
        if options.only_new && known.is_some() {
            return Ok(Reply::Nil);
        }
        let kept = known.filter(|_| options.keeps_ttl);
        let kept = kept.and_then(|entry| entry.expires);
        let entry = Entry {
            data: Data::Text(text.to_vec()),
            expires: options.lives.map(|millis| now + millis).or(kept),
        };
        self.entries.insert(key.to_vec(), entry);
        Ok(Reply::Status("OK"))
    }

    pub(super) fn append(&mut self, args: Args<'_>) -> Outcome {
        let bytes = arg(args, 1)?;
        let data = self.live_or(arg(args, 0)?, Data::Text(Vec::new()));
        let Data::Text(text) = data else {
            return Err(wrong_type());
        };
        text.extend_from_slice(bytes);
        Ok(Reply::count(text.len()))
    }

    pub(super) fn setrange(&mut self, args: Args<'_>) -> Outcome {
        let at = int(arg(args, 1)?)?;
        let at = usize::try_from(at).map_err(|_| Reply::error("ERR offset is out of range"))?;
        let bytes = arg(args, 2)?;
        let data = self.live_or(arg(args, 0)?, Data::Text(Vec::new()));
        let Data::Text(text) = data else {
            return Err(wrong_type());
        };
        let end = at + bytes.len();
        if text.len() < end {
            text.resize(end, 0);
        }
        text[at..end].copy_from_slice(bytes);
        Ok(Reply::count(text.len()))
    }
}
