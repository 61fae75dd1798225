//! Requests to other services: what their answers say about when to send again, and the layer around a client.

mod layer;
mod observe;
mod reset;
mod told;

pub use layer::OutboundLayer;
