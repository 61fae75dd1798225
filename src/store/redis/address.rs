//! What a URL of Redis says.

use redis::{ConnectionInfo, IntoConnectionInfo, ProtocolVersion};
use url::Url;

use super::source::{Server, Source};
use crate::ConfigError;

const TLS_SCHEMES: [&str; 2] = ["rediss", "valkeys"];

/// Where connections to a URL come from.
pub(super) fn source(url: &str) -> Result<Source, ConfigError> {
    let (info, protocol) = server(url)?;
    let server = Server::new(info, protocol);
    let server = server.map_err(|error| malformed("…", &reason(&error)))?;
    Ok(Source::Server(server))
}

/// A server, and the protocol to speak if the URL names one.
fn server(url: &str) -> Result<(ConnectionInfo, Option<ProtocolVersion>), ConfigError> {
    let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
    let url = Url::parse(url)
        // Nothing behind the scheme is shown: what cannot be read may hold a password anywhere.
        .map_err(|error| malformed(&format!("{scheme}…"), &error.to_string()))?;
    if url.cannot_be_a_base() {
        // What stands before the first colon may be a password as well.
        return Err(malformed("…", "not a redis url"));
    }
    let shown = without_secrets(&url);
    if TLS_SCHEMES.contains(&url.scheme()) {
        return Err(ConfigError::url(&shown, "this build has no TLS"));
    }
    let asks_for_protocol = url.query_pairs().any(|(name, _)| name == "protocol");
    let info = url
        .into_connection_info()
        .map_err(|error| malformed(&shown, &reason(&error)))?;
    if info.redis_settings().db() < 0 {
        return Err(malformed(&shown, "a database is a number from 0"));
    }
    let protocol = asks_for_protocol.then(|| info.redis_settings().protocol());
    Ok((info, protocol))
}

fn malformed(shown: &str, reason: &str) -> ConfigError {
    const RULE: &str = "a URL of Redis is redis://[user][:password@]host[:port][/database]";
    ConfigError::url(shown, &format!("{reason}; {RULE}"))
}

/// What an error of redis says, without its kind.
fn reason(error: &redis::RedisError) -> String {
    let text = error.to_string();
    text.split(" - ").next().unwrap_or_default().to_lowercase()
}

fn without_secrets(url: &Url) -> String {
    let mut shown = url.clone();
    // Where a URL cannot have them, it has none.
    let _ = shown.set_password(None);
    let _ = shown.set_username("");
    shown.set_query(None);
    shown.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_may_ask_for_a_protocol() {
        for (url, protocol) in [
            ("redis://127.0.0.1", None),
            ("redis://:protocol=2@127.0.0.1", None),
            (
                "redis://127.0.0.1?protocol=resp2",
                Some(ProtocolVersion::RESP2),
            ),
            ("redis://127.0.0.1?protocol=3", Some(ProtocolVersion::RESP3)),
        ] {
            assert_eq!(server(url).unwrap().1, protocol, "{url}");
        }
    }
}
