//! Users and passwords that the application returns, and tokens that expire.

use std::error::Error as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::task::JoinSet;
use tollgate::store::Credentials;
use tollgate::{Error, ErrorKind, Quota, RateLimiter, RedisStore};

use crate::support::redis_server::{DeadPort, RedisServer, run};
use crate::support::{decided, log, runtime, store_on, until};

const HOUR: Duration = Duration::from_secs(3_600);

/// The service that issues tokens. A token is the password of a user of the same name.
#[derive(Clone)]
struct Tokens(Arc<Inner>);

struct Inner {
    /// The next token, or the error.
    next: Mutex<Result<String, String>>,
    asked: AtomicUsize,
}

impl Tokens {
    fn of(token: &str) -> Self {
        Self(Arc::new(Inner {
            next: Mutex::new(Ok(token.to_owned())),
            asked: AtomicUsize::new(0),
        }))
    }

    fn set(&self, next: Result<&str, &str>) {
        *self.0.next.lock().unwrap() = next.map(str::to_owned).map_err(str::to_owned);
    }

    fn asked(&self) -> usize {
        self.0.asked.load(Ordering::Relaxed)
    }

    /// The store with these tokens, which it takes to be valid for this long.
    fn for_store(&self, store: RedisStore, life: Duration) -> RedisStore {
        let tokens = self.clone();
        store.credentials(move || {
            tokens.0.asked.fetch_add(1, Ordering::Relaxed);
            let next = tokens.0.next.lock().unwrap().clone();
            async move {
                // As over a network.
                tokio::time::sleep(Duration::from_millis(20)).await;
                let token = next?;
                Ok(Credentials::new(&*token, &*token).valid_for(life))
            }
        })
    }
}

fn add_user(server: &RedisServer, user: &str) {
    let password = format!(">{user}");
    let rule = ["ACL", "SETUSER", user, "on", &password, "~*", "+@all"];
    run(&mut server.connect(), &rule);
}

fn limiter(store: &RedisStore) -> RateLimiter {
    RateLimiter::new(store.clone(), Quota::per_hour(1_000_000))
}

/// The ids of the clients that are this user.
fn ids(server: &RedisServer, user: &str) -> Vec<String> {
    let list = redis::cmd("CLIENT").arg("LIST").to_owned();
    let list: String = list.query(&mut server.connect()).unwrap();
    let user = format!(" user={user} ");
    let clients = list.lines().filter(|client| client.contains(&user));
    let ids = clients.filter_map(|client| client.split_whitespace().next());
    ids.map(str::to_owned).collect()
}

/// An error with its sources, as text and as debug output.
fn all_texts(error: &Error) -> String {
    let mut texts = format!("{error} {error:?}");
    let mut source = error.source();
    while let Some(cause) = source {
        texts += &format!(" {cause} {cause:?}");
        source = cause.source();
    }
    texts
}

#[tokio::test]
async fn a_connection_is_replaced_before_its_token_ends_and_no_check_fails() {
    for protocol in ["", "?protocol=resp2"] {
        let server = RedisServer::start();
        add_user(&server, "first");
        add_user(&server, "second");
        let tokens = Tokens::of("first");
        // The URL has neither of them.
        let url = format!(
            "redis://nobody:nothing@127.0.0.1:{}{protocol}",
            server.port()
        );
        let store = RedisStore::open(&url)
            .unwrap()
            .deadline(Duration::from_secs(10));
        let limiter = limiter(&tokens.for_store(store, Duration::from_secs(2)));
        let _ = limiter.check("ada").await.unwrap();
        assert_eq!((ids(&server, "first").len(), tokens.asked()), (1, 1));
        tokens.set(Ok("second"));
        until(async || {
            let _ = limiter.check("ada").await.unwrap();
            ids(&server, "first").is_empty()
        })
        .await;
        assert_eq!(ids(&server, "second").len(), 1);
        // Closes the connections of its user.
        run(&mut server.connect(), &["ACL", "DELUSER", "first"]);
        for _ in 0..50 {
            let _ = limiter.check("ada").await.unwrap();
        }
        assert_eq!(ids(&server, "second").len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_check_gets_its_own_reply_while_renewals_are_refused() {
    let server = RedisServer::start();
    add_user(&server, "app");
    let tokens = Tokens::of("app");
    let limiter = limiter(&tokens.for_store(store_on(&server), Duration::from_secs(1)));
    let _ = limiter.check("ada").await.unwrap();
    tokens.set(Ok("s3cret"));
    let mut callers = JoinSet::new();
    for caller in 0..8 {
        let (limiter, tokens) = (limiter.clone(), tokens.clone());
        callers.spawn(async move {
            let key = format!("caller {caller}");
            let mut used = 0;
            while tokens.asked() < 4 {
                let decision = limiter.check(&*key).await.unwrap();
                used += 1;
                assert_eq!(decision.used(), used, "{key}");
            }
        });
    }
    let _ = callers.join_all().await;
    // With RESP3, a connection begins with HELLO.
    let stats = redis::cmd("INFO").arg("commandstats").to_owned();
    let stats: String = stats.query(&mut server.connect()).unwrap();
    assert!(!stats.contains("cmdstat_auth:"), "{stats}");
}

/// Checks while three renewals of a connection fail. Returns its limiter, and the id that it had before.
async fn renewals_that_fail(
    server: &RedisServer,
    next: Result<&str, &str>,
) -> (Tokens, RateLimiter, Vec<String>) {
    add_user(server, "app");
    let tokens = Tokens::of("app");
    let limiter = limiter(&tokens.for_store(store_on(server), Duration::from_secs(1)));
    let _ = limiter.check("ada").await.unwrap();
    let before = ids(server, "app");
    tokens.set(next);
    until(async || {
        let _ = limiter.check("ada").await.unwrap();
        tokens.asked() >= 4
    })
    .await;
    (tokens, limiter, before)
}

#[tokio::test]
async fn a_fetch_that_fails_keeps_the_connection_and_logs_one_line() {
    log::keep();
    let server = RedisServer::start();
    let next = Err("the token service answers 503");
    let (tokens, _limiter, before) = renewals_that_fail(&server, next).await;
    let lines = log::kept();
    assert_eq!(lines.len(), 1, "{lines:#?}");
    let address = format!("Redis at 127.0.0.1:{}", server.port());
    for part in [
        "WARN tollgate::diagnostics",
        "tollgate::W021",
        &address,
        "the token service answers 503",
        "check the service that issues the token",
    ] {
        assert!(lines[0].contains(part), "{lines:#?}");
    }
    assert_eq!(ids(&server, "app"), before);
    tokens.set(Ok("app"));
    let asked = tokens.asked();
    until(async || tokens.asked() > asked + 1).await;
    let lines = log::kept();
    assert_eq!(lines.len(), 1, "{lines:#?}");
    assert!(lines[0].contains("renewed again"), "{lines:#?}");
}

#[tokio::test]
async fn a_refused_renewal_keeps_the_connection_and_logs_one_line_without_the_token() {
    log::keep();
    let server = RedisServer::start();
    let (_, _limiter, before) = renewals_that_fail(&server, Ok("s3cret")).await;
    let lines = log::kept();
    assert_eq!(lines.len(), 1, "{lines:#?}");
    assert!(lines[0].contains("WRONGPASS"), "{lines:#?}");
    assert!(!lines[0].contains("s3cret"), "{lines:#?}");
    assert_eq!(ids(&server, "app"), before);
}

#[tokio::test]
async fn a_connection_that_is_lost_while_no_token_can_be_fetched_is_replaced_with_the_last_one() {
    let server = RedisServer::start();
    add_user(&server, "app");
    let tokens = Tokens::of("app");
    let limiter = limiter(&tokens.for_store(store_on(&server), Duration::from_secs(4)));
    let _ = limiter.check("ada").await.unwrap();
    tokens.set(Err("the token service answers 503"));
    until(async || tokens.asked() == 2).await;
    run(&mut server.connect(), &["CLIENT", "KILL", "USER", "app"]);
    let _ = decided(&limiter, "ada").await;
    assert_eq!(ids(&server, "app").len(), 1);
}

/// A token service that hangs after its first answer, a token with this life.
fn hangs_after_the_first_token(
    store: RedisStore,
    life: Duration,
) -> (RedisStore, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let store = store.credentials(move || {
        let is_first = counter.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            match is_first {
                true => Ok(Credentials::new("app", "app").valid_for(life)),
                false => std::future::pending().await,
            }
        }
    });
    (store, asked)
}

#[tokio::test]
async fn a_reconnect_does_not_wait_for_a_token_service_that_hangs_while_the_last_token_is_valid() {
    let server = RedisServer::start();
    add_user(&server, "app");
    // It is renewed 15 s after the first one, and valid for 5 s more.
    let (store, asked) = hangs_after_the_first_token(store_on(&server), Duration::from_secs(20));
    let limiter = limiter(&store);
    let _ = limiter.check("ada").await.unwrap();
    until(async || asked.load(Ordering::SeqCst) == 2).await;
    for _ in 0..8 {
        run(&mut server.connect(), &["CLIENT", "KILL", "USER", "app"]);
        let took = until(async || ids(&server, "app").len() == 1).await;
        let _ = limiter.check("ada").await.unwrap();
        assert!(took < Duration::from_secs(2), "{took:?}");
    }
    assert_eq!(asked.load(Ordering::SeqCst), 2);
}

/// Pings and checks while the token service hangs, with a deadline that is much shorter than it may take.
async fn assert_errors_name_the_token_service(url: &str, address: &str) {
    let deadline = Duration::from_millis(200);
    let store = RedisStore::open(url).unwrap().deadline(deadline);
    let store = store.credentials(std::future::pending);
    let error = store.ping().await.unwrap_err();
    let mut errors = vec![error];
    let limiter = limiter(&store);
    for _ in 0..2 {
        let checks = (0..4).map(|key| limiter.check(format!("key {key}")));
        let outcomes = futures_util::future::join_all(checks).await;
        errors.extend(outcomes.into_iter().map(Result::unwrap_err));
    }
    for error in errors {
        // The breaker opens after five.
        let is_open = error.code() == "tollgate::E012";
        assert!(is_open || error.code() == "tollgate::E106", "{error}");
        for part in [address, "`RedisStore::credentials`", "no answer for"] {
            assert!(error.to_string().contains(part), "{part}: {error}");
        }
    }
}

#[tokio::test]
async fn errors_name_the_token_service_while_a_connection_waits_for_it() {
    let server = RedisServer::start();
    let address = format!("127.0.0.1:{}", server.port());
    assert_errors_name_the_token_service(&server.url(), &address).await;
}

#[cfg(feature = "cluster")]
#[tokio::test]
async fn errors_of_a_cluster_name_the_token_service_while_a_connection_waits_for_it() {
    let server = RedisServer::start_cluster();
    let address = format!("127.0.0.1:{}", server.port());
    let url = format!("redis+cluster://{address}");
    assert_errors_name_the_token_service(&url, &address).await;
}

#[cfg(feature = "sentinel")]
#[tokio::test]
async fn errors_of_a_master_name_the_token_service_while_a_connection_waits_for_it() {
    let sentinels = crate::support::sentinel::Sentinels::start();
    let url = format!("redis+sentinel://{}/mymaster", sentinels.addresses());
    let addresses = sentinels.addresses().replace(',', ", ");
    assert_errors_name_the_token_service(&url, &addresses).await;
}

/// Waits for a line of the log with these words. Returns all lines until then.
async fn logged(words: &str) -> Vec<String> {
    let lines = Mutex::new(Vec::new());
    until(async || {
        let mut lines = lines.lock().unwrap();
        lines.extend(log::kept());
        lines.iter().any(|line: &String| line.contains(words))
    })
    .await;
    lines.into_inner().unwrap()
}

#[tokio::test]
async fn a_failed_fetch_has_its_closing_line_when_a_new_connection_has_a_token() {
    log::keep();
    let server = RedisServer::start();
    add_user(&server, "app");
    let asked = Arc::new(AtomicUsize::new(0));
    let is_back = Arc::new(AtomicBool::new(false));
    let (counter, answers) = (Arc::clone(&asked), Arc::clone(&is_back));
    let store = store_on(&server).credentials(move || {
        let is_first = counter.fetch_add(1, Ordering::SeqCst) == 0;
        let is_back = answers.load(Ordering::SeqCst);
        async move {
            let life = match (is_first, is_back) {
                (true, _) => Duration::from_secs(1),
                // The next renewal is far away.
                (false, true) => HOUR,
                (false, false) => return Err("the token service answers 503".into()),
            };
            Ok(Credentials::new("app", "app").valid_for(life))
        }
    });
    let limiter = limiter(&store);
    let _ = limiter.check("ada").await.unwrap();
    let lines = logged("tollgate::W021").await;
    assert!(lines[0].contains("answers 503"), "{lines:#?}");
    run(&mut server.connect(), &["CLIENT", "KILL", "USER", "app"]);
    // The token is over, so no connection is made.
    until(async || limiter.check("ada").await.is_err()).await;
    is_back.store(true, Ordering::SeqCst);
    let _ = decided(&limiter, "ada").await;
    let lines = logged("renewed again").await;
    assert_eq!(lines.len(), 1, "{lines:#?}");
}

#[tokio::test]
async fn a_refused_renewal_has_its_closing_line_when_the_connection_ends() {
    log::keep();
    let server = RedisServer::start();
    let (_, _limiter, before) = renewals_that_fail(&server, Ok("s3cret")).await;
    let lines = logged("tollgate::W021").await;
    assert!(lines[0].contains("WRONGPASS"), "{lines:#?}");
    assert_eq!(ids(&server, "app"), before);
    run(&mut server.connect(), &["CLIENT", "KILL", "USER", "app"]);
    let lines = logged("that kept its last credentials has ended").await;
    assert_eq!(lines.len(), 1, "{lines:#?}");
}

#[tokio::test]
async fn a_token_that_was_revoked_is_asked_for_anew() {
    for protocol in ["", "?protocol=resp2"] {
        let server = RedisServer::start();
        add_user(&server, "first");
        let tokens = Tokens::of("first");
        let store = RedisStore::open(&format!("{}{protocol}", server.url())).unwrap();
        let store = store.deadline(Duration::from_secs(10));
        let limiter = limiter(&tokens.for_store(store, HOUR));
        let _ = limiter.check("ada").await.unwrap();
        tokens.set(Ok("second"));
        add_user(&server, "second");
        run(&mut server.connect(), &["ACL", "DELUSER", "first"]);
        let _ = decided(&limiter, "ada").await;
        assert_eq!(ids(&server, "second").len(), 1);
        assert_eq!(tokens.asked(), 2);
    }
}

#[tokio::test]
async fn wrong_credentials_are_an_error_with_the_server_and_a_remedy_and_are_asked_for_once_a_second()
 {
    let server = RedisServer::start();
    let tokens = Tokens::of("s3cret");
    let store = tokens.for_store(store_on(&server), HOUR);
    let address = format!("Redis at 127.0.0.1:{} does not accept", server.port());
    let mut error = store.ping().await.unwrap_err();
    for _ in 0..10 {
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
        for part in [&*address, "WRONGPASS", "`RedisStore::credentials`"] {
            assert!(error.to_string().contains(part), "{error}");
        }
        assert!(!all_texts(&error).contains("s3cret"), "{error:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
        error = store.ping().await.unwrap_err();
    }
    assert!((1..=2).contains(&tokens.asked()), "{}", tokens.asked());
}

#[tokio::test]
async fn no_credentials_are_an_error_with_the_cause_and_a_remedy() {
    #[derive(Debug)]
    struct Outer(std::io::Error);
    impl std::fmt::Display for Outer {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("no token")
        }
    }
    impl std::error::Error for Outer {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.0)
        }
    }

    let server = RedisServer::start();
    let failing = store_on(&server)
        .credentials(|| async { Err(Outer(std::io::ErrorKind::ConnectionRefused.into()).into()) });
    #[expect(unreachable_code, reason = "names the type of the future")]
    let panicking = store_on(&server).credentials(|| async {
        panic!("a test");
        Ok(Credentials::password_only(""))
    });
    for (store, cause) in [
        (failing, "no token: connection refused"),
        (panicking, "the closure panicked"),
    ] {
        let error = store.ping().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        let address = format!("Redis at 127.0.0.1:{}", server.port());
        for part in [&*address, "`RedisStore::credentials`", cause, "; check"] {
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}

#[tokio::test]
async fn a_closure_that_hangs_fails_the_attempt_after_ten_seconds() {
    let server = RedisServer::start();
    let store = store_on(&server).deadline(Duration::from_secs(20));
    let store = store.credentials(std::future::pending);
    let error = store.ping().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(
        error.to_string().contains("no answer within 10s"),
        "{error}"
    );
}

#[tokio::test]
async fn a_fetch_may_take_longer_than_an_attempt_to_connect() {
    let server = RedisServer::start();
    add_user(&server, "app");
    let store = store_on(&server).credentials(|| async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        Ok(Credentials::new("app", "app"))
    });
    store.ping().await.unwrap();
    assert_eq!(ids(&server, "app").len(), 1);
}

#[tokio::test]
async fn a_password_without_a_user_is_of_the_default_user() {
    for protocol in ["", "?protocol=resp2"] {
        let server = RedisServer::start();
        let token = ["ACL", "SETUSER", "default", "resetpass", ">token"];
        run(&mut server.connect(), &token);
        let url = format!("redis://nobody@127.0.0.1:{}/3{protocol}", server.port());
        let store = RedisStore::open(&url)
            .unwrap()
            .deadline(Duration::from_secs(10));
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&asked);
        let store = store.credentials(move || {
            counter.fetch_add(1, Ordering::Relaxed);
            async { Ok(Credentials::password_only("token").valid_for(Duration::from_secs(1))) }
        });
        until(async || {
            store.ping().await.unwrap();
            asked.load(Ordering::Relaxed) == 2
        })
        .await;
    }
}

#[test]
fn all_runtimes_and_forks_of_a_store_share_the_credentials() {
    let server = RedisServer::start();
    add_user(&server, "app");
    let tokens = Tokens::of("app");
    let store = tokens.for_store(store_on(&server), HOUR);
    let runtimes = [runtime(), runtime()];
    for runtime in &runtimes {
        runtime.block_on(store.ping()).unwrap();
        runtime.block_on(store.fork().ping()).unwrap();
    }
    assert_eq!((ids(&server, "app").len(), tokens.asked()), (2, 1));
}

#[test]
fn a_runtime_that_ends_during_a_fetch_holds_up_no_other() {
    let server = RedisServer::start();
    add_user(&server, "app");
    let tokens = Tokens::of("app");
    let store = tokens.for_store(store_on(&server), HOUR);
    let impatient = store.fork().deadline(Duration::from_millis(1));
    // A busy machine may take longer to ask for a token.
    while tokens.asked() == 0 {
        assert!(runtime().block_on(impatient.ping()).is_err());
    }
    let patient = store.fork().deadline(Duration::from_secs(5));
    runtime().block_on(patient.ping()).unwrap();
    assert_eq!(tokens.asked(), 2);
}

#[tokio::test]
async fn the_token_is_never_printed() {
    log::keep();
    let secret = "s3cret";
    let credentials = Credentials::new("app", secret).valid_for(HOUR);
    assert_eq!(
        format!("{credentials:?}"),
        r#"Credentials { user: Some("app"), valid_for: Some(3600s), .. }"#
    );
    let nowhere = DeadPort::new();
    let tokens = Tokens::of(secret);
    let store = tokens.for_store(RedisStore::open(&nowhere.url()).unwrap(), HOUR);
    let limiter = limiter(&store);
    let error = store.ping().await.unwrap_err();
    let texts = format!("{store:?} {limiter:?} {}", all_texts(&error));
    assert!(!texts.contains(secret), "{texts}");
    // Such a server quotes what it does not know.
    for without in [&["HELLO", "AUTH"][..], &["AUTH"]] {
        let server = RedisServer::start_without(without);
        add_user(&server, secret);
        // Otherwise, AUTH of RESP2 hides what the server says of HELLO.
        let url = format!("{}?protocol=resp3", server.url());
        let store = RedisStore::open(&url).unwrap();
        let store = store.deadline(Duration::from_secs(10));
        let store = tokens.for_store(store, Duration::from_secs(1));
        let asked = tokens.asked();
        let pinged = store.ping().await;
        if let Err(error) = &pinged {
            assert!(!all_texts(error).contains(secret), "{error:?}");
        } else {
            let password = ["ACL", "SETUSER", secret, "resetpass", ">another"];
            run(&mut server.connect(), &password);
            until(async || tokens.asked() >= asked + 3).await;
        }
        assert_eq!(pinged.is_ok(), without.len() == 1, "{pinged:?}");
    }
    let lines = log::all_kept();
    let is_refused = |line: &String| line.contains("failed to renew");
    assert!(lines.iter().any(is_refused), "{lines:#?}");
    assert!(
        !lines.iter().any(|line| line.contains(secret)),
        "{lines:#?}"
    );
}

#[tokio::test]
async fn credentials_of_a_store_in_use_are_an_error_and_those_of_a_fork_are_its_own() {
    let server = RedisServer::start();
    add_user(&server, "app");
    let store = store_on(&server);
    store.ping().await.unwrap();
    let tokens = Tokens::of("app");
    let other = store.clone();
    let misuse = tokens.for_store(other, HOUR).ping().await.unwrap_err();
    assert_eq!(misuse.kind(), ErrorKind::Misconfigured, "{misuse}");
    assert!(
        misuse.to_string().contains("`RedisStore::credentials`"),
        "{misuse}"
    );
    let fork = tokens.for_store(store.fork(), HOUR);
    fork.ping().await.unwrap();
    store.ping().await.unwrap();
    assert_eq!(ids(&server, "app").len(), 1);
}

#[cfg(feature = "cluster")]
#[tokio::test]
async fn the_masters_of_a_cluster_share_one_fetch() {
    use crate::support::cluster::Cluster;

    let cluster = Cluster::of_masters(3, &[]);
    for node in &cluster.nodes {
        let () = node.ask(&["ACL", "SETUSER", "app", "on", ">app", "~*", "+@all"]);
    }
    let tokens = Tokens::of("app");
    let store = RedisStore::open(&cluster.url()).unwrap();
    let store = store.deadline(Duration::from_secs(10));
    let limiter = limiter(&tokens.for_store(store, HOUR));
    for key in 0..50 {
        let _ = limiter.check(format!("key {key}")).await.unwrap();
    }
    for node in &cluster.nodes {
        let clients: String = node.ask(&["CLIENT", "LIST"]);
        assert!(clients.contains(" user=app "), "{clients}");
    }
    assert_eq!(tokens.asked(), 1);
}

#[cfg(feature = "sentinel")]
#[tokio::test]
async fn sentinels_do_not_get_the_credentials() {
    let sentinels = crate::support::sentinel::Sentinels::start();
    for server in &sentinels.servers {
        let () = server.ask(&["ACL", "SETUSER", "app", "on", ">app", "~*", "+@all"]);
    }
    let tokens = Tokens::of("app");
    let url = format!("redis+sentinel://{}/mymaster", sentinels.addresses());
    let store = RedisStore::open(&url).unwrap();
    let store = store.deadline(Duration::from_secs(10));
    let limiter = limiter(&tokens.for_store(store, HOUR));
    let _ = limiter.check("ada").await.unwrap();
    let clients: String = sentinels.servers[0].ask(&["CLIENT", "LIST"]);
    assert!(clients.contains(" user=app "), "{clients}");
}
