//! A limit with shares: what each share uses is drawn, and critical requests pass while batch is refused.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::Playground;

const SHARES: [&str; 3] = ["critical", "batch", "other"];

impl Playground {
    /// How many requests of each share a lane shows as admitted and as refused.
    async fn shown_by_share(&self, algorithm: &str) -> [[u64; 2]; 3] {
        let mut shown = [[0; 2]; 3];
        for (share, (shown, name)) in shown.iter_mut().zip(SHARES).enumerate() {
            let css = format!(
                "[data-algorithm='{algorithm}'] .share:nth-child({})",
                share + 1
            );
            assert!(self.browser.text(&css).await.starts_with(name));
            for (shown, outcome) in shown.iter_mut().zip(["admitted", "refused"]) {
                *shown = self.browser.number(&format!("{css} b.{outcome}")).await;
            }
        }
        shown
    }
}

/// The units that were admitted, at a cost of 1.
fn units([admitted, _]: [u64; 2]) -> f64 {
    f64::from(u32::try_from(admitted).expect("a small count"))
}

#[tokio::test(flavor = "multi_thread")]
async fn shares_are_drawn_and_critical_requests_pass_while_batch_is_refused() {
    let page = Playground::start("quotas=20/hour").await;
    let shares = page.browser.find("#shares").await;
    shares.select_by_label("on").await.expect("an option");
    page.browser
        .until(".gauge-label b", |text| text == "0 of 20 used, 4 kept")
        .await;
    page.browser.click("#send-burst").await;
    page.browser
        .until(".gauge-label b", |text| text == "19 of 20 used, 1 kept")
        .await;
    page.assert_counts(30).await;

    let log = page.shown_by_share("sliding-log").await;
    let [critical, batch, other] = log;
    assert_eq!(critical, [3, 0]);
    // All that is not kept is used, and half of the limit is the most for batch.
    assert_eq!(batch[0] + other[0], 16);
    assert!(batch[0] <= 10 && batch[0] + batch[1] == 18, "{batch:?}");
    for (algorithm, admitted) in [("sliding-buckets:10", 19), ("fixed-window", 20)] {
        let shown = page.shown_by_share(algorithm).await;
        let sum = shown.iter().map(|[admitted, _]| admitted).sum::<u64>();
        assert_eq!(sum, admitted, "{algorithm}: {shown:?}");
    }

    // The heights in the chart are as the counts are.
    let patience = Instant::now() + Duration::from_secs(20);
    loop {
        let drawn = page.browser.run(include_str!("shares.js")).await;
        let height = |lane: &str, share: &str| drawn[lane][share].as_f64().expect("a height");
        let unit = height("sliding-log", "other") / units(other);
        let is_drawn = |(share, shown)| {
            let height = height("sliding-log", share);
            // The outline and the dashes of what is used cover a part of it.
            height > 0.0 && (height - units(shown) * unit).abs() < 5.0
        };
        let is_all_drawn = [("critical", critical), ("batch", batch)]
            .into_iter()
            .all(is_drawn)
            && height("sliding-buckets:10", "batch") > 0.0;
        let elsewhere = ["fixed-window", "gcra"].map(|lane| height(lane, "batch"));
        if is_all_drawn && unit > 4.0 && elsewhere == [0.0, 0.0] {
            break;
        }
        assert!(Instant::now() < patience, "{drawn}");
        sleep(Duration::from_millis(100)).await;
    }
    page.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_share_at_its_bound_waits_although_others_have_room() {
    let page = Playground::start("quotas=40/hour&shares=on").await;
    page.browser.click("#send-burst").await;
    page.assert_counts(30).await;
    // Batch has sent 18, and may use 20. It sends three of the next four.
    for asked in 31..=34 {
        page.browser.click("#send").await;
        page.assert_counts(asked).await;
    }
    page.browser
        .until("#status", |text| text == "Refused.")
        .await;
    page.browser.until("#remaining", |text| text == "2").await;
    // The wait is that of batch, whatever the page reads for others.
    let looks = "return performance.getEntriesByType('resource').filter(({ name }) => name.includes('/peek')).length";
    let before = page.browser.run(looks).await.as_u64();
    let patience = Instant::now() + Duration::from_secs(20);
    while page.browser.run(looks).await.as_u64() < before.map(|looks| looks + 3) {
        assert!(Instant::now() < patience);
        sleep(Duration::from_millis(50)).await;
    }
    let wait = page.browser.text("#retry").await;
    assert!(wait.ends_with(" h") || wait.ends_with(" s"), "{wait}");
    page.end().await;
}
