//! The guide: pages to read before a decision, in this order or by topic.
//!
//! | | page | covers |
//! |---|---|---|
//! | **First steps** | [start] | from nothing to a limit in production, in ten steps |
//! | **Setup** | [where the layer goes](where_the_layer_goes) | the stack around it, in tower and axum; browsers; nested limits |
//! | | [keys and proxies](keys_and_proxies) | the choice of a key, and which proxies to trust about addresses |
//! | | [choosing an algorithm](choosing_an_algorithm) | what each promises and costs; changes of a limit |
//! | | [tenants and settling](tenants_and_settling) | plans from a database, dry runs, charges that follow the response |
//! | | [gRPC and clients](grpc_and_clients) | what a gRPC client sees; keeping under the limit of another service |
//! | **Operation** | [when Redis fails](when_redis_fails) | what happens to requests, how to run Redis, which alerts should page |
//! | | [watching it](watching_it) | metrics, alerts, a dashboard, events, and who is refused |
//! | | [looking after keys](operating) | peek at a key, reset, credit or block it; how soon that takes effect |
//! | | [Cluster and Sentinel](cluster_and_sentinel) | slots, hash tags, failover, and what may be lost |
//! | | [speed] | what a check costs, why, and how to measure it |
//! | **Development** | [testing your service](testing_your_service) | a clock that a test moves, and a store that fails on request |
//! | | [moving from others](moving_from_others) | from `tower_governor`, from governor, from the script of tutorials |
//! | **Reference** | [defaults] | every default with its reason |
//! | | [what this does not do](what_this_does_not_do) | limitations, and alternatives |

#[doc = include_str!("start.md")]
pub mod start {}

#[doc = include_str!("where_the_layer_goes.md")]
pub mod where_the_layer_goes {}

#[doc = include_str!("keys_and_proxies.md")]
pub mod keys_and_proxies {}

#[doc = include_str!("choosing_an_algorithm.md")]
pub mod choosing_an_algorithm {}

#[doc = include_str!("tenants_and_settling.md")]
pub mod tenants_and_settling {}

#[doc = include_str!("grpc_and_clients.md")]
pub mod grpc_and_clients {}

#[doc = include_str!("when_redis_fails.md")]
pub mod when_redis_fails {}

#[doc = include_str!("watching_it.md")]
pub mod watching_it {}

#[doc = include_str!("operating.md")]
pub mod operating {}

#[doc = include_str!("cluster_and_sentinel.md")]
pub mod cluster_and_sentinel {}

#[doc = include_str!("speed.md")]
pub mod speed {}

#[doc = include_str!("testing_your_service.md")]
pub mod testing_your_service {}

#[doc = include_str!("moving_from_others.md")]
pub mod moving_from_others {}

#[doc = include_str!("defaults.md")]
pub mod defaults {}

#[doc = include_str!("what_this_does_not_do.md")]
pub mod what_this_does_not_do {}
