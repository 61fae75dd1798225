//! The leases that the page offers, and when they have no effect.

use std::time::Duration;

use serde_json::{Value, json};
use tollgate::{Quotas, Store};

use crate::report::micros;
use crate::settings::Settings;

/// The names and durations of the leases, in the order of the page. The first is off.
pub(crate) const LEASES: [(&str, Duration); 8] = [
    ("off", Duration::ZERO),
    ("50ms", Duration::from_millis(50)),
    ("100ms", Duration::from_millis(100)),
    ("250ms", Duration::from_millis(250)),
    ("500ms", Duration::from_millis(500)),
    ("1s", Duration::from_secs(1)),
    ("3s", Duration::from_secs(3)),
    ("6s", Duration::from_secs(6)),
];

/// Keys with a lower limit take no units in advance.
const MIN_LIMIT: u32 = 21;

/// The leases for the page.
pub(crate) fn leases() -> Value {
    let leases = LEASES.iter();
    leases
        .map(|(id, duration)| json!({ "id": id, "micros": micros(*duration) }))
        .collect()
}

/// Returns why a lease has no effect, or `None` if it has one.
pub(crate) fn why_off(settings: &Settings, store: &dyn Store) -> Option<&'static str> {
    let (_, shortest) = LEASES[1];
    let quotas = &settings.quotas;
    if !store.parts().supports_leases {
        Some("Off: the counts are in memory already. A lease needs Redis.")
    } else if settings.shares {
        Some("Off: a limit with shares is counted without a lease.")
    } else if quotas.iter().any(|quota| quota.limit() < MIN_LIMIT) {
        Some("Off: limits of 20 and less take no units in advance.")
    } else if longest(quotas) < shortest {
        Some("Off: the shortest window is below 500 ms, too short for a lease.")
    } else {
        None
    }
}

/// Returns the longest lease of these quotas. Limiters cut a longer one.
pub(crate) fn longest(quotas: &Quotas) -> Duration {
    let windows = quotas.iter().map(|quota| quota.window());
    windows.min().unwrap_or_default() / 10
}
