//! A store on rows, over databases that fail in the ways of databases.

mod attempts;
mod blocks;
mod runtimes;
mod scripted;
mod wrong_rows;
