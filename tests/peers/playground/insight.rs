//! A first visitor sees the comparison, and learns from one button that a fixed window admits twice its limit.

use std::time::Duration;

use tokio::time::sleep;

use super::Playground;

/// The algorithms of the two large charts, from the top.
async fn compared(page: &Playground) -> serde_json::Value {
    let script = "return [...document.querySelectorAll('#lanes .lane')].map((lane) => lane.dataset.algorithm)";
    page.browser.run(script).await
}

#[tokio::test(flavor = "multi_thread")]
async fn one_click_shows_2_times_the_limit_against_1_time() {
    let page = Playground::start("quotas=6/4s").await;
    let headline = page.browser.text("#headline").await;
    assert_eq!(
        headline,
        "Six algorithms decide the same requests: at most 6 in any 4 s"
    );
    assert_eq!(
        compared(&page).await,
        serde_json::json!(["sliding-log", "fixed-window"])
    );
    let before = page.browser.text("#verdict").await;
    assert_eq!(
        before.matches("nothing admitted yet").count(),
        2,
        "{before}"
    );

    page.browser.click("#edge").await;
    let said = page
        .browser
        .until("#status", |text| text.contains("across an edge"))
        .await;
    assert_eq!(
        said,
        "12 requests across an edge: Sliding log admitted 6, 1 × the limit; \
         Fixed window admitted 12, 2 × the limit."
    );
    let verdict = page
        .browser
        .until("#verdict", |text| text.contains("2 ×"))
        .await;
    let lines: Vec<_> = verdict.lines().collect();
    assert_eq!(
        lines,
        [
            "Sliding log",
            "1 × the limit",
            "6 admitted within 4 s, limit 6",
            "Fixed window",
            "2 × the limit",
            "12 admitted within 4 s, limit 6",
        ]
    );
    let beyond =
        "return [...document.querySelectorAll('.figure')].map((figure) => figure.dataset.beyond)";
    assert_eq!(
        page.browser.run(beyond).await,
        serde_json::json!(["false", "true"])
    );
    page.assert_counts(12).await;
    let texts = page.drawn_texts().await;
    for text in ["window: 4 s", "limit 6", "2 × limit", "edge"] {
        assert!(texts.contains(&format!("{text:?}")), "{text}: {texts}");
    }

    // The fixed window is compared with the default, too.
    page.browser
        .click("[data-algorithm='fixed-window'] h3 button")
        .await;
    page.browser
        .until(".figure dt", |text| text == "Fixed window")
        .await;
    assert_eq!(
        compared(&page).await,
        serde_json::json!(["fixed-window", "sliding-log"])
    );
    page.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_across_an_edge_can_be_cancelled_and_is_offered_for_one_short_window_only() {
    let page = Playground::start("quotas=5/minute").await;
    page.browser.click("#edge").await;
    page.browser
        .until("#edge-note", |text| {
            text.starts_with("The next edge comes in ")
        })
        .await;
    page.browser.click("#edge").await;
    page.browser
        .until("#status", |text| text == "No burst was sent.")
        .await;
    page.assert_counts(0).await;
    for (quotas, why) in [
        ("5/hour", "Enter a window of 1 s to 1 min"),
        ("5/10s, 9/20s", "Enter one quota"),
        ("0/10s", "Enter a limit of 1 to 1,000"),
    ] {
        page.browser.put("#quotas", quotas).await;
        page.browser
            .until("#edge-note", |text| text.starts_with(why))
            .await;
        assert!(
            !page
                .browser
                .find("#edge")
                .await
                .is_enabled()
                .await
                .expect("a button")
        );
    }
    page.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_first_visit_draws_a_burst_without_a_click_and_a_reload_does_not() {
    let page = Playground::start("quotas=6/hour").await;
    let said = page.browser.text("#status").await;
    assert_eq!(said, "No requests sent yet.");

    page.browser.open(&page.url).await;
    let said = page
        .browser
        .until("#status", |text| text.contains("across an edge"))
        .await;
    assert!(
        said.contains(
            "Sliding log admitted 20, 1 × the limit; Fixed window admitted 40, 2 × the limit."
        ),
        "{said}"
    );
    page.assert_counts(40).await;
    // While the key is in use, no visit draws a burst.
    page.browser.click("#reset").await;
    page.browser
        .until("#status", |text| text == "Counts of this key reset.")
        .await;
    page.browser.client.refresh().await.expect("it reloads");
    page.browser.until("#remaining", |text| text != "–").await;
    sleep(Duration::from_millis(500)).await;
    assert_eq!(page.browser.text("#status").await, "No requests sent yet.");
    let (asked, _) = page.counted().await;
    assert_eq!(asked, 40);
    page.end().await;
}

/// Somebody may be trying something with the key.
#[tokio::test(flavor = "multi_thread")]
async fn a_first_visit_sends_nothing_while_the_key_is_in_use() {
    let page = Playground::start("quotas=20/hour").await;
    let stream = "quotas=20/5s&algorithm=gcra&key=ada&cost=1&rate=5&seconds=60&id=a";
    let stream = reqwest::Client::new().post(format!("{}/stream?{stream}", page.url));
    let _stream = stream.send().await.expect("an answer");
    page.browser.open(&page.url).await;
    page.browser.until("#remaining", |text| text != "–").await;
    sleep(Duration::from_millis(500)).await;
    let said = page.browser.text("#status").await;
    assert_eq!(said, "No requests sent yet.");
    page.end().await;
}
