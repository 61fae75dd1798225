//! Connections to the master that Redis Sentinel names, which is asked for each of them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{ConnectionInfo, ErrorKind, ProtocolVersion, RedisError, RedisResult, Value};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time;
use tokio::time::Instant;

use super::link::OnDisconnect;
use super::single::{Server, at, timed_out};

/// How long the sentinels have to say who is master. One that hangs takes no longer, and is not waited
/// for where most of them agree.
const ASK_TIMEOUT: Duration = Duration::from_millis(250);

/// How often the sentinels are asked whether the master is still the same. One that was replaced on
/// purpose, or while it hung, takes itself for the master for ten seconds more.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The sentinels, and how the master that they name is spoken to.
pub(crate) struct Sentinel {
    sentinels: Vec<Arc<Server>>,
    /// What they call the master.
    service: Arc<str>,
    /// How the master is spoken to; its address is that of a sentinel.
    master: ConnectionInfo,
    protocol: Option<ProtocolVersion>,
}

/// The address of a master.
type Address = (String, u16);

impl Sentinel {
    pub(crate) fn new(
        sentinels: Vec<Server>,
        service: String,
        master: ConnectionInfo,
        protocol: Option<ProtocolVersion>,
    ) -> Self {
        Self {
            sentinels: sentinels.into_iter().map(Arc::new).collect(),
            service: service.into(),
            master,
            protocol,
        }
    }

    /// A connection to the master, and what looks whether it stays that.
    pub(crate) async fn connect(
        &self,
        on_loss: OnDisconnect,
    ) -> RedisResult<(MultiplexedConnection, MasterWatcher)> {
        let on_loss: Arc<dyn Fn() + Send + Sync> = on_loss.into();
        let mut failure = timed_out();
        // During a failover some name the old one, which may be gone, or a replica by now.
        for address in self.masters().await? {
            let when_lost = Arc::clone(&on_loss);
            let connected = self.connect_to(&address, Box::new(move || when_lost()));
            match connected.await {
                Ok(connection) => return Ok((connection, self.look_out(address, on_loss))),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// Tells when most of the sentinels name another master than this one.
    fn look_out(&self, master: Address, on_change: Arc<dyn Fn() + Send + Sync>) -> MasterWatcher {
        let mut asked: Vec<Asked> = self.to_ask().collect();
        let task = tokio::spawn(async move {
            loop {
                time::sleep(LOOK_EVERY).await;
                let mut named = Vec::new();
                for sentinel in &mut asked {
                    let answer = time::timeout(ASK_TIMEOUT, sentinel.ask()).await;
                    if let Ok(Ok(address)) = answer {
                        note(&mut named, address);
                    }
                }
                let most = named.into_iter().find(|(_, by)| *by > asked.len() / 2);
                if most.is_some_and(|(address, _)| address != master) {
                    return on_change();
                }
            }
        });
        MasterWatcher(task.abort_handle())
    }

    /// Who is master, as most of the sentinels say, and then who some say is.
    async fn masters(&self) -> RedisResult<Vec<Address>> {
        let mut asked = JoinSet::new();
        for mut sentinel in self.to_ask() {
            asked.spawn(async move { sentinel.ask().await });
        }
        let until = Instant::now() + ASK_TIMEOUT;
        let mut named = Vec::<(Address, usize)>::new();
        let mut failure = timed_out();
        // Those that are still asked when this returns are asked no more.
        while let Ok(Some(answer)) = time::timeout_at(until, asked.join_next()).await {
            match answer.unwrap_or_else(|_| Err(timed_out())) {
                Ok(address) => {
                    if note(&mut named, address) > self.sentinels.len() / 2 {
                        break;
                    }
                }
                Err(error) => failure = error,
            }
        }
        if named.is_empty() {
            return Err(failure);
        }
        named.sort_by_key(|(_, by)| std::cmp::Reverse(*by));
        Ok(named.into_iter().map(|(address, _)| address).collect())
    }

    fn to_ask(&self) -> impl Iterator<Item = Asked> {
        self.sentinels.iter().map(|sentinel| Asked {
            sentinel: Arc::clone(sentinel),
            service: Arc::clone(&self.service),
            connection: None,
        })
    }

    /// A connection to a server, if that takes itself for the master.
    async fn connect_to(
        &self,
        address: &Address,
        on_loss: OnDisconnect,
    ) -> RedisResult<MultiplexedConnection> {
        let (host, port) = address.clone();
        let server = Server::new(&at(&self.master, host, port), self.protocol)?;
        let connection = server.connect(on_loss).await?;
        let mut asked = connection.clone();
        let role = redis::cmd("ROLE");
        let role = time::timeout(ASK_TIMEOUT, asked.send_packed_command(&role)).await;
        match role.map_err(|_| timed_out())?? {
            Value::Array(role) if role.first() != Some(&Value::BulkString(b"master".to_vec())) => {
                Err(failed("the server that the sentinels name is no master"))
            }
            // Where it may not be asked, it will tell when it is asked to write.
            _ => Ok(connection),
        }
    }
}

/// Counts by how many an address is named.
fn note(named: &mut Vec<(Address, usize)>, address: Address) -> usize {
    if let Some((_, by)) = named.iter_mut().find(|(known, _)| *known == address) {
        *by += 1;
        return *by;
    }
    named.push((address, 1));
    1
}

/// A sentinel that is asked who is master, on a connection that is kept.
struct Asked {
    sentinel: Arc<Server>,
    service: Arc<str>,
    connection: Option<MultiplexedConnection>,
}

impl Asked {
    async fn ask(&mut self) -> RedisResult<Address> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.sentinel.connect(Box::new(|| ())).await?,
        };
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(&*self.service);
        let address: Option<Address> = command.query_async(&mut connection).await?;
        // After a failure the next one is a new one.
        self.connection = Some(connection);
        address.ok_or_else(|| {
            let text = "the sentinels know no master of this name";
            let service = self.service.to_string();
            (ErrorKind::InvalidClientConfig, text, service).into()
        })
    }
}

/// Looks whether a master stays the master, for as long as this lives.
#[derive(Debug)]
pub(crate) struct MasterWatcher(AbortHandle);

impl Drop for MasterWatcher {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn failed(text: &'static str) -> RedisError {
    (ErrorKind::Io, text).into()
}

impl fmt::Debug for Sentinel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the whole of it: it holds passwords.
        write!(f, "{} by {:?}", self.service, self.sentinels)
    }
}
