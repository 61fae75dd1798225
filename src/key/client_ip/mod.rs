//! The address of a client behind trusted proxies: which forwarding header is read, and which of its entries
//! are trusted.

mod address;
mod checked_client_ip;
mod client_ip;
mod forwarded;
mod list_header;
mod network_list;
mod networks;
mod single_header;
mod trusted_proxies;

pub use checked_client_ip::CheckedClientIp;
pub use client_ip::{ClientIp, client_ip};
pub use network_list::NetworkList;
