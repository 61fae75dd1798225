//! The library `struct` of Redis, for the formats that the scripts use: big-endian numbers and bytes.

use mlua::{Error, Lua, MultiValue, String as LuaString, Table, Value};

/// Returns the library.
pub(super) fn library(lua: &Lua) -> mlua::Result<Table> {
    let library = lua.create_table()?;
    library.set("pack", lua.create_function(pack)?)?;
    library.set("unpack", lua.create_function(unpack)?)?;
    library.set("size", lua.create_function(size)?)?;
    Ok(library)
}

/// A field of a format.
#[derive(Clone, Copy)]
enum Field {
    Padding,
    Bytes(usize),
    Double,
    /// An unsigned number of so many bytes.
    Unsigned(usize),
}

impl Field {
    fn size(self) -> usize {
        match self {
            Self::Padding => 1,
            Self::Bytes(size) | Self::Unsigned(size) => size,
            Self::Double => 8,
        }
    }
}

/// Reads a format, such as `>I4dc1`.
fn fields(format: &[u8]) -> mlua::Result<Vec<Field>> {
    let mut fields = Vec::new();
    let mut rest = format;
    while let Some((code, behind)) = rest.split_first() {
        let digits = behind
            .iter()
            .take_while(|byte| byte.is_ascii_digit())
            .count();
        let size = std::str::from_utf8(&behind[..digits]).unwrap_or_default();
        let size: Option<usize> = size.parse().ok();
        rest = &behind[digits..];
        fields.push(match code {
            b'>' => continue,
            b'x' => Field::Padding,
            b'c' => Field::Bytes(size.unwrap_or(1)),
            b'd' => Field::Double,
            b'B' => Field::Unsigned(1),
            b'I' => Field::Unsigned(size.unwrap_or(4)),
            code => {
                return Err(failure(&format!(
                    "invalid format option '{}'",
                    *code as char
                )));
            }
        });
    }
    Ok(fields)
}

fn size(_: &Lua, format: LuaString) -> mlua::Result<usize> {
    let fields = fields(&format.as_bytes())?;
    Ok(fields.into_iter().map(Field::size).sum())
}

fn pack(lua: &Lua, values: MultiValue) -> mlua::Result<LuaString> {
    let mut values = values.into_iter();
    let Some(Value::String(format)) = values.next() else {
        return Err(failure("bad argument #1 to 'pack' (string expected)"));
    };
    let mut bytes = Vec::new();
    for field in fields(&format.as_bytes())? {
        match field {
            Field::Padding => bytes.push(0),
            Field::Bytes(size) => {
                let value = values.next();
                let text = value.as_ref().and_then(Value::as_string);
                let text = text
                    .map(|text| text.as_bytes().to_vec())
                    .unwrap_or_default();
                let part = text.get(..size);
                bytes.extend_from_slice(part.ok_or_else(|| failure("arg to 'pack' is too short"))?);
            }
            Field::Double => bytes.extend(number(values.next())?.to_be_bytes()),
            Field::Unsigned(size) => {
                let number = number(values.next())?;
                let whole = if number < 0.0 {
                    number as i64 as u64
                } else {
                    number as u64
                };
                bytes.extend_from_slice(&whole.to_be_bytes()[8 - size..]);
            }
        }
    }
    lua.create_string(&bytes)
}

fn number(value: Option<Value>) -> mlua::Result<f64> {
    match value {
        Some(Value::Number(number)) => Ok(number),
        Some(Value::Integer(number)) => Ok(number as f64),
        _ => Err(failure("bad argument to 'pack' (number expected)")),
    }
}

fn unpack(
    lua: &Lua,
    (format, text, from): (LuaString, LuaString, Option<usize>),
) -> mlua::Result<MultiValue> {
    let text = text.as_bytes();
    let mut at = from.unwrap_or(1) - 1;
    let mut values = Vec::new();
    for field in fields(&format.as_bytes())? {
        let part = text.get(at..at + field.size());
        let part = part.ok_or_else(|| failure("data string too short"))?;
        at += field.size();
        values.push(match field {
            Field::Padding => continue,
            Field::Bytes(_) => Value::String(lua.create_string(part)?),
            Field::Double => Value::Number(f64::from_bits(unsigned(part))),
            Field::Unsigned(_) => Value::Number(unsigned(part) as f64),
        });
    }
    values.push(Value::Number((at + 1) as f64));
    Ok(MultiValue::from_vec(values))
}

/// Returns the number of big-endian bytes.
pub(super) fn unsigned(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
}

fn failure(text: &str) -> Error {
    Error::RuntimeError(text.to_owned())
}
