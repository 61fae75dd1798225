//! The examination: which questions are asked, and in which order.

use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;

use redis::{Cmd, FromRedisValue, Value};

use super::info::{Info, Node, of_each};
use super::replicas::MinReplicas;
use super::report::{Finding, Report, Severity};
use super::rights::Trial;
use super::timing::Reading;
use super::trouble::{Denied, advice, denied};
use crate::error::{Error, ErrorKind};
use crate::store::redis::client::Client;
use crate::store::redis::connection::KEYLESS;
use crate::store::redis::redis_store::RedisStore;

/// How long each question may take where the store's deadline is shorter: what is slow is to be found
/// so, and not to be missed.
const PATIENCE: Duration = Duration::from_secs(1);

impl RedisStore {
    /// Looks whether the server is fit to count on, and says what to do where it is not.
    ///
    /// | topic | what is looked at |
    /// |---|---|
    /// | `connection` | whether it is there and lets us in |
    /// | `server` | its version: Redis 6.0 or later, or Valkey |
    /// | `role` | a master; a replica takes no writes |
    /// | `cluster` | of a cluster, whether all slots can be reached |
    /// | `rights` | what the user may not do of what the scripts do |
    /// | `script` | a check, a refund and a reset by every algorithm, on a key that nobody else has |
    /// | `memory` | whether there is room below `maxmemory` |
    /// | `eviction` | `maxmemory-policy`: where a count is thrown away, its client gets a fresh quota |
    /// | `replicas` | what a failover forgets, and whether a master that is cut off goes on admitting |
    /// | `persistence` | what a restart forgets, and whether the server can save |
    /// | `round trip` | percentiles of a look by the script, beside the deadline |
    /// | `clock` | the server's, beside ours: only its own counts, but it should not jump |
    ///
    /// Every question may take a second, or the store's deadline where that is longer, and the round
    /// trips two; where the server is not there or stops answering, the report ends with that. So the
    /// whole takes under a second of a healthy server. It leaves no key behind, works beside traffic,
    /// and never shows a password. What the user has no right to look at is
    /// [`Unknown`](Severity::Unknown), which is not a fault.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use tollgate::RedisStore;
    /// use tollgate::doctor::Severity;
    ///
    /// # async fn example() -> Result<(), tollgate::ConfigError> {
    /// let report = RedisStore::open("redis://127.0.0.1:6379")?.doctor().await;
    /// println!("{report}");
    /// assert!(report.worst() < Severity::Problem);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn doctor(&self) -> Report {
        let asking = Asking::of(&self.shared.client);
        let mut report = Report::default();
        let found = Box::pin(examine(&asking, &mut report)).await;
        if let Err(error) = found {
            let text = format!("no answer any more: {error}");
            report.push(Finding::problem("connection", text).with_remedy(advice(&error)));
        }
        report
    }
}

/// Asks a server, with patience.
#[derive(Debug)]
pub(crate) struct Asking {
    pub(crate) client: Client,
    /// How long checks wait.
    pub(crate) deadline: Duration,
}

impl Asking {
    fn of(client: &Client) -> Self {
        let deadline = client.deadline;
        let mut client = client.clone();
        client.deadline = deadline.max(PATIENCE);
        client.connections = client.connections.with_deadline(client.deadline);
        Self { client, deadline }
    }

    pub(crate) async fn ask(&self, command: &Cmd) -> Result<Value, Error> {
        self.within(self.client.query(KEYLESS, command)).await
    }

    pub(crate) async fn within<T>(
        &self,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        self.client.within_deadline(call).await
    }
}

/// Whether nothing is to be expected of further questions.
pub(crate) fn is_gone(error: &Error) -> bool {
    let has_answered = super::trouble::code_of(error).is_some();
    error.kind() == ErrorKind::Timeout || (error.kind() == ErrorKind::Unavailable && !has_answered)
}

/// Looks at everything in turn; an error says that there is no answer any more.
async fn examine(asking: &Asking, report: &mut Report) -> Result<(), Error> {
    let connection = connection(asking).await;
    let is_there = connection.severity() < Severity::Problem;
    report.push(connection);
    if !is_there {
        return Ok(());
    }
    let first = still_there(Reading::take(asking).await)?;
    let (nodes, is_told) = nodes(asking, report).await?;
    report.extend(of_each(&nodes, super::server::version));
    report.extend(of_each(&nodes, super::server::role));
    report.extend(super::trial::slots(asking, &nodes).await);
    let (rights, trial) = super::rights::rights(asking).await;
    report.push(rights);
    report.push(match trial {
        Trial::May => super::trial::script(asking).await,
        Trial::KeepsKeys => super::trial::would_leave_keys(),
        Trial::Unknown => super::trial::not_tried(),
    });
    if is_told {
        settings(asking, &nodes, report).await?;
    }
    report.push(super::timing::round_trips(asking).await);
    let last = still_there(Reading::take(asking).await)?;
    let is_one = !nodes
        .iter()
        .any(|node| super::server::is_of_cluster(&node.info));
    report.push(match (first, last) {
        (Ok(first), Ok(last)) => super::timing::clock(first, last, is_one),
        (Err(error), _) | (_, Err(error)) => {
            Finding::unknown("clock", format!("could not be read: {error}"))
        }
    });
    Ok(())
}

/// Tells what will not be answered any more from what is answered by an error.
fn still_there<T>(reply: Result<T, Error>) -> Result<Result<T, Error>, Error> {
    match reply {
        Err(error) if is_gone(&error) => Err(error),
        reply => Ok(reply),
    }
}

async fn connection(asking: &Asking) -> Finding {
    const TOPIC: &str = "connection";
    match asking.ask(&redis::cmd("PING")).await {
        Ok(_) => Finding::ok(TOPIC, "the server answers"),
        // It is PING that is refused, not we.
        Err(error) if denied(&error) == Some(Denied::Command) && names(&error, "ping") => {
            Finding::ok(TOPIC, "the server answers; PING is not permitted")
        }
        Err(error) => Finding::problem(TOPIC, error.to_string()).with_remedy(advice(&error)),
    }
}

/// Whether an error is about this command.
fn names(error: &Error, command: &str) -> bool {
    let text = error.to_string().to_lowercase();
    ["'", "`"]
        .iter()
        .any(|quote| text.contains(&format!("{quote}{command}{quote}")))
}

/// What the servers tell of themselves, and whether that is all that they could.
async fn nodes(asking: &Asking, report: &mut Report) -> Result<(Vec<Node>, bool), Error> {
    let error = match still_there(asking.ask(&redis::cmd("INFO")).await)? {
        Ok(reply) => return Ok((super::info::nodes(reply), true)),
        Err(error) => error,
    };
    let what = "memory, eviction, replicas and persistence could not be looked at";
    report.push(
        Finding::unknown("info", format!("{what}: {error}"))
            .with_remedy("ACL SETUSER <user> +info, or ask as another user"),
    );
    let hello = still_there(asking.ask(&redis::cmd("HELLO")).await)?;
    let info = hello.map(Info::from_hello).unwrap_or_default();
    let node = Node {
        address: None,
        info,
    };
    Ok((vec![node], false))
}

/// What can be judged by what servers tell, and some of their settings.
async fn settings(asking: &Asking, nodes: &[Node], report: &mut Report) -> Result<(), Error> {
    report.extend(of_each(nodes, super::memory::room));
    report.extend(of_each(nodes, super::memory::eviction));
    let least = setting(asking, "min-replicas-*").await?;
    let number = |name| least.as_ref()?.get(name)?.parse().ok();
    let least = number("min-replicas-to-write").map(|to_write| MinReplicas {
        to_write,
        max_lag: number("min-replicas-max-lag").unwrap_or_default(),
    });
    report.extend(of_each(nodes, |info| {
        super::replicas::replicas(info, least)
    }));
    let saves = setting(asking, "save").await?;
    let saves = saves.as_ref().and_then(|saves| saves.get("save"));
    let saves = saves.map(String::as_str);
    report.extend(of_each(nodes, |info| {
        super::replicas::persistence(info, saves)
    }));
    Ok(())
}

/// Settings of these names, where they may be read.
async fn setting(asking: &Asking, name: &str) -> Result<Option<HashMap<String, String>>, Error> {
    let mut get = redis::cmd("CONFIG");
    get.arg("GET").arg(name);
    let reply = still_there(asking.ask(&get).await)?;
    Ok(reply
        .ok()
        .and_then(|reply| HashMap::from_redis_value(reply).ok()))
}
