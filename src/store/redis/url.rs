//! Parsing the URL of a store into its servers.

use std::mem;

use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisError, RedisResult};
use url::Url;

#[cfg(feature = "sentinel")]
use super::protocol::SENTINEL;
#[cfg(feature = "tls")]
use super::transport::tls;
use super::transport::{Server, Servers};
use crate::error::ConfigError;
use crate::store::url_scheme::known_scheme;

const SCHEMES: [&str; 4] = ["redis", "rediss", "valkey", "valkeys"];
const TLS_SCHEMES: [&str; 2] = ["rediss", "valkeys"];

/// The default port of a sentinel.
#[cfg(feature = "sentinel")]
const SENTINEL_PORT: u16 = 26_379;

pub(super) fn servers(url: &str) -> Result<Servers, ConfigError> {
    let scheme = known_scheme(url);
    // The parser would drop them, and find other parts than are looked for here.
    if url.trim().contains(char::is_control) {
        let rule = "a control character must be percent-encoded";
        return Err(ConfigError::url(scheme, rule));
    }
    if let Some((character, escaped)) = unescaped(scheme, url) {
        let rule = format!(
            "`{character}` in a user or password must be percent-encoded as `{escaped}`; so must all \
             characters but letters and digits"
        );
        return Err(ConfigError::url(scheme, &rule));
    }
    match scheme.split_once('+') {
        #[cfg(feature = "cluster")]
        Some((base, "cluster")) if SCHEMES.contains(&base) => cluster(scheme, base, url),
        #[cfg(feature = "sentinel")]
        Some((base, "sentinel")) if SCHEMES.contains(&base) => sentinel(scheme, base, url),
        Some((base, feature @ ("cluster" | "sentinel"))) if SCHEMES.contains(&base) => {
            let what = if feature == "cluster" {
                "Redis Cluster"
            } else {
                "Sentinel"
            };
            Err(unsupported(scheme, what, feature))
        }
        _ => {
            if let Some(remedy) = other_scheme(url) {
                return Err(ConfigError::url(scheme, &remedy));
            }
            Ok(Servers::One(Box::new(server(scheme, url)?.0)))
        }
    }
}

/// Returns what to do about the scheme of another store, or of other clients: they write `redis-sentinel` or `sentinel` for
/// `redis+sentinel`.
fn other_scheme(url: &str) -> Option<String> {
    let (scheme, _) = url.split_once(':')?;
    if matches!(scheme, "postgres" | "postgresql") {
        return Some("open it by `from_url` of the crate `tollgate-postgres`".to_owned());
    }
    if is_deployment(scheme) {
        return Some(format!("write `redis+{scheme}://` instead"));
    }
    let (mut base, mut deployment) = scheme.split_once(['-', '+'])?;
    if is_deployment(base) {
        mem::swap(&mut base, &mut deployment);
    }
    (SCHEMES.contains(&base) && is_deployment(deployment))
        .then(|| format!("write `{base}+{deployment}://` instead"))
}

fn is_deployment(name: &str) -> bool {
    matches!(name, "sentinel" | "cluster")
}

/// Finds a character in a user or password that ends the part of the URL before its `@`: the rest of the
/// password would be taken for a path, a query or a fragment, and could be shown.
fn unescaped(scheme: &str, url: &str) -> Option<(char, &'static str)> {
    let base = scheme.split('+').next().unwrap_or_default();
    if !SCHEMES.contains(&base) {
        return None;
    }
    let (_, behind) = url.split_once("://")?;
    let rest = behind.get(behind.find(['/', '?', '#'])?..)?;
    let character = match rest.rsplit_once('@')?.0.chars().next()? {
        '#' => return Some(('#', "%23")),
        '/' => ('/', "%2F"),
        _ => ('?', "%3F"),
    };
    // A query may have an `@`: `/0?ca=/home/ann@work/ca.pem`.
    let query = rest.split_once('?').map(|(_, query)| query);
    (!query.is_some_and(is_parameter)).then_some(character)
}

/// Whether the `@` of a query is in the value of a parameter.
fn is_parameter(query: &str) -> bool {
    let before_at = query.split('@').next().unwrap_or_default();
    query.contains('@') && before_at.contains('=')
}

#[cfg(feature = "cluster")]
fn cluster(scheme: &'static str, base: &str, url: &str) -> Result<Servers, ConfigError> {
    let url = MultiHostUrl::split(scheme, base, url)?;
    let mut seeds = Vec::new();
    for host in url.hosts.split(',') {
        let (seed, _) = url.server(host, url.path)?;
        seeds.push(seed);
    }
    Ok(Servers::Cluster { seeds })
}

#[cfg(feature = "sentinel")]
fn sentinel(scheme: &'static str, base: &str, url: &str) -> Result<Servers, ConfigError> {
    let url = MultiHostUrl::split(scheme, base, url)?;
    let path = url.path.trim_start_matches('/');
    let (name, database) = path.split_at(path.find('/').unwrap_or(path.len()));
    let service = match percent_encoding::percent_decode_str(name).decode_utf8() {
        Ok(service) if !service.is_empty() && !may_hold_password(name) => (*service).into(),
        _ => return Err(MultiHostUrl::malformed(scheme)),
    };
    let mut master = None;
    let mut sentinels = Vec::new();
    for host in url.hosts.split(',') {
        let (server, url) = url.server(&with_port(host, SENTINEL_PORT), database)?;
        let info = with_sentinel_user(server.info(), &url);
        let master: &Server = master.get_or_insert(server);
        // All share the TLS files of the first.
        sentinels.push(master.with_info(SENTINEL, info));
    }
    Ok(Servers::Sentinels {
        sentinels,
        service,
        master: Box::new(master.ok_or_else(|| MultiHostUrl::malformed(scheme))?),
    })
}

/// Replaces the user by the sentinels' user, `?sentinel_username=…&sentinel_password=…`. The user
/// in front of the hosts is for the servers.
#[cfg(feature = "sentinel")]
fn with_sentinel_user(info: &ConnectionInfo, url: &Url) -> ConnectionInfo {
    let mut settings = redis::RedisConnectionInfo::default();
    for (name, value) in url.query_pairs() {
        settings = match &*name {
            "sentinel_username" => settings.set_username(value),
            "sentinel_password" => settings.set_password(value),
            _ => settings,
        };
    }
    info.clone().set_redis_settings(settings)
}

#[cfg(feature = "sentinel")]
fn with_port(host: &str, port: u16) -> String {
    let after_ipv6_address = host.rsplit_once(']').map_or(host, |(_, after)| after);
    if host.is_empty() || after_ipv6_address.contains(':') {
        host.to_owned()
    } else {
        format!("{host}:{port}")
    }
}

/// The parts of a URL with several hosts.
#[cfg(any(feature = "cluster", feature = "sentinel"))]
struct MultiHostUrl<'a> {
    scheme: &'static str,
    /// With the scheme of a single server, and the user.
    before_hosts: String,
    hosts: &'a str,
    path: &'a str,
    /// Includes the ?, if there is one.
    query: &'a str,
}

#[cfg(any(feature = "cluster", feature = "sentinel"))]
impl<'a> MultiHostUrl<'a> {
    fn split(scheme: &'static str, base: &str, url: &'a str) -> Result<Self, ConfigError> {
        let Some((_, rest)) = url.split_once("://") else {
            return Err(Self::malformed(scheme));
        };
        let (rest, query) = rest.split_at(rest.find(['?', '#']).unwrap_or(rest.len()));
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let hosts_at = authority.rfind('@').map_or(0, |at| at + 1);
        let (userinfo, hosts) = authority.split_at(hosts_at);
        // A slash in the password ends the authority too early.
        let is_valid = !path.contains('@') && hosts.split(',').all(|host| !host.is_empty());
        if !is_valid {
            return Err(Self::malformed(scheme));
        }
        Ok(Self {
            scheme,
            before_hosts: format!("{base}://{userinfo}"),
            hosts,
            path,
            query,
        })
    }

    fn server(&self, host: &str, path: &str) -> Result<(Server, Url), ConfigError> {
        let Self {
            before_hosts,
            query,
            ..
        } = self;
        let url = format!("{before_hosts}{host}{path}{query}");
        server(self.scheme, &url)
    }

    fn malformed(scheme: &'static str) -> ConfigError {
        let rule = "expected redis+cluster://[user][:password@]host[:port],… or \
            redis+sentinel://[user][:password@]host[:port],…/master[/database], with all \
            but letters and digits of a password percent-encoded";
        ConfigError::url(scheme, rule)
    }
}

/// Parses the URL of one server. Errors show the scheme that was configured.
fn server(scheme: &'static str, url: &str) -> Result<(Server, Url), ConfigError> {
    let url = Url::parse(url).map_err(|error| malformed(scheme, &error.to_string()))?;
    let is_tls = TLS_SCHEMES.contains(&url.scheme());
    if is_tls && cfg!(not(feature = "tls")) {
        return Err(unsupported(scheme, "TLS", "tls"));
    }
    if !is_tls && url.fragment().is_some() {
        return Err(malformed(scheme, "`#` must be percent-encoded as `%23`"));
    }
    if scheme.ends_with("unix") && may_hold_password(url.path()) {
        let rule = "percent-encode `=` and `@` in the path of a socket";
        return Err(ConfigError::url(scheme, rule));
    }
    let info = connection_info(&url).map_err(|error| malformed(scheme, &reason(&error)))?;
    if info.redis_settings().db() < 0 {
        return Err(malformed(scheme, "a database is a number from 0 up"));
    }
    let sets_protocol = url.query_pairs().any(|(name, _)| name == "protocol");
    let protocol = sets_protocol.then(|| info.redis_settings().protocol());
    let server = Server::new(info, protocol);
    #[cfg(feature = "tls")]
    let server = if is_tls {
        server.with_tls_files(tls::open_files(&url, scheme)?)
    } else {
        server
    };
    Ok((server, url))
}

/// Whether a path, which is shown, looks like the rest of a malformed URL: the user and password of another form, or
/// parameters behind a lost question mark.
fn may_hold_password(path: &str) -> bool {
    path.contains(['@', '='])
}

/// Reads the settings of a connection. TLS is set up here, so the client library need not know of it.
fn connection_info(url: &Url) -> RedisResult<ConnectionInfo> {
    let mut plain = url.clone();
    let is_tls = TLS_SCHEMES.contains(&url.scheme()) && plain.set_scheme("redis").is_ok();
    let info = plain.into_connection_info()?;
    Ok(match info.addr().clone() {
        ConnectionAddr::Tcp(host, port) if is_tls => info.set_addr(ConnectionAddr::TcpTls {
            host,
            port,
            insecure: false,
            tls_params: None,
        }),
        _ => info,
    })
}

fn unsupported(scheme: &'static str, what: &str, feature: &str) -> ConfigError {
    let text = format!("this build does not support {what}: enable the feature `{feature}`");
    ConfigError::url(scheme, &text)
}

fn malformed(scheme: &'static str, reason: &str) -> ConfigError {
    const RULE: &str = "expected redis://[user][:password@]host[:port][/database]";
    ConfigError::url(scheme, &format!("{reason}; {RULE}"))
}

fn reason(error: &RedisError) -> String {
    let text = error.to_string();
    text.split(" - ").next().unwrap_or_default().to_lowercase()
}

#[cfg(test)]
mod tests {
    use redis::ProtocolVersion;

    use super::*;
    #[cfg(any(feature = "cluster", feature = "sentinel"))]
    use crate::store::redis::transport::Deployment;

    #[test]
    fn a_url_may_set_the_protocol() {
        for (url, protocol) in [
            ("redis://127.0.0.1", None),
            ("redis://:protocol=2@127.0.0.1", None),
            (
                "redis://127.0.0.1?protocol=resp2",
                Some(ProtocolVersion::RESP2),
            ),
            ("redis://127.0.0.1?protocol=3", Some(ProtocolVersion::RESP3)),
        ] {
            assert_eq!(
                server("redis", url).unwrap().0.protocol(),
                protocol,
                "{url}"
            );
        }
    }

    #[test]
    fn users_and_passwords_are_percent_decoded() {
        let url = "redis://l%3Aimiter:p%40ss%2Fw%3Frd@127.0.0.1";
        let (server, _) = server("redis", url).unwrap();
        let settings = server.info().redis_settings();
        let expected = (Some("l:imiter"), Some("p@ss/w?rd"));
        assert_eq!((settings.username(), settings.password()), expected);
    }

    #[cfg(feature = "sentinel")]
    #[test]
    fn a_url_names_sentinels_and_their_master() {
        let url = "redis+sentinel://ann:one@a:7000,b,[::1]/my%20master/3\
            ?sentinel_username=bob&sentinel_password=t%26wo";
        let shown = format!("{:?}", Deployment::new(servers(url).unwrap()));
        assert_eq!(shown, "my master by [a:7000, b:26379, ::1:26379]");

        let parts = MultiHostUrl::split("redis+sentinel", "redis", url).unwrap();
        let (server, url) = parts.server("a", "").unwrap();
        let sentinel_info = with_sentinel_user(server.info(), &url);
        let users = |info: &ConnectionInfo| {
            let settings = info.redis_settings();
            [settings.username(), settings.password()].map(|text| text.map(ToOwned::to_owned))
        };
        let named = |texts: [&str; 2]| texts.map(|text| Some(text.to_owned()));
        assert_eq!(users(server.info()), named(["ann", "one"]));
        assert_eq!(users(&sentinel_info), named(["bob", "t&wo"]));
    }

    #[cfg(feature = "cluster")]
    #[test]
    fn a_url_names_nodes_of_a_cluster() {
        let cluster = servers("redis+cluster://:pw@a:7000,b,[::1]:7").unwrap();
        let shown = format!("{:?}", Deployment::new(cluster));
        assert_eq!(shown, "cluster of a:7000,b:6379,::1:7");
    }
}
