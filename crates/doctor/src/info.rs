//! The fields of `INFO`.

use std::collections::HashMap;

use redis::{FromRedisValue, Value};

use crate::report::Finding;

/// The fields of a reply to `INFO`, or the fields of `HELLO` under their names in `INFO`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Info(HashMap<String, String>);

impl Info {
    pub(crate) fn parse(text: &str) -> Self {
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        let fields = fields.map(|(name, value)| (name.to_owned(), value.trim().to_owned()));
        Self(fields.collect())
    }

    /// Reads the reply to `HELLO`, which needs fewer permissions.
    pub(crate) fn from_hello(reply: Value) -> Self {
        let fields = HashMap::<String, Value>::from_redis_value(reply).unwrap_or_default();
        let text = |name| String::from_redis_value_ref(fields.get(name)?).ok();
        let mut info = HashMap::new();
        if let (Some(server), Some(version)) = (text("server"), text("version")) {
            let name = if server == "valkey" {
                "valkey_version"
            } else {
                "redis_version"
            };
            info.insert(name.to_owned(), version);
        }
        if let Some(role) = text("role") {
            info.insert("role".to_owned(), role);
        }
        if let Some(mode) = text("mode") {
            let enabled = if mode == "cluster" { "1" } else { "0" };
            info.insert("cluster_enabled".to_owned(), enabled.to_owned());
        }
        Self(info)
    }

    pub(crate) fn text(&self, field: &str) -> Option<&str> {
        self.0.get(field).map(String::as_str)
    }

    pub(crate) fn number(&self, field: &str) -> Option<u64> {
        self.text(field)?.parse().ok()
    }

    pub(crate) fn is(&self, field: &str, value: &str) -> bool {
        self.text(field) == Some(value)
    }
}

/// A server, with its address if there are several.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) address: Option<String>,
    pub(crate) info: Info,
}

/// Reads the replies to `INFO` of the servers at these addresses. The address of a single server is left out.
pub(crate) fn nodes(replies: Vec<(String, Value)>) -> Vec<Node> {
    let is_alone = replies.len() == 1;
    let nodes = replies.into_iter().map(|(address, reply)| Node {
        address: (!is_alone).then_some(address),
        info: Info::parse(&String::from_redis_value(reply).unwrap_or_default()),
    });
    let mut nodes: Vec<_> = nodes.collect();
    nodes.sort_by(|one, other| one.address.cmp(&other.address));
    nodes
}

/// Examines each server. Equal findings are merged into one, which names its servers unless all share it.
pub(crate) fn examine_each(nodes: &[Node], examine: impl Fn(&Info) -> Finding) -> Vec<Finding> {
    let mut found: Vec<(Finding, Vec<&str>)> = Vec::new();
    for node in nodes {
        let finding = examine(&node.info);
        let address = node.address.as_deref();
        match found.iter_mut().find(|(earlier, _)| *earlier == finding) {
            Some((_, addresses)) => addresses.extend(address),
            None => found.push((finding, address.into_iter().collect())),
        }
    }
    let differ = found.len() > 1;
    let found = found.into_iter().map(|(finding, addresses)| {
        if differ && !addresses.is_empty() {
            finding.at(&addresses.join(", "))
        } else {
            finding
        }
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_of_info_are_found_under_any_line_end() {
        for end in ["\n", "\r\n"] {
            let text = [
                "# Server",
                "redis_version:7.0.15",
                "os:",
                "maxmemory:0",
                "a:b:c",
            ];
            let info = Info::parse(&text.join(end));
            assert_eq!(info.text("redis_version"), Some("7.0.15"));
            assert_eq!(info.text("os"), Some(""));
            assert_eq!(info.text("a"), Some("b:c"));
            assert_eq!(info.number("maxmemory"), Some(0));
            assert_eq!(info.number("redis_version"), None);
            assert_eq!(info.text("# Server"), None);
        }
    }

    #[test]
    fn hello_reports_version_role_and_mode() {
        let text = |text: &str| Value::BulkString(text.into());
        let fields = [
            ("server", "valkey"),
            ("version", "8.0.1"),
            ("mode", "cluster"),
            ("role", "replica"),
        ];
        let map = fields.map(|(name, value)| (text(name), text(value)));
        let array = map
            .clone()
            .into_iter()
            .flat_map(|(name, value)| [name, value]);
        // RESP3 and RESP2.
        for reply in [Value::Map(map.into()), Value::Array(array.collect())] {
            let info = Info::from_hello(reply);
            assert!(info.is("valkey_version", "8.0.1"));
            assert!(info.is("role", "replica"));
            assert!(info.is("cluster_enabled", "1"));
        }
        assert_eq!(Info::from_hello(Value::Nil).text("role"), None);
    }

    #[test]
    fn equal_findings_of_all_servers_are_one() {
        let from = |address: &str, info: &str| (address.to_owned(), Value::BulkString(info.into()));
        let reply = |others: &str| {
            nodes(vec![
                from("b:1", "role:master"),
                from("a:1", "role:master"),
                from("c:1", others),
            ])
        };
        let judge = |info: &Info| Finding::ok("role", info.text("role").unwrap().to_owned());
        let texts = |nodes: &[Node]| {
            let found = examine_each(nodes, judge);
            let texts = found.iter().map(|finding| finding.text.to_string());
            texts.collect::<Vec<_>>()
        };
        assert_eq!(texts(&reply("role:master")), ["master"]);
        assert_eq!(
            texts(&reply("role:slave")),
            ["a:1, b:1: master", "c:1: slave"]
        );
        // The servers that share a finding need not be neighbours.
        let reply = nodes(vec![
            from("a:1", "role:slave"),
            from("b:1", "role:master"),
            from("c:1", "role:slave"),
        ]);
        assert_eq!(texts(&reply), ["a:1, c:1: slave", "b:1: master"]);
    }
}
