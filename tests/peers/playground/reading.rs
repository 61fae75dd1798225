//! Accessibility: keyboard, screen readers, contrast, narrow windows and reduced motion.

use fantoccini::key::Key;

use super::Playground;
use crate::npm_clients::packages;
use crate::support::redis_server::RedisServer;

#[tokio::test(flavor = "multi_thread")]
async fn all_of_it_can_be_done_by_keyboard() {
    let page = Playground::start("quotas=5/minute").await;
    let tab = String::from(char::from(Key::Tab));
    let mut order = Vec::new();
    page.browser.run("document.activeElement.blur()").await;
    for _ in 0..16 {
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
                .prop("id")
                .await
                .expect("an element")
                .filter(|id| !id.is_empty())
                .unwrap_or(focused.text().await.expect("text")),
        );
        let outline = page
            .browser
            .run("return getComputedStyle(document.activeElement).outlineStyle");
        assert_ne!(outline.await, "none", "{order:?}");
    }
    let expected = [
        "another",
        "edge",
        "Sliding log",
        "Fixed window",
        "reset",
        "algorithm",
        "shares",
        "quotas",
        "key",
        "cost",
        "send",
        "burst",
        "send-burst",
        "rate",
        "seconds",
        "stream",
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
        .until("#status", |text| text.ends_with(" admitted."))
        .await;
    let (asked, _) = page.counted().await;
    page.assert_counts(asked).await;
    let unnamed = page.browser.run(
        "return [...document.querySelectorAll('input, select')].filter((field) => !field.labels.length).length",
    );
    assert_eq!(unnamed.await, 0);
    page.end().await;
}

/// The first rule of axe that the page violates, and the elements that do.
async fn violations(page: &Playground) -> serde_json::Value {
    let axe = packages().join("node_modules/axe-core/axe.min.js");
    let axe = std::fs::read_to_string(axe).expect("the package is installed");
    page.browser.run(&format!("{axe}; window.axe_ = axe")).await;
    let found = page
        .browser
        .client
        .execute_async(include_str!("axe.js"), Vec::new());
    found.await.expect("a list")
}

#[tokio::test(flavor = "multi_thread")]
async fn axe_finds_nothing_in_any_colors_and_at_any_width() {
    let redis = RedisServer::start();
    let page = Playground::start_on(&redis.url(), "quotas=5/minute&shares=on").await;
    page.browser.click("#send-burst").await;
    page.browser
        .until("#status", |text| text.contains("30 requests"))
        .await;
    for (feature, value) in [
        ("prefers-color-scheme", "light"),
        ("prefers-color-scheme", "dark"),
        ("forced-colors", "active"),
    ] {
        page.browser.prefer(feature, value).await;
        for width in [1_280, 390] {
            page.browser.resize(width, 800).await;
            let found = violations(&page).await;
            assert_eq!(found, serde_json::json!([]), "{value} {width}");
        }
    }
    // During an outage too.
    drop(redis);
    page.browser
        .until("#outage", |text| text.contains("counts alone"))
        .await;
    assert_eq!(violations(&page).await, serde_json::json!([]));
    // And it would find something.
    page.browser
        .run("document.getElementById('key').removeAttribute('id')")
        .await;
    assert_ne!(violations(&page).await, serde_json::json!([]));
    page.browser.end().await;
}

/// 640 pixels are a window of 1 280 at 200 %.
#[tokio::test(flavor = "multi_thread")]
async fn the_chart_comes_before_the_settings_in_a_narrow_window_and_at_200_percent() {
    let page = Playground::start("quotas=5/minute").await;
    for (width, height) in [(390, 844), (640, 400)] {
        page.browser.resize(width, height).await;
        let top = async |css: &str| {
            let script =
                format!("return document.querySelector({css:?}).getBoundingClientRect().top");
            page.browser.run(&script).await.as_f64().expect("a place")
        };
        let chart = top("#lanes canvas").await;
        assert!(chart < f64::from(height), "{width}: {chart}");
        assert!(chart < top("#algorithm").await, "{width}");
        assert!(top("#edge").await < chart, "{width}");
        let needed = page
            .browser
            .run("return document.documentElement.scrollWidth")
            .await;
        assert_eq!(needed, width);
    }
    page.end().await;
}

/// A screen reader announces a field without the text around it.
#[tokio::test(flavor = "multi_thread")]
async fn each_control_has_a_name_that_tells_what_it_is_for() {
    let page = Playground::start("quotas=5/hour").await;
    let mut expected = [
        ("link", "Open another tab"),
        ("combobox", "Algorithm"),
        ("combobox", "Lease"),
        ("combobox", "Shares"),
        ("textbox", "Quotas"),
        ("textbox", "Key"),
        ("spinbutton", "Cost per request"),
        ("button", "Fire a burst across a window edge"),
        ("button", "Send one request"),
        ("spinbutton", "Requests at once"),
        ("button", "Send burst"),
        ("spinbutton", "Requests per second"),
        ("spinbutton", "Seconds"),
        ("button", "Start stream"),
        ("button", "Reset counts"),
        ("button", "Sliding log"),
        ("button", "Sorted set log"),
        ("button", "Sliding buckets"),
        ("button", "Sliding counter"),
        ("button", "GCRA"),
        ("button", "Fixed window"),
    ]
    .map(|(role, name)| (role.to_owned(), name.to_owned()));
    expected.sort_unstable();
    assert_eq!(page.browser.controls().await, expected);
    page.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_is_readable_in_light_and_dark_and_in_a_narrow_window() {
    let page = Playground::start("quotas=5/minute").await;
    page.browser.click("#send").await;
    let mut grounds = Vec::new();
    for scheme in ["light", "dark"] {
        page.browser.prefer("prefers-color-scheme", scheme).await;
        let contrasts = page
            .browser
            .client
            .execute_async(include_str!("contrast.js"), Vec::new());
        let contrasts = contrasts.await.expect("a map");
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
    page.browser
        .click("[data-algorithm='sliding-buckets:10'] h3 button")
        .await;
    page.browser.click("#send-burst").await;
    page.browser
        .until("#status", |text| text.contains("30 requests"))
        .await;
    for (scheme, width) in [
        ("dark", 320),
        ("light", 700),
        ("dark", 1_000),
        ("light", 1_280),
    ] {
        page.browser.prefer("prefers-color-scheme", scheme).await;
        page.browser.resize(width, 700).await;
        let needed = page
            .browser
            .run("return document.documentElement.scrollWidth")
            .await;
        assert_eq!(needed, width);
        // For a person to look at.
        if let Ok(directory) = std::env::var("TOLLGATE_SCREENSHOTS") {
            let picture = page.browser.client.screenshot().await.expect("a picture");
            let path = format!("{directory}/playground-{scheme}-{width}.png");
            std::fs::write(path, picture).expect("a directory");
        }
    }
    page.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_prefers_no_motion_sees_steps() {
    let page = Playground::start("quotas=50/minute").await;
    let drawn = || async {
        let drawn = page
            .browser
            .client
            .execute_async(include_str!("drawn.js"), Vec::new());
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
    // Two a second for three seconds, and one more at an edge.
    assert!(still <= 7 && moving > 7, "{still} of {moving}");
    page.end().await;
}
