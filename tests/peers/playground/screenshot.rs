//! Writes docs/playground.png: `tests/run peers playground -- --ignored`

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tokio::time::sleep;

use super::{ALGORITHMS, Playground};

const SETTINGS: &str = "quotas=50/10s&key=ada";

impl Playground {
    /// Returns the time until the next edge of aligned windows. A fixed window reports it if a unit is charged.
    async fn until_edge(&self) -> Duration {
        let url = format!("{}/peek?{SETTINGS}&algorithm=fixed-window&cost=1", self.url);
        let look = reqwest::get(url).await.expect("an answer");
        let look: Value = serde_json::from_str(&look.text().await.expect("text")).expect("JSON");
        let fixed = ALGORITHMS.iter().position(|id| *id == "fixed-window");
        let micros = fixed.and_then(|lane| look["lanes"][lane]["reset_after"].as_u64());
        Duration::from_micros(micros.expect("a time"))
    }
}

/// A burst before the edge of an aligned window and a larger one after it, so that the charts differ.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "it writes docs/playground.png"]
async fn the_picture_of_the_readme() {
    let page = Playground::start(SETTINGS).await;
    page.browser.click("#send").await;
    page.browser
        .until("#status", |text| text == "Admitted.")
        .await;
    sleep(page.until_edge().await + Duration::from_millis(200)).await;
    page.browser.put("#rate", "2").await;
    page.browser.put("#seconds", "4").await;
    page.browser.click("#stream").await;
    page.browser.put("#burst", "40").await;
    page.browser
        .until("#stream", |text| text == "Start stream")
        .await;

    let before = page.until_edge().await;
    sleep(before.saturating_sub(Duration::from_millis(1_500))).await;
    page.browser.click("#send-burst").await;
    page.browser.put("#burst", "60").await;
    page.browser.put("#seconds", "30").await;
    sleep(page.until_edge().await + Duration::from_millis(700)).await;
    page.browser.click("#stream").await;
    page.browser.click("#send-burst").await;
    page.browser
        .until("#status", |text| text.starts_with("60 requests"))
        .await;
    sleep(Duration::from_millis(4_500)).await;
    page.browser
        .until("#answer", |text| text.starts_with("HTTP 429"))
        .await;

    let picture = page.browser.client.screenshot().await.expect("a picture");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/playground.png");
    fs::write(path, picture).expect("it is written");
    page.end().await;
}
