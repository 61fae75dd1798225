//! The Lua scripts, joined from `lua/` at compile time, and the commands that call them.

#[cfg(test)]
mod header;
mod scripts;

#[cfg(test)]
pub(super) use header::{header, source};
pub(super) use scripts::{Script, ScriptCall, Scripts, time_trial};
