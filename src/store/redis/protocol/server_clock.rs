//! The time of the server as far as the client knows it, for the windows of calendars.

use std::sync::atomic::{AtomicI64, Ordering};

use crate::clock::system_time;

/// The expected time of the server: the system's time until the server reports another one.
///
/// The server decides by its own clock. The client only has to send the windows around that time.
#[derive(Debug, Default)]
pub(crate) struct ServerClock(AtomicI64);

impl ServerClock {
    /// Returns the expected time of the server, in microseconds since 1970.
    pub(super) fn expected_time(&self) -> u64 {
        system_time().saturating_add_signed(self.0.load(Ordering::Relaxed))
    }

    pub(crate) fn learn(&self, server_time: u64) {
        let ahead = i128::from(server_time) - i128::from(system_time());
        self.0
            .store(i64::try_from(ahead).unwrap_or(0), Ordering::Relaxed);
    }
}
