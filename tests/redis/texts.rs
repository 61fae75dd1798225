//! The text of each error names the server and the remedy, and never a password.

use std::error::Error as _;
use std::time::Duration;

use redis::Commands;
use tollgate::{Error, ErrorKind, Quota, RateLimiter, RedisStore};

use crate::support::cluster::Cluster;
use crate::support::node::Node;
use crate::support::redis_server::{DeadPort, RedisServer, run, signal};

const PASSWORD: &str = "hunter2";

async fn error_at(url: &str) -> Error {
    error_within(Duration::from_secs(10), url).await
}

async fn error_within(deadline: Duration, url: &str) -> Error {
    let store = RedisStore::open(url).unwrap();
    let store = store.deadline(deadline).block_list_refresh(Duration::ZERO);
    error_of(store).await
}

async fn error_of(store: RedisStore) -> Error {
    let limiter = RateLimiter::new(store, Quota::per_hour(5));
    // In a cluster, some keys belong to the server that is asked.
    for key in ["ada", "bob", "cy", "dan", "eve", "fay"] {
        if let Err(error) = limiter.check(key).await {
            return error;
        }
    }
    panic!("all checks succeed");
}

#[track_caller]
fn assert_says(error: &Error, words: &[&str]) {
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "no {word:?} in: {text}");
    }
    let shown = format!("{text} {error:?} {:?}", error.source());
    assert!(!shown.contains(PASSWORD), "{shown}");
    assert!(!text.contains('\n') && !text.ends_with('.'), "{text}");
}

#[tokio::test]
async fn a_refused_connection() {
    let nowhere = DeadPort::new();
    let url = format!(
        "redis://user:{PASSWORD}@127.0.0.1:{}/3?protocol=3",
        nowhere.port()
    );
    let running = format!("is redis-server running at 127.0.0.1:{}?", nowhere.port());
    let words = ["failed to reach Redis at 127.0.0.1", "refused", &running];
    assert_says(&error_at(&url).await, &words);
    if cfg!(feature = "cluster") {
        let url = url.replace("redis://", "redis+cluster://");
        assert_says(&error_at(&url).await, &words);
    }
}

#[cfg(feature = "sentinel")]
#[tokio::test]
async fn a_sentinel_that_is_not_running() {
    let nowhere = DeadPort::new();
    let url = format!(
        "redis+sentinel://:{PASSWORD}@127.0.0.1:{}/mymaster",
        nowhere.port()
    );
    let sentinel = format!(
        "failed to reach Redis Sentinel at 127.0.0.1:{}",
        nowhere.port()
    );
    assert_says(&error_at(&url).await, &[&sentinel, "refused"]);
}

#[cfg(feature = "sentinel")]
#[tokio::test]
async fn a_master_that_does_not_answer() {
    let sentinels = crate::support::sentinel::Sentinels::start();
    let url = format!("redis+sentinel://{}/mymaster", sentinels.addresses());
    let store = RedisStore::open(&url).unwrap();
    let store = store.deadline(Duration::from_millis(300));
    let limiter = RateLimiter::new(store.fork(), Quota::per_hour(5));
    let _ = crate::support::decided(&limiter, "ada").await;
    sentinels.servers[0].stop();
    let error = error_of(store).await;
    sentinels.servers[0].resume();
    let at = format!("Redis at {}", sentinels.servers[0].address());
    assert_says(&error, &[&at, "did not answer within 300ms"]);
}

#[tokio::test]
async fn an_unknown_host() {
    let words = ["failed to reach Redis at nowhere.invalid:6379", "host name"];
    let url = format!("redis://:{PASSWORD}@nowhere.invalid");
    assert_says(&error_at(&url).await, &words);
}

#[tokio::test]
async fn no_password_and_a_wrong_password() {
    let server = RedisServer::start();
    run(
        &mut server.connect(),
        &["CONFIG", "SET", "requirepass", "other"],
    );
    let address = format!("127.0.0.1:{}", server.port());
    for protocol in ["", "?protocol=2", "?protocol=3"] {
        let at = format!("Redis at {address} requires a password: NOAUTH");
        let words = [&at, "give a password in the URL: redis://:password@host"];
        assert_says(
            &error_at(&format!("{}{protocol}", server.url())).await,
            &words,
        );

        let at = format!("Redis at {address} does not accept the user or the password");
        // The client does not pass the message on in RESP2.
        let cause = match protocol {
            "?protocol=2" => "password authentication failed",
            _ => "WRONGPASS",
        };
        let words = [&at, cause, "correct the user or the password in the URL"];
        for user in ["", "default"] {
            let url = format!("redis://{user}:{PASSWORD}@{address}{protocol}");
            assert_says(&error_at(&url).await, &words);
        }
    }
}

#[tokio::test]
async fn a_missing_right() {
    let server = RedisServer::start();
    let address = format!("127.0.0.1:{}", server.port());
    let mut connection = server.connect();
    let at = format!("Redis at {address} denies the user a right");
    for (user, rules, remedies) in [
        (
            "calls",
            "~* +@all -evalsha",
            ["+evalsha", "'evalsha' command"],
        ),
        // Redis 7.0 does not name a command of a script.
        (
            "writes",
            "~* +@all -set",
            ["ACL SETUSER <user> +", "command"],
        ),
        (
            "keys",
            "~other:* +@all",
            ["ACL SETUSER <user> ~<prefix>:*", "key"],
        ),
    ] {
        let password = format!(">{PASSWORD}");
        let mut command = vec!["ACL", "SETUSER", user, "on", &password];
        command.extend(rules.split(' '));
        run(&mut connection, &command);
        let url = format!("redis://{user}:{PASSWORD}@{address}");
        let error = error_at(&url).await;
        assert_says(
            &error,
            &[&at, "ACL SETUSER <user>", remedies[0], remedies[1]],
        );
    }
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn a_tls_port_without_tls_and_a_plain_port_with_tls() {
    use crate::support::tls::TlsServer;

    let server = TlsServer::start(false);
    let address = server.url().replace("rediss://", "");
    for protocol in ["", "?protocol=2", "?protocol=3"] {
        let url = format!("redis://:{PASSWORD}@{address}{protocol}");
        let error = error_at(&url).await;
        assert_says(&error, &[&format!("Redis at {address}"), "use rediss://"]);
    }
    let ca = server.path("ca.pem").display().to_string();
    let url = format!("rediss://:{PASSWORD}@{}?ca={ca}", server.node.address());
    let at = format!(
        "failed to set up TLS with Redis at {}",
        server.node.address()
    );
    let plain_port = [&*at, "does not speak TLS", "use redis://"];
    let second = Duration::from_secs(1);
    assert_says(&error_within(second, &url).await, &plain_port);

    let untrusted = error_at(&server.url()).await;
    let at = format!("failed to set up TLS with Redis at {address}");
    assert_says(&untrusted, &[&at, "UnknownIssuer", "?ca=/path/to/ca.pem"]);
    let asking = TlsServer::start(true);
    let url = format!("{}?ca={}", asking.url(), asking.path("ca.pem").display());
    assert_says(
        &error_at(&url).await,
        &["failed to set up TLS with", "?cert="],
    );
}

/// Checks for some time, with a deadline shorter than an attempt to connect and with the circuit breaker of a new
/// store. Asserts that each error is one of a wrong set-up with these words, so that the breaker never opens.
async fn assert_all_say(url: &str, words: &[&str]) {
    let store = RedisStore::open(url).unwrap();
    let store = store.deadline(Duration::from_millis(400));
    let limiter = RateLimiter::new(store, Quota::per_hour(5));
    for _ in 0..40 {
        let checks = (0..3).map(|key| limiter.check(format!("ada {key}")));
        for outcome in futures_util::future::join_all(checks).await {
            let error = outcome.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
            assert_says(&error, words);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn tls_on_one_side_only_is_said_with_a_remedy() {
    use crate::support::tls::TlsServer;

    let server = TlsServer::start(false);
    let tls_port = server.url().replace("rediss://", "");
    let plain_port = server.node.address();
    let to_plain = [
        &*format!("failed to set up TLS with Redis at {plain_port}: the port answers without TLS"),
        "use redis:// if the port does not speak TLS",
    ];
    let to_tls = [
        &*format!("Redis at {tls_port} closed the connection before its first reply"),
        "use rediss:// if the port speaks TLS",
    ];
    let kinds = if cfg!(feature = "cluster") {
        &["", "+cluster"][..]
    } else {
        &[""]
    };
    for kind in kinds {
        let url = format!("rediss{kind}://:{PASSWORD}@{plain_port}");
        assert_all_say(&url, &to_plain).await;
        let url = format!("redis{kind}://:{PASSWORD}@{tls_port}");
        assert_says(&error_at(&url).await, &to_tls);
    }
}

/// Pings with a deadline that is shorter than an attempt to connect. The first error is the one that lasts.
#[cfg(feature = "tls")]
#[track_caller]
fn assert_first_ping_says(outcome: Result<(), Error>, words: &[&str]) {
    let error = outcome.unwrap_err();
    assert_eq!(error.code(), "tollgate::E103", "{error}");
    assert_says(&error, words);
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn a_handshake_of_tls_with_a_port_without_it_is_known_at_the_first_ping() {
    use crate::support::proxy::{Proxy, Wire};

    let server = RedisServer::start();
    let deadline = Duration::from_millis(400);
    let store = RedisStore::open(&format!("rediss://127.0.0.1:{}", server.port())).unwrap();
    let pinged = store.deadline(deadline).ping().await;
    let silent = ["the port answers without TLS", "use redis:// if the port"];
    assert_first_ping_says(pinged, &silent);
    let proxy = Proxy::before(server.port()).await;
    for garbage in [
        "-ERR unknown command\r\n",
        "HTTP/1.1 400 Bad Request\r\n\r\n",
        "nonsense",
    ] {
        proxy.set(Wire::Answers(garbage.as_bytes()));
        let store = RedisStore::open(&format!("rediss://127.0.0.1:{}", proxy.port())).unwrap();
        let pinged = store.deadline(deadline).ping().await;
        assert_first_ping_says(pinged, &["corrupt message", "use redis:// if the port"]);
    }
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn a_port_that_says_nothing_in_a_handshake_of_tls() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("rediss://{}", listener.local_addr().unwrap());
    // An attempt to connect gets nine tenths of the deadline.
    let error = error_within(Duration::from_secs(1), &url).await;
    assert_eq!(error.code(), "tollgate::E104", "{error}");
    let words = [
        "no connection within 900ms",
        "check its load and the network, and whether the port speaks TLS",
    ];
    assert_says(&error, &words);
}

#[cfg(all(feature = "cluster", feature = "tls"))]
#[tokio::test]
async fn a_tls_cluster_that_announces_ports_without_tls() {
    if !RedisServer::start().is_redis_7_0() {
        // Later ones announce the port of the kind by which they are asked.
        return;
    }
    use crate::support::redis_server::free_port;
    use crate::support::tls::TlsServer;

    let certificates = TlsServer::start(false);
    let ports: Vec<_> = (0..6).map(|_| free_port()).collect();
    let cluster = Cluster::start_with_each(|index| certificates.arguments_for(ports[index]));
    let ca = certificates.path("ca.pem").display().to_string();
    let url = format!("rediss+cluster://127.0.0.1:{}?ca={ca}", ports[0]);
    let words = [
        "failed to set up TLS with the Redis Cluster node at 127.0.0.1:",
        "set tls-cluster to yes",
    ];
    assert_says(&error_at(&url).await, &words);
    drop(cluster);
}

#[tokio::test]
async fn a_server_at_maxclients() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    run(&mut connection, &["CONFIG", "SET", "maxclients", "1"]);
    for _ in 0..20 {
        let error = error_at(&server.url()).await;
        let words = [
            "max number of clients reached",
            "raise maxclients",
            "127.0.0.1",
        ];
        assert_says(&error, &words);
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
}

#[tokio::test]
async fn a_renamed_evalsha_is_named_and_opens_no_breaker() {
    let server = RedisServer::start_with(&["--rename-command", "EVALSHA", ""]);
    let at = format!(
        "Redis at 127.0.0.1:{} does not know the command EVALSHA",
        server.port()
    );
    let remedy = "remove `rename-command EVALSHA`";
    // Any command of the script's arguments may be quoted, text or not.
    assert_all_say(&server.url(), &[&at, remedy]).await;
}

#[tokio::test]
async fn one_node_of_a_cluster() {
    let cluster = Cluster::start();
    let node = &cluster.nodes[0];
    let at = format!(
        "Redis at {} is one node of a cluster: MOVED",
        node.address()
    );
    let error = error_at(&node.url()).await;
    assert_says(&error, &[&at, "use redis+cluster://"]);
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
}

#[tokio::test]
async fn a_server_that_loads_its_data() {
    if RedisServer::start().is_before_redis_7() {
        // It cannot be made to take so long.
        return;
    }
    let server = Node::start(&[
        "--enable-debug-command",
        "yes",
        "--key-load-delay",
        "1000",
        "--loading-process-events-interval-bytes",
        "1024",
    ]);
    let () = server.ask(&["DEBUG", "POPULATE", "20000"]);
    let store = RedisStore::open(&server.url()).unwrap();
    let store = store.deadline(Duration::from_secs(10));
    store.ping().await.unwrap();
    let mut connection = server.connect();
    let loading = std::thread::spawn(move || {
        let _ = redis::cmd("DEBUG").arg("RELOAD").exec(&mut connection);
    });
    tokio::time::sleep(Duration::from_millis(500)).await;
    let error = error_of(store).await;
    let at = format!("Redis at {} is loading its data: LOADING", server.address());
    assert_says(&error, &[&at, "wait until"]);
    drop(server);
    let _ = loading.join();
}

#[tokio::test]
async fn a_replica() {
    let server = RedisServer::start();
    let nowhere = DeadPort::new();
    server.replicate(nowhere.port());
    let at = format!("Redis at 127.0.0.1:{} is a replica", server.port());
    let error = error_at(&server.url()).await;
    assert_says(
        &error,
        &[
            &at,
            "READONLY",
            "connect to the master, or use redis+sentinel://",
        ],
    );
}

#[tokio::test]
async fn a_full_server() {
    let server = RedisServer::start();
    run(&mut server.connect(), &["CONFIG", "SET", "maxmemory", "1"]);
    let at = format!("Redis at 127.0.0.1:{} is out of memory: OOM", server.port());
    assert_says(&error_at(&server.url()).await, &[&at, "raise maxmemory"]);
}

#[tokio::test]
async fn a_key_of_another_type() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    let name = "tollgate:v3:{default,ada}:log";
    let () = connection.set(name, "somebody else's").unwrap();
    let at = format!(
        "Redis at 127.0.0.1:{} has a value of another type",
        server.port()
    );
    let error = error_at(&server.url()).await;
    assert_says(&error, &[&at, "WRONGTYPE", "choose another prefix"]);
    assert!(!error.to_string().contains("ada"), "{error}");
}

#[tokio::test]
async fn a_server_that_does_not_answer() {
    let server = RedisServer::start();
    let store = RedisStore::open(&server.url()).unwrap();
    let store = store.deadline(Duration::from_millis(70));
    store.ping().await.unwrap();
    signal(&server, "STOP");
    let error = error_of(store).await;
    signal(&server, "CONT");
    let at = format!(
        "Redis at 127.0.0.1:{} did not answer within 70ms",
        server.port()
    );
    assert_says(&error, &[&at, "RedisStore::deadline"]);
}

#[tokio::test]
async fn a_renamed_command() {
    let server = RedisServer::start_with(&["--rename-command", "SET", ""]);
    let at = format!(
        "failed to run a command on Redis at 127.0.0.1:{}",
        server.port()
    );
    let error = error_at(&server.url()).await;
    assert_says(&error, &[&at, "nknown", "lacks or renames it"]);
}

#[tokio::test]
async fn a_server_that_is_not_redis() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        use std::io::{Read, Write};
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ = stream.read(&mut [0; 1_024]);
            let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let error = error_at(&format!("redis://:{PASSWORD}@{address}")).await;
    assert_says(
        &error,
        &[&format!("Redis at {address}"), "is it a Redis server?"],
    );
}
