//! Plans of tenants from a file that is read again when it changes: `cargo run --example hot_reload`
//!
//! The first argument is the file; the default is `examples/hot_reload/plans.toml`. Change a plan while the service runs:
//! it applies from the next request, within half a second, and used units stay used. A file that cannot be read or
//! parsed changes nothing, and a log line names the error.

#[path = "../support/mod.rs"]
mod support;

use std::collections::HashMap;
use std::error::Error;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use std::{env, fs, io};

use axum::{Router, routing::get};
use tollgate::{MemoryStore, Plan, Quota, RateLimitLayer, key};

/// The time between two looks at the file.
const POLL: Duration = Duration::from_millis(250);

type BoxError = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    tracing_subscriber::fmt().with_writer(io::stderr).init();

    let path = env::args().nth(1);
    let path = path.unwrap_or_else(|| "examples/hot_reload/plans.toml".to_owned());
    // At the start, a broken file is an error: the service has no plans to keep.
    let plans = Arc::new(PlanFile::open(path.into())?);
    let followed = Arc::clone(&plans);
    // A thread of its own, because reading a file blocks.
    std::thread::spawn(move || followed.follow());

    // In production, authentication inserts the tenant: a client could send any header.
    let limit = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(3))
        .name("tenants")
        .key(key::header("x-tenant-id").plain())
        .quotas_for(move |_, parts| {
            let tenant = parts.headers.get("x-tenant-id");
            let tenant = tenant.and_then(|tenant| tenant.to_str().ok());
            let plan = tenant.map_or(Plan::Default, |tenant| plans.plan_of(tenant));
            async move { plan }
        });
    let app = Router::new()
        .route("/", get(|| async { "ok\n" }))
        .layer(limit);

    let listener = support::listen().await?;
    let address = listener.local_addr()?;
    println!("Listening on {address}. Try, then change the plan of initech and try again:");
    println!("  curl -i -H 'x-tenant-id: initech' http://{address}/");
    println!("  curl -i -H 'x-tenant-id: operations' http://{address}/");
    axum::serve(listener, app).await?;
    Ok(())
}

/// The plans in a file, by tenant.
struct PlanFile {
    path: PathBuf,
    plans: RwLock<Arc<HashMap<String, Plan>>>,
}

impl PlanFile {
    fn open(path: PathBuf) -> Result<Self, BoxError> {
        let plans = RwLock::new(Arc::new(toml::from_str(&fs::read_to_string(&path)?)?));
        Ok(Self { path, plans })
    }

    /// Unknown tenants have the quotas of the layer.
    fn plan_of(&self, tenant: &str) -> Plan {
        let plans = self.plans.read().unwrap_or_else(PoisonError::into_inner);
        plans.get(tenant).cloned().unwrap_or(Plan::Default)
    }

    /// Reads the file again and again, and replaces the plans when its text has changed.
    ///
    /// It compares texts, because a file system may store times in whole seconds, and a mounted configuration of
    /// Kubernetes is replaced by a link to another directory.
    fn follow(&self) {
        let mut last = String::new();
        loop {
            std::thread::sleep(POLL);
            let text = fs::read_to_string(&self.path).map_err(BoxError::from);
            if text.as_ref().is_ok_and(|text| *text == last) {
                continue;
            }
            let plans = text.and_then(|text| {
                last.clone_from(&text);
                Ok(toml::from_str(&text)?)
            });
            match plans {
                Ok(plans) => self.replace(plans),
                Err(error) => {
                    tracing::warn!("keeping the plans, {}: {error}", self.path.display());
                }
            }
        }
    }

    fn replace(&self, plans: HashMap<String, Plan>) {
        *self.plans.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(plans);
    }
}
