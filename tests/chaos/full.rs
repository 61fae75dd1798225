//! Redis has no memory left and evicts no keys.

use std::time::Duration;

use tollgate::{ErrorKind, Quota, RedisStore};

use crate::drive::{Answer, By, Drive, ask, by_path};
use crate::suite::{beside_others, closed, report, short_or_long, until};
use crate::support::redis_server::{RedisServer, run};

const USED_UP: u64 = 50;

#[test]
fn a_full_server_refuses_what_it_must_and_heals_with_its_memory() {
    beside_others(async {
        let server = RedisServer::start();
        let mut connection = server.connect();
        // Redis is asked about each refusal, too.
        let store = RedisStore::open(&server.url()).expect("a URL");
        let store = store.refusal_cache(Duration::ZERO);
        // A busy machine alone may need more than the default deadline.
        let store = store.deadline(Duration::from_secs(1));
        let layer = closed(by_path(store, Quota::per_hour(1)));
        for key in 0..USED_UP {
            let path = format!("/used-up/{key}");
            until(Duration::from_secs(5), "a key is used up", async || {
                ask(&layer, &path).await.status() == 429
            })
            .await;
        }
        let drive = Drive::start(&layer, |turn| {
            if turn % 2 == 0 {
                format!("/used-up/{}", turn / 2 % USED_UP)
            } else {
                format!("/new/{turn}")
            }
        });
        let span = Duration::from_secs(short_or_long(1, 10));
        drive.goes_on_for(span).await;
        let before = drive.now();
        run(&mut connection, &["CONFIG", "SET", "maxmemory", "1"]);
        let full = drive.now();
        drive.goes_on_for(span).await;
        let still_full = drive.now();
        run(&mut connection, &["CONFIG", "SET", "maxmemory", "0"]);
        let healed = drive.now();
        drive.goes_on_for(span).await;
        let answers = drive.end().await;

        // Requests with an even turn were refused before, and must be refused.
        let (mut refusals, mut admissions) = (0, 0);
        // Redis decides or says that it is full, also within the deadline.
        let is_answer =
            |answer: &Answer| answer.is_exact() || answer.by == By::Error(ErrorKind::Full);
        answers.assert_all(is_answer);
        for (turn, answer) in answers.0.iter().enumerate() {
            if !is_answer(answer) {
                continue;
            }
            let must_be = if turn % 2 == 0 { 429 } else { 200 };
            let is_full =
                (full..before.max(still_full)).contains(&answer.due) && answer.at() < still_full;
            if turn % 2 == 0 {
                assert_eq!(answer.status.as_u16(), must_be, "{answer:?}");
                refusals += usize::from(is_full);
            } else if is_full {
                assert_eq!(answer.by, By::Error(ErrorKind::Full), "{answer:?}");
                admissions += 1;
            } else if answer.due >= healed || answer.at() < before {
                assert_eq!(answer.status.as_u16(), must_be, "{answer:?}");
            }
        }
        let is_failure = |answer: &Answer| answer.by == By::Error(ErrorKind::Full);
        let last = answers
            .last(is_failure)
            .expect("it was full")
            .saturating_sub(still_full);
        report(
            7,
            "maxmemory reached under noeviction",
            &format!(
                "{refusals} refusals by Redis, all correct; {admissions} admissions left to the policy; the last {last:.1?} after there was memory"
            ),
            "refusals stay correct; admissions follow the policy; heals when memory does",
        );
    });
}
