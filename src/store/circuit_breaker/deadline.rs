//! The time limit of a request to a store.

use std::time::Duration;

use crate::error::{Error, ErrorKind};

/// Waits for an outcome until the deadline has passed.
///
/// # Errors
///
/// That of the future, or of kind [`ErrorKind::Timeout`].
pub(in crate::store) async fn within_deadline<T>(
    deadline: Duration,
    future: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let outcome = tokio::time::timeout(deadline, future).await;
    outcome.unwrap_or_else(|_| {
        let text = format!("the store did not answer within {deadline:?}");
        Err(Error::new(ErrorKind::Timeout, text))
    })
}
