//! Three limits of a request: three levels of one layer, next to three layers. Prints a table; README.md says how it
//! is measured.
#![expect(
    clippy::float_arithmetic,
    clippy::cast_precision_loss,
    reason = "what is measured is shown to three digits"
)]

use std::sync::Arc;
use std::time::Duration;

use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tollgate::{Quota, RateLimitLayer, RateLimiter, RedisStore, key};

#[path = "support/mod.rs"]
mod support;

use support::args::{Args, Usage};
use support::http_client::HttpClient;
use support::load::{self, Decide, Load};
use support::redis_server::RedisServer;
use support::spent::{Meter, Spent};
use support::table::{self, beside, median, short};

const CONNECTIONS: usize = 64;
const USERS: usize = 10_000;
const TENANTS: usize = 100;

/// No request is refused.
const QUOTA: Quota = Quota::per_second(1_000_000);

/// Puts layers around a router.
type Way = fn(Router, &RedisStore) -> Router;

/// The ways to limit a request. The first one is the base of the ratios.
const WAYS: [(&str, Way); 4] = [
    ("three layers", |app, store| {
        let layer = |name: &str| RateLimitLayer::from(limiter(store, name));
        app.layer(layer("user").key(key::header("x-user")))
            .layer(layer("tenant").key(key::header("x-tenant")))
            .layer(layer("service").key(key::global()))
    }),
    ("one layer of three levels", |app, store| {
        let layer = RateLimitLayer::from(limiter(store, "user")).key(key::header("x-user"));
        app.layer(
            layer
                .and(limiter(store, "tenant"), key::header("x-tenant"))
                .and(limiter(store, "service"), key::global()),
        )
    }),
    ("one layer of one level", |app, store| {
        app.layer(RateLimitLayer::from(limiter(store, "user")).key(key::header("x-user")))
    }),
    ("no layer", |app, _| app),
];

fn limiter(store: &RedisStore, name: &str) -> RateLimiter {
    RateLimiter::new(store.clone(), QUOTA).name(name)
}

/// One turn of a way.
struct Sample {
    per_second: f64,
    /// p50 and p99 in microseconds.
    tail: [f64; 3],
    spent: Spent,
}

fn main() -> Result<(), lexopt::Error> {
    let Args { rounds, span, .. } = Args::parse(Usage {
        parts: &[],
        option: None,
        rounds: 9,
        span: Duration::from_secs(1),
    })?;
    let mut samples = WAYS.map(|_| Vec::new());
    for _ in 0..rounds {
        for ((_, limited), of_way) in WAYS.iter().zip(&mut samples) {
            of_way.push(measure(*limited, span));
        }
    }
    let head = "|× layers|requests/s|p50 µs|p99|Redis CPU µs|scripts|commands";
    let head: Vec<_> = head.split('|').map(str::to_owned).collect();
    let rows = WAYS.iter().zip(&samples);
    let rows: Vec<_> = rows
        .map(|((name, _), own)| row(name, own, &samples[0]))
        .collect();
    let title = format!(
        "{CONNECTIONS} connections, {USERS} users, {TENANTS} tenants; medians of {rounds} rounds of {span:?}"
    );
    table::print(&title, &head, &rows);
    Ok(())
}

/// Measures a new server on a new Redis, after a fifth of the time.
fn measure(limited: Way, span: Duration) -> Sample {
    let redis = RedisServer::start();
    let store = RedisStore::open(&redis.url()).expect("a URL");
    // A slow machine is not what is measured.
    let store = store.deadline(Duration::from_secs(10));
    let app = Router::new().route("/", get(async || "ok"));
    let app = limited(app, &store);
    let server = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let listener = server.block_on(TcpListener::bind("127.0.0.1:0"));
    let listener = listener.expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    server.spawn(async move { axum::serve(listener, app).await });
    // The client has one thread: it leaves the rest of the machine to the server.
    let client = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let mut meter = Meter::new(redis.connect());
    let sample = client.expect("a runtime").block_on(async {
        let client = HttpClient::connect(port, CONNECTIONS).await;
        let client = Arc::new(Client(client));
        let load = |span| Load {
            tasks: CONNECTIONS,
            keys: USERS,
            span,
        };
        load::run(&client, load(span / 5)).await;
        meter.begin();
        let done = load::run(&client, load(span)).await;
        assert_eq!(done.admitted, done.decisions, "a request was not admitted");
        Sample {
            per_second: done.per_second(),
            tail: done.latencies.tail(),
            spent: meter.spent().per(done.decisions),
        }
    });
    server.shutdown_background();
    sample
}

struct Client(HttpClient);

impl Decide for Client {
    async fn decide(&self, key: usize) -> bool {
        let (user, tenant) = (key, key % TENANTS);
        let headers = format!("x-user: {user}\r\nx-tenant: {tenant}\r\n");
        self.0.get(&headers).await
    }
}

fn row(name: &str, own: &[Sample], base: &[Sample]) -> Vec<String> {
    let of = |value: &dyn Fn(&Sample) -> f64| median(own.iter().map(value));
    let ratios = own.iter().zip(base);
    let ratios = ratios.map(|(own, base)| own.per_second / base.per_second);
    let [per_second, ratio] = beside(of(&|sample| sample.per_second), median(ratios));
    let mut row = vec![name.to_owned(), ratio, per_second];
    row.extend([0, 1].map(|at| short(of(&|sample| sample.tail[at]))));
    let costs: [fn(&Spent) -> f64; 3] = [|one| one.cpu, |one| one.scripts, |one| one.commands];
    row.extend(costs.map(|cost| short(of(&|sample| cost(&sample.spent)))));
    row
}
