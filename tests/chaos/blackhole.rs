//! Packets vanish without an error.

use std::time::Duration;

use tollgate::{Quota, RedisStore};

use crate::drive::{Drive, by_path};
use crate::suite::{beside_others, report, short_or_long};
use crate::support::proxy::{Proxy, Wire};
use crate::support::redis_server::RedisServer;

const QUOTA: Quota = Quota::per_hour(1_000_000);

/// The kernel's TCP user timeout: how long sent data may stay unacknowledged.
const USER_TIMEOUT: Duration = Duration::from_secs(3);

/// Requests to a limit on a Redis behind a proxy.
async fn driven_for_a_second(server: &RedisServer) -> (Proxy, Drive) {
    let proxy = Proxy::before(server.port()).await;
    let layer = by_path(RedisStore::open(&proxy.url()).expect("a URL"), QUOTA);
    let drive = Drive::start(&layer, |turn| format!("/{}", turn % 10));
    drive.goes_on_for(Duration::from_secs(1)).await;
    (proxy, drive)
}

#[test]
fn a_connection_that_has_become_a_hole_is_replaced_and_a_whole_hole_heals() {
    beside_others(async {
        let server = RedisServer::start();
        let (proxy, drive) = driven_for_a_second(&server).await;
        // As when a router between has forgotten the connection: a new one would work.
        let forgotten = drive.now();
        proxy.set(Wire::HoleForOld);
        let span = short_or_long(Duration::from_secs(2), USER_TIMEOUT);
        drive.goes_on_for(span).await;
        // As when a cable is cut, and mended.
        let cut = drive.now();
        proxy.set(Wire::Hole);
        drive
            .goes_on_for(Duration::from_secs(short_or_long(1, 30)))
            .await;
        let mended = drive.now();
        proxy.set(Wire::Whole);
        drive.goes_on_for(Duration::from_secs(2)).await;
        let answers = drive.end().await;

        assert_eq!(answers.of_status(200), answers.len());
        // What was on its way when the hole opened is of the hole.
        let before_cut = answers.due(Duration::ZERO, cut - Duration::from_millis(100));
        let replaced = before_cut.recovery(forgotten);
        let healed = answers.recovery(mended);
        let slowest = answers.took().most;
        report(
            6,
            "blackhole: the old connection vanishes",
            &format!(
                "replaced after {:.0?}; no request took more than {slowest:.0?}",
                replaced.after
            ),
            &format!("detected within the user-timeout of {USER_TIMEOUT:?}; recovers without help"),
        );
        report(
            6,
            "blackhole: everything vanishes",
            &format!("exact {:.0?} after the end", healed.after),
            "recovers without help",
        );
        replaced.assert_within(USER_TIMEOUT);
        healed.assert_within(Duration::from_secs(1));
    });
}

#[test]
fn half_closed_and_slow_connections_are_no_trap() {
    beside_others(async {
        let server = RedisServer::start();
        let (proxy, drive) = driven_for_a_second(&server).await;
        for wire in [Wire::HalfClosed, Wire::Slow(Duration::from_millis(300))] {
            proxy.set(wire);
            drive.goes_on_for(Duration::from_secs(1)).await;
            proxy.set(Wire::Whole);
            drive.goes_on_for(Duration::from_secs(2)).await;
        }
        let whole = drive.now() - Duration::from_secs(2);
        let answers = drive.end().await;
        assert_eq!(answers.of_status(200), answers.len());
        let healed = answers.recovery(whole);
        let slowest = answers.took().most;
        report(
            6,
            "half-closed connections, and replies slower than the deadline",
            &format!(
                "exact {:.0?} after the end; no request took more than {slowest:.0?}",
                healed.after
            ),
            "recovers without help",
        );
        healed.assert_within(Duration::from_secs(1));
    });
}
