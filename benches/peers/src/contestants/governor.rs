//! `tower_governor`: GCRA in memory.

use axum::Router;
use axum::http::Request;
use tower_governor::governor::GovernorConfigBuilder;
use tower_governor::key_extractor::KeyExtractor;
use tower_governor::{GovernorError, GovernorLayer};

use crate::workload::Workload;

#[derive(Clone, Copy)]
struct OfHeader;

impl KeyExtractor for OfHeader {
    type Key = String;

    fn extract<T>(&self, request: &Request<T>) -> Result<String, GovernorError> {
        Ok(super::key(request.headers()).to_owned())
    }
}

pub(super) fn layer(router: Router, workload: &Workload) -> Router {
    let config = GovernorConfigBuilder::default()
        .period(workload.window / workload.limit)
        .burst_size(workload.limit)
        .key_extractor(OfHeader)
        .finish();
    router.layer(GovernorLayer::new(config.expect("a rate")))
}
