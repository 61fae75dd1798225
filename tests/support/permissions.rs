//! The permissions that the documentation of the Redis store lists.

/// The permissions that a cluster needs in addition.
#[cfg(feature = "cluster")]
pub(crate) const OF_CLUSTER: [&str; 2] = ["+cluster|slots", "+asking"];

/// The words of the ACL rule in the documentation of the store.
pub(crate) fn documented() -> Vec<&'static str> {
    let docs = include_str!("../../src/store/redis/redis_store.rs");
    let (_, line) = docs.split_once("/// ACL SETUSER ").unwrap();
    let (line, _) = line.split_once("/// ```").unwrap();
    let words = line.split_whitespace().filter(|word| *word != "///");
    ["ACL", "SETUSER"].into_iter().chain(words).collect()
}
