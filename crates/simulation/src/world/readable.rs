//! Commands and replies in a form that a person can read.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use mlua::{Lua, MultiValue, Value};
use redis::Script;
use tollgate::RedisStore;

use crate::server::Reply;

/// The longest text of an argument.
const LONGEST: usize = 60;

/// The scripts by their hash. No hash map: it would draw a random number, and a traced world would be another one.
static NAMES: LazyLock<BTreeMap<String, &'static str>> = LazyLock::new(|| {
    let scripts = RedisStore::scripts();
    let hashes = scripts.map(|(name, text)| (Script::new(text).get_hash().to_owned(), name));
    hashes.collect()
});

/// Returns a command and its reply.
pub(super) fn exchange(
    lua: &Lua,
    process: Option<usize>,
    command: &[Vec<u8>],
    reply: &Reply,
) -> String {
    let process = process.map_or("nobody".to_owned(), |number| format!("process {number}"));
    let args: Vec<String> = command.iter().map(|arg| argument(lua, arg)).collect();
    format!(
        "{process}: {} -> {}",
        args.join(" "),
        reply_text(lua, reply)
    )
}

/// Returns a hash as the name of its script, and packed numbers as such.
fn argument(lua: &Lua, bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let name = NAMES.get(text.as_ref());
    match name {
        Some(name) => (*name).to_owned(),
        None if bytes.iter().all(u8::is_ascii_graphic) => shortened(&text),
        None => unpacked(lua, bytes).unwrap_or_else(|| escaped(bytes)),
    }
}

fn reply_text(lua: &Lua, reply: &Reply) -> String {
    match reply {
        Reply::Bulk(bytes) => unpacked(lua, bytes).unwrap_or_else(|| escaped(bytes)),
        other => shortened(&format!("{other:?}")),
    }
}

/// Returns the values of a message, if it is one.
fn unpacked(lua: &Lua, bytes: &[u8]) -> Option<String> {
    let library: mlua::Table = lua.globals().get("cmsgpack").ok()?;
    let unpack: mlua::Function = library.get("unpack").ok()?;
    let message = lua.create_string(bytes).ok()?;
    let values: MultiValue = unpack.call(message).ok()?;
    let values: Vec<String> = values.iter().map(value_text).collect();
    Some(format!("[{}]", values.join(" ")))
}

fn value_text(value: &Value) -> String {
    match value {
        Value::Integer(number) => number.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => escaped(&text.as_bytes()),
        Value::Boolean(flag) => flag.to_string(),
        Value::Table(table) => {
            let items = table.sequence_values::<Value>().filter_map(Result::ok);
            let items: Vec<String> = items.map(|item| value_text(&item)).collect();
            format!("[{}]", items.join(" "))
        }
        other => other.type_name().to_owned(),
    }
}

fn escaped(bytes: &[u8]) -> String {
    shortened(&bytes.escape_ascii().to_string())
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
