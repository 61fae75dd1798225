//! A page that was recorded shows its burst without a server.

use std::process::Command;

use serde_json::json;

use crate::support::example::built;
use crate::webdriver::Browser;

/// What the browser asked the network for.
const REQUESTED: &str = "return performance.getEntriesByType('resource').map(({ name }) => name).filter((name) => !name.startsWith('data:'))";

const ADMITTED: &str = "return ['sliding-log', 'fixed-window'].map((name) => document.querySelector(`[data-algorithm='${name}'] b.admitted`).textContent)";

#[tokio::test(flavor = "multi_thread")]
async fn a_recorded_page_draws_its_burst_without_a_server_and_again_at_a_click() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("playground.html");
    let recorded = Command::new(built("playground"))
        .arg("--record")
        .arg(&path)
        .env("TOLLGATE_STORE", "memory:")
        .status();
    assert!(recorded.expect("it runs").success());

    let browser = Browser::start(1_280, 800).await;
    browser.open(&format!("file://{}", path.display())).await;
    for again in [false, true] {
        if again {
            browser.click("#edge").await;
            browser
                .until("#verdict", |text| text.contains("nothing admitted yet"))
                .await;
        }
        let verdict = browser.until("#verdict", |text| text.contains("2 ×")).await;
        let lines: Vec<_> = verdict.lines().collect();
        assert_eq!(
            lines,
            [
                "Sliding log",
                "1 × the limit",
                "20 admitted within 5 s, limit 20",
                "Fixed window",
                "2 × the limit",
                "40 admitted within 5 s, limit 20",
            ]
        );
        assert_eq!(browser.run(ADMITTED).await, json!(["20", "40"]));
        browser
            .until("#edge", |text| text.starts_with("Fire"))
            .await;
    }
    assert!(browser.text("#store").await.starts_with("A recording."));
    for hidden in [".controls", "#reset", "#another"] {
        let shown = browser.find(hidden).await.is_displayed().await;
        assert!(!shown.expect("an element"), "{hidden}");
    }

    // Another algorithm is another view of the same burst.
    browser.click("[data-algorithm='gcra'] h3 button").await;
    browser.until(".figure dt", |text| text == "GCRA").await;

    // Long after it, the burst is still drawn: charts of windows of 5 s show 10 s, so it would leave them after 15 s.
    tokio::time::sleep(std::time::Duration::from_secs(18)).await;
    let drawn = browser
        .client
        .execute_async(include_str!("texts.js"), Vec::new())
        .await;
    let drawn = drawn.expect("a list").to_string();
    assert!(drawn.contains("\"2 × limit\""), "{drawn}");
    for width in [390, 1_280] {
        browser.resize(width, 800).await;
        let wide = browser
            .run("return document.documentElement.scrollWidth")
            .await;
        assert!(wide.as_u64() <= Some(width.into()), "{wide}");
    }
    assert_eq!(browser.run(REQUESTED).await, json!([]));
    let console = browser.console().await;
    assert!(console.is_empty(), "{console:#?}");
    browser.end().await;
}
