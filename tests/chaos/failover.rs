//! The master is killed or stopped, and Sentinel promotes its replica, if it can.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use tollgate::{FailurePolicy, Quota, RateLimitLayer, RedisStore};

use crate::drive::{Answer, Answers, Drive, RATE, ask, by_path};
use crate::suite::{beside_others, report, until};
use crate::support::sentinel::Sentinels;

const KEYS: u64 = 20;

/// Three seconds' units of a key: it is used up when the replica is master, not before.
const LIMIT: u32 = 3 * RATE / 20;

/// A layer with the defaults, but for the policy, which shows the requests that Redis did not decide.
fn closed(servers: &Sentinels, limit: u32) -> RateLimitLayer {
    let store = RedisStore::open(&servers.url()).expect("a URL");
    by_path(store, Quota::per_hour(limit)).on_failure(FailurePolicy::closed())
}

/// Waits until the replica is the master. Returns when that was.
async fn promoted(servers: &Sentinels, drive: &Drive) -> Duration {
    let patience = Instant::now() + Duration::from_secs(30);
    loop {
        // A replica that is promoted hangs up on its clients.
        let role = servers.servers[1].try_ask::<Vec<redis::Value>>(&["ROLE"]);
        let role = role.unwrap_or_default();
        if role.first() == Some(&redis::Value::BulkString(b"master".to_vec())) {
            let promoted = drive.now();
            servers.be_patient();
            return promoted;
        }
        assert!(Instant::now() < patience, "no replica is promoted");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn a_failover_is_followed_within_two_seconds_and_gives_at_most_one_quota() {
    beside_others(async {
        let mut servers = Sentinels::start();
        servers.be_patient();
        let layer = closed(&servers, LIMIT);
        let drive = Drive::start(&layer, |turn| format!("/{}", turn % KEYS));
        drive.goes_on_for(Duration::from_secs(2)).await;
        let killed = drive.now();
        servers.servers[0].kill();
        servers.watch_closely();
        let promoted = promoted(&servers, &drive).await;
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

/// The admitted requests that the new master does not count. Each path is sent once.
fn lost(servers: &Sentinels, answers: &Answers) -> Vec<Answer> {
    let counted: BTreeSet<String> = servers.servers[1].ask(&["KEYS", "*"]);
    let is_counted = |turn| counted.contains(&format!("tollgate:v3:{{default,/{turn}}}:log"));
    let answers = answers.0.iter().enumerate();
    let lost = answers.filter(|(turn, answer)| answer.status == 200 && !is_counted(*turn));
    lost.map(|(_, answer)| *answer).collect()
}

/// Stops the master, and wakes it so long after the promotion of its replica.
fn the_master_wakes(fault: &str, late: Duration) {
    beside_others(async {
        let servers = Sentinels::start();
        servers.be_patient();
        let drive = Drive::start(&closed(&servers, 9), |turn| format!("/{turn}"));
        drive.goes_on_for(Duration::from_secs(1)).await;
        let [old, _] = &servers.servers[..] else {
            panic!("a master and a replica");
        };
        old.stop();
        servers.watch_closely();
        let promoted = promoted(&servers, &drive).await;
        drive.goes_on_for(late).await;
        old.resume();
        let woken = drive.now();
        drive.goes_on_for(Duration::from_secs(4)).await;
        let role: Vec<redis::Value> = old.ask(&["ROLE"]);
        let answers = drive.end().await;

        let enforcing = answers.recovery(promoted);
        let lost = lost(&servers, &answers);
        report(
            8,
            fault,
            &format!(
                "enforcing {:.0?} after the promotion; {} of {} admitted units are not counted",
                enforcing.after,
                lost.len(),
                answers.of_status(200),
            ),
            "enforcing within 2 s of the promotion; nothing is charged to the old master any more",
        );
        // Its connections would have been open all the time, and it took writes.
        assert_eq!(role[0], redis::Value::BulkString(b"master".to_vec()));
        enforcing.assert_within(Duration::from_secs(2));
        // Half a second's, as in a planned failover. Seen were at most 9.
        assert!(lost.len() < 500, "{} lost", lost.len());
        let followed = woken.max(promoted + Duration::from_secs(2));
        let later = lost.iter().find(|answer| answer.due >= followed);
        assert!(later.is_none(), "{later:?} is charged to the old master");
    });
}

#[test]
fn a_master_that_wakes_after_its_failover_is_asked_no_more() {
    let fault = "Sentinel failover of a master that hangs, and wakes two seconds later";
    the_master_wakes(fault, Duration::from_secs(2));
}

#[test]
fn a_master_that_wakes_in_the_moment_of_its_failover_is_asked_no_more() {
    let fault = "Sentinel failover of a master that hangs, and wakes at the promotion";
    the_master_wakes(fault, Duration::ZERO);
}

#[test]
fn without_a_quorum_redis_decides_as_long_as_the_master_lives() {
    beside_others(async {
        let mut servers = Sentinels::start();
        servers.be_patient();
        servers.be_patient();
        let layer = closed(&servers, 9);
        let drive = Drive::start(&layer, |turn| format!("/{turn}"));
        drive.goes_on_for(Duration::from_secs(1)).await;
        let begin = drive.now();
        for sentinel in &mut servers.sentinels[1..] {
            sentinel.kill();
        }
        drive.goes_on_for(Duration::from_secs(1)).await;
        // One sentinel is left to tell new connections where the master is.
        let cut = drive.now();
        let () = servers.servers[0].ask(&["CLIENT", "KILL", "TYPE", "normal"]);
        let started = closed(&servers, 9);
        until(
            Duration::from_secs(1),
            "a new service is decided",
            async || ask(&started, "/started").await.status() == 200,
        )
        .await;
        drive.goes_on_for(Duration::from_secs(1)).await;
        let killed = drive.now();
        servers.servers[0].kill();
        drive.goes_on_for(Duration::from_secs(2)).await;
        let returned = drive.now();
        for sentinel in &mut servers.sentinels[1..] {
            sentinel.restart();
        }
        servers.watch_closely();
        let promoted = promoted(&servers, &drive).await;
        drive.goes_on_for(Duration::from_secs(3)).await;
        let answers = drive.end().await;

        // What was on its way then may have been answered, or not.
        let margin = Duration::from_millis(100);
        let alive = answers.due(begin, cut - margin);
        let reconnected = answers.due(cut, killed - margin).recovery(cut);
        let dead = answers.due(killed + margin, returned);
        let enforcing = answers.recovery(promoted);
        report(
            8,
            "two of three sentinels killed, then the master, then the sentinels restarted",
            &format!(
                "{} of {} requests not decided by Redis while the master lives; exact {:.0?} after its connections are cut; {} of {} requests left to the policy while it is dead; enforcing {:.0?} after the promotion",
                alive.count(|answer| !answer.is_exact()),
                alive.len(),
                reconnected.after,
                dead.of_status(503),
                dead.len(),
                enforcing.after,
            ),
            "Redis decides while the master lives, then the policy; enforcing within 2 s of the promotion",
        );
        alive.assert_exact();
        reconnected.assert_within(Duration::from_secs(1));
        assert_eq!(dead.of_status(503), dead.len());
        enforcing.assert_within(Duration::from_secs(2));
    });
}
