//! Redis is not running.

use std::time::Duration;

use tollgate::{FailurePolicy, Quota, RedisStore, Source};

use crate::drive::{By, Drive, ask, by_path, decided_by};
use crate::suite::{beside_others, report, short_or_long};
use crate::support::log;
use crate::support::node::Node;

const QUOTA: Quota = Quota::per_hour(1_000_000);

#[test]
fn a_killed_server_is_found_again_on_its_port_within_a_second() {
    beside_others(async {
        let mut server = Node::start(&[]);
        let store = RedisStore::open(&server.url()).expect("a URL");
        let layer = by_path(store.clone(), QUOTA);
        let drive = Drive::start(&layer, |turn| format!("/{}", turn % 10));
        let closed = by_path(store, QUOTA)
            .name("closed")
            .on_failure(FailurePolicy::closed());
        let refused = Drive::start_at(100, &closed, |_| "/ada".to_owned());
        let mut worst = Duration::ZERO;
        let mut spans = Vec::new();
        for _ in 0..short_or_long(1, 10) {
            drive.goes_on_for(Duration::from_secs(1)).await;
            let killed = drive.now();
            server.kill();
            drive.goes_on_for(Duration::from_secs(2)).await;
            let restarted = drive.now();
            server.restart();
            spans.push((killed, restarted, drive.now()));
            drive.goes_on_for(Duration::from_secs(2)).await;
        }
        let (answers, refused) = (drive.end().await, refused.end().await);
        let (mut by_policy, mut slowest) = (0, Duration::ZERO);
        // What was on its way then may have been answered, or not.
        let margin = Duration::from_millis(50);
        for (index, (killed, restarted, answers_at)) in spans.iter().enumerate() {
            let end = spans
                .get(index + 1)
                .map_or(Duration::MAX, |(killed, ..)| *killed - margin);
            let exact = answers.due(Duration::ZERO, end).recovery(*answers_at);
            exact.assert_within(Duration::from_secs(1));
            worst = worst.max(exact.after);
            let down = answers.due(*killed + margin, *restarted);
            assert_eq!(
                down.count(|answer| answer.by == By::Source(Source::Fallback)),
                down.len()
            );
            by_policy += down.len();
            slowest = slowest.max(down.took().most);
            let down = refused.due(*killed + margin, *restarted);
            assert_eq!(down.of_status(503), down.len());
        }
        assert_eq!(answers.of_status(200), answers.len());
        report(
            2,
            "kill -9 and restart on the same port",
            &format!(
                "{by_policy} requests answered by the policy meanwhile, the slowest in {slowest:.1?}; exact {worst:.0?} after the port answers"
            ),
            "policy answers; exact within 1 s; the service needs no restart",
        );
    });
}

#[test]
fn a_service_starts_while_redis_is_down_and_counts_exactly_when_it_comes() {
    beside_others(async {
        let mut server = Node::start(&[]);
        server.kill();
        let store = RedisStore::open(&server.url()).expect("a URL");
        let layer = by_path(store, QUOTA);
        let first = ask(&layer, "/ada").await;
        assert_eq!(
            (first.status().as_u16(), decided_by(&first)),
            (200, By::Source(Source::Fallback))
        );
        let drive = Drive::start(&layer, |turn| format!("/{}", turn % 10));
        drive.goes_on_for(Duration::from_secs(1)).await;
        let lines = log::kept();
        server.restart();
        let there = drive.now();
        drive.goes_on_for(Duration::from_secs(2)).await;
        let answers = drive.end().await;
        assert_eq!(answers.of_status(200), answers.len());
        let exact = answers.recovery(there);
        assert_eq!(lines.len(), 1, "{lines:#?}");
        assert!(lines[0].contains("refused"), "{lines:#?}");
        report(
            3,
            "started while Redis is down",
            &format!(
                "every request answered; one line: {:?}; exact {:.0?} after the port answers",
                said(&lines[0]),
                exact.after
            ),
            "starts; a clear error and log line of its own",
        );
        exact.assert_within(Duration::from_secs(1));
    });
}

/// A line of the log, without its time and level.
pub(crate) fn said(line: &str) -> &str {
    line.split_once("tollgate::").map_or(line, |(_, said)| said)
}
