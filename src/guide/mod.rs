//! Pages to read before a decision, rather than to look something up. In this order, or by what is asked.
//!
//! | | page | tells |
//! |---|---|---|
//! | **To begin** | [start] | from nothing to a limit in production, in ten steps |
//! | **To set it up** | [where the layer goes](where_the_layer_goes) | the stack around it, in tower and axum; browsers; limits in limits |
//! | | [keys and proxies](keys_and_proxies) | which key to take, and whom to believe about addresses |
//! | | [choosing an algorithm](choosing_an_algorithm) | what each promises and costs; what happens when a limit changes |
//! | | [tenants and settling](tenants_and_settling) | plans from a database, dry runs, charges that follow the answer |
//! | | [gRPC and clients](grpc_and_clients) | what a client of gRPC sees; keeping under the limit of another |
//! | **To run it** | [when Redis fails](when_redis_fails) | what becomes of requests, how to run Redis, what to be woken by |
//! | | [watching it](watching_it) | metrics, alerts, a dashboard, events, and who is refused |
//! | | [looking after keys](operating) | look at a key, reset it, give it units, block it; how soon that holds where |
//! | | [Cluster and Sentinel](cluster_and_sentinel) | slots, hash tags, failover, and what may be lost |
//! | | [speed] | what a check costs, why, and how to measure one's own |
//! | **To work with it** | [testing your service](testing_your_service) | a clock that is moved by hand, and a store that fails when it is told to |
//! | | [moving from others](moving_from_others) | from `tower_governor`, from governor, from the script of tutorials |
//! | **To be sure** | [defaults] | every default with its reason |
//! | | [what this does not do](what_this_does_not_do) | its bounds, and what to take instead |

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
