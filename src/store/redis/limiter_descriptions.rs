//! The descriptions of limiters in Redis, by which services find out that they share a limiter by accident.

use std::env;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use redis::Value;
use tokio::time::sleep;

use super::client::{Client, current_runtime};
use super::connection::KEYLESS;
use crate::decision::StoreId;
use crate::error::Error;
use crate::key::Key;
use crate::store::requests::LimiterInfo;

/// The time from the first check of a limiter to the comparison, so that a starting service serves requests first.
const DELAY: Duration = Duration::from_secs(1);

/// A limiter that no process has begun to use for a day is forgotten.
const TIME_TO_LIVE_SECONDS: u32 = 86_400;

/// Longer descriptions are not compared.
const MAX_LENGTH: usize = 1_024;

/// The number of this process: random, because ids of processes repeat in containers.
static PROCESS: LazyLock<String> =
    LazyLock::new(|| format!("{:016x}", RandomState::new().hash_one(0)));

/// Replaces the description of a limiter in Redis, in the background. Warns if another process, or another store of
/// this one, has stored other quotas under its name.
///
/// Limiters of one store are compared in this process, when they exist at the same time.
pub(super) fn compare(client: &Client, store: StoreId, limiter: LimiterInfo<'_>) {
    // Outside of a runtime, checks fail and say so.
    let Ok(runtime) = current_runtime() else {
        return;
    };
    let description = Description {
        quotas: limiter.quotas.to_string(),
        process: PROCESS.clone(),
        store: store.number().to_string(),
        program: program(),
    };
    let (client, name) = (client.clone(), limiter.limiter.clone());
    runtime.spawn(async move {
        sleep(DELAY).await;
        match client.exchange(&name, &description).await {
            Ok(Some(other)) => description.warn_of(&other, &name, client.names.prefix()),
            Ok(None) => {}
            // The checks report a store that fails.
            Err(error) => tracing::debug!(
                target: "tollgate::diagnostics",
                limiter = name.as_str(),
                "failed to compare the limiter with other services: {error}"
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
    process: String,
    /// The number of the store in its process.
    store: String,
    program: String,
}

impl Description {
    fn text(&self) -> String {
        let Self {
            quotas,
            process,
            store,
            program,
        } = self;
        format!("{quotas}\n{process}\n{store}\n{program}")
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.splitn(4, '\n').map(str::to_owned);
        Some(Self {
            quotas: lines.next()?,
            process: lines.next()?,
            store: lines.next()?,
            program: lines.next()?,
        })
    }

    /// Warns if this description has other quotas than the one that was stored before it.
    fn warn_of(&self, other: &Self, limiter: &Key, prefix: &str) {
        let (there, here) = (&other.quotas, &self.quotas);
        if there == here {
            return;
        }
        if other.process != self.process {
            let program = &other.program;
            tracing::warn!(
                target: "tollgate::diagnostics",
                limiter = limiter.as_str(),
                "another process ({program}) counts a limiter of this name under the prefix {prefix:?} with other \
                 quotas, \"{there}\" there and \"{here}\" here: if it is another service, set \
                 `RedisStore::prefix` in both; if the quotas have just been changed, ignore this"
            );
        } else if other.store != self.store {
            tracing::warn!(
                target: "tollgate::diagnostics",
                limiter = limiter.as_str(),
                "another store of this process counts a limiter of this name under the prefix {prefix:?} with other \
                 quotas, \"{there}\" there and \"{here}\" here: give each limiter its own name; if the quotas \
                 have just been changed, ignore this"
            );
        }
    }
}

impl Client {
    /// Stores a description, and returns the one that was stored before.
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
            process: PROCESS.clone(),
            store: "0".to_owned(),
            program: "shop\napi".to_owned(),
        };
        assert_eq!(Description::parse(&description.text()), Some(description));
        assert_eq!(Description::parse("of another program"), None);
    }
}
