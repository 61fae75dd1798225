//! The page of plans: its configuration is read as the page says.

use std::collections::HashMap;

use serde::Deserialize;
use tollgate::Quotas;

use crate::markdown::Block;

#[derive(Deserialize)]
struct Config {
    plans: HashMap<String, Quotas>,
}

/// Checks that each value of the block deserializes to quotas.
pub(super) fn plans(block: &Block) -> Result<(), String> {
    let config = toml::from_str::<Config>(&block.text).map_err(|error| error.to_string())?;
    let mut plans = config.plans.values();
    let are_limits = plans.len() > 0 && plans.all(|quotas| !quotas.is_empty());
    are_limits
        .then_some(())
        .ok_or_else(|| "no quota".to_owned())
}
