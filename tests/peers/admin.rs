//! The page of the example `admin` in Chromium: the actions of an operator take effect.

use std::time::Duration;

use serde_json::{Value, json};
use tollgate::{Key, Quota, RateLimiter, RedisStore, key};

use crate::support::example::Example;
use crate::support::redis_server::RedisServer;
use crate::webdriver::Browser;

/// The keys, as `WebDriver` writes them.
const ENTER: &str = "\u{e007}";
const TAB: &str = "\u{e004}";

/// The program, and a browser that shows its page.
struct Desk {
    browser: Browser,
    service: String,
    token: String,
    example: Example,
}

impl Desk {
    async fn start() -> Self {
        Self::start_on("memory:").await
    }

    async fn start_on(store: &str) -> Self {
        let browser = Browser::start(1_280, 800).await;
        let mut example = Example::start("admin", store);
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
            example,
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
        self.browser.until("#quotas", |text| !text.is_empty()).await;
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

    /// Asserts that the console has nothing but what the browser itself notes about answers of this status.
    async fn assert_console_tells_only(&self, status: &str) {
        let console = self.browser.console().await;
        assert!(
            console.iter().all(|line| line.contains(status)),
            "{console:#?}"
        );
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
    browser.click("#confirm-yes").await;
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
    browser.click("#confirm-yes").await;
    browser
        .until("#blocked-for", |text| text == "Blocked for 3 h.")
        .await;
    let refused = reqwest::get(&desk.service).await.expect("an answer");
    assert_eq!(refused.status(), 429);
    let wait = refused.headers()["retry-after"].to_str().expect("text");
    let wait: u64 = wait.parse().expect(wait);
    assert!(wait > 10_700 && wait <= 10_800, "{wait}");
    browser
        .until("#blocked-rows", |text| {
            text == "ip=127.0.0.1 3 h operator Look up"
        })
        .await;

    browser.click("#unblock").await;
    browser.until("#blocked-rows", |text| text == "none").await;
    assert_eq!(browser.text("#blocked-for").await, "Not blocked.");
    assert_eq!(desk.statuses(1).await, [200]);
    // From the list of the top rejected keys, in the same limiter.
    browser
        .until("#top-rejected-rows", |text| {
            text == "ip=127.0.0.1 4 Look up"
        })
        .await;
    browser.click("#top-rejected-rows button").await;
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
    desk.assert_console_tells_only("401").await;

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
    window.fetched = fetched;
    const held = new Promise((release) => { window.release = release; });
    window.fetch = async (path, options) => {
        const answer = await fetched(path, options);
        if (path.endsWith(arguments[0])) { window.arrived = true; await held; }
        return answer;
    };";

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_for_a_limiter_that_was_left_meanwhile_is_not_shown_under_the_next() {
    for path in ["/site/peek", "/site/view"] {
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
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let limiter = browser.find("#limiter").await;
        limiter.select_by_value("search").await.expect("an option");
        browser
            .until("#top-rejected-rows", |text| text == "none")
            .await;
        // All that waits for the answer runs before the next command.
        browser.run("window.release()").await;
        browser
            .run("return new Promise((done) => setTimeout(done, 50))")
            .await;
        assert!(!desk.is_shown("#key-status").await, "{path}");
        assert_eq!(browser.text("#top-rejected-rows").await, "none", "{path}");
        desk.end().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_of_it_is_done_by_the_keyboard() {
    let desk = Desk::start().await;
    desk.log_in(&desk.token).await;
    desk.browser
        .until("#quotas", |text| text == "Quotas: 10/hour")
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
    assert_eq!(desk.focus().await, "confirm-no");
    desk.press(TAB).await;
    desk.press(ENTER).await;
    desk.browser
        .until("#blocked-for", |text| text.starts_with("Blocked for "))
        .await;
    // An invalid value is reported.
    desk.browser.put("#value", "127.0.0").await;
    desk.press(ENTER).await;
    desk.browser
        .until("#status", |text| {
            text == "IP address is not valid: enter one like 192.0.2.1 or 2001:db8::1"
        })
        .await;
    desk.assert_console_tells_only("400").await;
    desk.end().await;
}

/// Blocks keys in Redis without the page, for ten hours.
async fn block_in_redis(server: &RedisServer, limiter: &str, keys: impl Iterator<Item = Key>) {
    let store = RedisStore::open(&server.url()).expect("a URL");
    let store = store.prefix("shop").deadline(Duration::from_secs(10));
    let limiter = RateLimiter::new(store, Quota::per_hour(10)).name(limiter);
    let admin = limiter.admin();
    for key in keys {
        let blocked = admin.block(key, Duration::from_secs(36_000)).await;
        blocked.expect("Redis answers");
    }
}

/// Records the tasks that took the page more than 50 ms.
const WATCH_TASKS: &str = "
    window.tasks = [];
    const watch = (list) => window.tasks.push(...list.getEntries().map((task) => task.duration));
    new PerformanceObserver(watch).observe({ type: 'longtask', buffered: true });";

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_blocks_are_shown_without_a_task_of_50_ms() {
    let server = RedisServer::start();
    let addresses = (0..10_000_u32).map(|number| {
        let [.., high, low] = number.to_be_bytes();
        key::peer_ip().of([10, 0, high, low].into())
    });
    block_in_redis(&server, "site", addresses).await;
    // A busy machine may take longer than 100 ms to read the list.
    let desk = Desk::start_on(&format!("{}?deadline=10s", server.url())).await;
    let browser = &desk.browser;
    browser.run(WATCH_TASKS).await;
    desk.log_in(&desk.token).await;
    browser
        .until("#blocked-count", |text| text == "1 to 50 of 10,000")
        .await;
    let rows = "return document.querySelectorAll('#blocked-rows tr').length";
    assert_eq!(browser.run(rows).await, 50);
    // On a busy machine, any task may take long now and then. One that renders all rows always does.
    let mut longest = Vec::new();
    for turn in 1..=10 {
        browser.run("window.tasks = []").await;
        browser.click("#next").await;
        let first = turn * 50 + 1;
        let count = format!("{first} to {} of 10,000", first + 49);
        browser.until("#blocked-count", |text| text == count).await;
        let task = browser.run("return Math.max(0, ...window.tasks)").await;
        longest.push(task.as_u64().expect("a number"));
    }
    println!("the longest task above 50 ms of each page, of 10 000 blocks: {longest:?}");
    assert!(longest.contains(&0), "{longest:?}");
    browser.put("#search", "10.0.39.1").await;
    browser
        .until("#blocked-count", |text| {
            text == "1 to 7 of 7 found, of 10,000"
        })
        .await;
    desk.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_and_the_lists_are_live_except_while_paused_or_hidden() {
    let mut desk = Desk::start().await;
    desk.log_in(&desk.token).await;
    desk.look().await;
    assert!(desk.is_shown("#unused").await);
    let browser = &desk.browser;
    let _ = desk.statuses(11).await;
    browser
        .until("#quota-rows", |text| text.starts_with("10/hour 10 0 "))
        .await;
    assert!(!desk.is_shown("#unused").await);
    // A button keeps the focus, although its row is updated.
    browser
        .until("#top-rejected-rows", |text| {
            text == "ip=127.0.0.1 1 Look up"
        })
        .await;
    browser
        .run("document.querySelector('#top-rejected-rows button').focus()")
        .await;
    let _ = desk.statuses(1).await;
    browser
        .until("#top-rejected-rows", |text| {
            text == "ip=127.0.0.1 2 Look up"
        })
        .await;
    let label = "return document.activeElement.getAttribute('aria-label')";
    assert_eq!(browser.run(label).await, "Look up ip=127.0.0.1");

    // Counts the updates that are fetched.
    browser
        .run(
            "window.views = 0; const fetched = window.fetch;
            window.fetch = (path, options) => { window.views += 1; return fetched(path, options); };",
        )
        .await;
    let hide = |hidden: bool| {
        format!(
            "Object.defineProperty(document, 'hidden', {{ value: {hidden}, configurable: true }});
            document.dispatchEvent(new Event('visibilitychange'))"
        )
    };
    let views = async || browser.run("return window.views").await.as_u64();
    browser.run(&hide(true)).await;
    let before = views().await;
    tokio::time::sleep(Duration::from_millis(5_000)).await;
    assert_eq!(views().await, before);
    browser.run(&hide(false)).await;
    // At once, not with the next turn.
    assert_eq!(views().await, before.map(|views| views + 1));
    browser.click("#pause").await;
    let before = views().await;
    tokio::time::sleep(Duration::from_millis(5_000)).await;
    assert_eq!(views().await, before);
    browser.click("#pause").await;
    assert_eq!(views().await, before.map(|views| views + 1));

    // A service that is gone is said, once it is back it goes on.
    desk.example.process.kill();
    desk.browser
        .until("#updated", |text| {
            text == "Not updated: The service does not respond."
        })
        .await;
    let _ = desk.browser.console().await;
    desk.browser.click("#pause").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_is_confirmed_first() {
    let desk = Desk::start().await;
    desk.log_in(&desk.token).await;
    let _ = desk.statuses(2).await;
    desk.look().await;
    let browser = &desk.browser;
    browser.click("#reset").await;
    let text = browser.text("#confirm-text").await;
    assert!(
        text.starts_with("Reset the usage of ip=127.0.0.1? "),
        "{text}"
    );
    // The harmless answer has the focus.
    assert_eq!(desk.focus().await, "confirm-no");
    desk.press(ENTER).await;
    assert!(!desk.is_shown("#confirm").await);
    browser.click("#reset").await;
    desk.press("\u{e00c}").await;
    assert!(!desk.is_shown("#confirm").await);
    let row = browser.text("#quota-rows").await;
    assert!(row.starts_with("10/hour 2 8 "), "{row}");
    browser.click("#reset").await;
    browser.click("#confirm-yes").await;
    browser
        .until("#status", |text| text.starts_with("Reset."))
        .await;
    assert_eq!(browser.text("#quota-rows").await, "10/hour 0 10 –");
    desk.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_block_is_confirmed_first() {
    let desk = Desk::start().await;
    desk.log_in(&desk.token).await;
    desk.look().await;
    let browser = &desk.browser;
    browser.click("#block button").await;
    assert!(desk.is_shown("#confirm").await);
    assert_eq!(
        browser.text("#confirm-text").await,
        "Block ip=127.0.0.1 for 10 min? All its requests are refused until then, in all processes."
    );
    assert_eq!(browser.text("#confirm-yes").await, "Block");
    // The harmless answer has the focus.
    assert_eq!(desk.focus().await, "confirm-no");
    desk.press(ENTER).await;
    assert!(!desk.is_shown("#confirm").await);
    assert_eq!(desk.statuses(1).await, [200]);
    browser.click("#block button").await;
    browser.click("#confirm-yes").await;
    browser
        .until("#status", |text| text.starts_with("Blocked for 10 min."))
        .await;
    assert_eq!(desk.statuses(1).await, [429]);
    desk.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_up_that_fails_leaves_no_key_to_change() {
    let desk = Desk::start().await;
    desk.log_in(&desk.token).await;
    desk.look().await;
    let browser = &desk.browser;
    browser.put("#value", "127.0.0").await;
    browser.click("#look button").await;
    browser
        .until("#status", |text| {
            text == "IP address is not valid: enter one like 192.0.2.1 or 2001:db8::1"
        })
        .await;
    assert!(!desk.is_shown("#key-status").await);

    // Nor does an earlier look-up show its key when it is answered after the failed one.
    browser.put("#value", "127.0.0.1").await;
    browser
        .run(&HOLD.replace("arguments[0]", "\"/site/peek\""))
        .await;
    browser.click("#look button").await;
    while browser.run("return window.arrived === true").await != true {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    browser.run("window.fetch = window.fetched").await;
    browser.put("#value", "127.0.0").await;
    browser.click("#look button").await;
    browser
        .until("#status", |text| text.starts_with("IP address is not"))
        .await;
    // All that waits for the answer runs before the next command.
    browser.run("window.release()").await;
    browser
        .run("return new Promise((done) => setTimeout(done, 50))")
        .await;
    assert!(!desk.is_shown("#key-status").await);
    desk.assert_console_tells_only("400").await;
    desk.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_is_too_long_is_said_in_words_of_the_page() {
    let desk = Desk::start().await;
    desk.log_in(&desk.token).await;
    let browser = &desk.browser;
    browser.until("#quotas", |text| !text.is_empty()).await;
    let limiter = browser.find("#limiter").await;
    limiter.select_by_value("search").await.expect("an option");
    browser
        .until("#values", |text| text == "Value of the header x-api-key")
        .await;
    for length in [5_000, 1_000_000] {
        browser
            .run(&format!(
                "document.getElementById('value').value = 'k'.repeat({length});
                document.getElementById('status').textContent = ''"
            ))
            .await;
        browser.click("#look button").await;
        let status = browser.until("#status", |text| !text.is_empty()).await;
        assert_eq!(
            status,
            "the value is too long: a request may have 4096 bytes; enter the stored key, as a log shows it",
            "{length}"
        );
    }
    desk.assert_console_tells_only("413").await;
    desk.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limiter_asks_for_what_it_counts_and_says_what_is_wrong() {
    let desk = Desk::start().await;
    desk.log_in(&desk.token).await;
    let browser = &desk.browser;
    let choose = async |name: &str| {
        let limiter = browser.find("#limiter").await;
        limiter.select_by_value(name).await.expect("an option");
        browser
            .until("#values label", |text| !text.is_empty())
            .await
    };
    assert_eq!(choose("site").await, "IP address");
    assert_eq!(choose("reports").await, "Value of the header x-tenant-id");
    assert_eq!(browser.text("#values").await.lines().count(), 2);
    assert_eq!(choose("search").await, "Value of the header x-api-key");

    // The stored key of another limiter is no key here, and nothing can be done with it.
    let kind = browser.find("#kind").await;
    kind.select_by_value("stored").await.expect("an option");
    browser.put("#value", "ip=127.0.0.1").await;
    browser.click("#look button").await;
    browser
        .until("#status", |text| {
            text == "not a key of this limiter, which counts by value of the header x-api-key"
        })
        .await;
    assert!(!desk.is_shown("#key-status").await);
    desk.assert_console_tells_only("400").await;

    // Any text may be a value of a header, so the page says that no request has sent it.
    kind.select_by_value("0").await.expect("an option");
    browser.put("#value", "127.0.0.1").await;
    browser.click("#look button").await;
    browser
        .until("#key", |text| text.starts_with("header:x-api-key=~"))
        .await;
    assert!(desk.is_shown("#unused").await);
    browser.click("#block button").await;
    browser.click("#confirm-yes").await;
    browser
        .until("#status", |text| {
            text == "Blocked for 10 min. No request of this key counts now, so check the value."
        })
        .await;
    desk.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hostile_key_is_shown_as_text() {
    let values = [
        "<script>document.title='x'</script>",
        "<img src=x onerror=alert(1)>",
        "\"'`</td></tr>\r\n\0",
        "\u{202e}\u{200f}moc.elpmaxe",
        "%3Cscript%3E",
    ];
    let server = RedisServer::start();
    let tenant = key::header("x-tenant-id").plain();
    let user = key::header("x-user-id").plain();
    let keys: Vec<_> = values
        .iter()
        .map(|value| tenant.of("t").and(user.of(value)))
        .chain([tenant.of("t".repeat(1_000_000)).and(user.of("u"))])
        .collect();
    block_in_redis(&server, "reports", keys.clone().into_iter()).await;
    let desk = Desk::start_on(&server.url()).await;
    desk.log_in(&desk.token).await;
    let browser = &desk.browser;
    for width in [1_280, 390] {
        browser.resize(width, 800).await;
        let limiter = browser.find("#limiter").await;
        limiter.select_by_value("reports").await.expect("an option");
        browser
            .until("#blocked-count", |text| text == "1 to 6 of 6")
            .await;
        for key in &keys {
            let stored = key.as_str();
            assert!(
                stored.is_ascii() && !stored.contains(['<', '"', '\'']),
                "{stored}"
            );
            let button = format!("button[aria-label='Look up {stored}']");
            browser.click(&button).await;
            browser.until("#key", |text| text == stored).await;
        }
        // Typed by an operator, it is the same key.
        browser.put("#value", "t").await;
        browser.put("#value-1", values[1]).await;
        browser.click("#look button").await;
        browser.until("#key", |text| text == keys[1].as_str()).await;
        browser.put("#search", "<img src=x onerror=alert(1)>").await;
        browser
            .until("#blocked-count", |text| text == "0 found, of 6")
            .await;
        let wide = "return document.documentElement.scrollWidth - window.innerWidth";
        assert_eq!(browser.run(wide).await, 0, "{width}");
        browser.put("#search", "").await;
        browser
            .until("#blocked-count", |text| text == "1 to 6 of 6")
            .await;
    }
    let added = "return document.querySelectorAll('body script, img').length + document.title";
    assert_eq!(browser.run(added).await, "0tollgate admin");
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
    desk.browser.click("#confirm-yes").await;
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
