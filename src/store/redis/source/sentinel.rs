//! Connections to the master that Redis Sentinel names, which is asked for each of them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    ConnectionAddr, ConnectionInfo, ErrorKind, ProtocolVersion, RedisError, RedisResult, Value,
};
use tokio::task::JoinSet;
use tokio::time::{self, Instant};

use super::OnLoss;
use super::server::{Server, timed_out};

/// How long the sentinels have to say who is master. One that hangs takes no longer, and is not waited
/// for where most of them agree.
const ASK_TIMEOUT: Duration = Duration::from_millis(250);

/// The sentinels, and how the master that they name is spoken to.
pub(in crate::store::redis) struct Sentinel {
    sentinels: Vec<Arc<Server>>,
    /// What they call the master.
    service: String,
    /// How the master is spoken to; its address is that of a sentinel.
    master: ConnectionInfo,
    protocol: Option<ProtocolVersion>,
}

/// The address of a master.
type Address = (String, u16);

impl Sentinel {
    pub(in crate::store::redis) fn new(
        sentinels: Vec<Server>,
        service: String,
        master: ConnectionInfo,
        protocol: Option<ProtocolVersion>,
    ) -> Self {
        Self {
            sentinels: sentinels.into_iter().map(Arc::new).collect(),
            service,
            master,
            protocol,
        }
    }

    pub(super) async fn connect(&self, on_loss: OnLoss) -> RedisResult<MultiplexedConnection> {
        let on_loss: Arc<dyn Fn() + Send + Sync> = on_loss.into();
        let mut outcome = Err(timed_out());
        // During a failover some name the old one, which may be gone, or a replica by now.
        for address in self.masters().await? {
            let on_loss = Arc::clone(&on_loss);
            outcome = self.connect_to(address, Box::new(move || on_loss())).await;
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }

    /// Who is master, as most of the sentinels say, and then who some say is.
    async fn masters(&self) -> RedisResult<Vec<Address>> {
        let mut asked = JoinSet::new();
        for sentinel in &self.sentinels {
            asked.spawn(ask(Arc::clone(sentinel), self.service.clone()));
        }
        let until = Instant::now() + ASK_TIMEOUT;
        let mut named = Vec::<(Address, usize)>::new();
        let mut failure = timed_out();
        // Those that are still asked when this returns are asked no more.
        while let Ok(Some(answer)) = time::timeout_at(until, asked.join_next()).await {
            match answer.map_err(|_| timed_out()).flatten() {
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

    /// A connection to a server, if that takes itself for the master.
    async fn connect_to(
        &self,
        (host, port): Address,
        on_loss: OnLoss,
    ) -> RedisResult<MultiplexedConnection> {
        let addr = match self.master.addr().clone() {
            ConnectionAddr::TcpTls {
                insecure,
                tls_params,
                ..
            } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure,
                tls_params,
            },
            _ => ConnectionAddr::Tcp(host, port),
        };
        let server = Server::new(self.master.clone().set_addr(addr), self.protocol)?;
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

/// Asks one sentinel.
async fn ask(sentinel: Arc<Server>, service: String) -> RedisResult<Address> {
    let mut connection = sentinel.connect(Box::new(|| ())).await?;
    let mut command = redis::cmd("SENTINEL");
    command.arg("GET-MASTER-ADDR-BY-NAME").arg(&service);
    let address: Option<Address> = command.query_async(&mut connection).await?;
    address.ok_or_else(|| {
        let text = "the sentinels know no master of this name";
        (ErrorKind::InvalidClientConfig, text, service).into()
    })
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
