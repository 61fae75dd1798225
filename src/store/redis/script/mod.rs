//! The Lua scripts, joined from `lua/` at compile time.

mod script;

pub(crate) use script::{Script, Scripts};
