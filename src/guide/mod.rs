//! The guide: one page per question. Read the first five in this order, then what you need.
//!
//! | | page | answers |
//! |---|---|---|
//! | **Start** | [Getting started](getting_started) | How do I get from nothing to a limit in production? |
//! | | [Keys](keys) | Who is counted, and how is a client recognized behind proxies? |
//! | | [Placement](placement) | Where in the stack does the layer go? |
//! | | [Algorithms](algorithms) | Which algorithm counts best for my limit, by the name that I know? |
//! | | [Failures](failures) | What happens when Redis fails? |
//! | | [Cookbook](cookbook) | How do I limit a route, a login, a stream? Short code to copy |
//! | **Shape limits** | [Plans](plans) | How do I give each tenant its own quotas, from a database or a file? |
//! | | [Costs and settling](costs) | How do I charge what a request really costs? |
//! | | [Limits in bodies](bodies) | How do I limit by the account, the tokens or the rows in a body? |
//! | | [Users, tenants and the whole service](levels) | How do I check several limits at once, all or nothing? |
//! | | [Leases](leases) | How do I admit requests from memory without exceeding the limit? |
//! | | [Several regions](regions) | How does one limit hold over several regions, without a round trip for each request? |
//! | | [In flight](in_flight) | How do I limit what runs at the same time, over all processes? |
//! | **Other services** | [Clients](clients) | What do clients of my service see? |
//! | | [Calling other services](upstreams) | How do I stay below the limit of a service that I call, and obey it? |
//! | **Run** | [Deployment](deployment) | Which Redis do I need, and how do I deploy with it? Sentinel, regions, Kubernetes |
//! | | [Cluster and hash tags](cluster) | What changes on Redis Cluster? |
//! | | [Rented servers](rented_servers) | Does the Redis that I rent work, and with which settings? |
//! | | [Postgres](postgres) | When is Postgres enough, and when do I need Redis? |
//! | | [Your own database](own_database) | How do I count in a database that I have already? |
//! | | [Capacity](capacity) | How much memory and CPU does Redis need, and how fast is a check? |
//! | | [Metrics and alerts](monitoring) | How do I watch limits? |
//! | | [Messages](messages) | What does the code of an error or a warning mean, and what helps? |
//! | | [Security](security) | What can an attacker do, and what prevents it? |
//! | **Develop** | [Testing](testing) | How do I test a service that has limits? |
//! | | [Migrating](migrating) | How do I replace another limiter, or a script? |
//! | | [Proofs](proofs) | Which parts are modelled, simulated and attacked, and which are not? |
//! | | [Alternatives](alternatives) | Which limiter should I take, what do they keep under attack, and how fast are they? |

#[doc = include_str!("getting_started.md")]
pub mod getting_started {}

#[doc = include_str!("keys.md")]
pub mod keys {}

#[doc = include_str!("placement.md")]
pub mod placement {}

// A page has the path of its picture in the repository, where rustdoc does not look. The first definition of a link counts.
#[doc = concat!("[boundary]: data:image/svg+xml;base64,", include_str!("../../docs/boundary.svg.base64"))]
#[doc = include_str!("algorithms.md")]
pub mod algorithms {}

#[doc = concat!("[outage]: data:image/svg+xml;base64,", include_str!("../../docs/outage.svg.base64"))]
#[doc = include_str!("failures.md")]
pub mod failures {}

#[doc = include_str!("cookbook.md")]
pub mod cookbook {}

#[doc = concat!("[shares]: data:image/svg+xml;base64,", include_str!("../../docs/shares.svg.base64"))]
#[doc = include_str!("plans.md")]
pub mod plans {}

#[doc = concat!("[costs]: data:image/svg+xml;base64,", include_str!("../../docs/costs.svg.base64"))]
#[doc = include_str!("costs.md")]
pub mod costs {}

#[doc = include_str!("bodies.md")]
pub mod bodies {}

#[doc = concat!("[levels]: data:image/svg+xml;base64,", include_str!("../../docs/levels.svg.base64"))]
#[doc = include_str!("levels.md")]
pub mod levels {}

#[doc = include_str!("leases.md")]
pub mod leases {}

#[doc = include_str!("regions.md")]
pub mod regions {}

#[doc = include_str!("in_flight.md")]
pub mod in_flight {}

#[doc = include_str!("clients.md")]
pub mod clients {}

#[doc = include_str!("upstreams.md")]
pub mod upstreams {}

#[doc = include_str!("deployment.md")]
pub mod deployment {}

#[doc = include_str!("cluster.md")]
pub mod cluster {}

#[doc = include_str!("rented_servers.md")]
pub mod rented_servers {}

#[doc = include_str!("postgres.md")]
pub mod postgres {}

#[doc = include_str!("own_database.md")]
pub mod own_database {}

#[doc = include_str!("capacity.md")]
pub mod capacity {}

#[doc = include_str!("monitoring.md")]
pub mod monitoring {}

#[doc = include_str!("messages.md")]
pub mod messages {}

#[doc = include_str!("security.md")]
pub mod security {}

#[doc = include_str!("testing.md")]
pub mod testing {}

#[doc = include_str!("migrating.md")]
pub mod migrating {
    #[doc = include_str!("migrating/tower_governor.md")]
    pub mod tower_governor {}

    #[doc = include_str!("migrating/axum_governor.md")]
    pub mod axum_governor {}

    #[doc = include_str!("migrating/actix_governor.md")]
    pub mod actix_governor {}

    #[doc = include_str!("migrating/governor.md")]
    pub mod governor {}

    #[doc = include_str!("migrating/tower_redis_cell.md")]
    pub mod tower_redis_cell {}

    #[doc = include_str!("migrating/tower.md")]
    pub mod tower {}

    #[doc = include_str!("migrating/scripts.md")]
    pub mod scripts {}
}

#[doc = include_str!("proofs.md")]
pub mod proofs {}

#[doc = include_str!("alternatives.md")]
pub mod alternatives {}
