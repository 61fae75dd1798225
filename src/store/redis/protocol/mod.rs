//! The language spoken with the script: key names, arguments, replies, errors.

pub(crate) mod codec;
pub(crate) mod errors;
mod key_names;

pub(crate) use codec::*;
pub(crate) use key_names::{KeyNames, SLOTS};
