//! The attempts of a batch.

use std::time::Duration;

use super::batch::Batch;
use super::rows::{Rows, Written};
use crate::error::{Error, ErrorKind};
use crate::random::up_to;

/// The most attempts of a batch.
const MAX_ATTEMPTS: u32 = 100;

/// The longest pause before the third attempt. It doubles, up to 64 times as long. Without it, processes that write the same
/// rows without locks keep each other from writing.
const PAUSE: Duration = Duration::from_micros(100);

/// Asks until all requests of the batch are answered.
pub(super) async fn carry_out<R: Rows>(rows: &R, batch: &mut Batch) {
    let mut may_repeat = true;
    for attempt in 0..MAX_ATTEMPTS {
        if !batch.begin(attempt) {
            return;
        }
        if attempt > 1 && !rows.answers_at_once() {
            tokio::time::sleep(pause_before(attempt)).await;
        }
        match rows.change(batch).await {
            Ok(Written::All) => batch.finish(&[]),
            Ok(Written::Except(lost)) => batch.finish(&lost),
            Ok(Written::Nothing) => {}
            // Nothing can have been written. For example, the connection was cut while it was idle.
            Err(error) if may_repeat && is_unwritten(batch, &error) => may_repeat = false,
            Err(error) => batch.fail(&error),
        }
        if batch.is_finished() {
            return;
        }
    }
    let text = "other processes kept changing the rows of the check: it was not charged";
    batch.fail(&Error::new(ErrorKind::Unavailable, text));
}

fn is_unwritten(batch: &Batch, error: &Error) -> bool {
    error.kind() == ErrorKind::Unavailable && !batch.may_be_written()
}

fn pause_before(attempt: u32) -> Duration {
    let doublings = attempt.saturating_sub(2).min(6);
    up_to(PAUSE * 2_u32.pow(doublings))
}
