//! The connection is cut after Redis received a call and before the reply arrived: it is unknown whether the
//! call was executed.

use std::time::Duration;

use tollgate::{Quota, RateLimiter, RedisStore};

use crate::drive::{Answer, Drive, by_path, key_of};
use crate::suite::{PATIENCE, beside_others, closed, patient, report, short_or_long, until};
use crate::support::proxy::{Proxy, Wire};
use crate::support::redis_server::RedisServer;

#[test]
fn a_check_whose_reply_is_lost_is_counted_once_or_refused() {
    beside_others(async {
        let server = RedisServer::start();
        let proxy = Proxy::before(server.port()).await;
        let store = RedisStore::open(&proxy.url()).expect("a URL");
        let quota = Quota::per_hour(9);
        let layer = closed(by_path(store, quota.clone()));
        proxy.set(Wire::CutBeforeReply(20));
        // Each path is asked once: what Redis holds for it is 0, 1, or too much.
        let drive = Drive::start(&layer, |turn| format!("/{turn}"));
        drive
            .goes_on_for(Duration::from_secs(short_or_long(3, 100)))
            .await;
        until(PATIENCE, "replies are lost", async || proxy.cuts() >= 10).await;
        let answers = drive.end().await;

        let direct = RateLimiter::new(patient(&server.url()), quota);
        let (mut counted, mut lost) = (0, 0);
        for (turn, answer) in answers.0.iter().enumerate() {
            let key = key_of(&format!("/{turn}"));
            let used = direct.peek(key).await.expect("the server answers").used();
            counted += used;
            match answer.status.as_u16() {
                200 => assert_eq!(used, 1, "{answer:?}"),
                503 => {
                    assert!(used <= 1, "counted {used} times: {answer:?}");
                    lost += used;
                }
                status => panic!("{status}: {answer:?}"),
            }
        }
        assert!(lost > 0, "no reply was lost");
        let refused = answers.count(|answer: &Answer| answer.status == 503);
        report(
            5,
            "connection cut after the request was forwarded, before the reply",
            &format!(
                "{} checks, {} cuts: {counted} counted, {refused} refused, {lost} of them counted too; none twice",
                answers.len(),
                proxy.cuts(),
            ),
            "counted once or refused, never twice",
        );
    });
}
