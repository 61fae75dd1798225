use std::net::Ipv4Addr;

use tollgate::key;

fn main() {
    let _ = key::client_ip().behind(Ipv4Addr::LOCALHOST);
}
