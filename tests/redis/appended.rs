//! The bytes that a decision adds to the append-only file, and to the stream of a replica. A refusal adds none.

use std::time::Duration;

use redis::{Commands, Connection};
use tollgate::store::TestClock;
use tollgate::{Algorithm, Quota, RateLimiter, RedisStore};

use crate::support::redis_server::RedisServer;

/// A clock that a test sets. The server keeps its own time for the times to live.
const CLOCK: &str = "local now_text = redis.call('GET', 'test:clock')\nlocal now = now_text + 0\n";

const WINDOW: Duration = Duration::from_secs(60);

/// The limit of each log.
const LIMIT: u32 = 100;

fn size_of_file(connection: &mut Connection) -> u64 {
    let info: String = redis::cmd("INFO")
        .arg("persistence")
        .query(connection)
        .unwrap();
    let size = info
        .lines()
        .find_map(|line| line.strip_prefix("aof_current_size:"));
    size.expect("an append-only file").parse().unwrap()
}

/// The bytes of all admitted decisions, and how many there were; the same for the refused ones.
#[derive(Debug, Default)]
struct Appended {
    admitted: (u64, u64),
    refused: (u64, u64),
}

/// Logs with windows of one, two, three… times `WINDOW`.
fn logs(count: u32) -> Vec<Quota> {
    (1..=count)
        .map(|windows| Quota::new(LIMIT, windows * WINDOW))
        .collect()
}

/// Offers so many units in each window, until units leave as fast as they come, and then for four windows more.
async fn appended(quotas: Vec<Quota>, offered: u32, cost: u32) -> Appended {
    let server = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "no"]);
    let mut connection = server.connect();
    let settled = 2 * offered * u32::try_from(quotas.len()).unwrap();
    let store = RedisStore::open(&server.url()).unwrap();
    let store = store
        .with_clock_source(CLOCK, TestClock::new())
        .deadline(Duration::from_secs(10))
        .refusal_cache(Duration::ZERO)
        .block_list_refresh(Duration::ZERO);
    let limiter = RateLimiter::new(store, quotas);
    let mut now = Duration::from_secs(1_800_000_000);
    let mut appended = Appended::default();
    for check in 0..settled + 4 * offered {
        now += WINDOW / offered;
        let () = connection
            .set("test:clock", now.as_micros().to_string())
            .unwrap();
        let before = size_of_file(&mut connection);
        let is_allowed = limiter.check_n("ada", cost).await.unwrap().is_allowed();
        let bytes = size_of_file(&mut connection) - before;
        if check >= settled {
            let (sum, count) = if is_allowed {
                &mut appended.admitted
            } else {
                &mut appended.refused
            };
            *sum += bytes;
            *count += 1;
        }
    }
    appended
}

#[tokio::test]
async fn a_decision_appends_few_bytes_and_a_refusal_none() {
    let is_before_7 = RedisServer::start().is_before_redis_7();
    // The name of the key is 29 bytes.
    for (count, offered, most) in [
        (1, 10, 105),
        (1, 90, 97),
        (1, 110, 97),
        (4, 10, 99),
        (4, 90, 97),
        (4, 110, 97),
    ] {
        let appended = appended(logs(count), offered, 1).await;
        let text = format!("{count} logs, {offered} units a window: {appended:?}");
        let (bytes, charges) = appended.admitted;
        // A transaction around each script.
        let most = if is_before_7 { most + 36 } else { most };
        assert!(bytes <= most * charges, "{text}");
        let (bytes, refusals) = appended.refused;
        assert_eq!(refusals > 0, count * offered > LIMIT, "{text}");
        assert_eq!(bytes, 0, "{text}");
    }
}

#[tokio::test]
async fn a_refusal_of_several_units_or_of_several_algorithms_appends_nothing() {
    let algorithms = Algorithm::ALL.iter().copied();
    let of_each = algorithms.map(|algorithm| Quota::new(LIMIT, WINDOW).with_algorithm(algorithm));
    for (quotas, cost) in [(logs(1), 3), (logs(4), 3), (of_each.collect(), 1)] {
        let appended = appended(quotas, 150, cost).await;
        let (bytes, refusals) = appended.refused;
        assert!(refusals > 0 && bytes == 0, "{appended:?}");
    }
}
