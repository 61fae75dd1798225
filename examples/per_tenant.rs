//! Each tenant has the quotas of its plan, from a database: `cargo run --example per_tenant`
//!
//! The database stores each plan as text, such as `100/minute, 5/10s`. A cache keeps a plan for ten seconds.
//! Tenants without a plan, or with a plan that cannot be parsed, get the quotas of the layer. The database
//! here is a map with a delay.

mod support;

use std::collections::HashMap;
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::{Router, routing::get};
use quick_cache::sync::Cache;
use tokio::time::{sleep, timeout};
use tollgate::{Headers, IetfDraft, MemoryStore, Plan, Quota, RateLimitLayer, key};

const TENANT: &str = "x-tenant-id";

const DATABASE: [(&str, &str); 4] = [
    ("acme", "100/minute, 5/10s"),
    ("initech", "2/minute"),
    ("operations", "exempt"),
    ("hooli", "a lot"),
];

type BoxError = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    tracing_subscriber::fmt().with_writer(io::stderr).init();

    let plans = Arc::new(Plans::new());
    // These quotas are for tenants without a plan.
    let limit = RateLimitLayer::new(MemoryStore::new(), "3/minute".parse::<Quota>()?)
        .name("tenants")
        // Adds the headers of the IETF draft, which list every quota of a plan.
        .headers(Headers::default().and(Headers::ietf(IetfDraft::Draft11)))
        // Tenant names are not secret. Unhashed, they are readable in logs and in Redis.
        .key(key::header(TENANT).plain())
        .quotas_for(move |_, parts| {
            let plans = Arc::clone(&plans);
            let tenant = parts.headers.get(TENANT).cloned();
            async move {
                // A client can send a value that is not text. That is not a failure of the database.
                let Some(tenant) = tenant.as_ref().and_then(|tenant| tenant.to_str().ok()) else {
                    return Ok(Plan::Default);
                };
                // The layer has no timeout for this future, so it needs one.
                timeout(Duration::from_millis(200), plans.of(tenant)).await?
            }
        });
    let app = Router::new()
        .route("/", get(|| async { "ok\n" }))
        .layer(limit);

    let listener = support::listen().await?;
    let address = listener.local_addr()?;
    println!(
        "Listening on {address}. Try the tenants acme, initech, operations, hooli and any other:"
    );
    println!("  curl -i -H 'x-tenant-id: acme' http://{address}/");
    println!(
        "  for i in 1 2 3; do curl -si -H 'x-tenant-id: initech' http://{address}/ | head -1; done"
    );
    axum::serve(listener, app).await?;
    Ok(())
}

/// The plans, cached for ten seconds. The cache is bounded, because clients can invent tenants.
struct Plans {
    cache: Cache<String, (Instant, Plan)>,
    database: HashMap<&'static str, &'static str>,
}

impl Plans {
    fn new() -> Self {
        Self {
            cache: Cache::new(10_000),
            database: HashMap::from(DATABASE),
        }
    }

    async fn of(&self, tenant: &str) -> Result<Plan, BoxError> {
        if let Some((at, plan)) = self.cache.get(tenant)
            && at.elapsed() < Duration::from_secs(10)
        {
            return Ok(plan);
        }
        let plan = match self.select(tenant).await {
            None => Plan::Default,
            Some(plan) => plan.parse()?,
        };
        self.cache
            .insert(tenant.to_owned(), (Instant::now(), plan.clone()));
        Ok(plan)
    }

    async fn select(&self, tenant: &str) -> Option<&'static str> {
        println!("SELECT plan FROM tenants WHERE name = '{tenant}'");
        sleep(Duration::from_millis(20)).await;
        self.database.get(tenant).copied()
    }
}
