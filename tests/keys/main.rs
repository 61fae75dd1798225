//! Keys and how requests tell them, for anything that a client may send.

#[path = "../support/mod.rs"]
mod support;

mod address;
mod client_ip;
mod identity;
mod platforms;
