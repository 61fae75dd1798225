//! The examination: the questions and their order.

use std::collections::HashMap;

use redis::FromRedisValue;
use tollgate::store::AnyStore;
use tollgate::{__doctor as hooks, ConfigError, Error, RedisStore};

use crate::durability::{self, MinReplicas};
use crate::info::{self, Info, Node};
use crate::permissions::{self, Cleanup};
use crate::remedies::{MissingPermission, is_unreachable, missing_permission, remedy_for};
use crate::report::{Finding, Report, Severity};
use crate::script_trial::Slots;
use crate::session::Session;
use crate::timing::{self, ClockReading};
use crate::{capacity, memory, script_clock, script_trial, server};

/// Examines whether the server of a store is set up for exact limits, and suggests a remedy for each fault.
///
/// | topic | what is examined |
/// |---|---|
/// | `connection` | whether the server answers and accepts the credentials |
/// | `server` | the version: Redis 6.2 or later, or Valkey |
/// | `role` | whether the server is a master; a replica accepts no writes |
/// | `cluster` | in a cluster, whether masters serve all slots, and whether one lost master stops all (`cluster-require-full-coverage`) |
/// | `permissions` | which commands of the scripts the user may not run |
/// | `time` | whether scripts may call `TIME`, which some managed servers refuse; without it no check works |
/// | `script` | a check, a refund and a reset with every algorithm, on a random key |
/// | `memory` | whether there is room below `maxmemory` |
/// | `eviction` | `maxmemory-policy`: a client whose count is evicted has the whole limit again |
/// | `replicas` | which counts a failover loses, and whether a master without its replicas keeps admitting |
/// | `persistence` | which counts a restart loses, and whether the server can save its data |
/// | `round trip` | percentiles of the time of a check of cost 0, compared with the deadline |
/// | `capacity` | on a cluster, how many checks this process can send per second at that distance |
/// | `clock` | the server's clock, compared with the local one; limits use only the server's, which should not jump |
///
/// In a cluster, a finding names the masters that share it, unless all do.
///
/// The examination removes its keys by `UNLINK`, `DEL` or `PEXPIRE`, whichever the user may run. If it is
/// interrupted, they expire within a minute. It is safe while the service runs, and never shows a password.
///
/// A topic that could not be examined is [`Unknown`](Severity::Unknown), usually for want of a permission.
/// That is not a fault, but it proves nothing either: where that matters, require
/// `report.worst() == Severity::Ok`, as `--strict` of the program does. If the server is unreachable or stops
/// answering, the report ends there.
///
/// The examination of a healthy server takes less than a second. Each question may take one second, or the
/// store's deadline if that is longer. The round trips take at most two seconds.
///
/// # Examples
///
/// ```no_run
/// use tollgate::RedisStore;
/// use tollgate_doctor::Severity;
///
/// # async fn example() -> Result<(), tollgate::ConfigError> {
/// let store = RedisStore::open("redis://127.0.0.1:6379")?.prefix("shop");
/// let report = tollgate_doctor::examine(&store).await;
/// println!("{report}");
/// assert!(report.worst() < Severity::Problem);
/// # Ok(())
/// # }
/// ```
pub async fn examine(store: &RedisStore) -> Report {
    let session = Session::new(store);
    let mut report = Report::default();
    if let Err(error) = Box::pin(examine_topics(&session, &mut report)).await {
        let text = format!("the server stopped answering: {}", hooks::problem(&error));
        report.push(Finding::problem("connection", text).with_remedy(remedy_for(&error)));
    }
    report
}

/// Opens the store of a URL, and [examines](examine) its server. The report about a store in memory has no finding.
///
/// The URL is one of [`tollgate::store::from_url`].
///
/// # Errors
///
/// Returns an error if the URL is malformed, has an unknown parameter, or needs a feature that this build does not have.
///
/// # Examples
///
/// ```
/// use tollgate_doctor::Severity;
///
/// # async fn example() -> Result<(), tollgate::ConfigError> {
/// // In production: "redis://10.0.0.1:6379?prefix=shop".
/// let report = tollgate_doctor::examine_url("memory:").await?;
/// assert_eq!(report.worst(), Severity::Ok);
/// # Ok(())
/// # }
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(example())?;
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
pub async fn examine_url(url: &str) -> Result<Report, ConfigError> {
    Ok(match tollgate::store::from_url(url)? {
        AnyStore::Redis(store) => examine(&store).await,
        _ => Report::default(),
    })
}

/// Examines each topic in turn. Fails once the server is unreachable.
async fn examine_topics(session: &Session, report: &mut Report) -> Result<(), Error> {
    let connection = connection(session).await;
    let is_connected = connection.severity < Severity::Problem;
    report.push(connection);
    if !is_connected {
        return Ok(());
    }
    let first = unless_unreachable(ClockReading::take(session).await)?;
    let (nodes, has_info) = nodes(session, report).await?;
    report.extend(info::examine_each(&nodes, server::version));
    report.extend(info::examine_each(&nodes, server::role));
    let slots = script_trial::slots(session, &nodes).await;
    let is_one_of_many = slots
        .as_ref()
        .is_some_and(|(_, slots)| *slots == Slots::Elsewhere);
    report.extend(slots.map(|(finding, _)| finding));
    let (permissions, cleanup) = permissions::permissions(session).await;
    report.push(permissions);
    // The cause that fails every call is reported once.
    let mut obstacle = is_one_of_many.then_some("the URL names one node of a cluster");
    let script_clock = match obstacle {
        Some(obstacle) => script_clock::not_tried(obstacle),
        None => script_clock::script_clock(session).await,
    };
    if script_clock.severity == Severity::Problem {
        obstacle = Some("scripts may not call TIME");
    }
    report.push(script_clock);
    report.push(match (obstacle, cleanup) {
        (Some(obstacle), _) => script_trial::not_tried(obstacle),
        (None, Cleanup::Possible) => script_trial::script(session).await,
        (None, Cleanup::Impossible) => script_trial::would_leave_keys(),
        (None, Cleanup::Unknown) => {
            script_trial::not_tried("it is unknown whether its keys could be removed")
        }
    });
    if has_info {
        examine_info(session, &nodes, report).await?;
    } else {
        report.extend(TOPICS_OF_INFO.map(not_examined));
    }
    report.push(match obstacle {
        Some(obstacle) => timing::not_timed(obstacle),
        None => timing::round_trips(session).await,
    });
    report.extend(capacity::examine_cluster(session, &nodes).await);
    let last = unless_unreachable(ClockReading::take(session).await)?;
    let is_single = !nodes.iter().any(|node| server::is_in_cluster(&node.info));
    report.push(match (first, last) {
        (Ok(first), Ok(last)) => timing::clock(first, last, is_single),
        (Err(error), _) | (_, Err(error)) => {
            Finding::unknown("clock", format!("failed to read the clock: {error}"))
        }
    });
    Ok(())
}

/// Separates the error of an unreachable server, which ends the examination, from an error reply.
fn unless_unreachable<T>(reply: Result<T, Error>) -> Result<Result<T, Error>, Error> {
    match reply {
        Err(error) if is_unreachable(&error) => Err(error),
        reply => Ok(reply),
    }
}

/// The topics that only INFO answers.
const TOPICS_OF_INFO: [&str; 4] = ["memory", "eviction", "replicas", "persistence"];

fn not_examined(topic: &'static str) -> Finding {
    Finding::unknown(topic, "not examined: the server does not answer INFO")
}

async fn connection(session: &Session) -> Finding {
    const TOPIC: &str = "connection";
    match session.query_all(redis::cmd("PING")).await {
        Ok(_) => Finding::ok(TOPIC, "the server answers"),
        // Only PING is forbidden or missing.
        Err(error)
            if (missing_permission(&error) == Some(MissingPermission::Command)
                || hooks::is_unknown_command(hooks::problem(&error)))
                && quotes(&error, "ping") =>
        {
            Finding::ok(TOPIC, "the server answers; PING is not permitted")
        }
        Err(error) => {
            let problem = hooks::problem(&error).to_owned();
            Finding::problem(TOPIC, problem).with_remedy(remedy_for(&error))
        }
    }
}

/// Whether an error quotes this command.
fn quotes(error: &Error, command: &str) -> bool {
    let text = error.to_string().to_lowercase();
    ["'", "`"]
        .iter()
        .any(|quote| text.contains(&format!("{quote}{command}{quote}")))
}

/// Reads the INFO of each server. Without the permission, HELLO tells a part of it, and the flag is
/// false.
async fn nodes(session: &Session, report: &mut Report) -> Result<(Vec<Node>, bool), Error> {
    let error = match unless_unreachable(session.query_all(redis::cmd("INFO")).await)? {
        Ok(replies) => return Ok((info::nodes(replies), true)),
        Err(error) => error,
    };
    report.push(
        Finding::unknown(
            "info",
            format!("failed to read INFO: {}", hooks::problem(&error)),
        )
        .with_remedy("ACL SETUSER <user> +info, or examine the server as another user"),
    );
    let hello = unless_unreachable(session.query(redis::cmd("HELLO")).await)?;
    let info = hello.map(Info::from_hello).unwrap_or_default();
    let node = Node {
        address: None,
        info,
    };
    Ok((vec![node], false))
}

/// Examines what INFO and a few settings tell.
async fn examine_info(session: &Session, nodes: &[Node], report: &mut Report) -> Result<(), Error> {
    report.extend(info::examine_each(nodes, memory::room));
    report.extend(info::examine_each(nodes, memory::eviction));
    let settings = settings(session, "min-replicas-*").await?;
    let number = |name| settings.as_ref()?.get(name)?.parse().ok();
    let min_replicas = number("min-replicas-to-write").map(|to_write| MinReplicas {
        to_write,
        max_lag: number("min-replicas-max-lag").unwrap_or_default(),
    });
    report.extend(info::examine_each(nodes, |info| {
        durability::replicas(info, min_replicas)
    }));
    let settings = self::settings(session, "save").await?;
    let save = settings.as_ref().and_then(|settings| settings.get("save"));
    let save = save.map(String::as_str);
    report.extend(info::examine_each(nodes, |info| {
        durability::persistence(info, save)
    }));
    Ok(())
}

/// Reads the settings whose names match, if the user may.
async fn settings(
    session: &Session,
    pattern: &str,
) -> Result<Option<HashMap<String, String>>, Error> {
    let mut get = redis::cmd("CONFIG");
    get.arg("GET").arg(pattern);
    let reply = unless_unreachable(session.query(get).await)?;
    Ok(reply
        .ok()
        .and_then(|reply| HashMap::from_redis_value(reply).ok()))
}
