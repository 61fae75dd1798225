//! Log lines about a layer that seems to be set up wrongly: one line per finding, never one per request.

mod dry_run;
mod forwarded_values;
mod layer_log;
mod misconfiguration;

pub(super) use layer_log::Diagnostics;
pub(super) use misconfiguration::note_layer;
