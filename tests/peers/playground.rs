//! The page of the example `playground` in Chromium: its controls work, and its counts are those of the server.

mod changes;
mod failing;
mod frames;
mod insight;
mod reading;
mod recorded;
mod screenshot;
mod shares;

use std::time::Duration;

use fantoccini::Locator;
use reqwest::Client as Http;
use serde_json::Value;

use crate::support::example::Example;
use crate::support::redis_server::RedisServer;
use crate::webdriver::Browser;

const ALGORITHMS: [&str; 6] = [
    "sliding-log",
    "sorted-set-log",
    "sliding-buckets:10",
    "sliding-counter",
    "gcra",
    "fixed-window",
];

/// The program, and a browser that shows its page.
struct Playground {
    browser: Browser,
    url: String,
    example: Example,
}

impl Playground {
    /// Opens the page with these settings in its URL.
    async fn start(settings: &str) -> Self {
        Self::start_on("memory:", settings).await
    }

    async fn start_on(store: &str, settings: &str) -> Self {
        let browser = Browser::start(1_280, 800).await;
        let (example, url) = serve(store);
        let page = Self {
            browser,
            url,
            example,
        };
        page.open(settings).await;
        page
    }

    async fn open(&self, settings: &str) {
        self.browser
            .open(&format!("{}/?{settings}", self.url))
            .await;
        self.browser.until("#remaining", |text| text != "–").await;
    }

    /// How many requests a lane shows as admitted and as refused.
    async fn shown(&self, algorithm: &str) -> [u64; 2] {
        let of = |what| format!("[data-algorithm='{algorithm}'] b.{what}");
        let admitted = self.browser.number(&of("admitted")).await;
        [admitted, self.browser.number(&of("refused")).await]
    }

    /// How many requests the server has had, and how many of them each algorithm admitted.
    async fn counted(&self) -> (u64, Vec<u64>) {
        let counts = reqwest::get(format!("{}/counts", self.url))
            .await
            .expect("an answer");
        let counts: Value =
            serde_json::from_str(&counts.text().await.expect("text")).expect("JSON");
        let admitted = counts["admitted"].as_array().expect("a list").iter();
        let admitted = admitted.map(|count| count.as_u64().expect("a count"));
        (
            counts["asked"].as_u64().expect("a count"),
            admitted.collect(),
        )
    }

    /// Waits until the page shows this number of requests, and compares its counts with those of the server.
    async fn assert_counts(&self, asked: u64) {
        let shown = asked.to_string();
        self.browser
            .until("#asked", |text| text.replace(',', "") == shown)
            .await;
        let (counted, admitted) = self.counted().await;
        assert_eq!(counted, asked);
        for (algorithm, admitted) in ALGORITHMS.into_iter().zip(admitted) {
            let refused = asked - admitted;
            let mut shown = self.shown(algorithm).await;
            // The page updates its text ten times per second.
            for _ in 0..50 {
                if shown != [admitted, refused] {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    shown = self.shown(algorithm).await;
                }
            }
            assert_eq!(shown, [admitted, refused], "{algorithm}");
        }
    }

    /// The texts that are drawn on the charts in the next half second.
    async fn drawn_texts(&self) -> String {
        let drawn = self
            .browser
            .client
            .execute_async(include_str!("playground/texts.js"), Vec::new());
        drawn.await.expect("a list").to_string()
    }

    /// Closes the browser. Its console must be empty.
    async fn end(self) {
        let console = self.browser.console().await;
        assert!(console.is_empty(), "{console:#?}");
        self.browser.end().await;
    }
}

/// The program, and the address of its page.
fn serve(store: &str) -> (Example, String) {
    let mut example = Example::start("playground", store);
    let url = format!("http://{}", example.address());
    (example, url)
}

/// The tenths of a second in `1.8 s`.
fn tenths(text: &str) -> u32 {
    let number = text.strip_suffix(" s").expect(text);
    number.replace('.', "").parse().expect(text)
}

#[tokio::test(flavor = "multi_thread")]
async fn one_request_is_answered_200_and_its_headers_are_shown() {
    let page = Playground::start("quotas=5/hour").await;
    page.browser.click("#send").await;
    page.browser
        .until("#status", |text| text == "Admitted.")
        .await;
    let answer = page.browser.text("#answer").await;
    let lines: Vec<_> = answer.lines().collect();
    assert_eq!(lines[0], "HTTP 200 OK");
    for line in [
        "x-ratelimit-limit: 5",
        "x-ratelimit-remaining: 4",
        "ratelimit-policy: \"playground\";q=5;w=3600",
    ] {
        assert!(lines.contains(&line), "{line}: {answer}");
    }
    assert!(!answer.contains("retry-after"), "{answer}");
    page.browser.until("#remaining", |text| text == "4").await;
    page.browser
        .until(".gauge-label b", |text| text == "1 of 5 used")
        .await;
    assert!(page.browser.text("#store").await.contains("memory"));
    page.assert_counts(1).await;
    page.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_above_the_limit_is_refused_in_part_and_the_wait_runs_down() {
    let page = Playground::start("quotas=8/90s").await;
    page.browser.put("#burst", "30").await;
    page.browser.click("#send-burst").await;
    let said = page
        .browser
        .until("#status", |text| text.contains("30 requests"))
        .await;
    assert!(
        said.contains("8 admitted, 22 refused. The next request is admitted in "),
        "{said}"
    );
    let answer = page.browser.text("#answer").await;
    assert!(answer.starts_with("HTTP 429 Too Many Requests"), "{answer}");
    assert!(
        answer.contains("\nretry-after: ") && answer.contains("\nx-ratelimit-remaining: 0"),
        "{answer}"
    );

    let before = page
        .browser
        .until("#retry", |text| text.ends_with(" s"))
        .await;
    assert!(tenths(&before) <= 900, "{before}");
    page.browser
        .until("#retry", |text| {
            text.ends_with(" s") && tenths(text) + 2 < tenths(&before)
        })
        .await;
    page.assert_counts(30).await;
    page.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_refused_passes_once_its_wait_is_over() {
    let page = Playground::start("quotas=1/2s").await;
    let mut sent = 0;
    // A machine that is busy may take longer than the window for two requests.
    let mut said = String::new();
    while !said.starts_with("Refused.") {
        assert!(sent < 50, "{said}");
        page.browser.click("#send").await;
        sent += 1;
        page.browser
            .until("#asked", |text| text == sent.to_string())
            .await;
        said = page.browser.text("#status").await;
    }
    page.browser
        .until("#retry", |text| text == "now" || text == "–")
        .await;
    page.browser.click("#send").await;
    page.browser
        .until("#status", |text| text == "Admitted.")
        .await;
    page.assert_counts(sent + 1).await;
    page.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn starting_over_ends_a_stream_first_and_nothing_is_used_then() {
    let page = Playground::start("quotas=100000/hour").await;
    page.browser.put("#rate", "2000").await;
    page.browser.click("#stream").await;
    page.browser
        .until("#remaining", |text| {
            text != "100,000" && text.parse::<f64>().is_err()
        })
        .await;
    page.browser.click("#reset").await;
    page.browser
        .until("#status", |text| text == "Counts of this key reset.")
        .await;
    assert_eq!(page.browser.text("#stream").await, "Start stream");
    let url = format!(
        "{}/peek?quotas=100000/hour&key=ada&cost=1&algorithm=gcra",
        page.url
    );
    let look = reqwest::get(url).await.expect("an answer");
    let look: Value = serde_json::from_str(&look.text().await.expect("text")).expect("JSON");
    for lane in look["lanes"].as_array().expect("a list") {
        assert_eq!(lane["used"][0], 0, "{look}");
    }
    // The message about the end of the stream appears before, not after.
    page.browser
        .until("#remaining", |text| text == "100,000")
        .await;
    let said = page.browser.text("#status").await;
    assert_eq!(said, "Counts of this key reset.");
    page.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_reported_late_is_drawn_where_its_marks_are() {
    let page = Playground::start("quotas=5/hour").await;
    let drawn = page
        .browser
        .client
        .execute_async(include_str!("playground/late.js"), Vec::new());
    let drawn = drawn.await.expect("two lists");
    let units: Vec<_> = (1..=10).map(|bin| 10 * bin).collect();
    assert_eq!(drawn["charged"], Value::from(units));
    // They return ten seconds later, whenever they were reported.
    assert_eq!(drawn["returned"], Value::from(vec![100, 90, 80, 0]));
    page.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_algorithm_and_the_quotas_can_be_changed_and_the_others_stand_beside() {
    let page = Playground::start("quotas=5/10s").await;
    let first = "#lanes > :first-child";
    let chosen = || async {
        page.browser
            .find(first)
            .await
            .attr("data-algorithm")
            .await
            .expect("a lane")
    };
    assert_eq!(chosen().await.as_deref(), Some("sliding-log"));

    page.browser
        .find("#algorithm")
        .await
        .select_by_value("gcra")
        .await
        .expect("an option");
    page.browser
        .until(&format!("{first} h3"), |name| name == "GCRA")
        .await;
    assert_eq!(chosen().await.as_deref(), Some("gcra"));
    let lanes = page
        .browser
        .run("return document.querySelectorAll('.lane canvas').length")
        .await;
    assert_eq!(lanes, ALGORITHMS.len());

    // By its name in the lanes, too.
    page.browser
        .click("[data-algorithm='fixed-window'] h3 button")
        .await;
    page.browser
        .until(&format!("{first} h3"), |name| name == "Fixed window")
        .await;

    page.browser.put("#quotas", "40/minute, 3/hour").await;
    page.browser
        .until("#gauges", |text| {
            text.contains("0 of 40 used") && text.contains("0 of 3 used")
        })
        .await;
    for _ in 0..4 {
        page.browser.click("#send").await;
    }
    let answer = page
        .browser
        .until("#answer", |text| text.starts_with("HTTP 429"))
        .await;
    assert!(
        answer.contains("q=40;w=60") && answer.contains("q=3;w=3600"),
        "{answer}"
    );
    // A reload keeps it.
    page.browser.client.refresh().await.expect("it reloads");
    page.browser
        .until(&format!("{first} h3"), |name| name == "Fixed window")
        .await;
    let quotas = page
        .browser
        .find("#quotas")
        .await
        .prop("value")
        .await
        .expect("a field");
    assert_eq!(quotas.as_deref(), Some("40/minute, 3/hour"));
    page.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn quotas_that_cannot_be_read_are_told_beside_the_field_and_nothing_is_sent() {
    let page = Playground::start("quotas=5/10s").await;
    for (wrong, rule) in [
        ("100", "LIMIT/WINDOW"),
        ("5/fortnight", "the window is"),
        ("5/10s gcra", "select the algorithm above"),
        ("1/1s, 2/2s, 3/3s, 4/4s, 5/5s", "at most 4"),
    ] {
        page.browser.put("#quotas", wrong).await;
        page.browser
            .until("#quotas-error", |text| text.contains(rule))
            .await;
        let invalid = page
            .browser
            .find("#quotas")
            .await
            .attr("aria-invalid")
            .await;
        assert_eq!(invalid.expect("a field").as_deref(), Some("true"));
    }
    page.browser.click("#send").await;
    page.browser
        .until("#status", |text| text.starts_with("Invalid settings: "))
        .await;
    page.browser.put("#quotas", "6/10s").await;
    page.browser
        .until("#gauges", |text| text.contains("0 of 6 used"))
        .await;
    assert_eq!(page.browser.text("#quotas-error").await, "");
    page.assert_counts(0).await;
    page.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_tabs_and_two_processes_share_one_limit_on_one_redis() {
    let redis = RedisServer::start();
    let page = Playground::start_on(&redis.url(), "quotas=20/hour&key=shared").await;
    page.browser
        .until("#store", |text| text.contains("Redis"))
        .await;
    page.browser.put("#burst", "9").await;
    page.browser.click("#send-burst").await;
    page.browser
        .until("#status", |text| text.contains("9 admitted, 0 refused"))
        .await;

    // Another tab, by the link that is there for it.
    let first = page.browser.client.window().await.expect("a tab");
    page.browser.click("#another").await;
    let tabs = page.browser.client.windows().await.expect("tabs");
    let second = tabs
        .into_iter()
        .find(|tab| *tab != first)
        .expect("another tab");
    page.browser
        .client
        .switch_to_window(second)
        .await
        .expect("a tab");
    // The gauges appear when the first look is answered, which is after the page is loaded.
    let gauge = page.browser.client.wait();
    gauge
        .for_element(Locator::Css(".gauge-label b"))
        .await
        .expect("a page");
    page.browser
        .until(".gauge-label b", |text| text == "9 of 20 used")
        .await;
    page.browser.click("#send").await;
    page.browser
        .until(".gauge-label b", |text| text == "10 of 20 used")
        .await;

    // Another process: what is spent there is seen here.
    let (_other, url) = serve(&redis.url());
    let send = format!("{url}/request?quotas=20/hour&algorithm=sliding-log&key=shared&cost=1");
    for _ in 0..10 {
        let answer = Http::new().post(&send).send().await.expect("an answer");
        assert_eq!(answer.status(), 200);
    }
    page.browser
        .client
        .switch_to_window(first)
        .await
        .expect("a tab");
    page.browser
        .until(".gauge-label b", |text| text == "20 of 20 used")
        .await;
    page.browser.click("#send").await;
    page.browser
        .until("#status", |text| text.starts_with("Refused."))
        .await;
    let answer = Http::new().post(&send).send().await.expect("an answer");
    assert_eq!(answer.status(), 429);
    page.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_lease_the_page_tells_used_units_from_held_ones() {
    let redis = RedisServer::start();
    let page = Playground::start_on(&redis.url(), "quotas=20/10s&lease=1s").await;
    page.browser
        .until("#lease-hint", |text| text.starts_with("Off: limits of 20"))
        .await;
    let is_off = "return document.getElementById('lease').disabled";
    assert_eq!(page.browser.run(is_off).await, true);

    page.browser.put("#quotas", "5000/20s").await;
    page.browser
        .until("#lease-hint", |text| text.starts_with("Acts on a key"))
        .await;
    assert_eq!(page.browser.run(is_off).await, false);
    let too_long = "return [...document.getElementById('lease').options].filter((option) => option.disabled).map((option) => option.value)";
    assert_eq!(
        page.browser.run(too_long).await,
        serde_json::json!(["3s", "6s"])
    );
    page.browser
        .until("#legend-held", |text| !text.is_empty())
        .await;

    page.browser.put("#rate", "200").await;
    page.browser.put("#seconds", "4").await;
    page.browser.click("#stream").await;
    page.browser
        .until(".gauge-label b", |text| text.ends_with(" held"))
        .await;
    page.browser
        .until("#status", |text| text == "800 requests: 800 admitted.")
        .await;
    // The held units return when their lease ends.
    page.browser
        .until(".gauge-label b", |text| text == "800 of 5,000 used")
        .await;
    let from_memory = page.browser.number("#from-memory").await;
    let sent = page.browser.number("#sent").await;
    assert!(from_memory > 400, "{from_memory}");
    assert!(sent > 800 - from_memory, "{sent}");
    assert!(sent < 800 - from_memory + 100, "{sent}");
    page.assert_counts(800).await;

    // The chart hatches held units.
    let drawn = page
        .browser
        .client
        .execute_async(include_str!("playground/hatching.js"), Vec::new());
    let drawn = drawn.await.expect("two counts");
    assert_eq!(drawn["without"], 0);
    assert!(drawn["held"].as_u64() > Some(20), "{drawn}");
    page.end().await;
}
