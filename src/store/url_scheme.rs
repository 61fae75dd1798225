//! The schemes of store URLs: the only part of a URL that its error shows.

/// The schemes of the stores here, and of their neighbours that an error names.
const SCHEMES: [&str; 18] = [
    "memory",
    "redis",
    "rediss",
    "valkey",
    "valkeys",
    "unix",
    "redis+unix",
    "valkey+unix",
    "redis+cluster",
    "rediss+cluster",
    "valkey+cluster",
    "valkeys+cluster",
    "redis+sentinel",
    "rediss+sentinel",
    "valkey+sentinel",
    "valkeys+sentinel",
    "postgres",
    "postgresql",
];

/// Returns the scheme of a URL, or an empty text if it is unknown: text before the first colon may be a password.
pub(crate) fn known_scheme(url: &str) -> &'static str {
    let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme.trim());
    SCHEMES
        .into_iter()
        .find(|known| known.eq_ignore_ascii_case(scheme))
        .unwrap_or_default()
}
