//! The master that the sentinels name, and connecting to it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{ErrorKind, Value};
use tokio::sync::watch;

use super::super::connection::{Connection, ConnectionOwner};
use super::super::dial::{Dial, Server};
use super::super::failure::Failure;
use super::sentinel::Address;
use crate::store::redis::protocol::ServerName;
use crate::store::redis::real_time;

/// The backoff before a replica that is being promoted is asked again for its role.
const PROMOTION_BACKOFF: Duration = Duration::from_millis(10);

/// The time that a replica has to become the master after the command of the sentinel.
const PROMOTION_TIMEOUT: Duration = Duration::from_secs(5);

/// The time that a promoted replica is taken for the master although the sentinels name another
/// one: they see the promotion up to a second later. If they do not, the failover has failed.
const AGREEMENT_TIMEOUT: Duration = Duration::from_secs(5);

/// The master that the sentinels name, or will name.
#[derive(Clone, Default)]
pub(super) struct NamedMaster {
    /// The last one that a majority named.
    elected: Option<Address>,
    /// A replica that a sentinel has promoted, until a majority names it, or until this time.
    promoted: Option<(Address, Instant)>,
    /// The servers that any sentinel named when all were asked last, those with the most votes first.
    candidates: Vec<Address>,
    /// Why sentinels have not answered.
    pub(super) failure: Option<Failure>,
}

impl NamedMaster {
    pub(super) fn record(
        &mut self,
        elected: Option<Address>,
        candidates: Vec<Address>,
        failure: Failure,
    ) {
        self.promoted.take_if(|(promoted, until)| {
            elected.as_ref() == Some(promoted) || *until <= Instant::now()
        });
        self.elected = elected.or_else(|| self.elected.take());
        self.candidates = candidates;
        self.failure = Some(failure);
    }

    /// Returns the servers that may be the master: first the one that the sentinels do not name yet.
    pub(super) fn candidates(&self) -> Vec<Address> {
        let promoted = self.promoted.iter().map(|(address, _)| address);
        promoted.chain(&self.candidates).cloned().collect()
    }

    pub(super) fn master(&self) -> Option<&Address> {
        let promoted = self.promoted.as_ref().map(|(address, _)| address);
        promoted.or(self.elected.as_ref())
    }
}

/// Connects to a server with the settings of the master, and fails if it says that it is not the master.
pub(super) async fn connect(
    master: &Server,
    (host, port): &Address,
    owner: Arc<dyn ConnectionOwner>,
) -> Result<(Connection, ServerName), Failure> {
    let server = master.at("Redis", host, *port);
    let connection = server.connect_for_calls(owner).await?;
    let role = redis::cmd("ROLE");
    let error = match server.in_time(connection.send(&role)).await {
        Ok(Value::Array(role)) if role.first() != Some(&Value::BulkString(b"master".to_vec())) => {
            let text = "the sentinels name this server as the master, but it is a replica";
            (ErrorKind::Io, text).into()
        }
        Ok(reply) if !matches!(reply, Value::Array(_)) => {
            (ErrorKind::UnexpectedReturnType, "no reply to ROLE").into()
        }
        Err(error) if error.code().is_none() => error,
        // Without the right to ask for the role, a replica shows with the first write.
        _ => return Ok((connection, server.server().clone())),
    };
    Err(Failure::to_connect(server.server(), error))
}

/// Tells the owner that the connection is lost once another master than this one is named. The one that `seen` names does not
/// count: the connection is newer. Ends with the store.
pub(super) async fn watch(
    mut named: watch::Receiver<NamedMaster>,
    mut seen: NamedMaster,
    master: Address,
    owner: Arc<dyn ConnectionOwner>,
) {
    while named.changed().await.is_ok() {
        let current = named.borrow_and_update().clone();
        let is_other = current.master().is_some_and(|named| *named != master);
        if is_other && current.master() != seen.master() {
            return owner.lost();
        }
        seen = current;
    }
}

/// Names a replica that has the command to take over from a master, once it says that it is the master.
pub(super) async fn promote(
    named: watch::Sender<NamedMaster>,
    settings: Server,
    replica: Address,
    master: Address,
) {
    let elected = named.borrow().elected.clone();
    if elected.is_some_and(|elected| elected != master) {
        // The event is of a failover that is over.
        return;
    }
    let promoted = async {
        while connect(&settings, &replica, Arc::new(())).await.is_err() {
            real_time::sleep_until(Instant::now() + PROMOTION_BACKOFF).await;
        }
    };
    let promoted = real_time::timeout(PROMOTION_TIMEOUT, promoted).await;
    if promoted.is_some() {
        let promoted = Some((replica, Instant::now() + AGREEMENT_TIMEOUT));
        named.send_modify(|named| named.promoted = promoted);
    }
}
