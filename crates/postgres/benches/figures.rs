//! Measures the store beside Redis on the same machine: `cargo bench --package tollgate-postgres`
//!
//! One hot key: 20 tasks ask it 1 000 times a second, in one process and in four. Then 10 000 keys, 64 checks at a time, as
//! fast as the store answers. Postgres runs with its defaults, `fsync` included, Redis without persistence. `-- --seconds 1`
//! sets how long each row takes.
#![expect(
    clippy::float_arithmetic,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "figures"
)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tollgate::store::Store;
use tollgate::{Algorithm, Quota, RateLimiter};
use tollgate_postgres::PostgresRows;

use server::Server;

#[expect(dead_code, reason = "the tests use more of it")]
#[path = "../tests/store/server.rs"]
mod server;

const LEASE: Duration = Duration::from_millis(100);

fn open(url: &str, schema: &str) -> Arc<dyn Store> {
    if url.starts_with("postgres") {
        let rows = PostgresRows::open(url).expect("a URL").schema(schema);
        Arc::new(rows.into_store().deadline(Duration::from_secs(5)))
    } else {
        let store = tollgate::RedisStore::open(url).expect("a URL");
        Arc::new(store.deadline(Duration::from_secs(5)))
    }
}

/// Asks one key at a steady rate. Returns how long each check took, in microseconds.
async fn hot(
    store: Arc<dyn Store>,
    tasks: u32,
    per_second: u32,
    seconds: f64,
    leased: bool,
) -> Vec<u64> {
    let mut limiter = RateLimiter::new(
        store,
        Quota::per_second(5_000).with_algorithm(Algorithm::Gcra),
    )
    .name("hot");
    if leased {
        limiter = limiter.lease(LEASE);
    }
    // Connects.
    let _ = limiter.check("key").await.expect("an answer");
    let interval = Duration::from_secs(1) * tasks / per_second;
    let start = Instant::now() + Duration::from_millis(100);
    let checks = (seconds * f64::from(per_second) / f64::from(tasks)) as u32;
    let asking = (0..tasks).map(|task| {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            let mut took = Vec::new();
            for check in 0..checks {
                let due = start + interval * check + interval * task / tasks;
                tokio::time::sleep_until(due).await;
                let asked = Instant::now();
                assert!(limiter.check("key").await.expect("an answer").is_allowed());
                took.push(asked.elapsed().as_micros() as u64);
            }
            took
        })
    });
    let mut took = Vec::new();
    for task in asking.collect::<Vec<_>>() {
        took.extend(task.await.expect("a task"));
    }
    took
}

fn print_hot(name: &str, mut took: Vec<u64>) {
    took.sort_unstable();
    let at = |part: f64| took[((took.len() - 1) as f64 * part) as usize] as f64 / 1_000.0;
    println!(
        "| {name} | {} | {:.2} | {:.2} | {:.2} |",
        took.len(),
        at(0.5),
        at(0.99),
        at(1.0)
    );
}

/// Runs the hot key in four processes.
fn four_processes(url: &str, schema: &str, seconds: f64, leased: bool) -> Vec<u64> {
    let children: Vec<_> = (0..4)
        .map(|_| {
            let mut command = Command::new(std::env::current_exe().expect("this program"));
            command.args([
                "child",
                url,
                schema,
                &seconds.to_string(),
                &leased.to_string(),
            ]);
            command
                .stdout(Stdio::piped())
                .spawn()
                .expect("this program")
        })
        .collect();
    let mut took = Vec::new();
    for mut child in children {
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        took.extend(
            lines
                .map_while(Result::ok)
                .filter_map(|line| line.parse::<u64>().ok()),
        );
        assert!(child.wait().expect("a child").success());
    }
    took
}

/// Checks 10 000 keys, 64 at a time. Returns the decisions and the seconds.
async fn keys(store: Arc<dyn Store>, quota: Quota, seconds: f64) -> (u64, f64) {
    let limiter = RateLimiter::new(store, quota).name("keys");
    let _ = limiter.check("0").await.expect("an answer");
    let start = Instant::now();
    let tasks = (0..64_u64).map(|task| {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            let mut random = task;
            let mut decisions = 0;
            while start.elapsed().as_secs_f64() < seconds {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1_442_695_040_888_963_407);
                let _ = limiter
                    .check(format!("user{}", (random >> 33) % 10_000))
                    .await
                    .expect("an answer");
                decisions += 1;
            }
            decisions
        })
    });
    let mut decisions = 0;
    for task in tasks.collect::<Vec<_>>() {
        decisions += task.await.expect("a task");
    }
    (decisions, start.elapsed().as_secs_f64())
}

/// The CPU time of a process and of its children, also of those that have ended, in seconds.
fn cpu_seconds(id: u32) -> f64 {
    let fields = |text: &str| -> Vec<String> {
        let rest = text.rsplit_once(')').map_or("", |(_, rest)| rest);
        rest.split_whitespace().map(str::to_owned).collect()
    };
    let mut ticks = 0.0;
    for entry in fs::read_dir("/proc").expect("Linux").flatten() {
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let (pid, fields) = (entry.file_name(), fields(&stat));
        let is_own = pid.to_str() == Some(&id.to_string());
        // The parent is the second field after the name, the times are the twelfth and the next three.
        if is_own || fields.get(1) == Some(&id.to_string()) {
            let own = fields
                .get(11..if is_own { 15 } else { 13 })
                .unwrap_or_default();
            ticks += own
                .iter()
                .filter_map(|field| field.parse::<f64>().ok())
                .sum::<f64>();
        }
    }
    ticks / 100.0
}

fn main() {
    let arguments: Vec<_> = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench")
        .collect();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    if let [child, url, schema, seconds, leased] = &arguments[..]
        && child == "child"
    {
        let seconds = seconds.parse().expect("a number");
        let took = runtime.block_on(hot(open(url, schema), 5, 250, seconds, leased == "true"));
        took.iter().for_each(|took| println!("{took}"));
        return;
    }
    let seconds = match &arguments[..] {
        [option, seconds] if option == "--seconds" => seconds.parse().expect("a number"),
        _ => 10.0,
    };
    runtime.block_on(measure(seconds));
}

async fn measure(seconds: f64) {
    let server = Server::start_with(&["fsync=on"]);
    for schema in ["unlogged", "logged"] {
        let rows = PostgresRows::new(server.pool(2)).schema(schema);
        let rows = if schema == "logged" {
            rows.logged()
        } else {
            rows
        };
        rows.migrate().await.expect("tables");
    }
    let version = sqlx::Row::get::<String, _>(
        &sqlx::Executor::fetch_one(&mut server.connect().await, "SHOW server_version")
            .await
            .expect("a version"),
        0,
    );
    let port = std::net::TcpListener::bind("127.0.0.1:0")
        .and_then(|free| free.local_addr())
        .expect("a port")
        .port();
    let mut redis = Command::new("redis-server");
    redis.args([
        "--port",
        &port.to_string(),
        "--save",
        "",
        "--bind",
        "127.0.0.1",
        "--dir",
        "/tmp",
    ]);
    let mut redis = redis
        .stdout(Stdio::null())
        .spawn()
        .expect("redis-server is installed");
    tokio::time::sleep(Duration::from_millis(500)).await;
    let redis_url = format!("redis://127.0.0.1:{port}");
    let stores = [
        ("Postgres, unlogged", server.url(), "unlogged"),
        ("Postgres, logged", server.url(), "logged"),
        ("Redis", redis_url.clone(), ""),
    ];
    println!("Postgres {version}, {seconds} s a row\n");
    println!(
        "| 1 key, 1 000 checks a second | checks | p50 ms | p99 ms | max ms |\n|---|---:|---:|---:|---:|"
    );
    for leased in [false, true] {
        for (name, url, schema) in &stores {
            let with = if leased { ", lease of 100 ms" } else { "" };
            let took = hot(open(url, schema), 20, 1_000, seconds, leased).await;
            print_hot(&format!("{name}, 20 tasks{with}"), took);
            let took = four_processes(url, schema, seconds, leased);
            print_hot(&format!("{name}, 4 processes × 5 tasks{with}"), took);
        }
    }
    println!(
        "\n| 10 000 keys, 64 at a time | decisions a second | server's CPU µs a decision | bytes a key | WAL bytes a decision |\n|---|---:|---:|---:|---:|"
    );
    for (quota_name, quota) in [
        (
            "1000/minute gcra",
            Quota::per_minute(1_000).with_algorithm(Algorithm::Gcra),
        ),
        ("1000/minute", Quota::per_minute(1_000)),
    ] {
        for (name, url, schema) in &stores {
            let is_postgres = url.starts_with("postgres");
            let id = if is_postgres { server.id() } else { redis.id() };
            let table = format!("{schema}.tollgate_counts");
            if is_postgres {
                server
                    .number(&format!("TRUNCATE {table}; SELECT 1::bigint"))
                    .await;
                // What others have written is not of this row.
                server.number("CHECKPOINT; SELECT 1::bigint").await;
            }
            let wal = "SELECT (pg_current_wal_lsn() - '0/0')::bigint";
            let wal_before = server.number(wal).await;
            let cpu_before = cpu_seconds(id);
            let (decisions, took) = keys(open(url, schema), quota.clone(), seconds).await;
            let cpu = (cpu_seconds(id) - cpu_before) * 1e6 / decisions as f64;
            let (mut bytes, mut wal_bytes) = ("–".to_owned(), "–".to_owned());
            if is_postgres {
                wal_bytes = format!(
                    "{:.0}",
                    (server.number(wal).await - wal_before) as f64 / decisions as f64
                );
                let size = format!(
                    "SELECT pg_total_relation_size('{table}') / greatest(count(*), 1) FROM {table}"
                );
                bytes = server.number(&size).await.to_string();
            }
            println!(
                "| {name}, {quota_name} | {:.0} | {cpu:.1} | {bytes} | {wal_bytes} |",
                decisions as f64 / took
            );
        }
    }
    redis.kill().expect("a child");
    redis.wait().expect("a child");
}
