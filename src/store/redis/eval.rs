//! How a script is run: by its hash, by its text if the server does not know it, and at the time that the call tells if the
//! server refuses TIME in scripts.

use std::time::Instant;

use redis::{Cmd, RedisError, RedisResult, Value};

use super::client::Client;
use super::connection::{AcquiredConnection, KEYLESS};
use super::protocol::{BatchEntry, errors as error};
use super::script::{Script, time_trial};
use crate::error::Error;

/// A lease of slots is at least as many times as long as the error of the time that calls tell. The clocks of two callers
/// differ by at most twice the error, and a permit is lost a fifth of the lease before its slot is free.
const LEASE_OF_ERRORS: u32 = 10;

impl Client {
    /// Runs a script for these entries, or for none.
    ///
    /// `is_last` tells whether to wait for a cluster that has only some of the keys, because there is no other way.
    pub(super) async fn eval(
        &self,
        connection: &AcquiredConnection,
        script: &Script,
        call: &Cmd,
        is_last: bool,
        entries: &[BatchEntry<'_>],
    ) -> Result<Value, Error> {
        let mut tells_time = self.argument_clock.is_used();
        if !tells_time {
            match send(connection, script, call, is_last).await {
                Ok(reply) => return Ok(reply),
                Err(failure) => {
                    tells_time = error::may_refuse_time(&failure)
                        // Another call may have learned it meanwhile.
                        && (self.argument_clock.is_used()
                            || Box::pin(self.scripts_lack_time(connection)).await);
                    if !tells_time {
                        return Err(Box::pin(explained(connection, failure)).await);
                    }
                }
            }
        }
        Box::pin(self.eval_at_time(connection, script, call, is_last, entries)).await
    }

    /// Runs a script that may not read the server's clock.
    async fn eval_at_time(
        &self,
        connection: &AcquiredConnection,
        script: &Script,
        call: &Cmd,
        is_last: bool,
        entries: &[BatchEntry<'_>],
    ) -> Result<Value, Error> {
        let clock = &self.argument_clock;
        let estimate = loop {
            match clock.estimate(Instant::now()) {
                Some(estimate) => break estimate,
                None => self.read_time(connection).await?,
            }
        };
        self.meter.record_clock_error(estimate.error);
        // Also before a call that fails, since the next reading may be a better one.
        if clock.claim_reading(Instant::now()) {
            let client = self.clone();
            tokio::spawn(async move {
                let reading = async {
                    let connection = client.acquire(KEYLESS).await?;
                    client.read_time(&connection).await
                };
                // A call that finds no recent reading reports the error.
                let _ = client.within_deadline(reading).await;
            });
        }
        let leases = entries.iter().filter_map(BatchEntry::shortest_lease);
        if let Some(lease) = leases
            .min()
            .filter(|lease| *lease < LEASE_OF_ERRORS * estimate.error)
        {
            let server = connection.server();
            return Err(error::lease_too_short(&server, lease, estimate.error));
        }
        let call = script.at_time(call, estimate.time);
        match send(connection, script, &call, is_last).await {
            Ok(reply) => Ok(reply),
            Err(failure) => Err(explained(connection, failure).await),
        }
    }

    /// Reads the server's clock.
    async fn read_time(&self, connection: &AcquiredConnection) -> Result<(), Error> {
        let sent = Instant::now();
        let reply = connection.send(&redis::cmd("TIME"), true).await;
        let replied = Instant::now();
        let server = connection.server();
        let reply = reply.map_err(|failure| error::from_redis(failure, &server))?;
        let (seconds, micros): (u64, u64) = redis::from_redis_value(reply)
            .map_err(|_| error::malformed_reply("no time", &server))?;
        let time = seconds.saturating_mul(1_000_000).saturating_add(micros);
        self.argument_clock.learn(time, sent, replied);
        Ok(())
    }

    /// Returns whether scripts may not run TIME, though this process may. Then calls tell the time from now on.
    async fn scripts_lack_time(&self, connection: &AcquiredConnection) -> bool {
        let trial = time_trial(&self.names.block_list());
        let refusal = connection.send(&trial, true).await.ok();
        let refusal: Option<String> = refusal.and_then(|reply| redis::from_redis_value(reply).ok());
        let Some(refusal) = refusal.filter(|refusal| !refusal.is_empty()) else {
            return false;
        };
        if self.read_time(connection).await.is_err() {
            return false;
        }
        if self.argument_clock.start() {
            let refusal = refusal.trim_end_matches('.');
            tracing::warn!(
                target: "tollgate::diagnostics",
                "{} refuses TIME in scripts ({refusal}): this process tells each script the time, see the page \
                 \"Rented servers\" of the guide",
                connection.server()
            );
        }
        true
    }
}

/// Sends a call of a script by its hash. A server that does not know the script, which may happen at any time,
/// has not run it, and gets its text.
async fn send(
    connection: &AcquiredConnection,
    script: &Script,
    call: &Cmd,
    is_last: bool,
) -> RedisResult<Value> {
    match connection.send(call, is_last).await {
        Err(failure) if error::is_unknown_script(&failure) => {
            connection.send(&script.by_text(call), is_last).await
        }
        reply => reply,
    }
}

/// Explains the failure of a call, also of one that a server without EVALSHA did not answer.
async fn explained(connection: &AcquiredConnection, failure: RedisError) -> Error {
    let refusal = connection.scripts_refusal().await;
    error::from_redis(refusal.unwrap_or(failure), &connection.server())
}
