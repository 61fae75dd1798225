//! The server: its keys, and a Lua that runs the scripts it knows.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;

use mlua::{Function, Lua, MultiValue, Table, Value};

use super::keyspace::Keyspace;
use super::number::{format_number, int};
use super::reply::Reply;
use super::{message_pack, packed_fields};

/// A server in memory, on one thread.
pub struct Server {
    keyspace: Rc<RefCell<Keyspace>>,
    lua: Lua,
    scripts: HashMap<Vec<u8>, Function>,
    prepare: Box<dyn Fn(&str) -> String>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keyspace = self.keyspace.borrow();
        f.debug_struct("Server")
            .field("keyspace", &keyspace)
            .finish()
    }
}

/// The error of a command, which ends a script.
#[derive(Debug)]
struct CommandFailure(String);

impl fmt::Display for CommandFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CommandFailure {}

impl Server {
    /// Creates a server without keys.
    ///
    /// # Errors
    ///
    /// Returns an error if Lua has no memory.
    pub fn new() -> mlua::Result<Self> {
        let lua = Lua::new();
        let keyspace = Rc::new(RefCell::new(Keyspace::default()));
        let globals = lua.globals();
        globals.set("redis", redis_table(&lua, &keyspace)?)?;
        globals.set("cmsgpack", message_pack::library(&lua)?)?;
        globals.set("struct", packed_fields::library(&lua)?)?;
        Ok(Self {
            keyspace,
            lua,
            scripts: HashMap::new(),
            prepare: Box::new(str::to_owned),
        })
    }

    /// Changes each script before it runs, for a planted fault or to count its branches.
    pub fn prepare_scripts(&mut self, prepare: impl Fn(&str) -> String + 'static) {
        self.prepare = Box::new(prepare);
    }

    /// Returns the Lua that runs the scripts.
    pub fn lua(&self) -> &Lua {
        &self.lua
    }

    /// Looks at the keys, or changes them.
    pub fn with_keys<T>(&self, change: impl FnOnce(&mut Keyspace) -> T) -> T {
        change(&mut self.keyspace.borrow_mut())
    }

    /// Forgets the scripts, as a restart does.
    pub fn forget_scripts(&mut self) {
        self.scripts.clear();
    }

    /// Runs a command: its name, and its arguments.
    pub fn run(&mut self, command: &[Vec<u8>]) -> Reply {
        let [name, args @ ..] = command else {
            return Reply::error("ERR empty command");
        };
        match (name.to_ascii_uppercase().as_slice(), args) {
            (b"EVALSHA", [hash, args @ ..]) => match self.scripts.get(hash).cloned() {
                Some(script) => self.eval(&script, args),
                None => Reply::error("NOSCRIPT No matching script. Please use EVAL."),
            },
            (b"EVAL", [text, args @ ..]) => match self.load(text) {
                Ok(script) => self.eval(&script, args),
                Err(error) => Reply::Error(format!("ERR Error compiling script: {error}")),
            },
            (b"SCRIPT", _) => {
                self.forget_scripts();
                Reply::Status("OK")
            }
            _ => self.with_keys(|keys| {
                keys.has_written = false;
                keys.run(command)
            }),
        }
    }

    fn load(&mut self, text: &[u8]) -> mlua::Result<Function> {
        let text = String::from_utf8_lossy(text);
        let hash = redis::Script::new(&text).get_hash().to_owned();
        let prepared = (self.prepare)(&text);
        let chunk = self.lua.load(prepared).set_name("@user_script");
        let script = chunk.into_function()?;
        self.scripts.insert(hash.into_bytes(), script.clone());
        Ok(script)
    }

    fn eval(&self, script: &Function, args: &[Vec<u8>]) -> Reply {
        self.with_keys(|keys| keys.has_written = false);
        match self.call(script, args) {
            Ok(value) => from_lua(&value),
            Err(error) => script_error(&error),
        }
    }

    fn call(&self, script: &Function, args: &[Vec<u8>]) -> mlua::Result<Value> {
        let count = args.first().and_then(|count| int(count).ok());
        let count = count.and_then(|count| usize::try_from(count).ok());
        let (keys, args) = match (count, args) {
            (Some(count), [_, rest @ ..]) if count <= rest.len() => rest.split_at(count),
            _ => {
                return Err(failure(
                    "ERR Number of keys can't be greater than number of args",
                ));
            }
        };
        let globals = self.lua.globals();
        globals.raw_set("KEYS", self.list(keys)?)?;
        globals.raw_set("ARGV", self.list(args)?)?;
        script.call(())
    }

    fn list(&self, texts: &[Vec<u8>]) -> mlua::Result<Table> {
        let list = self.lua.create_table_with_capacity(texts.len(), 0)?;
        for text in texts {
            list.raw_push(self.lua.create_string(text)?)?;
        }
        Ok(list)
    }
}

/// Returns the functions by which scripts call commands.
fn redis_table(lua: &Lua, keyspace: &Rc<RefCell<Keyspace>>) -> mlua::Result<Table> {
    let called = Rc::clone(keyspace);
    let call = lua.create_function(move |lua, command: MultiValue| {
        match called.borrow_mut().run(&arguments(command)?) {
            Reply::Error(text) => Err(failure(&text)),
            reply => to_lua(lua, reply),
        }
    })?;
    let called = Rc::clone(keyspace);
    let pcall = lua.create_function(move |lua, command: MultiValue| {
        let reply = called.borrow_mut().run(&arguments(command)?);
        to_lua(lua, reply)
    })?;
    let error_reply = lua.create_function(|lua, text: mlua::String| {
        to_lua(lua, Reply::Error(text.to_string_lossy()))
    })?;
    let redis = lua.create_table()?;
    redis.set("call", call)?;
    redis.set("pcall", pcall)?;
    redis.set("error_reply", error_reply)?;
    Ok(redis)
}

fn arguments(command: MultiValue) -> mlua::Result<Vec<Vec<u8>>> {
    let texts = command.into_iter().map(|value| match value {
        Value::Integer(number) => Ok(format_number(number as f64)),
        Value::Number(number) => Ok(format_number(number)),
        Value::String(text) => Ok(text.as_bytes().to_vec()),
        _ => Err(failure(
            "ERR Lua redis lib command arguments must be strings or integers",
        )),
    });
    texts.collect()
}

fn failure(text: &str) -> mlua::Error {
    mlua::Error::external(CommandFailure(text.to_owned()))
}

/// Returns the reply to a script that ended with an error: that of a command, or one of Lua.
fn script_error(error: &mlua::Error) -> Reply {
    let command = error.chain().find_map(|error| error.downcast_ref());
    if let Some(CommandFailure(text)) = command {
        return Reply::error(text);
    }
    let text = error.to_string();
    let text = text.strip_prefix("runtime error: ").unwrap_or(&text);
    let line = text.lines().next().unwrap_or_default();
    Reply::Error(format!("ERR {line}"))
}

fn to_lua(lua: &Lua, reply: Reply) -> mlua::Result<Value> {
    let value = match reply {
        Reply::Nil => Value::Boolean(false),
        Reply::Int(number) => Value::Number(number as f64),
        Reply::Bulk(text) => Value::String(lua.create_string(&text)?),
        Reply::Status(word) => Value::Table(lua.create_table_from([("ok", word)])?),
        Reply::Error(text) => Value::Table(lua.create_table_from([("err", text)])?),
        Reply::Array(items) => {
            let table = lua.create_table_with_capacity(items.len(), 0)?;
            for item in items {
                table.raw_push(to_lua(lua, item)?)?;
            }
            Value::Table(table)
        }
    };
    Ok(value)
}

fn from_lua(value: &Value) -> Reply {
    match value {
        Value::Integer(number) => Reply::Int(*number),
        Value::Number(number) => Reply::Int(*number as i64),
        Value::String(text) => Reply::Bulk(text.as_bytes().to_vec()),
        Value::Boolean(true) => Reply::Int(1),
        Value::Table(table) => from_table(table),
        _ => Reply::Nil,
    }
}

fn from_table(table: &Table) -> Reply {
    if let Ok(Value::String(text)) = table.raw_get("err") {
        return Reply::Error(text.to_string_lossy());
    }
    if let Ok(Value::String(_)) = table.raw_get("ok") {
        return Reply::Status("OK");
    }
    let items = table.sequence_values::<Value>();
    let replies = items.map_while(Result::ok).map(|item| from_lua(&item));
    Reply::Array(replies.collect())
}
