//! Metrics, alerts, a dashboard: `cargo run --example observability --features metrics -- --traffic 50`
//!
//! A service with three limits, which serves `/metrics` for Prometheus, logs what tollgate tells, and sends
//! itself 50 requests a second; without `--traffic`, type what the first lines say. On a Redis, which is
//! worth a kill, with `TOLLGATE_STORE=redis://127.0.0.1:6379` before it. `--log info,tollgate::check=debug`
//! logs each check.
//!
//! Prometheus scrapes it, and evaluates the alerts, by the settings in `examples/observability/`:
//! `prometheus --config.file=examples/observability/prometheus.yml --storage.tsdb.path=target/prometheus`
//!
//! Grafana shows it: add that Prometheus (`http://127.0.0.1:9090`) under Connections > Data sources, then
//! import `examples/observability/dashboard.json` under Dashboards > New > Import.

#[path = "observability/record.rs"]
mod record;
mod support;
#[path = "observability/traffic.rs"]
mod traffic;

use std::error::Error;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::{env, io};

use axum::extract::{MatchedPath, Request};
use axum::http::HeaderName;
use axum::http::header::CONTENT_TYPE;
use axum::{Router, routing::get};
use lexopt::{Arg, Parser, ValueExt};
use tollgate::{Admin, MemoryStore, Quota, RateLimitLayer, Store, key, store};
use tower_http::trace::TraceLayer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::prelude::*;

type BoxError = Box<dyn Error + Send + Sync>;

/// The header that identifies a client. Its values are not secret here, so refused clients can be listed.
const CLIENT: &str = "x-api-key";

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let arguments = Arguments::read()?;
    // `Targets` reads what `RUST_LOG` says in most programs: a level, and others for some targets.
    tracing_subscriber::registry()
        .with(tracing_subscriber::fmt::layer().with_writer(io::stderr))
        .with(arguments.log)
        .init();
    // Before anything is counted: what is counted before is lost.
    let metrics = record::for_prometheus()?;

    let url = env::var("TOLLGATE_STORE").unwrap_or_else(|_| "memory:".into());
    let limits = Limits::on(store::from_url(&url)?)?;
    let search = limits.search.limiter().admin();
    let app = limits.before_routes();
    if arguments.traffic > 0 {
        tokio::spawn(traffic::send(app.clone(), arguments.traffic));
    }
    let app = app
        // Nobody limits or logs those who watch.
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
    /// How many requests a second it sends itself.
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
    fn on(store: Arc<dyn Store>) -> Result<Self, BoxError> {
        let client = || key::header(CLIENT).plain();
        Ok(Self {
            // Clients are counted by that header, others by address. Health checks are not counted.
            site: RateLimitLayer::new(store.clone(), "20/10s".parse::<Quota>()?)
                .name("site")
                .key(client().or(key::peer_ip()))
                .skip(|parts| parts.uri.path() == "/healthz"),
            // Remembers whom it refuses most. Who does not say who it is has no key.
            search: RateLimitLayer::new(store, [Quota::per_second(5), Quota::per_minute(120)])
                .name("search")
                .key(client())
                .track_refused(const { NonZeroUsize::new(100).unwrap() }),
            // On trial: it refuses nobody, and tells whom it would. Counted in a store of its own.
            export: RateLimitLayer::new(
                MemoryStore::new().named("exports"),
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
            .route("/healthz", get(async || "well\n"))
            .layer(self.site);
        Router::new()
            .route("/search", get(async || "found\n").layer(self.search))
            .route("/export", get(async || "exported\n").layer(self.export))
            .merge(site)
            // Whatever is logged of a request, tollgate's events too, is told with it. The names are
            // those of OpenTelemetry.
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

/// Lists the keys that were refused most. Metrics cannot: there are too many keys.
fn refused(search: &Admin) -> String {
    let busiest = search.busiest_refused(10);
    let lines = busiest.iter().map(|each| {
        let (key, refused, error) = (each.key.as_str(), each.refused, each.error);
        format!("{key} was refused {refused} times, or up to {error} fewer\n")
    });
    lines.collect()
}
