//! Log lines about layers that are probably misconfigured: one line per finding, never one per request.
//!
//! This module uses [`Rejection`](super::Rejection), and nothing else of the middleware.

mod layer_diagnostics;
mod level_diagnostics;
mod misconfiguration;

pub(super) use layer_diagnostics::Diagnostics;
pub(super) use level_diagnostics::LevelDiagnostics;
