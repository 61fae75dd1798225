//! The master is killed, and Sentinel promotes its replica.

use std::time::{Duration, Instant};

use tollgate::{FailurePolicy, Quota, RedisStore};

use crate::drive::{Answer, Drive, RATE, by_path};
use crate::suite::{alone, report};
use crate::support::sentinel::Sentinels;

const KEYS: u64 = 20;

/// Three seconds' units of a key: it is used up when the replica is master, not before.
const LIMIT: u32 = 3 * RATE / 20;

#[test]
fn a_failover_is_followed_within_two_seconds_and_gives_at_most_one_quota() {
    alone(async {
        let mut servers = Sentinels::start();
        let store = RedisStore::open(&servers.url()).expect("a URL");
        let layer = by_path(store, Quota::per_hour(LIMIT)).on_failure(FailurePolicy::closed());
        let drive = Drive::start(&layer, |turn| format!("/{}", turn % KEYS));
        drive.goes_on_for(Duration::from_secs(2)).await;
        let killed = drive.now();
        servers.servers[0].kill();
        let patience = Instant::now() + Duration::from_secs(30);
        let promoted = loop {
            // A replica that is promoted hangs up on its clients.
            let role = servers.servers[1].try_ask::<Vec<redis::Value>>(&["ROLE"]);
            let role = role.unwrap_or_default();
            if role.first() == Some(&redis::Value::BulkString(b"master".to_vec())) {
                break drive.now();
            }
            assert!(Instant::now() < patience, "no replica is promoted");
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        drive.goes_on_for(Duration::from_secs(5)).await;
        let answers = drive.end().await;

        let mut admitted = vec![0_u32; usize::try_from(KEYS).expect("few")];
        for (turn, answer) in answers.0.iter().enumerate() {
            let of_key = &mut admitted[turn % usize::try_from(KEYS).expect("few")];
            *of_key += u32::from(answer.status == 200);
        }
        let over: Vec<u32> = admitted
            .iter()
            .map(|units| units.saturating_sub(LIMIT))
            .collect();
        let enforcing = answers.recovery(promoted);
        let is_undecided = |answer: &Answer| answer.status == 503;
        report(
            8,
            "Sentinel failover by kill -9 of the master",
            &format!(
                "promoted after {:.1?}, enforcing {:.0?} later; {} requests refused meanwhile; {} units of {} too many admitted, at most {} of a key",
                promoted - killed,
                enforcing.after,
                answers.count(is_undecided),
                over.iter().sum::<u32>(),
                admitted.iter().sum::<u32>(),
                over.iter().max().expect("keys"),
            ),
            "enforcing within 2 s of the promotion; at most one quota per key too many",
        );
        // Every key was used up after all: else too many could not be seen.
        assert!(
            admitted.iter().all(|units| *units + 5 >= LIMIT),
            "{admitted:?}"
        );
        enforcing.assert_within(Duration::from_secs(2));
        assert!(over.iter().all(|units| *units <= LIMIT), "{over:?}");
    });
}
