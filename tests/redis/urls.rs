//! What errors and stores show of a URL.

use proptest::prop_assert;
use tollgate::store::from_url;
use tollgate::{ConfigErrorKind, RedisStore};

use crate::support::holds_for_any;
use crate::support::malformed_urls::{hides_password, malformed, marks_password};

/// Each form of a URL, with a password in each place that has one.
const URLS: &[&str] = &[
    "redis://u:PASSWORD@h:1/0",
    "redis://:PASSWORD@h",
    "redis://PASSWORD@h",
    "redis:/u:PASSWORD@h",
    "valkey:u:PASSWORD@h:1?name=n&prefix=p",
    "u:PASSWORD@h:1",
    "PASSWORD",
    "rediss://u:PASSWORD@h?ca=/ca.pem&deadline=50ms&protocol=resp3",
    "valkeys:/u:PASSWORD@h",
    "redis+cluster://u:PASSWORD@a,b:1",
    "valkey+cluster://u:PASSWORD@a,[::1]:2/0?slots=on",
    "redis+sentinel://u:PASSWORD@a,b:2/m/0?sentinel_username=v&sentinel_password=PASSWORD&name=n",
    "redis-sentinel://u:PASSWORD@a,b/m",
    "unix:///run/redis.sock?db=1&user=u&pass=PASSWORD&prefix=p",
    "unix:/u:PASSWORD@h",
    "memory:?max_keys=5000",
    "memory:PASSWORD",
    "http://u:PASSWORD@h",
    "postgres://u:PASSWORD@h/d",
];

#[test]
fn no_error_and_no_store_shows_a_password_however_malformed_its_url_is() {
    holds_for_any(40_000, &malformed(URLS), |url| {
        match RedisStore::open(&url) {
            Ok(store) if marks_password(&url) => hides_password(&url, &format!("{store:?}"))?,
            Ok(_) => {}
            Err(error) => hides_password(&url, &format!("{error} {error:?}"))?,
        }
        match from_url(&url) {
            Ok(store) if marks_password(&url) => hides_password(&url, &format!("{store:?}"))?,
            Ok(_) => {}
            Err(error) => {
                prop_assert!(error.kind() == ConfigErrorKind::Url, "{url:?}");
                hides_password(&url, &format!("{error} {error:?}"))?;
            }
        }
        Ok(())
    });
}

#[test]
fn an_error_shows_the_scheme_of_a_url_if_it_is_known() {
    for (url, shown) in [
        ("redis:/u:secret@h", "\"redis:…\": missing hostname"),
        ("rediss:/u:secret@h", "\"rediss:…\": missing hostname"),
        ("valkey:/u:secret@h", "\"valkey:…\": missing hostname"),
        ("REDIS://u:1#secret@h", "\"redis:…\": `#` in a user"),
        ("redis:\t//u:1#secret@h", "\"redis:…\": a control character"),
        ("redis+cluster:u:secret@h", "\"redis+cluster:…\": expected"),
        ("unix:/u:secret@h", "\"unix:…\": percent-encode `=` and `@`"),
        ("unix:///s.sock/pass=secret", "\"unix:…\": percent-encode"),
        (
            "redis+sentinel://a/mpass=secret",
            "\"redis+sentinel:…\": expected",
        ),
        ("secret:6379", "\"…\": url provided is not a redis url"),
    ] {
        let error = RedisStore::open(url).unwrap_err().to_string();
        assert!(error.contains(shown), "{url}: {error}");
        assert!(!error.contains("secret"), "{url}: {error}");
    }
}
