//! A service to start from, with all that production needs: `cargo run --example service --features metrics`
//!
//! Copy this directory and `examples/observability`. Each setting is a variable of the environment, with this default:
//!
//! | variable | default | sets |
//! |---|---|---|
//! | `TOLLGATE_STORE` | `memory:` | the store, such as `redis://127.0.0.1:6379?prefix=service` |
//! | `TOLLGATE_ADDR` | `0.0.0.0:3000` | where clients connect |
//! | `TOLLGATE_METRICS_ADDR` | `0.0.0.0:9464` | where Prometheus connects, and clients cannot |
//! | `TOLLGATE_PROXIES` | none | the networks of trusted proxies, such as `10.0.0.0/8` |
//! | `TOLLGATE_CUSTOMER` | `100/minute` | the quotas of a customer |
//! | `TOLLGATE_REPLICAS` | `1` | how many processes share the limits while the store fails |
//!
//! Redis, Prometheus and Grafana with the dashboard start by `docker compose -f examples/service/compose.yml up`.

#[path = "../observability/record.rs"]
mod record;

use std::env::{self, VarError};
use std::error::Error;
use std::io;
use std::net::SocketAddr;

use axum::http::header::CONTENT_TYPE;
use axum::{Router, routing::get};
use tokio::net::TcpListener;
use tokio::signal::{
    ctrl_c,
    unix::{SignalKind, signal},
};
use tollgate::store::{AnyStore, from_url};
use tollgate::{ConfigError, FailurePolicy, Quota, RateLimitLayer, RateLimiter, key};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_writer(io::stderr).init();
    // First, because metrics that are emitted without a recorder are lost.
    let metrics = record::for_prometheus()?;
    let store = from_url(&setting("TOLLGATE_STORE", "memory:")?)?;
    let limits = Limits::read(&store)?;
    let exports = limits.exports.limiter().clone();

    let listener = TcpListener::bind(setting("TOLLGATE_ADDR", "0.0.0.0:3000")?).await?;
    let scraped = TcpListener::bind(setting("TOLLGATE_METRICS_ADDR", "0.0.0.0:9464")?).await?;
    let address = listener.local_addr()?;
    println!("Listening on {address}. Try:");
    println!("  curl -i -H 'authorization: Bearer ada' http://{address}/");
    println!("  curl -i http://{address}/healthz");
    println!("Metrics on {}", scraped.local_addr()?);

    let text = [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    let scrapes = Router::new().route("/metrics", get(async move || (text, metrics.render())));
    let scrapes = axum::serve(scraped, scrapes);
    tokio::spawn(async move { scrapes.await });
    let app = limits
        .router()
        .into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app)
        .with_graceful_shutdown(stopped())
        .await?;
    // Gives back what this process holds, or it stays taken until its lease ends.
    exports.release().await?;
    Ok(())
}

/// Reads a variable of the environment. One that is no text is an error, and not the default.
fn setting(name: &str, default: &str) -> Result<String, Box<dyn Error>> {
    match env::var(name) {
        Err(VarError::NotPresent) => Ok(default.to_owned()),
        value => value.map_err(|error| format!("{name}: {error}").into()),
    }
}

/// Waits for the end of the process: Ctrl-C, or SIGTERM of Kubernetes, systemd and Docker.
async fn stopped() {
    let Ok(mut terminated) = signal(SignalKind::terminate()) else {
        return ctrl_c().await.unwrap_or_default();
    };
    tokio::select! {
        _ = ctrl_c() => {}
        _ = terminated.recv() => {}
    }
}

struct Limits {
    addresses: RateLimitLayer,
    customers: RateLimitLayer,
    exports: RateLimitLayer,
}

impl Limits {
    fn read(store: &AnyStore) -> Result<Self, Box<dyn Error>> {
        let quotas = setting("TOLLGATE_CUSTOMER", "100/minute")?;
        let replicas = setting("TOLLGATE_REPLICAS", "1")?.parse()?;
        let without_redis = FailurePolicy::fall_back().replicas(replicas);
        let customers = RateLimitLayer::try_new(store.clone(), &*quotas)?
            .name("customer")
            .key(key::authorization())
            .on_failure(without_redis);
        let running = RateLimiter::new(store.clone(), Quota::in_flight(2)).name("exports");
        Ok(Self {
            addresses: by_address(store)?.on_failure(without_redis),
            customers,
            exports: RateLimitLayer::from(running)
                .key(key::authorization())
                .on_failure(without_redis),
        })
    }

    fn router(self) -> Router {
        // The limit by address is outside, so that a flood is refused before its credentials are verified. Your
        // authentication stands between the two.
        Router::new()
            .route("/", get(async || "ok\n"))
            .route("/export", get(async || "exported\n").layer(self.exports))
            .layer(self.customers)
            .layer(self.addresses)
            // After the limits, which do not count it.
            .route("/healthz", get(async || "healthy\n"))
    }
}

fn by_address(store: &AnyStore) -> Result<RateLimitLayer, Box<dyn Error>> {
    let limit = RateLimitLayer::new(store.clone(), Quota::per_minute(300)).name("address");
    let proxies = setting("TOLLGATE_PROXIES", "")?;
    if proxies.is_empty() {
        return Ok(limit.key(key::peer_ip()));
    }
    let client: Result<_, ConfigError> = key::client_ip().behind(&*proxies).checked();
    Ok(limit.key(client?))
}
