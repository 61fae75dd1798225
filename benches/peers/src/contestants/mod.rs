//! The contestants, each around the same handler.

mod governor;
mod increx;
#[cfg(feature = "limitador")]
mod limitador;
mod textbook;
mod tollgate;
mod tower_rate_limiter;
mod trypema;

use axum::Router;
use axum::http::HeaderMap;
use axum::routing::get;

use crate::workload::Workload;

#[derive(Clone, Copy)]
pub(crate) struct Contestant {
    pub(crate) name: &'static str,
    pub(crate) on_redis: bool,
}

/// It is left out where the server does not have the command.
pub(crate) const INCREX: &str = "increx";

/// The bare server first: the others are compared to it.
pub(crate) const ALL: &[Contestant] = &[
    in_process("bare"),
    on_redis("tollgate-redis"),
    on_redis("tollgate-redis-gcra"),
    in_process("tollgate-memory"),
    in_process("tollgate-memory-gcra"),
    in_process("tower_governor"),
    on_redis("textbook"),
    on_redis(INCREX),
    on_redis("tower-rate-limiter-gcra"),
    on_redis("tower-rate-limiter-fixed"),
    in_process("tower-rate-limiter-memory"),
    #[cfg(feature = "limitador")]
    in_process("limitador-memory"),
    #[cfg(feature = "limitador")]
    on_redis("limitador-redis"),
    #[cfg(feature = "limitador")]
    on_redis("limitador-cached"),
    on_redis("trypema-redis"),
    on_redis("trypema-hybrid"),
];

const fn in_process(name: &'static str) -> Contestant {
    let on_redis = false;
    Contestant { name, on_redis }
}

const fn on_redis(name: &'static str) -> Contestant {
    let on_redis = true;
    Contestant { name, on_redis }
}

const HEADER: &str = "x-api-key";

/// The handler behind a contestant of that name.
pub(crate) async fn router(name: &str, workload: &Workload, redis: &str) -> Router {
    let router = Router::new().route("/", get(|| async { "ok" }));
    match name {
        "bare" => router,
        "tower_governor" => governor::layer(router, workload),
        "textbook" => textbook::layer(router, workload, redis).await,
        INCREX => increx::layer(router, workload, redis).await,
        _ if name.starts_with("tollgate") => tollgate::layer(router, name, workload, redis),
        _ if name.starts_with("tower-rate-limiter") => {
            tower_rate_limiter::layer(router, name, workload, redis).await
        }
        #[cfg(feature = "limitador")]
        _ if name.starts_with("limitador") => limitador::layer(router, name, workload, redis).await,
        _ if name.starts_with("trypema") => trypema::layer(router, name, workload, redis).await,
        _ => panic!("no contestant is called {name}"),
    }
}

/// The key of a request. All requests of the load have one.
fn key(headers: &HeaderMap) -> &str {
    let value = headers.get(HEADER).expect("the load sends it");
    value.to_str().expect("the load sends ASCII")
}
