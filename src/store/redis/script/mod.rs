//! The Lua scripts, joined from `lua/` at compile time, and the commands that call them.

#[cfg(test)]
mod header;
mod script;

#[cfg(test)]
pub(super) use header::header;
#[cfg(test)]
pub(super) use script::source;
pub(super) use script::{Script, Scripts};
