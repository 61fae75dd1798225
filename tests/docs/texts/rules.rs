//! The rules of form for errors and log lines: no capital at the beginning, no full stop at the end.

use super::sources::Text;

/// Names, commands and errors of Redis that a text may begin with.
const NAMES: [&str; 11] = [
    "Redis",
    "Valkey",
    "Sentinel",
    "ACL",
    "CONFIG",
    "WRONGTYPE",
    "NOLISTKEY",
    "NOWINDOW",
    "ERR",
    "FAILED",
    "X-Forwarded-For",
];

/// Places whose texts are no errors or log lines, by the beginning of their lines in the list.
const OTHERS: [&str; 8] = [
    // Descriptions of metrics are sentences, as in other exporters.
    "src/telemetry/metrics/metrics.rs: const ",
    "src/telemetry/metrics/lease_meter.rs: const ",
    "src/telemetry/metrics/permit_meter.rs: const ",
    // Problem details of HTTP for clients: the titles are those of the RFC draft.
    "src/middleware/rejection/problem_json.rs: ",
    // Labels and examples of the values that operators enter.
    "src/key/form.rs: Self::new: ",
    "src/key/authorization.rs: KeyForm::in_header: ",
    // Parts of what a parser reads.
    "src/middleware/headers/",
    "src/store/redis/script/",
];

/// Returns the rule that a text breaks.
pub(crate) fn broken(text: &Text) -> Option<&'static str> {
    let line = text.to_string();
    if OTHERS.iter().any(|other| line.starts_with(other)) {
        return None;
    }
    let begin = text.text.trim_start();
    let is_name = NAMES.iter().any(|name| begin.starts_with(name));
    if begin.starts_with(char::is_uppercase) && !is_name {
        return Some("begins with a capital");
    }
    let end = text.text.trim_end();
    if end.ends_with('.') && !end.ends_with("..") {
        return Some("ends with a full stop");
    }
    None
}
