//! The commands that the scripts call, and those of the tests beside a real server.

use super::keyspace::{Data, Keyspace, wrong_type};
use super::number::int;
use super::reply::Reply;

/// The arguments of a command, without its name.
pub(super) type Args<'a> = &'a [Vec<u8>];

/// The outcome of a command. An error reply is the `Err`, so that a command can end with `?`.
pub(super) type Outcome = Result<Reply, Reply>;

/// Commands that may need more memory. Of a script, a full server refuses these as the first write.
const NEED_MEMORY: [&str; 5] = ["APPEND", "HSET", "SET", "SETRANGE", "ZADD"];

/// Commands that write, but need no more memory.
const WRITE_OTHERWISE: [&str; 5] = ["HDEL", "PEXPIRE", "UNLINK", "ZREM", "ZREMRANGEBYRANK"];

impl Keyspace {
    /// Runs a command: its name, and its arguments.
    pub fn run(&mut self, command: &[Vec<u8>]) -> Reply {
        let Some((name, args)) = command.split_first() else {
            return Reply::error("ERR empty command");
        };
        let name = String::from_utf8_lossy(name).to_ascii_uppercase();
        let needs_memory = NEED_MEMORY.contains(&name.as_str());
        if needs_memory && self.is_full && !self.has_written {
            return Reply::error("OOM command not allowed when used memory > 'maxmemory'.");
        }
        self.has_written |= needs_memory || WRITE_OTHERWISE.contains(&name.as_str());
        let outcome = self.dispatch(&name, args);
        *self.calls.entry(name).or_default() += 1;
        match outcome {
            Ok(reply) | Err(reply) => reply,
        }
    }

    fn dispatch(&mut self, name: &str, args: Args<'_>) -> Outcome {
        match name {
            "PING" => Ok(Reply::Status("PONG")),
            "TIME" => Ok(self.time()),
            "EXISTS" => Ok(self.exists(args)),
            "UNLINK" => Ok(self.unlink(args)),
            "PEXPIRE" => self.pexpire(args),
            "PTTL" => self.pttl(args),
            "GET" => self.get(args),
            "MGET" => Ok(self.mget(args)),
            "STRLEN" => self.strlen(args),
            "GETRANGE" => self.getrange(args),
            "SET" => self.set_text(args),
            "APPEND" => self.append(args),
            "SETRANGE" => self.setrange(args),
            "ZADD" => self.zadd(args),
            "ZCARD" => self.zcard(args),
            "ZCOUNT" => self.zcount(args),
            "ZRANGE" => self.zrange(args),
            "ZRANGEBYSCORE" => self.zrangebyscore(args),
            "ZREM" => self.zrem(args),
            "ZREMRANGEBYRANK" => self.zremrangebyrank(args),
            "HGET" => self.hget(args),
            "HSET" => self.hset(args),
            "HDEL" => self.hdel(args),
            _ => Err(Reply::Error(format!("ERR unknown command '{name}'"))),
        }
    }

    /// Each reading is a microsecond later, so that two calls of a step have two times.
    fn time(&mut self) -> Reply {
        self.now += 1;
        let parts = [self.now / 1_000_000, self.now % 1_000_000];
        let texts = parts.map(|part| Reply::Bulk(part.to_string().into_bytes()));
        Reply::Array(texts.to_vec())
    }

    fn exists(&mut self, keys: Args<'_>) -> Reply {
        let live = keys.iter().filter(|key| self.live(key).is_some());
        Reply::count(live.count())
    }

    fn unlink(&mut self, keys: Args<'_>) -> Reply {
        let mut removed = 0;
        for key in keys {
            if self.live(key).is_some() {
                self.entries.remove(key);
                removed += 1;
            }
        }
        Reply::count(removed)
    }

    fn pexpire(&mut self, args: Args<'_>) -> Outcome {
        let key = arg(args, 0)?;
        let millis = int(arg(args, 1)?)?;
        let ends = self.millis() + millis;
        let Some(entry) = self.live(key) else {
            return Ok(Reply::Int(0));
        };
        entry.expires = Some(ends);
        if millis <= 0 {
            self.entries.remove(key);
        }
        Ok(Reply::Int(1))
    }

    fn pttl(&mut self, args: Args<'_>) -> Outcome {
        let now = self.millis();
        let millis = match self.live(arg(args, 0)?) {
            None => -2,
            Some(entry) => entry.expires.map_or(-1, |ends| ends - now),
        };
        Ok(Reply::Int(millis))
    }

    fn hget(&mut self, args: Args<'_>) -> Outcome {
        let field = arg(args, 1)?;
        match self.live(arg(args, 0)?).map(|entry| &entry.data) {
            None => Ok(Reply::Nil),
            Some(Data::Hash(hash)) => {
                let value = hash.get(field).cloned();
                Ok(value.map_or(Reply::Nil, Reply::Bulk))
            }
            Some(Data::Text(_) | Data::Set(_)) => Err(wrong_type()),
        }
    }

    fn hset(&mut self, args: Args<'_>) -> Outcome {
        let field = arg(args, 1)?.to_vec();
        let value = arg(args, 2)?.to_vec();
        let data = self.live_or(arg(args, 0)?, Data::Hash(Default::default()));
        let Data::Hash(hash) = data else {
            return Err(wrong_type());
        };
        let is_new = hash.insert(field, value).is_none();
        Ok(Reply::Int(is_new.into()))
    }

    fn hdel(&mut self, args: Args<'_>) -> Outcome {
        let key = arg(args, 0)?;
        let field = arg(args, 1)?;
        let removed = match self.live(key).map(|entry| &mut entry.data) {
            None => None,
            Some(Data::Hash(hash)) => hash.remove(field),
            Some(Data::Text(_) | Data::Set(_)) => return Err(wrong_type()),
        };
        self.remove_if_empty(key);
        Ok(Reply::Int(removed.is_some().into()))
    }
}

/// Returns an argument, by its index.
pub(super) fn arg(args: Args<'_>, index: usize) -> Result<&[u8], Reply> {
    let found = args.get(index).map(Vec::as_slice);
    found.ok_or_else(|| Reply::error("ERR wrong number of arguments"))
}

pub(super) fn syntax_error() -> Reply {
    Reply::error("ERR syntax error")
}
