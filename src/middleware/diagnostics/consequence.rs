//! The consequence of a misconfiguration, in log lines.

/// Returns what happens to a request that cannot be checked.
pub(super) fn answering_500(is_dry_run: bool) -> &'static str {
    if is_dry_run {
        "letting it pass in a dry run"
    } else {
        "answering 500"
    }
}
