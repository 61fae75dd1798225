//! The command INCREX in a middleware function.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};

use crate::support::increx::Increx;
use crate::workload::Workload;

pub(super) async fn layer(router: Router, workload: &Workload, redis: &str) -> Router {
    let increx = Increx::connect(redis, workload.limit, workload.window).await;
    let increx = increx.expect("the parent has looked");
    router.layer(from_fn_with_state(Arc::new(increx), limit))
}

async fn limit(State(increx): State<Arc<Increx>>, request: Request, next: Next) -> Response {
    let key = format!("increx:{}", super::key(request.headers()));
    if increx.check(&key, 1).await {
        next.run(request).await
    } else {
        StatusCode::TOO_MANY_REQUESTS.into_response()
    }
}
