//! Pages to read before a decision, rather than to look something up.

#[doc = include_str!("guide/choosing_an_algorithm.md")]
pub mod choosing_an_algorithm {}

#[doc = include_str!("guide/when_redis_fails.md")]
pub mod when_redis_fails {}

#[doc = include_str!("guide/where_the_layer_goes.md")]
pub mod where_the_layer_goes {}

#[doc = include_str!("guide/keys_and_proxies.md")]
pub mod keys_and_proxies {}

#[doc = include_str!("guide/tenants_and_settling.md")]
pub mod tenants_and_settling {}

#[doc = include_str!("guide/grpc_and_clients.md")]
pub mod grpc_and_clients {}
