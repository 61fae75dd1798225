//! The library `cmsgpack` of Redis, for the values that the scripts pass.

use mlua::{Error, Lua, MultiValue, String as LuaString, Table, Value};

/// Returns the library.
pub(super) fn library(lua: &Lua) -> mlua::Result<Table> {
    let library = lua.create_table()?;
    library.set("pack", lua.create_function(pack)?)?;
    library.set("unpack", lua.create_function(unpack)?)?;
    Ok(library)
}

fn pack(lua: &Lua, values: MultiValue) -> mlua::Result<LuaString> {
    let mut bytes = Vec::new();
    for value in &values {
        write(value, &mut bytes)?;
    }
    lua.create_string(&bytes)
}

fn unpack(lua: &Lua, message: LuaString) -> mlua::Result<MultiValue> {
    let bytes = message.as_bytes();
    let mut rest = Reader { bytes: &bytes };
    let mut values = Vec::new();
    while !rest.bytes.is_empty() {
        values.push(rest.value(lua)?);
    }
    Ok(MultiValue::from_vec(values))
}

fn write(value: &Value, bytes: &mut Vec<u8>) -> mlua::Result<()> {
    match value {
        Value::Integer(number) => write_int(*number, bytes),
        Value::Number(number) => write_number(*number, bytes),
        Value::Boolean(false) => bytes.push(0xc2),
        Value::Boolean(true) => bytes.push(0xc3),
        Value::String(text) => write_text(&text.as_bytes(), bytes),
        Value::Table(table) => write_list(table, bytes)?,
        _ => bytes.push(0xc0),
    }
    Ok(())
}

/// Writes a number: whole ones as such, others in four bytes if these hold it.
fn write_number(number: f64, bytes: &mut Vec<u8>) {
    let short = number as f32;
    if number.fract() == 0.0 && number.abs() < 9.2e18 {
        write_int(number as i64, bytes);
    } else if f64::from(short) == number {
        bytes.push(0xca);
        bytes.extend(short.to_be_bytes());
    } else {
        bytes.push(0xcb);
        bytes.extend(number.to_be_bytes());
    }
}

fn write_int(number: i64, bytes: &mut Vec<u8>) {
    match number {
        -32..=127 => bytes.push(number as u8),
        128..=0xff => write_sized(0xcc, number, 1, bytes),
        0x100..=0xffff => write_sized(0xcd, number, 2, bytes),
        0x1_0000..=0xffff_ffff => write_sized(0xce, number, 4, bytes),
        0x1_0000_0000.. => write_sized(0xcf, number, 8, bytes),
        -0x80..=-33 => write_sized(0xd0, number, 1, bytes),
        -0x8000..=-0x81 => write_sized(0xd1, number, 2, bytes),
        -0x8000_0000..=-0x8001 => write_sized(0xd2, number, 4, bytes),
        _ => write_sized(0xd3, number, 8, bytes),
    }
}

/// Writes a code and the last bytes of a number.
fn write_sized(code: u8, number: i64, size: usize, bytes: &mut Vec<u8>) {
    bytes.push(code);
    bytes.extend_from_slice(&number.to_be_bytes()[8 - size..]);
}

fn write_text(text: &[u8], bytes: &mut Vec<u8>) {
    let length = text.len();
    match length {
        0..=31 => bytes.push(0xa0 | length as u8),
        32..=0xff => write_sized(0xd9, length as i64, 1, bytes),
        0x100..=0xffff => write_sized(0xda, length as i64, 2, bytes),
        _ => write_sized(0xdb, length as i64, 4, bytes),
    }
    bytes.extend_from_slice(text);
}

fn write_list(table: &Table, bytes: &mut Vec<u8>) -> mlua::Result<()> {
    let length = table.raw_len();
    match length {
        0..=15 => bytes.push(0x90 | length as u8),
        16..=0xffff => write_sized(0xdc, length as i64, 2, bytes),
        _ => write_sized(0xdd, length as i64, 4, bytes),
    }
    for index in 1..=length {
        write(&table.raw_get(index)?, bytes)?;
    }
    Ok(())
}

/// The bytes that were not read yet.
struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> mlua::Result<&'a [u8]> {
        let parts = self.bytes.split_at_checked(length);
        let (taken, rest) = parts.ok_or_else(|| failure("Missing bytes in input."))?;
        self.bytes = rest;
        Ok(taken)
    }

    fn unsigned(&mut self, size: usize) -> mlua::Result<u64> {
        Ok(super::packed_fields::unsigned(self.take(size)?))
    }

    fn signed(&mut self, size: usize) -> mlua::Result<i64> {
        let unused = 64 - 8 * size as u32;
        let number = (self.unsigned(size)? << unused) as i64;
        Ok(number >> unused)
    }

    fn value(&mut self, lua: &Lua) -> mlua::Result<Value> {
        let code = self.take(1)?[0];
        let value = match code {
            0x00..=0x7f => Value::Number(code.into()),
            0xe0..=0xff => Value::Number((code as i8).into()),
            0xc0 => Value::Nil,
            0xc2 => Value::Boolean(false),
            0xc3 => Value::Boolean(true),
            0xca => Value::Number(f32::from_bits(self.unsigned(4)? as u32).into()),
            0xcb => Value::Number(f64::from_bits(self.unsigned(8)?)),
            0xcc..=0xcf => Value::Number(self.unsigned(1 << (code - 0xcc))? as f64),
            0xd0..=0xd3 => Value::Number(self.signed(1 << (code - 0xd0))? as f64),
            0xa0..=0xbf => self.text(lua, usize::from(code & 31))?,
            0xc4..=0xc6 => self.sized_text(lua, 1 << (code - 0xc4))?,
            0xd9..=0xdb => self.sized_text(lua, 1 << (code - 0xd9))?,
            0x90..=0x9f => self.list(lua, usize::from(code & 15))?,
            0xdc | 0xdd => {
                let length = self.unsigned(if code == 0xdc { 2 } else { 4 })?;
                self.list(lua, length as usize)?
            }
            _ => return Err(failure("Bad data format in input.")),
        };
        Ok(value)
    }

    fn sized_text(&mut self, lua: &Lua, size: usize) -> mlua::Result<Value> {
        let length = self.unsigned(size)?;
        self.text(lua, length as usize)
    }

    fn text(&mut self, lua: &Lua, length: usize) -> mlua::Result<Value> {
        let text = lua.create_string(self.take(length)?)?;
        Ok(Value::String(text))
    }

    fn list(&mut self, lua: &Lua, length: usize) -> mlua::Result<Value> {
        let table = lua.create_table()?;
        for index in 1..=length {
            table.raw_set(index, self.value(lua)?)?;
        }
        Ok(Value::Table(table))
    }
}

fn failure(text: &str) -> Error {
    Error::RuntimeError(text.to_owned())
}
