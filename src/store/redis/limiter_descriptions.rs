//! The descriptions of limiters in Redis, by which services find out that they share a limiter by accident.

use std::env;
use std::path::Path;
use std::time::Duration;

use redis::Value;
use tokio::time::sleep;

use super::client::{Client, current_runtime};
use super::connection::KEYLESS;
use crate::error::Error;
use crate::key::Key;
use crate::store::requests::LimiterInfo;

/// The time from the first check of a limiter to the comparison, so that a starting service serves requests first.
const DELAY: Duration = Duration::from_secs(1);

/// A limiter that no process has begun to use for a day is forgotten.
const TIME_TO_LIVE_SECONDS: u32 = 86_400;

/// Longer descriptions are not compared.
const MAX_LENGTH: usize = 1_024;

/// Replaces the description of a limiter in Redis, in the background. Warns if another service has stored other
/// quotas under its name.
pub(super) fn compare(client: &Client, limiter: LimiterInfo<'_>) {
    // Outside of a runtime, checks fail and say so.
    let Ok(runtime) = current_runtime() else {
        return;
    };
    let description = Description {
        quotas: limiter.quotas().to_string(),
        program: program(),
    };
    let (client, name) = (client.clone(), limiter.limiter().clone());
    runtime.spawn(async move {
        sleep(DELAY).await;
        match client.exchange(&name, &description).await {
            Ok(Some(other)) if other.quotas != description.quotas => {
                let (prefix, quotas) = (client.names.prefix(), &description.quotas);
                let Description {
                    quotas: other,
                    program,
                } = other;
                tracing::warn!(
                    target: "tollgate::diagnostics",
                    limiter = name.as_str(),
                    "another process ({program}) counts a limiter of this name under the prefix {prefix:?} with \
                     other quotas, \"{other}\" there and \"{quotas}\" here: if it is another service, set \
                     `RedisStore::prefix` in both; if the quotas have just been changed, ignore this"
                );
            }
            Ok(_) => {}
            // The checks report a store that fails.
            Err(error) => tracing::debug!(
                target: "tollgate::diagnostics",
                limiter = name.as_str(),
                "failed to compare the limiter with those of other services: {error}"
            ),
        }
    });
}

/// Returns the file name of this program.
fn program() -> String {
    let path = env::args_os().next().unwrap_or_default();
    let name = Path::new(&path).file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// The description of a limiter. In Redis, its parts are lines.
#[derive(Debug, PartialEq, Eq)]
struct Description {
    quotas: String,
    program: String,
}

impl Description {
    fn text(&self) -> String {
        let Self { quotas, program } = self;
        format!("{quotas}\n{program}")
    }

    fn parse(text: &str) -> Option<Self> {
        let (quotas, program) = text.split_once('\n')?;
        Some(Self {
            quotas: quotas.to_owned(),
            program: program.to_owned(),
        })
    }
}

impl Client {
    /// Stores a description, and returns the one that was stored before. Needs Redis 6.2.
    async fn exchange(
        &self,
        limiter: &Key,
        description: &Description,
    ) -> Result<Option<Description>, Error> {
        let text = description.text();
        if text.len() > MAX_LENGTH {
            return Ok(None);
        }
        let mut set = redis::cmd("SET");
        set.arg(self.names.description(limiter)).arg(text);
        set.arg("EX").arg(TIME_TO_LIVE_SECONDS).arg("GET");
        let reply = self.within_deadline(self.query(KEYLESS, &set)).await?;
        Ok(match reply {
            Value::BulkString(bytes) => {
                let text = str::from_utf8(&bytes).ok();
                text.and_then(Description::parse)
            }
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_is_parsed_as_it_is_stored() {
        let description = Description {
            quotas: "100/minute, 5/second gcra".to_owned(),
            program: "shop\napi".to_owned(),
        };
        assert_eq!(Description::parse(&description.text()), Some(description));
        assert_eq!(Description::parse("of another program"), None);
    }
}
