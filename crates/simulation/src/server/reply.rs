//! The replies of the server.

use std::io;

use redis::{RedisError, RedisResult, Value};

/// A reply of the server, or of a command in a script.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// Nothing: a missing key.
    Nil,
    /// A number.
    Int(i64),
    /// Bytes.
    Bulk(Vec<u8>),
    /// A word, such as `OK`.
    Status(&'static str),
    /// Several replies.
    Array(Vec<Self>),
    /// An error: its code, and behind a space its text.
    Error(String),
}

impl Reply {
    /// Creates an error.
    pub(crate) fn error(text: &str) -> Self {
        Self::Error(text.to_owned())
    }

    /// Returns the number of keys or members, as a reply.
    pub(crate) fn count(number: usize) -> Self {
        Self::Int(i64::try_from(number).unwrap_or(i64::MAX))
    }

    /// Returns the reply as a client of Redis has it.
    ///
    /// # Errors
    ///
    /// Returns the error that the client makes of an error reply.
    pub fn into_value(self) -> RedisResult<Value> {
        let value = match self {
            Self::Nil => Value::Nil,
            Self::Int(number) => Value::Int(number),
            Self::Bulk(bytes) => Value::BulkString(bytes),
            Self::Status("OK") => Value::Okay,
            Self::Status(word) => Value::SimpleString(word.to_owned()),
            Self::Array(items) => {
                let values = items.into_iter().map(Self::into_value);
                Value::Array(values.collect::<RedisResult<_>>()?)
            }
            Self::Error(text) => return Err(parsed_error(&text)),
        };
        Ok(value)
    }
}

/// Returns an error as the client reads it from the wire.
fn parsed_error(text: &str) -> RedisError {
    let line = format!("-{text}\r\n");
    match redis::parse_redis_value(line.as_bytes()) {
        Ok(Value::ServerError(error)) => error.into(),
        Ok(_) => lost_connection(),
        Err(error) => error,
    }
}

/// Returns the error of a connection that is lost.
pub fn lost_connection() -> RedisError {
    let error = io::Error::new(io::ErrorKind::BrokenPipe, "the connection was cut");
    error.into()
}
