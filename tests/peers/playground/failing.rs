//! The page shows failures of the server and the store. Failures of the page itself are in the console, which each
//! test reads.

use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::process::Command;
use tokio::time::sleep;

use super::Playground;
use crate::support::example::built;
use crate::support::redis_server::{DeadPort, RedisServer};

/// Several times as long as a busy machine needs.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Waits until the console has all these texts, and returns the whole console.
async fn complaints(page: &Playground, wanted: &[&str]) -> String {
    let deadline = Instant::now() + MAX_WAIT;
    let mut all = String::new();
    while !wanted.iter().all(|text| all.contains(text)) {
        assert!(Instant::now() < deadline, "{wanted:?}: {all}");
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
    // The content security policy allows no other script.
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
    // The page does not report it as a failure of the store.
    let store = page.browser.text("#store").await;
    assert!(store.contains("memory"), "{store}");
    page.browser.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_redis_it_counts_on_and_says_that_nothing_can_be_reset() {
    let nowhere = DeadPort::new();
    let page = Playground::start_on(&nowhere.url(), "quotas=5/hour").await;
    page.browser
        .until("#store", |text| text.contains("Redis is unreachable"))
        .await;
    page.browser.click("#send").await;
    page.browser
        .until("#status", |text| text == "Admitted.")
        .await;
    // First by timeouts, then with an open circuit breaker.
    for _ in 0..10 {
        page.browser.click("#reset").await;
        page.browser
            .until("#status", |text| {
                text == "Not reset: Redis is unreachable. Try again when it is back."
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
async fn an_outage_is_announced_and_its_counts_are_not_drawn_as_exact() {
    let mut redis = RedisServer::start();
    let page = Playground::start_on(&redis.url(), "quotas=5/10s").await;
    let told = page.browser.find("#outage").await.attr("role").await;
    assert_eq!(told.expect("an element").as_deref(), Some("alert"));
    assert_eq!(page.browser.text("#outage").await, "");
    // Fewer than the limit: refusals would be remembered.
    page.browser.put("#burst", "4").await;
    page.browser.click("#send-burst").await;
    page.browser
        .until("#status", |text| text.contains("4 admitted, 0 refused"))
        .await;
    assert!(!page.drawn_texts().await.contains("Redis away"));

    redis.kill();
    page.browser
        .until("#outage", |text| {
            text.starts_with("Redis is unreachable: this process counts alone")
        })
        .await;
    page.browser.put("#burst", "9").await;
    page.browser.click("#send-burst").await;
    // The process admits the limit once more, in the same window.
    page.browser
        .until("[data-algorithm='sliding-log'] .alone", |text| {
            text.ends_with("9 counted alone")
        })
        .await;
    page.browser
        .until("[data-algorithm='sliding-log'] b.admitted", |text| {
            text == "9"
        })
        .await;
    let figure = page.browser.text(".figure").await;
    assert!(figure.contains("0.8 × the limit"), "{figure}");
    page.browser
        .until(".gauge-label b", |text| text.ends_with("in this process"))
        .await;
    page.browser
        .until("#legend-alone", |text| text.contains("not exact"))
        .await;
    assert!(page.drawn_texts().await.contains("Redis away"));

    let _again = RedisServer::spawn(redis.port());
    page.browser
        .until("#outage", |text| {
            text.starts_with("Back again. Counts in Redis")
        })
        .await;
    page.browser
        .until(".gauge-label b", |text| text == "0 of 5 used")
        .await;
    let drawn = page
        .browser
        .client
        .execute_async(include_str!("alone.js"), Vec::new());
    let drawn = drawn.await.expect("two lists");
    // Pixels of exact units, of units above the limit, and of marks and lines of this process alone.
    let [exact, alone] = ["Redis", "Fallback"].map(|source| &drawn[source]);
    assert!(exact["within"].as_u64() > Some(1_000), "{drawn}");
    assert!(exact["beyond"].as_u64() > Some(1_000), "{drawn}");
    assert_eq!(exact["alone"], 0, "{drawn}");
    assert_eq!(
        (&alone["within"], &alone["beyond"]),
        (&json!(0), &json!(0)),
        "{drawn}"
    );
    assert!(alone["alone"].as_u64() > Some(200), "{drawn}");
    page.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_used_cannot_be_reset_either() {
    let page = Playground::start("quotas=5/hour").await;
    page.browser.put("#quotas", "five").await;
    page.browser.click("#reset").await;
    page.browser
        .until("#status", |text| text.starts_with("Invalid settings: "))
        .await;
    page.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_gone_is_asked_ever_more_seldom_and_is_seen_when_it_is_back() {
    let mut page = Playground::start("quotas=5/hour").await;
    let count = "const ask = window.fetch; window.fetch = (...all) => { window.asked_ += 1; return ask(...all); }";
    page.browser.run(count).await;
    page.example.process.kill();
    page.browser
        .until("#store", |text| text.contains("Is it still running?"))
        .await;
    page.browser.run("window.asked_ = 0").await;
    sleep(Duration::from_secs(3)).await;
    let asked = page.browser.run("return window.asked_").await;
    let asked = asked.as_u64().expect("a count");
    // A server that answers would get fifteen.
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
    // The console has the failed requests and nothing else.
    let console = page.browser.console().await;
    assert!(
        console.iter().all(|line| line.contains("net::ERR_")),
        "{console:#?}"
    );
    page.browser.end().await;
}
