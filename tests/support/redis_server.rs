//! A Redis server that belongs to one test and ends with it.

use std::net::TcpListener;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use redis::io::tcp::socket2;
use redis::{Commands, ConnectionLike};

/// A server on a free port of this machine, ready to answer.
pub(crate) struct RedisServer {
    process: redis_test::server::RedisServer,
    port: u16,
    /// Where the server runs: nothing that lies about elsewhere is loaded.
    _directory: tempfile::TempDir,
}

impl RedisServer {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// A server with these further arguments.
    pub(crate) fn start_with(arguments: &[&str]) -> Self {
        Self::start_as(|command| {
            command.args(arguments);
        })
    }

    /// Whether the server is Redis 6 or older.
    pub(crate) fn is_before_redis_7(&self) -> bool {
        self.says_of_itself("redis_version:6")
    }

    pub(crate) fn is_redis_7_0(&self) -> bool {
        self.says_of_itself("redis_version:7.0")
    }

    fn says_of_itself(&self, text: &str) -> bool {
        let info = redis::cmd("INFO").arg("server").to_owned();
        let info: String = info.query(&mut self.connect()).expect("INFO answers");
        info.contains(text)
    }

    /// A server that is started as `configure` says.
    pub(crate) fn start_as(configure: impl Fn(&mut Command)) -> Self {
        // A free port may be taken by somebody else before the server has it: then the server ends,
        // or another one answers there. Both are seen, and another port is tried.
        for _ in 0..10 {
            let mut server = Self::spawn_as(free_port(), &configure);
            if server.is_ready() {
                return server;
            }
        }
        panic!("no Redis server could be started; is redis-server installed?");
    }

    /// A server without these commands, of which INFO may be one.
    pub(crate) fn start_without(commands: &[&str]) -> Self {
        let renamed = commands
            .iter()
            .map(|command| ["--rename-command", command, ""]);
        let arguments: Vec<_> = renamed.flatten().collect();
        for _ in 0..10 {
            let mut server = Self::spawn_as(free_port(), |command| {
                command.args(&arguments);
            });
            let patience = Instant::now() + Duration::from_secs(10);
            while Instant::now() < patience && matches!(server.process.process.try_wait(), Ok(None))
            {
                if server.try_connect().is_ok() {
                    return server;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        panic!("no Redis server could be started without {commands:?}");
    }

    /// A cluster of one server, which has all slots.
    pub(crate) fn start_cluster() -> Self {
        Self::start_cluster_with(&[])
    }

    /// The same with these further arguments.
    pub(crate) fn start_cluster_with(arguments: &[&str]) -> Self {
        for _ in 0..10 {
            let mut server = Self::spawn_as(free_port(), |command| {
                command.args(["--cluster-enabled", "yes"]).args(arguments);
            });
            if server.is_ready() {
                server.take_all_slots();
                return server;
            }
        }
        panic!("no Redis server could be started as a cluster");
    }

    fn take_all_slots(&self) {
        let mut connection = self.connect();
        let mut command = redis::cmd("CLUSTER");
        command.arg("ADDSLOTS").arg((0..16_384).collect::<Vec<_>>());
        command.exec(&mut connection).expect("all slots are free");
        let patience = Instant::now() + Duration::from_secs(10);
        while Instant::now() < patience {
            let info = redis::cmd("CLUSTER").arg("INFO").query(&mut connection);
            let info: String = info.expect("CLUSTER INFO answers");
            if info.contains("cluster_state:ok") {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("the cluster does not get ready");
    }

    /// A server on this port, which is not waited for.
    pub(crate) fn spawn(port: u16) -> Self {
        Self::spawn_as(port, |_| {})
    }

    fn spawn_as(port: u16, configure: impl FnOnce(&mut Command)) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let addr = redis::ConnectionAddr::Tcp("127.0.0.1".into(), port);
        let process = redis_test::server::RedisServer::new_with_addr_tls_modules_and_spawner(
            addr,
            None,
            None,
            false,
            None,
            &[],
            |command| {
                command.current_dir(directory.path());
                configure(command);
                command.spawn().expect("redis-server is installed")
            },
        );
        Self {
            process,
            port,
            _directory: directory,
        }
    }

    fn is_ready(&mut self) -> bool {
        let patience = Instant::now() + Duration::from_secs(10);
        while Instant::now() < patience && matches!(self.process.process.try_wait(), Ok(None)) {
            if let Ok(mut connection) = self.try_connect() {
                let info = redis::cmd("INFO").arg("server").query(&mut connection);
                let info: redis::InfoDict = info.expect("INFO answers");
                return info.get("process_id") == Some(self.process.process.id());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The id of the server's process.
    pub(crate) fn id(&self) -> u32 {
        self.process.process.id()
    }

    /// Makes the server a replica of the one at a port of this machine.
    pub(crate) fn replicate(&self, port: u16) {
        let port = port.to_string();
        run(&mut self.connect(), &["REPLICAOF", "127.0.0.1", &port]);
    }

    /// A blocking connection for the test itself.
    pub(crate) fn connect(&self) -> redis::Connection {
        self.try_connect().expect("the server is ready")
    }

    fn try_connect(&self) -> redis::RedisResult<redis::Connection> {
        let mut connection = redis::Client::open(self.url())?.get_connection()?;
        redis::cmd("PING").exec(&mut connection)?;
        Ok(connection)
    }

    /// Ends the server at once, as a crash does.
    pub(crate) fn kill(&mut self) {
        self.process.stop();
    }
}

/// All keys with their PTTL in milliseconds.
pub(crate) fn times_to_live(connection: &mut redis::Connection) -> Vec<(String, i64)> {
    let keys: Vec<String> = connection.keys("*").expect("KEYS answers");
    let pttl = |key: String| {
        let millis = connection.pttl(&key).expect("PTTL answers");
        (key, millis)
    };
    keys.into_iter().map(pttl).collect()
}

/// Runs a command and ignores the reply.
pub(crate) fn run(connection: &mut redis::Connection, command: &[&str]) {
    let mut packed = redis::cmd(command[0]);
    packed.arg(&command[1..]);
    connection
        .req_command(&packed)
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
}

/// Sends a signal to the server, as `kill -s` names it.
pub(crate) fn signal(server: &RedisServer, signal: &str) {
    let sent = Command::new("kill")
        .args(["-s", signal, &server.id().to_string()])
        .status();
    assert!(sent.expect("kill runs").success());
}

/// A port that is free now, as is the one 10 000 above, which a server of a cluster takes as well.
///
/// It stays that of one server of this process, also while that server is dead. It is none of those that the system gives
/// to clients and to listeners on port 0: a client of a dead server could get its port, and then talk to itself.
pub(crate) fn free_port() -> u16 {
    const PORTS: std::ops::Range<u32> = 10_240..22_768;
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    // Programs that run at the same time begin at different ports.
    let first = std::process::id().wrapping_mul(191);
    let is_free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
    loop {
        let taken = TAKEN.fetch_add(1, Ordering::Relaxed);
        let place = first.wrapping_add(taken) % (PORTS.end - PORTS.start);
        let port = u16::try_from(PORTS.start + place).expect("a port");
        if is_free(port) && is_free(port + 10_000) {
            return port;
        }
    }
}

/// A port without a listener. It is bound, so that no server of another test gets it.
pub(crate) struct DeadPort(socket2::Socket);

impl DeadPort {
    pub(crate) fn new() -> Self {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
        let socket = socket.expect("a socket");
        let any = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
        socket.bind(&any.into()).expect("a free port");
        Self(socket)
    }

    pub(crate) fn port(&self) -> u16 {
        let address = self.0.local_addr().expect("an address");
        address.as_socket().expect("an address of IP").port()
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port())
    }
}
