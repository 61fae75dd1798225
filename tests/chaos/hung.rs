//! Redis hangs: it accepts requests and does not answer.

use std::time::Duration;

use tollgate::{FailurePolicy, Quota, RateLimiter, RedisStore, Source};

use crate::drive::{Answer, Answers, By, Drive, by_path, key_of};
use crate::suite::{alone, patient, report, short_or_long};
use crate::support::log;
use crate::support::node::Node;

const KEYS: u64 = 10;
const QUOTA: Quota = Quota::per_hour(1_000_000);
/// The default.
const DEADLINE: Duration = Duration::from_millis(100);

/// How many checks a store has on their way at most.
const CAP: u64 = 256;

const MS: Duration = Duration::from_millis(1);

#[test]
fn a_hung_server_costs_a_request_the_deadline_and_once_that_is_known_nothing() {
    alone(async {
        let server = Node::start(&[]);
        let store = RedisStore::open(&server.url()).expect("a URL");
        let falls_back = by_path(store.clone(), QUOTA);
        let drive = Drive::start(&falls_back, |turn| format!("/{}", turn % KEYS));
        // Other limits on the same store, with the other policies.
        let others = [FailurePolicy::open(), FailurePolicy::closed()].map(|policy| {
            let layer = by_path(store.clone(), QUOTA)
                .name("other")
                .on_failure(policy);
            Drive::start_at(100, &layer, |_| "/ada".to_owned())
        });
        drive.goes_on_for(Duration::from_secs(1)).await;
        let stopped = drive.now();
        server.stop();
        drive.goes_on_for(Duration::from_secs(5)).await;
        let resumed = drive.now();
        server.resume();
        drive
            .goes_on_for(Duration::from_secs(short_or_long(3, 10)))
            .await;
        let [open, closed] = others;
        let (open, closed) = (open.end().await, closed.end().await);
        let answers = drive.end().await;
        let lines = log::kept();

        let hung = answers.due(stopped, resumed);
        let (waited, late) = (hung.waited(), hung.late());
        report(
            1,
            "SIGSTOP for 5 s: the wait of a request",
            &format!(
                "p99.9 {:.1?}, most {:.1?}, at a deadline of {DEADLINE:?}; the machine's part in it: p99.9 {:.1?}, most {:.1?}",
                waited.p999, waited.most, late.p999, late.most
            ),
            "deadline + 10 ms at p99.9, + 50 ms at most",
        );
        // When the first of them were late, the breaker opened.
        let known = answers.due(stopped + 2 * DEADLINE, resumed);
        let added = known.took().p99;
        report(
            1,
            "the same, with the breaker open",
            &format!(
                "{} requests, p99 {added:.0?} in the middleware; the machine's part in it: {:.1?}",
                known.len(),
                known.late().p99
            ),
            "added p99 under 1 ms",
        );
        let exact = answers.recovery(resumed);
        let stale = stale(&server, &answers).await;
        report(
            1,
            "the same, checks executed that nobody waited for",
            &stale.to_string(),
            &format!("at most {CAP}"),
        );

        // One pause of the machine is in all requests that wait meanwhile, but makes few of them late.
        assert!(
            waited.p999 <= DEADLINE + 10 * MS + late.most,
            "{waited:?}, {late:?}"
        );
        assert!(waited.most <= DEADLINE + 50 * MS + late.most, "{waited:?}");
        assert!(added < MS + known.late().p99, "{added:?}");
        exact.assert_within(Duration::from_secs(1));
        assert!(stale <= CAP, "{stale}");
        // The response is that of the policy: no key is above its limit here.
        let by = |answers: &Answers, by: By, status: u16| {
            let known = answers.due(stopped + 2 * DEADLINE, resumed);
            assert_eq!(
                known.count(|answer| (answer.by, answer.status.as_u16()) == (by, status)),
                known.len(),
                "{by:?}"
            );
        };
        by(&answers, By::Source(Source::Fallback), 200);
        by(&open, By::Source(Source::None), 200);
        let refused = closed.due(stopped, resumed);
        assert_eq!(refused.of_status(503), refused.len());
        // For each limit a line when it begins, and one when it ends.
        assert_eq!(lines.len(), 6, "{lines:#?}");
    });
}

#[test]
fn redis_decides_again_within_a_second_of_each_of_several_hangs() {
    alone(async {
        let server = Node::start(&[]);
        let layer = by_path(RedisStore::open(&server.url()).expect("a URL"), QUOTA);
        let mut drive = Drive::start(&layer, |turn| format!("/{}", turn % KEYS));
        drive.goes_on_for(Duration::from_secs(1)).await;
        let (hangs, shortest) = short_or_long((3, 1), (9, 3));
        let mut spans = Vec::new();
        for hang in 0..hangs {
            server.stop();
            // When a hang ends, the next probe is due soon in one and late in another.
            let span = Duration::from_secs(shortest) + hang * 137 * MS;
            drive.goes_on_for(span).await;
            let resumed = drive.now();
            server.resume();
            drive.goes_on_until_recovered().await;
            drive.goes_on_for(1_500 * MS).await;
            spans.push((resumed, drive.now()));
        }
        let answers = drive.end().await;
        let recovered = spans.into_iter().map(|(resumed, end)| {
            answers
                .due(Duration::ZERO, end - DEADLINE)
                .recovery(resumed)
        });
        let mut recovered: Vec<_> = recovered.collect();
        recovered.sort_unstable_by_key(|exact| exact.after);
        let (median, worst) = (
            recovered[recovered.len() / 2],
            recovered[recovered.len() - 1],
        );
        report(
            1,
            &format!("SIGSTOP {hangs} times, for {shortest} s and more: after SIGCONT"),
            &format!(
                "exact after {:.0?} at worst, {:.0?} in the median",
                worst.after, median.after
            ),
            "exact within 1 s",
        );
        for exact in recovered {
            exact.assert_within(Duration::from_secs(1));
        }
    });
}

/// How many units were charged without an admitted request.
async fn stale(server: &Node, answers: &Answers) -> u64 {
    let store = patient(&server.url());
    let direct = RateLimiter::new(store, QUOTA);
    let mut charged = 0;
    for key in 0..KEYS {
        let peeked = direct.peek(key_of(&format!("/{key}"))).await;
        charged += u64::from(peeked.expect("an answer").used());
    }
    let is_told = |answer: &Answer| answer.status == 200 && answer.is_exact();
    charged - u64::try_from(answers.count(is_told)).expect("few")
}
