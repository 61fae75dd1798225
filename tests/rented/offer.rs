//! A server as a vendor rents it out, whose scripts disappear at random.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use proptest::prelude::RngExt;
use proptest::test_runner::{RngAlgorithm, TestRng};
use tollgate::RedisStore;

use crate::support::redis_server::{RedisServer, run};
use crate::support::test_time::TestTime;
use crate::support::timeless::TimelessServer;

/// The commands that Memorystore for Redis blocks, by <https://cloud.google.com/memorystore/docs/redis/product-constraints>,
/// "Blocked Redis commands" (there, each subcommand of ACL is a line). To be stricter, MEMORY, MODULE, ROLE and the old name
/// of REPLICAOF are refused, too.
const BLOCKED_BY_MEMORYSTORE: [&str; 19] = [
    "-acl",
    "-bgrewriteaof",
    "-bgsave",
    "-client",
    "-cluster",
    "-command",
    "-config",
    "-debug",
    "-lastsave",
    "-memory",
    "-migrate",
    "-module",
    "-monitor",
    "-object",
    "-replicaof",
    "-role",
    "-save",
    "-shutdown",
    "-slaveof",
];

/// The commands that ElastiCache Serverless refuses, of those that a store or the doctor asks.
const REFUSED_BY_SERVERLESS: [&str; 7] = [
    "-acl", "-client", "-config", "-info", "-memory", "-object", "-role",
];

/// A server as a vendor rents it out.
pub(crate) struct Offer {
    server: Server,
    url: String,
    _flushing: Flushing,
}

enum Server {
    Plain(RedisServer),
    Timeless(TimelessServer),
}

impl Server {
    fn itself(&self) -> &RedisServer {
        match self {
            Self::Plain(server) => server,
            Self::Timeless(server) => server.server(),
        }
    }
}

impl Offer {
    /// A cluster behind one address that refuses TIME in scripts, as ElastiCache Serverless is.
    pub(crate) fn serverless() -> Self {
        let server = TimelessServer::start_cluster();
        let user = [
            "ACL", "SETUSER", "renter", "on", ">secret", "~*", "&*", "+@all",
        ];
        let rules = [&user[..], &REFUSED_BY_SERVERLESS].concat();
        run(&mut server.server().connect(), &rules);
        let url = format!("redis+cluster://renter:secret@127.0.0.1:{}", server.port());
        Self::new(Server::Timeless(server), url)
    }

    /// A sharded server behind one address, as Azure Managed Redis and Redis Cloud are: it refuses a call with keys of
    /// several slots, and redirects nobody. Stores are not told and learn it.
    pub(crate) fn one_endpoint() -> Self {
        let server = RedisServer::start_cluster();
        let url = server.url();
        Self::new(Server::Plain(server), url)
    }

    /// The same, and stores are told.
    pub(crate) fn one_endpoint_by_slot() -> Self {
        let server = RedisServer::start_cluster();
        let url = format!("{}?slots=on", server.url());
        Self::new(Server::Plain(server), url)
    }

    /// A server whose user may run what Memorystore for Redis does not block.
    pub(crate) fn memorystore() -> Self {
        let server = RedisServer::start();
        let user = [
            "ACL", "SETUSER", "renter", "on", ">secret", "~*", "&*", "+@all",
        ];
        let rules = [&user[..], &BLOCKED_BY_MEMORYSTORE].concat();
        run(&mut server.connect(), &rules);
        let url = format!("redis://renter:secret@127.0.0.1:{}", server.port());
        Self::new(Server::Plain(server), url)
    }

    fn new(server: Server, url: String) -> Self {
        Self {
            _flushing: Flushing::of(server.itself()),
            server,
            url,
        }
    }

    pub(crate) fn kill(&mut self) {
        match &mut self.server {
            Server::Plain(server) => server.kill(),
            Server::Timeless(server) => server.kill(),
        }
    }

    /// A clock that only the test moves, and a store that lives by it. None if the store tells the time: then it lives by
    /// the clock of the server.
    pub(crate) fn time(&self) -> Option<TestTime> {
        match &self.server {
            Server::Plain(server) => Some(TestTime::at(server, &self.url)),
            Server::Timeless(_) => None,
        }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// A store that has sent nothing yet. It is patient with a slow machine.
    pub(crate) fn store(&self) -> RedisStore {
        let store = RedisStore::open(&self.url).expect("a URL");
        store.deadline(Duration::from_secs(10))
    }

    /// The store of a process, which is connected and has sent no check yet: on a busy machine, the first attempts to
    /// connect may take too long.
    pub(crate) async fn process(&self) -> RedisStore {
        let store = self.store();
        for _ in 0..20 {
            match store.ping().await {
                Ok(()) => return store,
                Err(error) => println!("connects again: {error}"),
            }
        }
        panic!("no connection");
    }
}

/// Removes all scripts from a server, every few milliseconds.
struct Flushing {
    has_ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<u32>>,
}

impl Flushing {
    fn of(server: &RedisServer) -> Self {
        let mut connection = server.connect();
        let has_ended = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&has_ended);
        let mut random = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
        let thread = std::thread::spawn(move || {
            let flush = redis::cmd("SCRIPT").arg("FLUSH").to_owned();
            let mut flushes = 0;
            // A test may end the server.
            while !ends.load(Ordering::Relaxed) && flush.exec(&mut connection).is_ok() {
                flushes += 1;
                std::thread::sleep(Duration::from_micros(random.random_range(500..80_000)));
            }
            flushes
        });
        Self {
            has_ended,
            thread: Some(thread),
        }
    }
}

impl Drop for Flushing {
    fn drop(&mut self) {
        self.has_ended.store(true, Ordering::Relaxed);
        let flushes = self.thread.take().map(JoinHandle::join);
        println!("scripts flushed: {flushes:?}");
    }
}
