//! The servers of a URL, and how each runtime reaches them.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::runtime::Handle;

#[cfg(feature = "cluster")]
use super::cluster::Cluster;
use super::connection::GivenConnection;
use super::credentials::CredentialSource;
#[cfg(any(feature = "cluster", feature = "sentinel"))]
use super::dial::name_all;
use super::dial::{Dial, ForCalls, Given, LongestDeadline, Server};
use super::node::Node;
use super::per_runtime::PerRuntime;
#[cfg(feature = "sentinel")]
use super::sentinel::Sentinels;
use super::transport::{Route, Transport};
use crate::store::redis::argument_clock::ArgumentClock;
#[cfg(feature = "cluster")]
use crate::store::redis::protocol::CLUSTER;
use crate::store::redis::protocol::{KeyNames, ServerClock, ServerName};

/// A deployment of Redis, what this process has learned of it, and its connections: one to each server for each runtime that
/// uses the store. Forks of a store share it.
pub(crate) struct Deployment {
    servers: Servers,
    /// Replaces the user and the password of the URL. Sentinels have users of their own.
    credentials: Option<Arc<CredentialSource>>,
    /// For errors.
    pub(crate) name: ServerName,
    pub(crate) clock: ServerClock,
    pub(crate) argument_clock: ArgumentClock,
    pub(crate) longest_deadline: LongestDeadline,
    learned_slots: AtomicBool,
    per_runtime: PerRuntime<Transport>,
}

/// The servers that a URL names.
#[derive(Clone)]
pub(crate) enum Servers {
    /// The application has connected.
    #[cfg_attr(
        not(feature = "redis-1"),
        expect(dead_code, reason = "applications make one with this feature")
    )]
    Given(Arc<dyn GivenConnection>),
    One(Box<Server>),
    #[cfg(feature = "sentinel")]
    Sentinels {
        sentinels: Vec<Server>,
        /// The sentinels' name for the master.
        service: Arc<str>,
        /// The settings for the master. The address in it is a sentinel's.
        master: Box<Server>,
    },
    #[cfg(feature = "cluster")]
    Cluster {
        /// The settings of the first one hold for all nodes.
        seeds: Vec<Server>,
    },
}

impl Deployment {
    pub(crate) fn new(servers: Servers) -> Self {
        let name = match &servers {
            Servers::Given(_) => ServerName::UNKNOWN,
            Servers::One(server) => server.server().clone(),
            #[cfg(feature = "sentinel")]
            Servers::Sentinels { sentinels, .. } => name_all(
                "the Redis master of the sentinels",
                sentinels.iter().map(Dial::server),
            ),
            #[cfg(feature = "cluster")]
            Servers::Cluster { seeds } => name_all(CLUSTER, seeds.iter().map(Dial::server)),
        };
        Self {
            servers,
            credentials: None,
            name,
            clock: ServerClock::default(),
            argument_clock: ArgumentClock::default(),
            longest_deadline: LongestDeadline::default(),
            learned_slots: AtomicBool::new(false),
            per_runtime: PerRuntime::default(),
        }
    }

    /// The same servers on connections of their own, with other credentials.
    pub(crate) fn with_credentials(&self, credentials: Arc<CredentialSource>) -> Self {
        Self {
            credentials: Some(credentials),
            ..Self::new(self.servers.clone())
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        match self.servers {
            #[cfg(feature = "cluster")]
            Servers::Cluster { .. } => true,
            _ => false,
        }
    }

    /// Whether the servers divide their keys into slots: known from the URL, or learned from an error reply.
    pub(crate) fn has_slots(&self) -> bool {
        self.is_cluster() || self.learned_slots.load(Ordering::Relaxed)
    }

    pub(crate) fn learn_slots(&self) {
        self.learned_slots.store(true, Ordering::Relaxed);
    }

    /// Returns the way to the keys of a slot from a runtime. New connections try EVALSHA with a key of these names.
    pub(crate) fn route(&self, runtime: &Handle, names: &KeyNames, slot: Option<u16>) -> Route {
        let transport = self.per_runtime.get_or_make(runtime, || {
            self.transport(runtime, names.block_list().into())
        });
        Route::new(transport, slot)
    }

    fn transport(&self, runtime: &Handle, trial_key: Arc<str>) -> Transport {
        let for_calls = Arc::new(ForCalls {
            trial_key,
            credentials: self.credentials.clone(),
        });
        let node = match &self.servers {
            Servers::Given(connection) => Node::new(Given(Arc::clone(connection)), runtime),
            Servers::One(server) => Node::new(self.awaited(server).for_calls(&for_calls), runtime),
            #[cfg(feature = "sentinel")]
            Servers::Sentinels {
                sentinels,
                service,
                master,
            } => {
                let name = self.name.clone();
                let sentinels = sentinels.iter().map(|sentinel| self.awaited(sentinel));
                let master = self.awaited(master).for_calls(&for_calls);
                let sentinels = Sentinels::new(name, sentinels, service, master, runtime);
                Node::new(sentinels, runtime)
            }
            #[cfg(feature = "cluster")]
            Servers::Cluster { seeds } => {
                let seeds = seeds
                    .iter()
                    .map(|seed| self.awaited(seed).for_calls(&for_calls))
                    .collect();
                let cluster = Cluster::new(self.name.clone(), seeds, runtime);
                return Transport::Cluster(cluster);
            }
        };
        Transport::One(node)
    }

    fn awaited(&self, server: &Server) -> Server {
        server.clone().awaited_for(self.longest_deadline.clone())
    }
}

/// The addresses, which also name the store in metrics. Never the settings, which hold the password.
impl fmt::Debug for Deployment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.servers {
            Servers::Given(_) => f.write_str("given"),
            Servers::One(server) => server.fmt(f),
            #[cfg(feature = "sentinel")]
            Servers::Sentinels {
                sentinels, service, ..
            } => write!(f, "{service} by {sentinels:?}"),
            #[cfg(feature = "cluster")]
            Servers::Cluster { seeds } => {
                let addresses: Vec<_> = seeds.iter().map(|seed| format!("{seed:?}")).collect();
                write!(f, "cluster of {}", addresses.join(","))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use redis::IntoConnectionInfo;
    use tokio::runtime::{Builder, Runtime};

    use super::*;
    use crate::store::redis::real_time::Deadline;

    fn deployment() -> Deployment {
        // It accepts connections, and never replies.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        std::mem::forget(listener);
        let info = url.into_connection_info().unwrap();
        Deployment::new(Servers::One(Box::new(Server::new(info, None))))
    }

    fn runtime() -> Runtime {
        Builder::new_current_thread().enable_all().build().unwrap()
    }

    /// Starts to connect from the current runtime.
    async fn use_it(deployment: &Deployment) {
        let route = deployment.route(&Handle::current(), &KeyNames::default(), None);
        let mut deadline = Deadline::new(Duration::from_millis(10));
        assert!(route.reserve(&mut deadline).await.is_err());
    }

    #[test]
    fn the_connections_of_ended_runtimes_are_forgotten() {
        let (deployment, alive) = (deployment(), runtime());
        for _ in 0..5 {
            alive.block_on(use_it(&deployment));
            runtime().block_on(use_it(&deployment));
        }
        assert_eq!(deployment.per_runtime.len(), 2);
    }

    #[test]
    fn a_store_that_is_dropped_leaves_no_task() {
        let (deployment, runtime) = (deployment(), runtime());
        runtime.block_on(use_it(&deployment));
        let tasks = || runtime.metrics().num_alive_tasks();
        assert!(tasks() > 0);
        drop(deployment);
        let ended = async {
            while tasks() > 0 {
                tokio::task::yield_now().await;
            }
        };
        let within = Duration::from_secs(5);
        let ended = runtime.block_on(async { tokio::time::timeout(within, ended).await });
        assert!(ended.is_ok(), "{} tasks are left", tasks());
    }
}
