//! Serializes the status of keys to what a customer may see.

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use super::key_status::KeyStatus;
use crate::decision::{QuotaDecision, Source};

/// Serializes the quotas that [customers see](KeyStatus#what-customers-see), and the seconds until the keys are unblocked.
#[cfg_attr(docsrs, doc(cfg(feature = "serde")))]
impl Serialize for KeyStatus {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let quotas: Vec<QuotaDecision<'_>> = self
            .view
            .levels()
            .filter(|level| !level.is_hidden() && level.source() != Source::None)
            .flat_map(|level| level.quotas())
            .filter(|quota| !quota.quota().is_soft())
            .collect();
        let blocked_for = self.blocked_for.map(|left| left.as_secs_f64());
        let mut status = serializer.serialize_struct("KeyStatus", 2)?;
        status.serialize_field("quotas", &quotas)?;
        status.serialize_field("blocked_for", &blocked_for)?;
        status.end()
    }
}
