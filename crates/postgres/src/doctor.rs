//! Examines a server for its operator.

use sqlx::{Executor, PgPool, Row, raw_sql};
use tokio::time::Instant;
use tollgate::Error;

use crate::error::failed;
use crate::names::Names;

/// The age in seconds from which an open transaction is named: Postgres keeps every former version of the rows until it
/// ends.
const OLD_TRANSACTION: i64 = 60;

/// How often the round trip is measured.
const ROUND_TRIPS: usize = 50;

/// Examines the server. Returns a line for each topic.
pub(crate) async fn examine(pool: &PgPool, names: &Names) -> Result<Vec<String>, Error> {
    let row = pool
        .fetch_one(raw_sql(&names.facts()))
        .await
        .map_err(failed)?;
    let text = |index: usize| row.try_get::<String, _>(index).map_err(failed);
    let mut lines = vec![format!("ok       server: Postgres {}", text(0)?)];
    let is_standby: bool = row.try_get(1).map_err(failed)?;
    let role = if is_standby {
        "warning  role: a standby cannot count; use the address of the primary"
    } else {
        "ok       role: primary"
    };
    lines.push(role.to_owned());
    lines.push(match text(2)?.as_str() {
        "read committed" => "ok       isolation: read committed".to_owned(),
        other => format!(
            "warning  isolation: default_transaction_isolation is {other}: checks of a busy key are slower; set it to 'read \
             committed' for the connections of the store"
        ),
    });
    lines.push(
        match row
            .try_get::<Option<String>, _>(3)
            .map_err(failed)?
            .as_deref()
        {
            None => "warning  table: there is none; call `PostgresRows::migrate`".to_owned(),
            Some("u") => {
                "ok       table: unlogged; after a crash of the server, all limits begin anew"
                    .to_owned()
            }
            Some(_) => {
                "ok       table: logged; a crash of the server loses no charge that was answered"
                    .to_owned()
            }
        },
    );
    lines.push(match text(4)?.as_str() {
        "on" => "ok       autovacuum: on".to_owned(),
        _ => "warning  autovacuum: off: the table grows with every charge; turn it on".to_owned(),
    });
    let oldest: i64 = row.try_get(5).map_err(failed)?;
    lines.push(if oldest < OLD_TRANSACTION {
        "ok       transactions: none is old".to_owned()
    } else {
        format!(
            "warning  transactions: one is open for {oldest} s: until it ends, each charge leaves a dead row that checks of \
             its key read past; set idle_in_transaction_session_timeout"
        )
    });
    let mut took = Vec::new();
    for _ in 0..ROUND_TRIPS {
        let asked = Instant::now();
        pool.execute(raw_sql(&names.counts().read([].into_iter())))
            .await
            .map_err(failed)?;
        took.push(asked.elapsed());
    }
    took.sort_unstable();
    let median = took.get(ROUND_TRIPS / 2).copied().unwrap_or_default();
    lines.push(format!(
        "ok       round trip: {median:.1?}; a check takes two"
    ));
    Ok(lines)
}
