//! Serializes the numbers of a quota, without its key.

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use super::levels::QuotaDecision;

/// Serializes the limiter, the name of the quota, and its numbers. The window has the form of a quota's text, and the reset is
/// in seconds. Slots and totals have neither.
#[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
impl Serialize for QuotaDecision<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let quota = self.quota();
        let rate = Some(quota).filter(|quota| quota.is_rate());
        let reset_after = rate.map(|_| self.reset_after().as_secs_f64());
        let mut numbers = serializer.serialize_struct("QuotaDecision", 7)?;
        numbers.serialize_field("limiter", self.limiter())?;
        numbers.serialize_field("name", &quota.name())?;
        numbers.serialize_field("limit", &self.limit())?;
        numbers.serialize_field("window", &rate.map(|rate| rate.window_text()))?;
        numbers.serialize_field("used", &self.used())?;
        numbers.serialize_field("remaining", &self.remaining())?;
        numbers.serialize_field("reset_after", &reset_after)?;
        numbers.end()
    }
}
