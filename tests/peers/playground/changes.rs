//! Settings that change while a stream runs: the whole page shows the new ones, and the stream goes on.

use super::Playground;
use crate::support::redis_server::RedisServer;

impl Playground {
    /// Waits until the stream has sent this many requests since the last change.
    async fn asked(&self, least: u64) {
        self.browser
            .until("#asked", |text| {
                text.replace(',', "").parse::<u64>().expect(text) >= least
            })
            .await;
        assert_eq!(self.browser.text("#stream").await, "Stop stream");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_in_mid_stream_shows_everywhere_and_the_stream_goes_on() {
    let redis = RedisServer::start();
    let page = Playground::start_on(&redis.url(), "quotas=500/10s").await;
    // Slower than 500 in 10 seconds: GCRA has given back what came before the new limit.
    page.browser.put("#rate", "40").await;
    page.browser.put("#seconds", "120").await;
    page.browser.click("#stream").await;
    page.asked(150).await;
    assert!(page.drawn_texts().await.contains("\"window: 10 s\""));

    // The limit and the window.
    page.browser.put("#quotas", "600/20s").await;
    page.browser
        .until("#limit", |text| text == "600 in any 20 s")
        .await;
    let begun = page.browser.number("#asked").await;
    assert!(begun < 150, "the numbers begin again: {begun}");
    let said = page.browser.text("#status").await;
    assert!(
        said.starts_with("New limit: the chart and all numbers"),
        "{said}"
    );
    page.asked(20).await;
    let answer = page.browser.text("#answer").await;
    assert!(answer.contains("q=600;w=20"), "{answer}");
    let gauges = page.browser.text("#gauges").await;
    assert!(
        gauges.contains("600/20s, Sliding log") && gauges.contains(" of 600 used"),
        "{gauges}"
    );
    assert!(
        page.browser
            .text("#verdict")
            .await
            .contains("within 20 s, limit 600")
    );
    assert!(page.browser.text("#lanes").await.contains("most in 20 s"));
    assert!(page.browser.text(".axis").await.contains("−30 s"));
    let texts = page.drawn_texts().await;
    for text in ["window: 20 s", "limit 600", "new limit"] {
        assert!(texts.contains(&format!("{text:?}")), "{text}: {texts}");
    }
    assert!(
        !texts.contains("10 s") && !texts.contains("limit 500"),
        "{texts}"
    );
    let label = page
        .browser
        .find("#lanes canvas")
        .await
        .attr("aria-label")
        .await;
    let label = label.expect("a chart").expect("a label");
    assert!(label.ends_with("Limit: 600 in any 20 s."), "{label}");

    // The algorithm: the history stays, and so does the last response, of that algorithm.
    let before = page.browser.number("#asked").await;
    page.browser
        .find("#algorithm")
        .await
        .select_by_value("gcra")
        .await
        .expect("an option");
    page.browser
        .until("#answer-title", |text| text == "Last response: GCRA")
        .await;
    assert_eq!(page.browser.text(".figure dt").await, "GCRA");
    assert_eq!(page.browser.text("#lanes h3").await, "GCRA");
    page.browser
        .until("#gauges", |text| text.contains("600/20s, GCRA"))
        .await;
    page.asked(before).await;
    // GCRA gives units back all the time, the log only after 20 seconds.
    let remaining = page.browser.number("#remaining").await;
    let log = page.shown("sliding-log").await[0];
    assert!(remaining > 600 - log.min(600), "{remaining} of {log}");
    let answer = page.browser.text("#answer").await;
    let (_, in_header) = answer.split_once("x-ratelimit-remaining: ").expect(&answer);
    let in_header: u64 = in_header
        .lines()
        .next()
        .and_then(|line| line.parse().ok())
        .expect(&answer);
    assert!(in_header > 600 - log.min(600), "{in_header} of {log}");

    // The lease.
    page.browser
        .find("#lease")
        .await
        .select_by_value("500ms")
        .await
        .expect("an option");
    page.browser
        .until("#status", |text| text.starts_with("New lease: "))
        .await;
    page.browser
        .until("#legend-held", |text| text.starts_with("units held"))
        .await;
    page.browser
        .until(".gauge-label b", |text| text.ends_with(" held"))
        .await;
    page.asked(50).await;
    assert!(page.drawn_texts().await.contains("\"new lease\""));

    page.browser.click("#stream").await;
    page.browser
        .until("#status", |text| text.ends_with(" admitted."))
        .await;
    assert_eq!(page.browser.text("#stream").await, "Start stream");

    // Without new requests, each algorithm's response to the last one.
    page.browser
        .click("[data-algorithm='fixed-window'] h3 button")
        .await;
    page.browser
        .until("#answer-title", |text| {
            text == "Last response: Fixed window"
        })
        .await;
    assert!(page.browser.text("#answer").await.starts_with("HTTP 200"));
    page.end().await;
}
