//! Writes docs/playground.png: `tests/run peers playground -- --ignored`

use std::fs;
use std::time::Duration;

use tokio::time::sleep;

use super::Playground;
use crate::support::files;

/// A stream, and a burst across the edge of a fixed window, which admits twice the limit.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "it writes docs/playground.png"]
async fn the_picture_of_the_readme() {
    let page = Playground::start("quotas=20/5s&key=ada").await;
    page.browser.resize(1_280, 830).await;
    page.browser.click("#edge").await;
    page.browser
        .until("#status", |text| text.contains("across an edge"))
        .await;
    page.browser.put("#rate", "3").await;
    sleep(Duration::from_millis(500)).await;
    page.browser.click("#stream").await;
    sleep(Duration::from_millis(2_500)).await;
    page.browser
        .until("#answer", |text| text.starts_with("HTTP 429"))
        .await;
    page.browser.run("document.activeElement.blur()").await;

    let picture = page.browser.client.screenshot().await.expect("a picture");
    let path = files::root().join("docs/playground.png");
    fs::write(path, picture).expect("it is written");
    page.end().await;
}
