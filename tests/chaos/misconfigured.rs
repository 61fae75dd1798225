//! Redis runs, but rejects calls because of its configuration.

use std::time::Duration;

use tollgate::{ErrorKind, FailurePolicy, Quota, Rejection, RejectionReason, Source};

use crate::down::said;
use crate::drive::{By, Drive, ask, by_path};
use crate::suite::{beside_others, patient, report, short_or_long, until};
use crate::support::log;
use crate::support::node::Node;

const QUOTA: Quota = Quota::per_hour(1_000_000);

/// What is set up wrong.
struct Mistake<'a> {
    fault: &'a str,
    url: String,
    /// What the error and the line must say.
    says: &'a str,
    /// What mends it.
    mends: &'a [&'a str],
}

impl Mistake<'_> {
    /// The service starts, the policy answers, the log says once what is wrong, and when it is
    /// mended, Redis decides.
    async fn is_told(&self, server: &Node) {
        let Self {
            fault,
            url,
            says,
            mends,
        } = self;
        let _ = log::kept();
        // The fault is not one of time.
        let layer = by_path(patient(url), QUOTA);
        let drive = Drive::start(&layer, |_| "/ada".to_owned());
        drive
            .goes_on_for(Duration::from_millis(short_or_long(500, 5_000)))
            .await;
        let closed = layer.clone().on_failure(FailurePolicy::closed());
        let response = ask(&closed, "/ada").await;
        let answers = drive.end().await;
        let lines = log::kept();
        assert_eq!(
            answers.count(|answer| answer.by == By::Source(Source::Fallback)),
            answers.len(),
            "{fault}"
        );
        let Some(RejectionReason::Failed(error)) =
            response.extensions().get().map(Rejection::reason)
        else {
            panic!("{fault}: {response:?}");
        };
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{fault}: {error}");
        assert!(error.to_string().contains(says), "{fault}: {error}");
        let ours: Vec<_> = lines
            .iter()
            .filter(|line| line.contains("ERROR") && line.contains(says))
            .collect();
        // One of each layer, and one of the block list, whose refresh fails for as long as this.
        let of_list = |line: &&String| line.contains("failed to refresh the block list");
        let of_list = lines.iter().filter(of_list).count();
        let of_layers = lines.len() - of_list;
        assert!(
            !ours.is_empty() && of_layers <= 2 && of_list <= 1,
            "{fault}: {lines:#?}"
        );
        assert!(
            !lines.iter().any(|line| line.contains("hunter2")),
            "{lines:#?}"
        );
        report(
            3,
            fault,
            &format!(
                "{} requests answered by the policy; the log says once: {:?}",
                answers.len(),
                said(ours[0])
            ),
            "starts; a clear error and log line of its own",
        );

        let () = server.ask(mends);
        let mended = async || ask(&closed, "/ada").await.status() == 200;
        until(Duration::from_secs(2), "it heals", mended).await;
    }
}

#[test]
fn each_wrong_setup_has_an_error_and_a_line_of_its_own_and_heals_when_mended() {
    beside_others(async {
        let server = Node::start(&[]);
        let of_user = |user: &str| format!("redis://{user}:hunter2@{}", server.address());
        let () = server.ask(&["ACL", "SETUSER", "careful", "on", ">other", "~*", "+@all"]);
        let () = server.ask(&[
            "ACL", "SETUSER", "limited", "on", ">hunter2", "~*", "+@all", "-evalsha",
        ]);
        let mistakes = [
            Mistake {
                fault: "wrong password",
                url: of_user("careful"),
                says: "WRONGPASS",
                mends: &["ACL", "SETUSER", "careful", ">hunter2"],
            },
            Mistake {
                fault: "wrong ACL",
                url: of_user("limited"),
                says: "evalsha",
                mends: &["ACL", "SETUSER", "limited", "+evalsha"],
            },
        ];
        for mistake in mistakes {
            mistake.is_told(&server).await;
            let () = server.ask(&["FLUSHALL"]);
        }
        let () = server.ask(&["SET", "tollgate:v3:{default,/ada}:log", "somebody else's"]);
        let wrong_type = Mistake {
            fault: "wrong type of key",
            url: server.url(),
            says: "WRONGTYPE",
            mends: &["DEL", "tollgate:v3:{default,/ada}:log"],
        };
        wrong_type.is_told(&server).await;
    });
}
