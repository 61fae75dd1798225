//! The error of a check, the error of a configuration, and the codes of both and of warnings.

mod code;
mod error;
mod kind;

pub(crate) use code::{Code, warning};
#[cfg(feature = "redis")]
pub(crate) use error::Act;
pub(crate) use error::polled_after_completion;
pub use error::{ConfigError, Error};
pub use kind::{ConfigErrorKind, ErrorKind};
