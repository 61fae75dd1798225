//! A Postgres server that belongs to the tests of this program, and ends with the last of them.

use std::ffi::OsStr;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool, PgPoolOptions};
use sqlx::{Connection, Executor, raw_sql};
use tollgate_postgres::{PostgresRows, PostgresStore};

/// The user `nobody`, for tests that run as root: a server refuses to.
const NOBODY: u32 = 65_534;

/// A server on a free port of this machine, without a password.
pub(crate) struct Server {
    directory: tempfile::TempDir,
    pub(crate) port: u16,
    process: Mutex<Child>,
    settings: &'static [&'static str],
    /// The pooler in front of the server, if there is one, and its port.
    pooler: Option<(Child, u16)>,
}

impl Server {
    /// Returns the server that tests share while any of them runs.
    pub(crate) fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Server>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(server) = shared.upgrade() {
            return server;
        }
        let server = Arc::new(Self::start());
        *shared = Arc::downgrade(&server);
        server
    }

    /// Starts a server of its own, which a test may kill.
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// The same with further settings, such as `fsync=on`.
    pub(crate) fn start_with(settings: &'static [&'static str]) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        if is_root() {
            chown(directory.path(), Some(NOBODY), Some(NOBODY)).expect("root may");
        }
        let data = directory.path().join("data");
        let mut initdb = program("initdb");
        initdb.args([
            "--auth=trust",
            "--username=tollgate",
            "--no-sync",
            "--encoding=UTF8",
            "-D",
        ]);
        let made = initdb.arg(&data).stdout(Stdio::null()).status();
        assert!(made.expect("initdb is installed").success());
        for _ in 0..10 {
            let port = free_port();
            let process = Mutex::new(spawn(&data, port, settings));
            if is_ready(port, &process) {
                let pooler = std::env::var_os("TOLLGATE_PGBOUNCER");
                let pooler = pooler.map(|program| pool(&program, directory.path(), port));
                return Self {
                    directory,
                    port,
                    process,
                    settings,
                    pooler,
                };
            }
        }
        panic!("no Postgres server could be started");
    }

    /// Kills the server with all its connections, and starts it again: it recovers as after a crash.
    pub(crate) fn crash(&self) {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        process.kill().expect("a child");
        process.wait().expect("a child");
        drop(process);
        let data = self.directory.path().join("data");
        let patience = Instant::now() + Duration::from_secs(20);
        // The connections of the killed server end a moment later.
        while Instant::now() < patience {
            let started = spawn(&data, self.port, self.settings);
            *self.process.lock().unwrap_or_else(PoisonError::into_inner) = started;
            if is_ready(self.port, &self.process) {
                return;
            }
        }
        panic!("the server does not start again");
    }

    /// The id of the server's first process.
    pub(crate) fn id(&self) -> u32 {
        self.process
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .id()
    }

    pub(crate) fn url(&self) -> String {
        self.url_at(self.port_for_clients())
    }

    /// Returns the port that clients connect to.
    pub(crate) fn port_for_clients(&self) -> u16 {
        self.pooler.as_ref().map_or(self.port, |(_, port)| *port)
    }

    /// Returns the URL of a relay to the server.
    pub(crate) fn url_at(&self, port: u16) -> String {
        url("tollgate", port)
    }

    /// Returns the URL for another user, past the pooler, which knows one only.
    pub(crate) fn url_as(&self, user: &str) -> String {
        url(user, self.port)
    }

    fn options(&self) -> PgConnectOptions {
        let options: PgConnectOptions = self.url().parse().expect("a URL");
        // Which PgBouncer refuses.
        options.extra_float_digits(None)
    }

    pub(crate) async fn connect(&self) -> PgConnection {
        PgConnection::connect_with(&self.options())
            .await
            .expect("the server is ready")
    }

    pub(crate) fn pool(&self, connections: u32) -> PgPool {
        let pool = PgPoolOptions::new().max_connections(connections);
        pool.connect_lazy_with(self.options())
    }

    /// Returns a store with new tables in a schema of this name. Its deadline is long, since the machine may be busy.
    pub(crate) async fn store(&self, schema: &str) -> PostgresStore {
        self.store_with(schema, |rows| rows).await
    }

    /// The same with another setting.
    pub(crate) async fn store_with(
        &self,
        schema: &str,
        set: fn(PostgresRows) -> PostgresRows,
    ) -> PostgresStore {
        let rows = set(PostgresRows::new(self.pool(4)).schema(schema));
        rows.migrate().await.expect("tables");
        rows.into_store().deadline(Duration::from_secs(20))
    }

    /// Runs statements.
    pub(crate) async fn run(&self, sql: &str) {
        let done = self.connect().await.execute(raw_sql(sql)).await;
        done.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    /// Ends all connections of clients but its own.
    pub(crate) async fn cut_connections(&self) {
        let mut own = self.connect().await;
        let cut = "SELECT count(pg_terminate_backend(pid, 20000)) FROM pg_stat_activity WHERE pid <> pg_backend_pid() \
                   AND backend_type = 'client backend'";
        own.execute(raw_sql(cut)).await.expect("a superuser");
    }

    /// Returns the number in the only field of the only row.
    pub(crate) async fn number(&self, sql: &str) -> i64 {
        let row = self.connect().await.fetch_one(raw_sql(sql)).await;
        sqlx::Row::get(&row.expect(sql), 0)
    }

    /// Returns the text in the only field of the only row.
    pub(crate) async fn text(&self, sql: &str) -> String {
        let row = self.connect().await.fetch_one(raw_sql(sql)).await;
        sqlx::Row::get(&row.expect(sql), 0)
    }

    /// Replaces the clock of a schema by one that a test moves: the file at the path has its microseconds.
    pub(crate) async fn stop_clock(&self, schema: &str) -> PathBuf {
        let path = self.directory.path().join(schema);
        write_clock(&path, 1_800_000_000_000_000);
        let sql = format!(
            "CREATE OR REPLACE FUNCTION {schema}.tollgate_now_v1() RETURNS bigint LANGUAGE sql VOLATILE AS $$ SELECT \
             pg_read_file('{}')::bigint $$",
            path.display()
        );
        self.run(&sql).await;
        path
    }
}

/// Sets a clock. The server never reads half a number.
pub(crate) fn write_clock(path: &PathBuf, micros: u64) {
    let new = path.with_extension("new");
    fs::write(&new, micros.to_string()).expect("a file");
    fs::rename(new, path).expect("a file");
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some((pooler, _)) = &mut self.pooler {
            let _ = pooler.kill();
            let _ = pooler.wait();
        }
        // Ends its connections and releases its shared memory, which a kill would not.
        let id = self.id().to_string();
        let _ = Command::new("kill").args(["-QUIT", &id]).status();
        let process = self.process.get_mut();
        let _ = process.unwrap_or_else(PoisonError::into_inner).wait();
    }
}

fn spawn(data: &PathBuf, port: u16, settings: &[&str]) -> Child {
    let mut postgres = program("postgres");
    postgres.arg("-D").arg(data).args(["-p", &port.to_string()]);
    let own = [
        "listen_addresses=127.0.0.1",
        "unix_socket_directories=",
        "fsync=off",
        "max_connections=200",
        "log_min_messages=fatal",
    ];
    for setting in own.iter().chain(settings) {
        postgres.args(["-c", setting]);
    }
    postgres
        .stderr(Stdio::null())
        .spawn()
        .expect("postgres is installed")
}

/// Starts `PgBouncer` in transaction mode, with fewer connections than the tests have.
fn pool(program: &OsStr, directory: &Path, server: u16) -> (Child, u16) {
    let port = free_port();
    let settings = format!(
        "[databases]\n* = host=127.0.0.1 port={server} user=tollgate\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
         auth_type = any\npool_mode = transaction\ndefault_pool_size = 8\nmax_client_conn = 500\n\
         unix_socket_dir =\n"
    );
    let path = directory.join("pgbouncer.ini");
    fs::write(&path, settings).expect("a file");
    let mut pgbouncer = as_nobody(Command::new(program));
    let pgbouncer = pgbouncer
        .arg("--quiet")
        .arg(&path)
        .stderr(Stdio::null())
        .spawn();
    std::thread::sleep(Duration::from_millis(300));
    (pgbouncer.expect("PgBouncer is installed"), port)
}

fn is_ready(port: u16, process: &Mutex<Child>) -> bool {
    let patience = Instant::now() + Duration::from_secs(20);
    while Instant::now() < patience {
        let mut process = process.lock().unwrap_or_else(PoisonError::into_inner);
        if !matches!(process.try_wait(), Ok(None)) {
            return false;
        }
        drop(process);
        let url = url("tollgate", port);
        let connected = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            runtime
                .expect("a runtime")
                .block_on(PgConnection::connect(&url))
                .is_ok()
        });
        if connected.join().is_ok_and(|connected| connected) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

/// Returns a program of Postgres: the one in the path, or Debian's, which is not in the path.
fn program(name: &str) -> Command {
    let mut places = vec![PathBuf::from("/usr/local/bin")];
    places.extend(std::env::split_paths(
        &std::env::var_os("PATH").unwrap_or_default(),
    ));
    let versions = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    places.extend(versions.map(|version| version.path().join("bin")));
    if let Some(wanted) = std::env::var_os("TOLLGATE_POSTGRES_BIN") {
        places.insert(0, wanted.into());
    }
    let found = places
        .iter()
        .map(|place| place.join(name))
        .find(|path| path.is_file());
    as_nobody(Command::new(found.unwrap_or_else(|| name.into())))
}

fn as_nobody(mut command: Command) -> Command {
    if is_root() {
        command.uid(NOBODY).gid(NOBODY).current_dir("/");
    }
    command
}

fn url(user: &str, port: u16) -> String {
    format!("postgres://{user}@127.0.0.1:{port}/postgres")
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").port()
}
