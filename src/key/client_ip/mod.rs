//! The client's address behind proxies: which header to read, and which of its entries to trust.

mod client_ip;
mod forwarded;
mod list;
mod networks;
mod node;
mod single;
mod walk;

pub(crate) use client_ip::claimed_client;
pub use client_ip::{ClientIp, client_ip};
