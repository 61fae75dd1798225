//! The page of the example `admin` in Chromium: the actions of an operator take effect.

use serde_json::{Value, json};

use crate::support::example::Example;
use crate::webdriver::Browser;

/// The keys, as `WebDriver` writes them.
const ENTER: &str = "\u{e007}";
const TAB: &str = "\u{e004}";

/// The program, and a browser that shows its page.
struct Desk {
    browser: Browser,
    service: String,
    token: String,
    _example: Example,
}

impl Desk {
    async fn start() -> Self {
        let browser = Browser::start(1_280, 800).await;
        let mut example = Example::start("admin", "memory:");
        let service = format!("http://{}/", example.address());
        let line = example.line();
        let (_, told) = line.trim_end().split_once(" at ").expect(&line);
        let (page, token) = told.split_once(" with the token ").expect(&line);
        browser.open(page).await;
        let token = token.to_owned();
        Self {
            browser,
            service,
            token,
            _example: example,
        }
    }

    /// Logs in by the keyboard alone: the field has the focus.
    async fn log_in(&self, token: &str) {
        self.press(&format!("{token}{ENTER}")).await;
    }

    /// Sends keys to the element with the focus.
    async fn press(&self, keys: &str) {
        let focused = self.browser.client.active_element().await;
        focused.expect("a focus").send_keys(keys).await.expect(keys);
    }

    async fn focus(&self) -> Value {
        self.browser.run("return document.activeElement.id").await
    }

    async fn is_shown(&self, css: &str) -> bool {
        let element = self.browser.find(css).await;
        element.is_displayed().await.expect(css)
    }

    /// Looks up the key of this machine in the limiter of `/`.
    async fn look(&self) {
        let limiter = self.browser.find("#limiter").await;
        limiter.select_by_value("site").await.expect("an option");
        self.browser
            .until("#quotas", |text| text == "Quotas: 10/hour")
            .await;
        self.browser.put("#value", "127.0.0.1").await;
        self.browser.click("#look button").await;
        self.browser
            .until("#key", |text| text == "ip=127.0.0.1")
            .await;
    }

    async fn statuses(&self, requests: usize) -> Vec<u16> {
        let mut statuses = Vec::new();
        for _ in 0..requests {
            let answer = reqwest::get(&self.service).await.expect("an answer");
            statuses.push(answer.status().as_u16());
        }
        statuses
    }

    /// Closes the browser. Its console must be empty.
    async fn end(self) {
        let console = self.browser.console().await;
        assert!(console.is_empty(), "{console:#?}");
        self.browser.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_looks_at_a_key_resets_it_credits_it_and_blocks_it() {
    let desk = Desk::start().await;
    desk.log_in(&desk.token).await;
    assert_eq!(desk.statuses(12).await[9..], [200, 429, 429]);
    desk.look().await;
    let browser = &desk.browser;
    let row = browser
        .until("#quota-rows", |text| text.contains("10/hour"))
        .await;
    assert!(row.starts_with("10/hour 10 0 "), "{row}");
    assert_eq!(browser.text("#blocked-for").await, "Not blocked.");

    browser.put("#units", "3").await;
    browser.click("#credit button").await;
    browser
        .until("#status", |text| text == "Credited 3 units.")
        .await;
    assert!(
        browser
            .text("#quota-rows")
            .await
            .starts_with("10/hour 7 3 ")
    );
    assert_eq!(desk.statuses(4).await, [200, 200, 200, 429]);

    browser.click("#reset").await;
    browser
        .until("#quota-rows", |text| text == "10/hour 0 10 –")
        .await;
    assert_eq!(desk.statuses(1).await, [200]);

    browser.put("#time", "3").await;
    browser
        .find("#unit")
        .await
        .select_by_value("3600")
        .await
        .expect("an option");
    browser.click("#block button").await;
    browser
        .until("#blocked-for", |text| text == "Blocked for 3 h.")
        .await;
    let refused = reqwest::get(&desk.service).await.expect("an answer");
    assert_eq!(refused.status(), 429);
    let wait = refused.headers()["retry-after"].to_str().expect("text");
    let wait: u64 = wait.parse().expect(wait);
    assert!(wait > 10_700 && wait <= 10_800, "{wait}");
    browser
        .until("#blocked-rows", |text| text == "ip=127.0.0.1 3 h Look up")
        .await;

    browser.click("#unblock").await;
    browser.until("#blocked-rows", |text| text == "none").await;
    assert_eq!(browser.text("#blocked-for").await, "Not blocked.");
    assert_eq!(desk.statuses(1).await, [200]);
    // From the list of the most refused keys, in the same limiter.
    browser
        .until("#busiest-rows", |text| text == "ip=127.0.0.1 4 Look up")
        .await;
    browser.click("#busiest-rows button").await;
    browser
        .until("#quota-rows", |text| text.starts_with("10/hour 2 8 "))
        .await;
    desk.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_wrong_is_said_and_one_that_is_right_is_kept_until_logged_out() {
    let desk = Desk::start().await;
    desk.log_in("guess").await;
    desk.browser
        .until("#login-error", |text| text == "Wrong token.")
        .await;
    assert!(!desk.is_shown("#desk").await);
    // The browser itself notes an answer of 401.
    let console = desk.browser.console().await;
    assert!(
        console.iter().all(|line| line.contains("401")),
        "{console:#?}"
    );

    desk.browser.put("#token", "").await;
    desk.log_in(&desk.token).await;
    desk.browser.until("#quotas", |text| !text.is_empty()).await;
    desk.browser.client.refresh().await.expect("it reloads");
    desk.browser.until("#quotas", |text| !text.is_empty()).await;
    assert!(!desk.is_shown("#login").await);
    desk.browser.click("#log-out").await;
    assert!(desk.is_shown("#login").await && !desk.is_shown("#desk").await);
    let kept = "return document.querySelectorAll('#desk tbody tr, #limiter option').length";
    assert_eq!(desk.browser.run(kept).await, 0);
    desk.browser.client.refresh().await.expect("it reloads");
    assert!(desk.is_shown("#login").await);
    desk.end().await;
}

/// Holds back responses for paths with this ending, until the page calls `release`.
const HOLD: &str = r"
    const fetched = window.fetch;
    const held = new Promise((release) => { window.release = release; });
    window.fetch = async (path, options) => {
        const answer = await fetched(path, options);
        if (path.endsWith(arguments[0])) { window.arrived = true; await held; }
        return answer;
    };";

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_for_a_limiter_that_was_left_meanwhile_is_not_shown_under_the_next() {
    for path in ["/site/peek", "/site"] {
        let desk = Desk::start().await;
        desk.log_in(&desk.token).await;
        let _ = desk.statuses(12).await;
        desk.look().await;
        let browser = &desk.browser;
        browser
            .run(&HOLD.replace("arguments[0]", &format!("{path:?}")))
            .await;
        if path == "/site/peek" {
            browser.click("#look button").await;
        } else {
            browser
                .run("document.getElementById('limiter').dispatchEvent(new Event('change'))")
                .await;
        }
        while browser.run("return window.arrived === true").await != true {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        let limiter = browser.find("#limiter").await;
        limiter.select_by_value("search").await.expect("an option");
        browser.until("#busiest-rows", |text| text == "none").await;
        // All that waits for the answer runs before the next command.
        browser.run("window.release()").await;
        browser
            .run("return new Promise((done) => setTimeout(done, 50))")
            .await;
        assert!(!desk.is_shown("#key-status").await, "{path}");
        assert_eq!(browser.text("#busiest-rows").await, "none", "{path}");
        desk.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_of_it_is_done_by_the_keyboard() {
    let desk = Desk::start().await;
    desk.log_in(&desk.token).await;
    desk.browser
        .until("#quotas", |text| text == "Quotas: 5/second, 1000/hour")
        .await;
    assert_eq!(desk.focus().await, "value");
    desk.press(&format!("127.0.0.1{ENTER}")).await;
    desk.browser
        .until("#key", |text| text == "ip=127.0.0.1")
        .await;
    // Tabs from the button to the duration of a block.
    let mut passed = Vec::new();
    while desk.focus().await != "time" {
        desk.press(TAB).await;
        passed.push(desk.focus().await);
        assert!(passed.len() < 10, "{passed:?}");
    }
    assert!(
        passed.contains(&json!("reset")) && passed.contains(&json!("units")),
        "{passed:?}"
    );
    desk.press(ENTER).await;
    desk.browser
        .until("#blocked-for", |text| text.starts_with("Blocked for "))
        .await;
    // An invalid value is reported.
    desk.browser.put("#value", "127.0.0").await;
    desk.press(ENTER).await;
    desk.browser
        .until("#status", |text| text.contains("not an IP address"))
        .await;
    let console = desk.browser.console().await;
    assert!(
        console.iter().all(|line| line.contains("400")),
        "{console:#?}"
    );
    desk.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_readable_in_dark_and_light_and_on_a_narrow_window() {
    let desk = Desk::start().await;
    desk.log_in(&desk.token).await;
    desk.browser.until("#quotas", |text| !text.is_empty()).await;
    let _ = desk.statuses(12).await;
    desk.look().await;
    desk.browser.click("#block button").await;
    desk.browser
        .until("#blocked-rows", |text| text.starts_with("ip="))
        .await;
    let mut papers = Vec::new();
    for (scheme, width) in [("light", 1_280), ("dark", 1_280), ("dark", 360)] {
        desk.browser.prefer("prefers-color-scheme", scheme).await;
        desk.browser.resize(width, 800).await;
        let color = "return getComputedStyle(document.body).backgroundColor";
        papers.push(desk.browser.run(color).await);
        let wide = "return document.documentElement.scrollWidth - window.innerWidth";
        assert_eq!(desk.browser.run(wide).await, 0, "{scheme} {width}");
        if let Ok(directory) = std::env::var("TOLLGATE_SCREENSHOTS") {
            let png = desk.browser.client.screenshot().await.expect("a picture");
            let path = format!("{directory}/admin-{scheme}-{width}.png");
            std::fs::write(path, png).expect("a directory");
        }
    }
    assert_ne!(papers[0], papers[1]);
    desk.end().await;
}
