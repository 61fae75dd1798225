//! Metrics, alerts and a dashboard: `cargo run --example observability --features metrics -- --traffic 50`
//!
//! A service with three limits. It serves `/metrics` for Prometheus, logs the events of tollgate, and sends
//! itself 50 requests per second. Without `--traffic` it sends none. `--log info,tollgate::check=debug` logs
//! each check. To see what an outage looks like, put `TOLLGATE_STORE=redis://127.0.0.1:6379` before the
//! command and stop that Redis.
//!
//! Prometheus scrapes the service and evaluates the alerts in `examples/observability/`:
//! `prometheus --config.file=examples/observability/prometheus.yml --storage.tsdb.path=target/prometheus`
//!
//! Grafana shows the dashboard: add that Prometheus (`http://127.0.0.1:9090`) under Connections > Data sources,
//! then import `examples/observability/dashboard.json` under Dashboards > New > Import.

mod record;
#[path = "../support/store.rs"]
mod store;
#[path = "../support/mod.rs"]
mod support;
mod traffic;

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::num::NonZeroUsize;

use axum::extract::{MatchedPath, Request};
use axum::http::HeaderName;
use axum::http::header::CONTENT_TYPE;
use axum::{Router, routing::get};
use lexopt::{Arg, Parser, ValueExt};
use tollgate::store::AnyStore;
use tollgate::{Admin, BlockRule, MemoryStore, Quota, RateLimitLayer, key};
use tower_http::trace::TraceLayer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

type BoxError = Box<dyn Error + Send + Sync>;

/// The header that identifies a client. Its values are not secret here, so `/refused` may list them.
const CLIENT: &str = "x-api-key";

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let arguments = Arguments::read()?;
    // `Targets` parses the usual syntax of `RUST_LOG`: a default level, and levels for some targets.
    tracing_subscriber::registry()
        .with(tracing_subscriber::fmt::layer().with_writer(io::stderr))
        .with(arguments.log)
        .init();
    // First, because metrics that are emitted without a recorder are lost.
    let metrics = record::for_prometheus()?;

    let store = store::open(|redis| redis.prefix("observability"))?;
    let limits = Limits::on(store)?;
    let search = limits.search.limiter().admin();
    let app = limits.before_routes();
    if arguments.traffic > 0 {
        tokio::spawn(traffic::send(app.clone(), arguments.traffic));
    }
    let app = app
        // These routes have no limits and no request log.
        .route("/metrics", get(async move || scraped(&metrics.render())))
        .route("/refused", get(async move || refused(&search)));

    let listener = support::listen().await?;
    let address = listener.local_addr()?;
    println!("Listening on {address}. Try:");
    println!("  for i in $(seq 9); do curl -s -H '{CLIENT}: ada' http://{address}/search; done");
    println!("  curl -s http://{address}/metrics | grep tollgate_ ; curl http://{address}/refused");
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}

struct Arguments {
    /// How many requests per second the service sends itself.
    traffic: u32,
    log: Targets,
}

impl Arguments {
    fn read() -> Result<Self, lexopt::Error> {
        let mut parser = Parser::from_env();
        let mut arguments = Self {
            traffic: 0,
            log: Targets::new().with_default(tracing::Level::INFO),
        };
        while let Some(argument) = parser.next()? {
            match argument {
                Arg::Long("traffic") => arguments.traffic = parser.value()?.parse()?,
                Arg::Long("log") => arguments.log = parser.value()?.parse()?,
                other => return Err(other.unexpected()),
            }
        }
        Ok(arguments)
    }
}

struct Limits {
    site: RateLimitLayer,
    search: RateLimitLayer,
    export: RateLimitLayer,
}

impl Limits {
    fn on(store: AnyStore) -> Result<Self, BoxError> {
        let client = || key::header(CLIENT).plain();
        Ok(Self {
            // The key is the client header, or the address if the header is missing. Health checks do not
            // count.
            // Reports use at most half of the limit.
            site: RateLimitLayer::new(store.clone(), "20/10s reports<=10".parse::<Quota>()?)
                .name("site")
                .share(|parts| (parts.uri.path() == "/report").then_some("reports"))
                .key(client().or(key::peer_ip()))
                .skip(|parts| parts.uri.path() == "/healthz"),
            // Keeps the keys that it refuses most, and blocks those that hammer on. A request without the header is
            // rejected with 400.
            search: RateLimitLayer::new(store, [Quota::per_second(5), Quota::per_minute(120)])
                .name("search")
                .key(client())
                .track_rejected_keys(const { NonZeroUsize::new(100).unwrap() })
                .block_after(const { BlockRule::refusals(1_000).doubling() }),
            // Dry run: admits every request, and counts those that it would reject. The name of the store
            // labels its metrics.
            export: RateLimitLayer::new(
                MemoryStore::new().name("exports"),
                "3/10s".parse::<Quota>()?,
            )
            .name("export")
            .key(client())
            .dry_run(),
        })
    }

    fn before_routes(self) -> Router {
        let site = Router::new()
            .route("/", get(async || "ok\n"))
            .route("/report", get(async || "reported\n"))
            .route("/healthz", get(async || "healthy\n"))
            .layer(self.site);
        Router::new()
            .route("/search", get(async || "found\n").layer(self.search))
            .route("/export", get(async || "exported\n").layer(self.export))
            .merge(site)
            // Log lines of a request, tollgate's too, have this span. The field names are OpenTelemetry's.
            .layer(
                TraceLayer::new_for_http().make_span_with(|request: &Request| {
                    let route = request.extensions().get::<MatchedPath>();
                    tracing::info_span!(
                        "request",
                        http.request.method = %request.method(),
                        http.route = route.map(MatchedPath::as_str),
                    )
                }),
            )
    }
}

fn scraped(metrics: &str) -> ([(HeaderName, &'static str); 1], String) {
    let text = "text/plain; version=0.0.4; charset=utf-8";
    ([(CONTENT_TYPE, text)], metrics.to_owned())
}

/// Lists the keys that were refused most. Metrics have no keys as labels, because there are too many.
fn refused(search: &Admin) -> String {
    let top_rejected = search.top_rejected_keys(10);
    let lines = top_rejected.iter().map(|each| {
        let (key, refused, error) = (each.key.as_str(), each.refused, each.error);
        format!("{key} was refused {refused} times, or up to {error} fewer\n")
    });
    lines.collect()
}
