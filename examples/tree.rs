//! Limits the user, the tenant and the whole service in one check: `cargo run --example tree`
//!
//! A user may send 5 requests per minute, a tenant 8 or what its plan says, and the service answers 12. An
//! export costs its tenant 4 requests. A request is charged at all three levels, or at none: a user who is
//! refused uses up nothing of the tenant's limit.

#[path = "support/store.rs"]
mod store;
mod support;

use std::collections::HashMap;
use std::error::Error;
use std::fmt::Write;
use std::io;
use std::sync::Arc;

use axum::{Extension, Router, routing::get};
use tollgate::{
    DecisionView, Headers, IetfDraft, Key, Level, MissingKey, Quota, RateLimitLayer, RateLimiter,
    key, problem_json,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_writer(io::stderr).init();
    let store = store::open(|redis| redis.prefix("tree"))?;

    // Tenant names are not secret. Unhashed, they are readable in logs and in Redis.
    let by_tenant = key::header("x-tenant-id").plain();
    let plans = HashMap::from([(by_tenant.of("acme"), Quota::per_minute(100))]);
    let plans: Arc<HashMap<Key, Quota>> = Arc::new(plans);
    let tenant = RateLimiter::new(store.clone(), Quota::per_minute(8)).name("tenant");
    let tenant = Level::new(tenant, by_tenant)
        .cost(|parts| match parts.uri.path() {
            "/export" => 4,
            _ => 1,
        })
        .quotas_for(move |tenant, _parts| {
            let plan = plans.get(tenant).cloned();
            async move { plan }
        })
        // A user without a tenant has the other two limits.
        .on_missing_key(MissingKey::Exempt);
    let service = RateLimiter::new(store.clone(), Quota::per_minute(12)).name("service");

    let limits = RateLimitLayer::new(store, Quota::per_minute(5))
        .name("user")
        .key(key::header("x-user").plain())
        .and_level(tenant)
        .and(service, key::global())
        // Lists the quotas of all levels.
        .headers(Headers::default().and(Headers::ietf(IetfDraft::Draft11)))
        // Names the levels that refuse.
        .responder(problem_json());
    let app = Router::new()
        .route("/", get(units_left))
        .route("/export", get(units_left))
        .layer(limits);

    let listener = support::listen().await?;
    let address = listener.local_addr()?;
    println!("Listening on {address}. Try each several times, and other users and tenants:");
    println!("  curl -i -H 'x-user: ada' -H 'x-tenant-id: initech' http://{address}/");
    println!("  curl -i -H 'x-user: bob' -H 'x-tenant-id: initech' http://{address}/export");
    axum::serve(listener, app).await?;
    Ok(())
}

/// Answers with the units that each level has left.
async fn units_left(Extension(decision): Extension<DecisionView>) -> String {
    let mut text = String::new();
    for level in decision.levels() {
        let (limiter, left) = (level.limiter(), level.remaining());
        let _ = writeln!(text, "{limiter}: {left} left");
    }
    text
}
