//! Accessibility: keyboard, screen readers, contrast, narrow windows and reduced motion.

use fantoccini::key::Key;

use super::Playground;

#[tokio::test(flavor = "multi_thread")]
async fn all_of_it_can_be_done_by_keyboard() {
    let page = Playground::start("quotas=5/hour").await;
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

/// A screen reader announces a field without the text around it.
#[tokio::test(flavor = "multi_thread")]
async fn each_control_has_a_name_that_tells_what_it_is_for() {
    let page = Playground::start("quotas=5/hour").await;
    let mut expected = [
        ("link", "Open another tab"),
        ("combobox", "Algorithm"),
        ("combobox", "Lease"),
        ("textbox", "Quotas"),
        ("textbox", "Key"),
        ("spinbutton", "Cost per request"),
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
