//! Opens a store by its URL, with the settings in the query: `?prefix=shop&deadline=50ms`.

use std::collections::HashSet;

use ::url::form_urlencoded;

use super::protocol::HashTags;
use super::redis_store::RedisStore;
use super::transport::Deployment;
use super::url;
use crate::error::ConfigError;
use crate::quota::parse_duration;
use crate::store::url_scheme::known_scheme;

impl RedisStore {
    /// Opens the store at a URL, without connecting.
    ///
    /// The URL is `redis://[user][:password@]host[:port][/database]`, `unix:///path/to/redis.sock`, or one of
    /// [those that need a feature](Self#sentinel-cluster-tls). Its query may have [settings](Self#settings):
    /// `?prefix=shop&deadline=50ms`. The first check connects. To test at startup
    /// whether the server answers, call [`ping`](Self::ping). To examine its configuration, run
    /// [`tollgate-doctor`](crate::guide::deployment#settings-of-the-server).
    ///
    /// # Errors
    ///
    /// Returns an error if the URL is malformed, has an unknown parameter, or needs a feature that this build does
    /// not have.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::RedisStore;
    ///
    /// let store = RedisStore::open("redis://127.0.0.1:6379")?.prefix("shop");
    /// # Ok::<(), tollgate::ConfigError>(())
    /// ```
    #[doc(alias("connect", "new"))]
    pub fn open(url: &str) -> Result<Self, ConfigError> {
        let store = Self::on(Deployment::new(url::servers(url)?));
        apply_settings(store, url)
    }
}

/// A setting that a URL may have.
struct Setting {
    name: &'static str,
    rule: &'static str,
    /// Applies a value. Returns `None` if the value is malformed.
    apply: fn(RedisStore, &str) -> Option<RedisStore>,
}

impl Setting {
    /// Fails with the rule that a malformed value breaks.
    fn apply_to(&self, store: RedisStore, value: &str) -> Result<RedisStore, String> {
        (self.apply)(store, value).ok_or_else(|| format!("`{}` {}", self.name, self.rule))
    }
}

const TEXT: &str = "must not be empty";
const DURATION: &str = "is a number with a unit, like 50ms or 1s";
const TAGS: &str = "is a number from 1 to 65535, or `prefix:` and such a number";

const SETTINGS: [Setting; 6] = [
    Setting {
        name: "prefix",
        rule: TEXT,
        apply: |store, value| Some(store.prefix(text(value)?)),
    },
    Setting {
        name: "name",
        rule: TEXT,
        apply: |store, value| Some(store.name(text(value)?)),
    },
    Setting {
        name: "deadline",
        rule: "is a number from 1 with a unit, like 50ms or 1s",
        apply: |store, value| {
            let deadline = parse_duration(value).filter(|deadline| !deadline.is_zero())?;
            Some(store.deadline(deadline))
        },
    },
    Setting {
        name: "hash_tags",
        rule: TAGS,
        apply: |store, value| Some(store.hash_tags(tags(value)?)),
    },
    Setting {
        name: "slots",
        rule: "is `on`, or left out: the store then learns whether the server divides its keys",
        apply: |store, value| (value == "on").then(|| store.by_slot()),
    },
    Setting {
        name: "refusal_cache",
        rule: DURATION,
        apply: |store, value| Some(store.refusal_cache(parse_duration(value)?)),
    },
];

/// The parameters of the connection, with the schemes that have them.
const CONNECTION_PARAMETERS: [(&str, HasScheme); 9] = [
    ("protocol", |_| true),
    ("ca", is_tls),
    ("cert", is_tls),
    ("key", is_tls),
    ("sentinel_username", is_sentinel),
    ("sentinel_password", is_sentinel),
    ("db", is_unix),
    ("user", is_unix),
    ("pass", is_unix),
];

type HasScheme = fn(&str) -> bool;

fn is_tls(scheme: &str) -> bool {
    let base = scheme.split('+').next();
    matches!(base, Some("rediss" | "valkeys"))
}

fn is_sentinel(scheme: &str) -> bool {
    scheme.ends_with("+sentinel")
}

fn is_unix(scheme: &str) -> bool {
    scheme.ends_with("unix")
}

fn text(value: &str) -> Option<&str> {
    (!value.is_empty()).then_some(value)
}

fn tags(value: &str) -> Option<HashTags> {
    match value.strip_prefix("prefix:") {
        Some(tags) => tags.parse().ok().map(HashTags::ByPrefix),
        None => value.parse().ok().map(HashTags::Shared),
    }
}

/// Applies the settings of a URL to its store. Fails if the URL has another parameter, or one twice.
///
/// The URL is otherwise well formed, so its query begins at the first question mark. Errors show no value and no unknown name:
/// either may be a part of a password.
fn apply_settings(mut store: RedisStore, url: &str) -> Result<RedisStore, ConfigError> {
    let scheme = known_scheme(url);
    let without_fragment = url.split('#').next().unwrap_or_default();
    let Some((_, query)) = without_fragment.split_once('?') else {
        return Ok(store);
    };
    let mut seen = HashSet::new();
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    for (index, pair) in pairs.enumerate() {
        let (name, value) = form_urlencoded::parse(pair.as_bytes())
            .next()
            .unwrap_or_default();
        // A value is shown later. It may have swallowed the next parameter.
        let has_one_value = pair.matches('=').count() <= 1;
        let applied = match SETTINGS.iter().find(|setting| setting.name == name) {
            Some(setting) if has_one_value => setting.apply_to(store, &value),
            Some(setting) => {
                let name = setting.name;
                Err(format!("percent-encode `=` in the value of `{name}`"))
            }
            None => check_connection_parameter(scheme, &name, index + 1).map(|()| store),
        };
        store = applied.map_err(|rule| ConfigError::url(scheme, &rule))?;
        if !seen.insert(name.clone()) {
            let rule = format!("the parameter `{name}` is there twice");
            return Err(ConfigError::url(scheme, &rule));
        }
    }
    Ok(store)
}

/// Fails if URLs of this scheme have no such parameter, which is at this place, from 1.
fn check_connection_parameter(scheme: &str, name: &str, place: usize) -> Result<(), String> {
    let parameter = CONNECTION_PARAMETERS
        .iter()
        .find(|(known, _)| *known == name);
    match parameter {
        Some((_, belongs_to)) if belongs_to(scheme) => Ok(()),
        Some((known, _)) => Err(format!("a URL of this scheme has no parameter `{known}`")),
        None => Err(unknown(scheme, place)),
    }
}

/// Explains that the parameter at this place, from 1, is unknown.
fn unknown(scheme: &str, place: usize) -> String {
    let mut known = Vec::from(SETTINGS.map(|setting| setting.name));
    known.extend(
        CONNECTION_PARAMETERS
            .iter()
            .filter_map(|(name, belongs_to)| belongs_to(scheme).then_some(name)),
    );
    let all = known.join(", ");
    format!("parameter {place} of the URL is unknown; the parameters are {all}")
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use super::*;

    /// The URLs of a plain server, a cluster and Sentinel, where this build has them.
    const DEPLOYMENTS: &[&str] = &[
        "redis://127.0.0.1/3",
        "unix:///tmp/redis.sock",
        #[cfg(feature = "tls")]
        "rediss://127.0.0.1",
        #[cfg(feature = "cluster")]
        "redis+cluster://a,b:7001",
        #[cfg(feature = "sentinel")]
        "redis+sentinel://a,b/mymaster",
    ];

    #[test]
    fn a_url_of_each_scheme_has_the_settings_of_the_methods() {
        for url in DEPLOYMENTS {
            let by_url = RedisStore::open(&format!(
                "{url}?prefix=sh%26op&name=counts&deadline=50ms&hash_tags=48\
                 &slots=on&refusal_cache=0s&protocol=resp2"
            ));
            let by_methods = RedisStore::open(&format!("{url}?protocol=resp2"))
                .unwrap()
                .prefix("sh&op")
                .name("counts")
                .deadline(std::time::Duration::from_millis(50))
                .hash_tags(HashTags::Shared(NonZeroU16::new(48).unwrap()))
                .by_slot()
                .refusal_cache(std::time::Duration::ZERO);
            let [by_url, by_methods] = [by_url.unwrap(), by_methods].map(|store| {
                let shown = format!("{store:?}");
                // The rest is the time at which the store was opened.
                let (settings, _) = shown.split_once("clock:").unwrap();
                settings.to_owned()
            });
            assert_eq!(by_url, by_methods);
            for part in [
                "sh%26op",
                "Shared(48)",
                "50ms",
                "max_age: Some(0ns)",
                "by_slot: true",
            ] {
                assert!(by_url.contains(part), "{by_url}");
            }
        }
        let by_prefix = RedisStore::open("redis://a?hash_tags=prefix:48").unwrap();
        let by_prefix = format!("{by_prefix:?}");
        assert!(by_prefix.contains("ByPrefix(48)"), "{by_prefix}");
    }

    #[test]
    fn an_unknown_or_malformed_parameter_is_an_error_that_names_it() {
        for (query, rule) in [
            (
                "prefx=shop",
                "parameter 1 of the URL is unknown; the parameters are prefix, name, deadline",
            ),
            ("prefix=a&Prefix=shop", "parameter 2 of the URL is unknown"),
            ("prefix=", "`prefix` must not be empty"),
            ("prefix", "`prefix` must not be empty"),
            ("name=", "`name` must not be empty"),
            (
                "deadline=50",
                "`deadline` is a number from 1 with a unit, like 50ms or 1s",
            ),
            ("deadline=0ms", "`deadline` is a number from 1"),
            ("deadline=-1s", "`deadline` is"),
            ("hash_tags=65536", "`hash_tags` is a number from 1 to 65535"),
            ("hash_tags=prefix:many", "or `prefix:` and such"),
            ("slots=off", "`slots` is `on`, or left out"),
            (
                "refusal_cache=soon",
                "`refusal_cache` is a number with a unit",
            ),
            ("prefix=a&prefix=b", "the parameter `prefix` is there twice"),
        ] {
            for url in DEPLOYMENTS {
                let error = RedisStore::open(&format!("{url}?{query}")).unwrap_err();
                let text = error.to_string();
                assert!(text.contains(rule), "{url}?{query}: {text}");
            }
        }
        for (url, rule) in [
            (
                "redis://a?ca=/ca.pem",
                "a URL of this scheme has no parameter `ca`",
            ),
            (
                "redis://a?sentinel_password=x",
                "has no parameter `sentinel_password`",
            ),
            ("redis://a?db=1", "has no parameter `db`"),
            // A name or a value may be the rest of a password, or another parameter behind a lost `&`.
            (
                "redis://user:1?secret=1@a",
                "parameter 1 of the URL is unknown",
            ),
            ("redis://a?prefix=b&deadline=secret", "`deadline` is"),
            (
                "redis://a?name=bsentinel_password=secret",
                "percent-encode `=` in the value of `name`",
            ),
        ] {
            let text = RedisStore::open(url).unwrap_err().to_string();
            assert!(
                text.contains(rule) && !text.contains("secret"),
                "{url}: {text}"
            );
        }
    }
}
