//! Requests to other services: what their answers say about when to send again, and the layer around a client.

mod layer;
mod observe;
mod observer;
mod reset;
mod upstream_wait;

pub use layer::OutboundLayer;
pub(super) use observer::Observer;
