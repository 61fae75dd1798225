//! What a limiter does with the store.

use std::time::Duration;

use proptest::test_runner::{Config, TestRunner};
use sqlx::{Connection, Executor, raw_sql};
use tollgate::store::Store;
use tollgate::store::protocol::{Change, Subject};
use tollgate::{ErrorKind, Key, Quota, Quotas, RateLimiter, Source};
use tollgate_postgres::PostgresRows;

use crate::malformed_urls::{hides_password, malformed};
use crate::server::{Server, write_clock};
use crate::several_processes::{block_together, returns_units, share_slots};

#[tokio::test]
async fn a_limiter_refunds_settles_credits_and_resets() {
    returns_units(Server::shared().store("settles").await).await;
}

#[tokio::test]
async fn refused_checks_and_looks_write_nothing() {
    let server = Server::shared();
    let store = server.store("refused").await;
    let limiter = RateLimiter::new(store, Quota::per_hour(2));
    assert!(limiter.check_n("ada", 2).await.unwrap().is_allowed());
    let row = "SELECT version + xmin::text::bigint FROM refused.tollgate_counts";
    let before = server.number(row).await;
    for cost in [1, 2] {
        let refused = limiter.check_n("ada", cost).await.unwrap();
        assert_eq!(
            (refused.is_allowed(), refused.source()),
            (false, Source::Other)
        );
    }
    assert_eq!(limiter.peek("ada").await.unwrap().used(), 2);
    assert_eq!(limiter.peek("bob").await.unwrap().used(), 0);
    // Of one row, since nothing was written for the other key.
    assert_eq!(server.number(row).await, before);
    assert_eq!(
        server
            .number("SELECT count(*) FROM refused.tollgate_counts")
            .await,
        1
    );
}

#[tokio::test]
async fn another_process_sees_blocks_within_a_second_and_its_own_at_once() {
    let server = Server::shared();
    let stores = [server.store("blocked").await, server.store("blocked").await];
    block_together(stores).await;
}

#[tokio::test]
async fn the_list_of_blocked_keys_has_room_for_operators() {
    let server = Server::shared();
    let store = server.store("full").await;
    let fill = "INSERT INTO \"full\".tollgate_blocked SELECT 'blocks||0', 7, convert_to('tollgate blocks 1' || chr(10) || \
                string_agg('a ' || g || ' 9000000000000000', chr(10)), 'UTF8'), 9e15 FROM generate_series(1, 1000) g";
    server.run(fill).await;
    let key = Key::from("x");
    let block =
        |limiter| tollgate::store::protocol::Block::new(limiter, &key, Duration::from_secs(9));
    let [full, other] = [Key::from("a"), Key::from("b")];
    let error = store.block(block(&full).automatic()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full);
    assert!(store.block(block(&other).automatic()).await.unwrap());
    assert!(!store.block(block(&other).automatic()).await.unwrap());
    assert!(store.block(block(&full)).await.unwrap());
    let fill = fill.replace("'a '", "'c '").replace("1000", "9100");
    let fill = fill.replace("||0'", "||f'");
    let fill = format!("DELETE FROM \"full\".tollgate_blocked WHERE name = 'blocks||f'; {fill}");
    server.run(&fill).await;
    let error = store.block(block(&Key::from("d"))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Full);
}

#[tokio::test]
async fn stores_share_slots_in_flight() {
    let server = Server::shared();
    share_slots([server.store("slots").await, server.store("slots").await]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_answer_from_memory_and_exceed_no_limit() {
    let server = Server::shared();
    let stores = [server.store("leases").await, server.store("leases").await];
    let limiters = stores.map(|store| {
        RateLimiter::new(store, Quota::per_day(3_000)).lease(Duration::from_millis(200))
    });
    let mut tasks = Vec::new();
    for task in 0..8 {
        let limiter = limiters[task % 2].clone();
        tasks.push(tokio::spawn(async move {
            let (mut admitted, mut from_memory) = (0, 0);
            for _ in 0..1_000 {
                let decision = limiter.check("ada").await.unwrap();
                admitted += u32::from(decision.is_allowed());
                from_memory +=
                    u32::from(decision.is_allowed() && decision.source() == Source::Lease);
            }
            (admitted, from_memory)
        }));
    }
    let (mut admitted, mut from_memory) = (0, 0);
    for task in tasks {
        let (of_task, leased) = task.await.unwrap();
        admitted += of_task;
        from_memory += leased;
    }
    println!("{admitted} admitted, {from_memory} of them from memory");
    assert!(admitted <= 3_000 && admitted > 2_000, "{admitted}");
    assert!(from_memory > 500, "{from_memory}");
}

#[tokio::test]
async fn expired_rows_are_removed_beside_the_traffic() {
    let server = Server::shared();
    let store = server.store("expired").await;
    let clock = server.stop_clock("expired").await;
    let limiter = RateLimiter::new(store, Quota::per_second(5));
    for key in 0..2_500 {
        let _ = limiter.check(format!("{key}")).await.unwrap();
    }
    write_clock(&clock, 1_800_000_009_000_000);
    let rows = "SELECT count(*) FROM expired.tollgate_counts";
    let mut left = server.number(rows).await;
    assert!(left >= 2_500, "{left}");
    for _ in 0..100 {
        let _ = limiter.check("ada").await.unwrap();
        left = server.number(rows).await;
        if left == 1 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(left, 1);
}

#[tokio::test]
async fn foreign_bytes_fail_their_own_key_only_and_stay() {
    let server = Server::shared();
    let store = server.store("foreign").await;
    let limiter = RateLimiter::new(store.clone(), Quota::per_hour(9)).name("search");
    assert!(limiter.check("ada").await.unwrap().is_allowed());
    let foreign = "UPDATE \"foreign\".tollgate_counts SET value = 'counters of another program'";
    server.run(foreign).await;
    // More than open a circuit breaker.
    for _ in 0..20 {
        let (foreign, own) = tokio::join!(limiter.check("ada"), limiter.check("bob"));
        assert_eq!(foreign.unwrap_err().kind(), ErrorKind::InvalidReply);
        let _ = own.unwrap();
    }
    let (limiter, key, quotas) = (
        Key::from("search"),
        Key::from("ada"),
        Quotas::from(Quota::per_hour(9)),
    );
    let credited = store
        .adjust(Subject::new(&limiter, &key, &quotas).adjust(Change::Credit { units: 1 }))
        .await;
    assert_eq!(credited.unwrap_err().kind(), ErrorKind::InvalidReply);
    let kept = "SELECT count(*) FROM \"foreign\".tollgate_counts WHERE value = 'counters of another program'";
    assert_eq!(server.number(kept).await, 1);
}

#[tokio::test]
async fn a_clock_that_steps_back_frees_no_units() {
    let server = Server::shared();
    let store = server.store("back").await;
    let clock = server.stop_clock("back").await;
    let limiter = RateLimiter::new(store, Quota::per_minute(3));
    assert!(limiter.check_n("ada", 3).await.unwrap().is_allowed());
    write_clock(&clock, 1_799_999_000_000_000);
    assert!(!limiter.check("ada").await.unwrap().is_allowed());
    let refused = limiter.check_n("ada", 2).await.unwrap();
    assert_eq!(refused.retry_after(), Some(Duration::from_secs(60)));
}

#[tokio::test]
async fn processes_may_migrate_together_and_again() {
    let server = Server::shared();
    let migrations = (0..6).map(|_| {
        let rows = PostgresRows::new(server.pool(1))
            .schema("together")
            .prefix("My limits");
        tokio::spawn(async move { rows.migrate().await })
    });
    for migration in migrations.collect::<Vec<_>>() {
        migration.await.unwrap().unwrap();
    }
    let limiter = RateLimiter::new(
        PostgresRows::new(server.pool(2))
            .schema("together")
            .prefix("My limits")
            .into_store(),
        Quota::per_hour(1),
    );
    assert!(limiter.check("ada").await.unwrap().is_allowed());
    let rows = "SELECT count(*) FROM together.\"My limits_counts\"";
    assert_eq!(server.number(rows).await, 1);
}

/// The rights that the docs of `PostgresRows::sql` name.
#[tokio::test]
async fn a_service_needs_no_right_but_those_on_the_rows() {
    let server = Server::shared();
    server.store("rights").await;
    let grants = "CREATE ROLE service LOGIN; GRANT USAGE ON SCHEMA rights TO service; GRANT SELECT, INSERT, UPDATE, \
                  DELETE ON ALL TABLES IN SCHEMA rights TO service";
    server.run(grants).await;
    let url = server.url_as("service");
    let store = PostgresRows::open(&url)
        .unwrap()
        .schema("rights")
        .into_store()
        .deadline(Duration::from_secs(20));
    let limiter = RateLimiter::new(store.clone(), Quota::per_hour(1));
    assert!(limiter.check("ada").await.unwrap().is_allowed());
    assert!(!limiter.check("ada").await.unwrap().is_allowed());
    limiter
        .admin()
        .block("eve", Duration::from_secs(9))
        .await
        .unwrap();
    assert_eq!(limiter.admin().blocked().await.unwrap().len(), 1);
    limiter.admin().reset("ada").await.unwrap();
    assert!(store.rows().migrate().await.is_err());
    let revoke = "REVOKE DELETE, UPDATE ON rights.tollgate_counts FROM service";
    server.run(revoke).await;
    let error = limiter.check("bob").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    assert!(error.to_string().contains("grant"), "{error}");
}

#[tokio::test]
async fn the_doctor_warns_of_what_makes_limits_slow_or_fail() {
    let server = Server::shared();
    let store = server.store("doctor").await;
    let report = store.rows().doctor().await.unwrap();
    println!("{}", report.join("\n"));
    // Other tests may have transactions open, but none is old.
    assert!(
        report.iter().all(|line| line.starts_with("ok ")),
        "{report:#?}"
    );
    assert_eq!(report.len(), 7);
    let logged = server
        .store_with("doctor_logged", PostgresRows::logged)
        .await;
    let report = logged.rows().doctor().await.unwrap();
    assert!(
        report.iter().any(|line| line.contains("table: logged")),
        "{report:#?}"
    );
    let settings = "CREATE ROLE serial LOGIN SUPERUSER; ALTER ROLE serial SET default_transaction_isolation TO \
                    'repeatable read'";
    server.run(settings).await;
    let url = server.url_as("serial");
    let report = PostgresRows::open(&url)
        .unwrap()
        .schema("doctor")
        .doctor()
        .await
        .unwrap();
    assert!(
        report
            .iter()
            .any(|line| line.starts_with("warning  isolation")),
        "{report:#?}"
    );
}

#[tokio::test]
async fn without_tables_the_error_says_how_to_create_them() {
    let server = Server::shared();
    let store = PostgresRows::new(server.pool(1))
        .schema("nowhere")
        .into_store();
    for error in [
        store.ping().await.unwrap_err(),
        RateLimiter::new(store, Quota::per_hour(1))
            .check("ada")
            .await
            .unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
        assert!(
            error.to_string().contains("PostgresRows::migrate"),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_server_that_hangs_costs_no_more_than_the_deadline() {
    let server = Server::shared();
    server.store("hangs").await;
    let store = PostgresRows::new(server.pool(2))
        .schema("hangs")
        .into_store();
    let limiter = RateLimiter::new(store, Quota::per_hour(99));
    assert!(limiter.check("ada").await.unwrap().is_allowed());
    let mut locked = server.connect().await;
    let mut transaction = locked.begin().await.unwrap();
    transaction
        .execute("SELECT 1 FROM hangs.tollgate_counts FOR UPDATE")
        .await
        .unwrap();
    let start = std::time::Instant::now();
    let error = limiter.check("ada").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert!(
        start.elapsed() < Duration::from_secs(1),
        "{:?}",
        start.elapsed()
    );
    // Longer than the store waits for a batch, too. Nothing is sent twice.
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    transaction.rollback().await.unwrap();
    let (mut sent, mut answered) = (2, false);
    for _ in 0..200 {
        let outcome = limiter.check("ada").await;
        answered = outcome.is_ok();
        // While the circuit breaker is open, nothing is sent.
        sent +=
            u32::from(outcome.map_or_else(|error| error.kind() == ErrorKind::Timeout, |_| true));
        if answered {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(answered);
    let used = limiter.peek("ada").await.unwrap().used();
    assert!(used <= sent, "{used} charged, {sent} sent");
}

/// A machine that is cut off, with a process that has just locked a row.
#[tokio::test]
async fn a_process_that_stops_under_a_lock_holds_the_others_up_for_a_second() {
    let server = Server::shared();
    let store = server.store("stops").await;
    let limiter = RateLimiter::new(store, Quota::per_hour(9)).name("search");
    assert!(limiter.check("ada").await.unwrap().is_allowed());
    let row = server.text("SELECT name FROM stops.tollgate_counts").await;
    let mut stopped = server.connect().await;
    let lock = format!("BEGIN; SELECT * FROM stops.tollgate_lock_v1('{row}')");
    stopped.execute(raw_sql(&lock)).await.unwrap();
    let start = std::time::Instant::now();
    // The store gives up after a while, and asks again.
    while limiter.check("ada").await.is_err() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let waited = start.elapsed();
    assert!(
        waited > Duration::from_millis(300) && waited < Duration::from_secs(8),
        "{waited:?}"
    );
}

#[tokio::test]
async fn a_url_opens_postgres_and_every_other_store() {
    let server = Server::shared();
    PostgresRows::open(&server.url())
        .unwrap()
        .migrate()
        .await
        .unwrap();
    for url in [server.url(), "memory:".to_owned()] {
        let limiter = RateLimiter::new(
            tollgate_postgres::from_url(&url).unwrap(),
            Quota::per_hour(1),
        );
        assert!(limiter.check("ada").await.unwrap().is_allowed(), "{url}");
        assert!(!limiter.check("ada").await.unwrap().is_allowed(), "{url}");
    }
    for url in [
        "postgres://user:sec%ret@[::1",
        "postgres:",
        "mysql://user:sec%ret@a",
        // As sqlx reads these, the password is a part of the name of the database.
        "postgres:/user:sec%ret@a",
        "postgres:///user:sec%ret@a",
        "postgres://user:1/sec%ret@a",
        "postgres://user:1?sec%ret@a",
    ] {
        let error = tollgate_postgres::from_url(url).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Misconfigured);
        assert!(!error.to_string().contains("ret@"), "{error}");
    }
}

#[test]
fn no_error_and_no_store_shows_a_password_however_malformed_its_url_is() {
    let urls = &[
        "postgres://u:PASSWORD@h:1/d",
        "postgres:/u:PASSWORD@h",
        "postgresql://PASSWORD@h/d?sslmode=prefer",
        "postgresql://h/d?user=u&password=PASSWORD&port=1",
        "redis:/u:PASSWORD@h",
    ];
    let config = Config {
        cases: 5_000,
        failure_persistence: None,
        ..Config::default()
    };
    let shows_no_password = |url: String| {
        if let Err(error) = tollgate_postgres::from_url(&url) {
            hides_password(&url, &format!("{error} {error:?}"))?;
        }
        match PostgresRows::open(&url) {
            Ok(store) => hides_password(&url, &format!("{store:?}")),
            Err(error) => hides_password(&url, &format!("{error} {error:?}")),
        }
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _entered = runtime.enter();
    TestRunner::new(config)
        .run(&malformed(urls), shows_no_password)
        .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_runs_its_jobs_at_the_rate_of_the_limit() {
    let server = Server::shared();
    let url = server.url();
    let tests = std::env::current_exe().unwrap();
    let example = tests
        .ancestors()
        .nth(2)
        .unwrap()
        .join("examples/postgres_jobs");
    let run = tokio::task::spawn_blocking(move || {
        let start = std::time::Instant::now();
        let output = std::process::Command::new(example)
            .arg(url)
            .output()
            .unwrap();
        (output, start.elapsed())
    });
    let (output, took) = run.await.unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success() && text.contains("job 12 runs"),
        "{text}"
    );
    // Twelve jobs, five in any second.
    assert!(took > Duration::from_secs(2), "{took:?}");
}
