//! A store that speaks the hidden protocol has all that `RedisStore` has: what it imports from other rooms is public or there.

use std::collections::BTreeSet;
use std::path::Path;

use crate::project::{files, read};
use crate::root;

/// What `src/store/redis` still imports that is not public, and why.
const EXCEPTIONS: [(&str, &str); 28] = [
    // The counters of the crate's own telemetry.
    ("StoreMeter", "telemetry"),
    // An error of a call is made once, and read by those who send the call.
    ("Act", "what the store does about its own errors"),
    (
        "Code",
        "the codes of its errors: another store has those of the kinds",
    ),
    ("warning", "the codes of its warnings"),
    // The script has the rules of the counters, so that its calls and replies have their fields.
    ("CountState", "the fields of a call"),
    ("QuotaCheck", "the fields of a call"),
    ("time_to_live_millis", "the fields of a call"),
    ("Calendar", "the fields of a call"),
    ("ShareId", "the fields of a call"),
    ("Wait", "the fields of a reply"),
    // The standard hasher would do, and hash once more what is a hash.
    ("HashFingerprint", "the hasher of a map"),
    // The list takes in late replies and steps of the clock for both stores of the crate that share one.
    ("SharedReading", "the time of a reading of the block list"),
    // A clock that a test moves in Redis and in the process together.
    ("Clock", "clocks"),
    ("micros", "clocks"),
    ("micros_rounded_up", "durations of blocks"),
    ("system_time", "clocks"),
    // `store::timeout` is the deadline of one wait.
    ("Deadline", "the waits of a call have one deadline together"),
    (
        "sleep_until",
        "pauses between attempts, if tokio's clock is paused",
    ),
    ("Late", "the words of its errors"),
    (
        "Moment",
        "checks wait for one call, each until its deadline",
    ),
    ("RunningClock", "checks wait for one call"),
    ("RunningTime", "checks wait for one call"),
    // Any source of random numbers would do.
    ("random", "where the numbers of calls begin"),
    ("up_to", "pauses between attempts"),
    // The standard locks would do, and ignore poison at each of them.
    ("Mutex", "locks that ignore poison"),
    ("RwLock", "locks that ignore poison"),
    // The numbers of a URL are written as those of a quota.
    ("parse_duration", "the text of a duration"),
    // An error of a URL shows its scheme alone: one list has those that are no secret, for all stores of the crate.
    ("known_scheme", "the schemes of URLs"),
];

/// The names that `use` statements import or export, without their paths.
fn names(source: &str, begins: &str) -> BTreeSet<String> {
    let source = source
        .split("\n#[cfg(test)]\nmod tests {")
        .next()
        .unwrap_or_default();
    let statements = source.split(begins).skip(1);
    let statements = statements.filter_map(|rest| rest.split(';').next());
    let words = statements.flat_map(|statement| {
        let list = statement.rsplit_once("::{").map_or_else(
            || vec![statement.rsplit("::").next().unwrap_or_default()],
            |(_, list)| list.trim_end_matches('}').split(',').collect(),
        );
        list.into_iter()
            .map(|word| word.trim().to_owned())
            .collect::<Vec<_>>()
    });
    let words = words.filter(|word| !word.is_empty());
    words
        .map(|word| word.split(" as ").next().unwrap_or_default().to_owned())
        .collect()
}

#[test]
fn the_redis_store_imports_what_a_store_outside_the_crate_can_or_what_is_listed_with_its_reason() {
    let exported = names(&read("src/lib.rs"), "pub use ");
    let mut of_stores = names(&read("src/store/mod.rs"), "pub use ");
    of_stores.extend(names(&read("src/store/protocol.rs"), "pub use "));
    let sources = files("src/store/redis", &["rs"]).into_iter();
    let sources = sources.map(|path| path.strip_prefix(root()).expect("in the root").to_owned());
    let sources = sources.filter(|path| !path.ends_with(Path::new("tests.rs")));
    let imported: BTreeSet<String> = sources
        .flat_map(|path| {
            let source = read(path.to_str().expect("text"))
                .replace("use crate::store::redis::", "use own::");
            names(&source, "use crate::")
        })
        .collect();
    let is_excepted = |name: &str| EXCEPTIONS.iter().any(|(except, _)| *except == name);
    let private: Vec<_> = imported
        .iter()
        .filter(|name| {
            !exported.contains(*name) && !of_stores.contains(*name) && !is_excepted(name)
        })
        .collect();
    assert!(private.is_empty(), "private: {private:?}");
    let unused: Vec<_> = EXCEPTIONS
        .iter()
        .filter(|(name, _)| !imported.contains(*name))
        .collect();
    assert!(unused.is_empty(), "no longer imported: {unused:?}");
}
