//! What goes wrong is told on the page, in words that help; what is wrong with the page itself, in the
//! console, which each test looks at.

use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::process::Command;
use tokio::time::sleep;

use super::Playground;
use crate::support::example::built;
use crate::support::redis_server::DeadPort;

/// Several times what a busy machine takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until all of these were complained of, and returns all that was.
async fn complaints(page: &Playground, wanted: &[&str]) -> String {
    let patience = Instant::now() + PATIENCE;
    let mut all = String::new();
    while !wanted.iter().all(|text| all.contains(text)) {
        assert!(Instant::now() < patience, "{wanted:?}: {all}");
        all += &page.browser.console().await.concat();
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn a_page_that_complains_would_be_seen() {
    let page = Playground::start("quotas=5/10s").await;
    let script =
        "console.error('a complaint'); fetch('/nowhere'); setTimeout(() => { throw 'up' })";
    page.browser.run(script).await;
    complaints(&page, &["a complaint", "/nowhere", "up"]).await;
    // The policy of the page lets no other script in.
    page.browser
        .run("document.head.append(Object.assign(document.createElement('script'), { text: 'window.in = 1' }))")
        .await;
    assert_eq!(
        page.browser.run("return window.in ?? null").await,
        json!(null)
    );
    page.browser.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mistake_in_the_page_would_be_seen() {
    let page = Playground::start("quotas=5/hour").await;
    page.browser
        .run("document.getElementById('answer').remove()")
        .await;
    page.browser.click("#send").await;
    let all = complaints(&page, &["TypeError"]).await;
    assert!(all.contains("Uncaught"), "{all}");
    // It is not taken for one of the server.
    let store = page.browser.text("#store").await;
    assert!(store.contains("memory"), "{store}");
    page.browser.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_it_counts_on_and_says_that_nothing_can_be_reset() {
    let nowhere = DeadPort::new();
    let page = Playground::start_on(&nowhere.url(), "quotas=5/hour").await;
    page.browser
        .until("#store", |text| text.contains("Redis does not answer"))
        .await;
    page.browser.click("#send").await;
    page.browser
        .until("#status", |text| text == "Admitted.")
        .await;
    // At first and when the breaker is open.
    for _ in 0..10 {
        page.browser.click("#reset").await;
        page.browser
            .until("#status", |text| {
                text == "Not reset: Redis does not answer. Start over once it does."
            })
            .await;
        page.browser.click("#send").await;
        page.browser
            .until("#status", |text| !text.starts_with("Not reset"))
            .await;
    }
    page.assert_counts(11).await;
    page.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_used_cannot_be_reset_either() {
    let page = Playground::start("quotas=5/hour").await;
    page.browser.put("#quotas", "five").await;
    page.browser.click("#reset").await;
    page.browser
        .until("#status", |text| text.starts_with("Cannot be used: "))
        .await;
    page.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_gone_is_asked_ever_more_seldom_and_is_seen_when_it_is_back() {
    let mut page = Playground::start("quotas=5/hour").await;
    let count = "const ask = window.fetch; window.fetch = (...all) => { window.asked_ += 1; return ask(...all); }";
    page.browser.run(count).await;
    page.example.process.kill().expect("it runs");
    page.example.process.wait().expect("it ends");
    page.browser
        .until("#store", |text| text.contains("is it still running?"))
        .await;
    page.browser.run("window.asked_ = 0").await;
    sleep(Duration::from_secs(3)).await;
    let asked = page.browser.run("return window.asked_").await;
    let asked = asked.as_u64().expect("a count");
    // Fifteen times where it answers.
    assert!((1..=5).contains(&asked), "{asked}");

    let address = page.url.trim_start_matches("http://");
    let _again = Command::new(built("playground"))
        .env("TOLLGATE_STORE", "memory:")
        .env("TOLLGATE_ADDR", address)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("the example runs");
    page.browser
        .until("#store", |text| text.contains("memory"))
        .await;
    page.browser.click("#send").await;
    page.browser
        .until("#status", |text| text == "Admitted.")
        .await;
    // The browser notes each time that nobody answered, and nothing else was wrong.
    let console = page.browser.console().await;
    assert!(
        console.iter().all(|line| line.contains("net::ERR_")),
        "{console:#?}"
    );
    page.browser.end().await;
}
