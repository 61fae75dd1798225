//! How a script is run: by its hash, by its text if the server does not know it, and at the time that the call tells if the
//! server refuses TIME in scripts.

use std::time::Instant;

use redis::Value;

use super::client::Client;
use super::protocol::{BatchEntry, errors as error};
use super::real_time::Deadline;
use super::script::{Script, ScriptCall, time_trial};
use super::transport::{Failure, Line, Route};
use crate::error::{Act, Error, warning};

/// A lease of slots is at least as many times as long as the error of the time that calls tell. The clocks of two callers
/// differ by at most twice the error, and a permit is lost a fifth of the lease before its slot is free.
const LEASE_OF_ERRORS: u32 = 10;

impl Client {
    /// Runs a script for these entries, or for none.
    pub(super) async fn eval(
        &self,
        route: &Route,
        line: &mut Line,
        script: &Script,
        call: &ScriptCall,
        entries: &[BatchEntry<'_>],
    ) -> Result<Value, Error> {
        if self.deployment.argument_clock.is_used() {
            return Box::pin(self.eval_at_time(route, line, script, call, entries)).await;
        }
        let failure = match self.send(route, line, script, call, entries).await {
            Ok(reply) => return Ok(reply),
            Err(failure) => failure,
        };
        line.leave_place();
        let tells_time = failure.error().is_some_and(error::may_refuse_time)
            // Another call may have learned it meanwhile.
            && (self.deployment.argument_clock.is_used()
                || Box::pin(self.scripts_lack_time(route)).await);
        if !tells_time {
            return Err(self.error(failure));
        }
        *line = self.reserve(route).await?;
        Box::pin(self.eval_at_time(route, line, script, call, entries)).await
    }

    /// Runs a script that may not read the server's clock.
    async fn eval_at_time(
        &self,
        route: &Route,
        line: &mut Line,
        script: &Script,
        call: &ScriptCall,
        entries: &[BatchEntry<'_>],
    ) -> Result<Value, Error> {
        let clock = &self.deployment.argument_clock;
        let estimate = loop {
            match clock.estimate(Instant::now()) {
                Some(estimate) => break estimate,
                None => self.read_time(route).await?,
            }
        };
        self.meter.record_clock_error(estimate.error);
        // Also before a call that fails, since the next reading may be a better one.
        if clock.claim_reading(Instant::now()) {
            let client = self.clone();
            let route = route.clone();
            // A call that finds no recent reading reports the error.
            tokio::spawn(async move { client.read_time(&route).await });
        }
        let shortest_lease = entries.iter().filter_map(BatchEntry::shortest_lease).min();
        if let Some(lease) = shortest_lease
            && lease < LEASE_OF_ERRORS * estimate.error
        {
            return Err(error::lease_too_short(line.server(), lease, estimate.error));
        }
        let call = script.at_time(call, estimate.time);
        self.send(route, line, script, &call, entries)
            .await
            .map_err(|failure| self.error(failure))
    }

    async fn read_time(&self, route: &Route) -> Result<(), Error> {
        let mut line = self.reserve(route).await?;
        let sent = Instant::now();
        let command = redis::cmd("TIME");
        let outcome = route.send(&mut line, &command, true, self.deadline).await;
        let replied = Instant::now();
        let reply = outcome.map_err(|failure| self.error(failure))?;
        let (seconds, micros): (u64, u64) = redis::from_redis_value(reply)
            // No other command replies with two numbers.
            .map_err(|_| self.error(line.out_of_sync()))?;
        let time = seconds.saturating_mul(1_000_000).saturating_add(micros);
        self.deployment.argument_clock.learn(time, sent, replied);
        Ok(())
    }

    /// Returns whether scripts may not run TIME, though this process may. Then calls tell the time from now on.
    async fn scripts_lack_time(&self, route: &Route) -> bool {
        let trial = time_trial(&self.names.block_list());
        let route_to_blocks = route.to_slot(self.block_list_slot());
        let Ok(reply) = self.query(&route_to_blocks, &trial).await else {
            return false;
        };
        // No script replies with such a text.
        let Value::BulkString(refusal) = reply else {
            return false;
        };
        let refusal = String::from_utf8(refusal).unwrap_or_default();
        if refusal.is_empty() || self.read_time(route).await.is_err() {
            return false;
        }
        if self.deployment.argument_clock.start() {
            let cause = refusal.trim_end_matches('.');
            tracing::warn!(
                target: "tollgate::diagnostics",
                code = warning::NO_TIME_IN_SCRIPTS,
                "{} refuses TIME in scripts ({cause}): this process tells each script the time, see the page \
                 \"Rented servers\" of the guide",
                route.server()
            );
        }
        true
    }

    /// Sends a call of a script by its hash. A server that does not know the script, which may happen at any time,
    /// has not run it, and gets its text. Fails if the reply belongs to another call.
    ///
    /// An error reply has no number. On a connection that is out of sync, it may belong to another call until a reply with a
    /// number shows that: so a foreign NOSCRIPT sends the call once more.
    async fn send(
        &self,
        route: &Route,
        line: &mut Line,
        script: &Script,
        call: &ScriptCall,
        entries: &[BatchEntry<'_>],
    ) -> Result<Value, Failure> {
        // A call that can be divided does not wait for a cluster that has only some of the keys.
        let waits = entries.len() <= 1;
        let reply = match route.send(line, &call.command, waits, self.deadline).await {
            Err(failure) if failure.act() == Act::UnknownScript => {
                // From the start: the node may have been asked in place of another.
                line.leave_place();
                *line = route.reserve(&mut Deadline::new(self.deadline)).await?;
                let call = script.by_text(call);
                route.send(line, &call, waits, self.deadline).await
            }
            reply => reply,
        }?;
        call.number
            .stripped(reply)
            .ok_or_else(|| line.out_of_sync())
    }
}
