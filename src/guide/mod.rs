//! The guide: one page per question.
//!
//! | | page | answers |
//! |---|---|---|
//! | **Start** | [Getting started](getting_started) | How do I get from nothing to a limit in production? |
//! | | [Placement](placement) | Where in the stack does the layer go? |
//! | | [Keys](keys) | Who is counted, and how is a client recognized behind proxies? |
//! | | [Algorithms](algorithms) | Which algorithm counts best for my limit? |
//! | | [Plans and costs](plans_and_costs) | How do I set limits per tenant, and charge what a request really costs? |
//! | | [Users, tenants and the whole service](levels) | How do I check several limits at once, all or nothing? |
//! | | [Leases](leases) | How do I admit requests from memory without exceeding the limit? |
//! | | [Clients](clients) | What do clients see, and how do I stay below the limit of another service? |
//! | **Run** | [Failures](failures) | What happens when Redis fails? |
//! | | [Deployment](deployment) | Which Redis do I need, and how do I deploy with it? Sentinel, Cluster, regions, Kubernetes |
//! | | [Capacity](capacity) | How much memory and CPU does Redis need, and how fast is a check? |
//! | | [Operations](operations) | How do I watch limits, and correct them for one key? |
//! | | [Security](security) | What can an attacker do, and what prevents it? |
//! | **Develop** | [Testing](testing) | How do I test a service that has limits? |
//! | | [Migrating](migrating) | How do I replace another limiter? |
//! | **Look up** | [Defaults](defaults) | What can I set, to which value is it set, and why? |

#[doc = include_str!("getting_started.md")]
pub mod getting_started {}

#[doc = include_str!("placement.md")]
pub mod placement {}

#[doc = include_str!("keys.md")]
pub mod keys {}

#[doc = include_str!("algorithms.md")]
pub mod algorithms {}

#[doc = include_str!("plans_and_costs.md")]
pub mod plans_and_costs {}

#[doc = include_str!("levels.md")]
pub mod levels {}

#[doc = include_str!("leases.md")]
pub mod leases {}

#[doc = include_str!("clients.md")]
pub mod clients {}

#[doc = include_str!("failures.md")]
pub mod failures {}

#[doc = include_str!("deployment.md")]
pub mod deployment {}

#[doc = include_str!("capacity.md")]
pub mod capacity {}

#[doc = include_str!("operations.md")]
pub mod operations {}

#[doc = include_str!("security.md")]
pub mod security {}

#[doc = include_str!("testing.md")]
pub mod testing {}

#[doc = include_str!("migrating.md")]
pub mod migrating {}

#[doc = include_str!("defaults.md")]
pub mod defaults {}
