//! The page of the example `playground`, in Chromium: what one can do there, and that it is true.

mod frames;
mod screenshot;

use std::time::Duration;

use fantoccini::key::Key;
use reqwest::Client as Http;
use serde_json::{Value, json};

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
    _example: Example,
}

impl Playground {
    /// With these settings in the address of the page.
    async fn start(settings: &str) -> Self {
        Self::start_on("memory:", settings).await
    }

    async fn start_on(store: &str, settings: &str) -> Self {
        let browser = Browser::start(1_280, 800).await;
        let (example, url) = serve(store);
        let page = Self {
            browser,
            url,
            _example: example,
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

    /// What the page shows is what the server counted, for each algorithm, of so many requests.
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
            // Text changes ten times a second.
            for _ in 0..50 {
                if shown != [admitted, refused] {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    shown = self.shown(algorithm).await;
                }
            }
            assert_eq!(shown, [admitted, refused], "{algorithm}");
        }
    }

    /// Nothing was complained of.
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
    let page = Playground::start("quotas=5/10s").await;
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
        "ratelimit-policy: \"playground\";q=5;w=10",
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
async fn a_burst_above_the_limit_is_refused_in_part_and_the_wait_runs_down_until_one_passes() {
    let page = Playground::start("quotas=8/4s").await;
    page.browser.put("#burst", "30").await;
    page.browser.click("#send-burst").await;
    let said = page
        .browser
        .until("#status", |text| text.contains("30 requests"))
        .await;
    assert!(
        said.contains("8 admitted, 22 refused. The next one passes in "),
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
    assert!(tenths(&before) <= 40, "{before}");
    page.browser
        .until("#retry", |text| {
            text.ends_with(" s") && tenths(text) + 2 < tenths(&before)
        })
        .await;
    page.browser
        .until("#retry", |text| text == "now" || text == "–")
        .await;
    page.browser.click("#send").await;
    page.browser
        .until("#status", |text| text == "Admitted.")
        .await;
    page.assert_counts(31).await;
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

    page.browser.put("#quotas", "40/minute, 3/2s").await;
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
        answer.contains("q=40;w=60") && answer.contains("q=3;w=2"),
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
    assert_eq!(quotas.as_deref(), Some("40/minute, 3/2s"));
    page.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn quotas_that_cannot_be_read_are_told_beside_the_field_and_nothing_is_sent() {
    let page = Playground::start("quotas=5/10s").await;
    for (wrong, rule) in [
        ("100", "LIMIT/WINDOW"),
        ("5/fortnight", "the window is"),
        ("5/10s gcra", "the algorithm is chosen above"),
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
        .until("#status", |text| text.starts_with("Cannot be used: "))
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
async fn all_of_it_can_be_done_by_keyboard() {
    let page = Playground::start("quotas=5/10s").await;
    let tab = String::from(char::from(Key::Tab));
    let mut order = Vec::new();
    page.browser.run("document.activeElement.blur()").await;
    for _ in 0..12 {
        let focused = page
            .browser
            .client
            .active_element()
            .await
            .expect("an element");
        focused.send_keys(&tab).await.expect("a key");
        let focused = page
            .browser
            .client
            .active_element()
            .await
            .expect("an element");
        order.push(
            focused
                .attr("id")
                .await
                .expect("an element")
                .unwrap_or_default(),
        );
        let outline = page
            .browser
            .run("return getComputedStyle(document.activeElement).outlineStyle");
        assert_ne!(outline.await, "none", "{order:?}");
    }
    let expected = [
        "another",
        "algorithm",
        "quotas",
        "key",
        "cost",
        "send",
        "burst",
        "send-burst",
        "rate",
        "seconds",
        "stream",
        "reset",
    ];
    assert_eq!(order, expected);

    let enter = String::from(char::from(Key::Enter));
    page.browser
        .find("#quotas")
        .await
        .send_keys(&enter)
        .await
        .expect("a key");
    page.browser
        .until("#status", |text| text == "Admitted.")
        .await;
    page.browser.put("#burst", "7").await;
    page.browser
        .find("#burst")
        .await
        .send_keys(&enter)
        .await
        .expect("a key");
    page.browser
        .until("#status", |text| text.contains("4 admitted, 3 refused"))
        .await;
    let stream = page.browser.find("#stream").await;
    stream.send_keys(&enter).await.expect("a key");
    page.browser
        .until("#stream", |text| text == "Stop stream")
        .await;
    stream.send_keys(&enter).await.expect("a key");
    page.browser
        .until("#status", |text| text.ends_with("as the server counted."))
        .await;
    let (asked, _) = page.counted().await;
    page.assert_counts(asked).await;
    let unnamed = page.browser.run(
        "return [...document.querySelectorAll('input, select')].filter((field) => !field.labels.length).length",
    );
    assert_eq!(unnamed.await, 0);
    page.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_readable_in_light_and_dark_and_in_a_narrow_window() {
    let page = Playground::start("quotas=5/10s").await;
    page.browser.click("#send").await;
    let mut grounds = Vec::new();
    for scheme in ["light", "dark"] {
        page.browser.prefer("prefers-color-scheme", scheme).await;
        let contrasts = page
            .browser
            .run(include_str!("playground/contrast.js"))
            .await;
        for (what, contrast) in contrasts.as_object().expect("a map") {
            // WCAG 2.2, level AA: 4.5 for text, 3 for what is drawn.
            let least = if what.starts_with("--") { 3.0 } else { 4.5 };
            assert!(
                contrast.as_f64() >= Some(least),
                "{scheme}: {what}: {contrast}"
            );
        }
        grounds.push(
            page.browser
                .run("return getComputedStyle(document.body).backgroundColor")
                .await,
        );
    }
    assert_ne!(grounds[0], grounds[1]);
    for width in [320, 700, 1_000] {
        page.browser.resize(width, 700).await;
        let needed = page
            .browser
            .run("return document.documentElement.scrollWidth")
            .await;
        assert_eq!(needed, width);
    }
    page.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_prefers_no_motion_sees_steps() {
    let page = Playground::start("quotas=50/10s").await;
    let drawn = || async {
        let drawn = page
            .browser
            .client
            .execute_async(include_str!("playground/drawn.js"), Vec::new());
        drawn.await.expect("a count").as_u64().expect("a count")
    };
    page.browser.click("#send").await;
    page.browser
        .until("#status", |text| text == "Admitted.")
        .await;
    page.browser
        .prefer("prefers-reduced-motion", "no-preference")
        .await;
    let moving = drawn().await;
    page.browser
        .prefer("prefers-reduced-motion", "reduce")
        .await;
    let still = drawn().await;
    // Two a second, and one more at an edge.
    assert!(still <= 3 && moving > 3, "{still} of {moving}");
    page.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_tabs_and_two_processes_share_one_limit_on_one_redis() {
    let redis = RedisServer::start();
    let page = Playground::start_on(&redis.url(), "quotas=20/minute&key=shared").await;
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
    page.browser
        .until(".gauge-label b", |text| text == "9 of 20 used")
        .await;
    page.browser.click("#send").await;
    page.browser
        .until(".gauge-label b", |text| text == "10 of 20 used")
        .await;

    // Another process: what is spent there is seen here.
    let (_other, url) = serve(&redis.url());
    let send = format!("{url}/request?quotas=20/minute&algorithm=sliding-log&key=shared&cost=1");
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
async fn a_page_that_complains_would_be_seen() {
    let page = Playground::start("quotas=5/10s").await;
    let script =
        "console.error('a complaint'); fetch('/nowhere'); setTimeout(() => { throw 'up' })";
    page.browser.run(script).await;
    let mut console = Vec::new();
    while console.len() < 3 {
        console.extend(page.browser.console().await);
    }
    let all = console.concat();
    assert!(
        all.contains("a complaint") && all.contains("/nowhere") && all.contains("up"),
        "{all}"
    );
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
