//~ `Ipv4Addr` is not a text with networks, nor a list of such texts
//~ expected a text like `"10.0.0.0/8"`, or a list of them
//~ for values of another type, such as `IpNet`, pass their texts: `.behind(networks.iter().map(|network| network.to_string()))`

use std::net::Ipv4Addr;

use tollgate::key;

fn main() {
    let _ = key::client_ip().behind(Ipv4Addr::LOCALHOST);
}
